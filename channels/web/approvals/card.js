// An approval or a question, in place in the conversation.

import { html, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { send } from "../chat/actions.js";
import { Diff } from "../chat/diff.js";
import { t, wordsOf } from "../words/words.js";

/** @param {{step: import("../state/items.js").Step, thread: import("../state/thread.js").Thread}} props */
export function ApprovalCard({ step, thread }) {
  const { approval } = step;
  if (!approval) return html`<${Question} step=${step} thread=${thread} />`;
  return html`<${Approval} approval=${approval} thread=${thread} />`;
}

/** The argument of a call that a person may change before it is made: a command, or the text of a file. */
const TEXTS = /** @type {Record<string, string>} */ ({ bash: "command", write_file: "content" });

/**
 * A call that waits, as what it is: a command, a file with what changes in it, or its arguments.
 * @param {{approval: {id: string, tool: string, args: any, text: string, allowed: string[]}, thread: {id: string}}} props
 */
export function Approval({ approval, thread }) {
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState(false);
  const name = TEXTS[approval.tool];
  const original = String(approval.args?.[name] ?? "");
  const [text, setText] = useState(original);
  const edits = name && approval.allowed.includes("edit");
  const decide = async (/** @type {string} */ decision) => {
    setSent(true);
    const edited = decision === "approve" && text !== original;
    const body = edited ? { decision: "edit", args: { ...approval.args, [name]: text } } : { decision };
    try {
      await call("POST", `threads/${thread.id}/approvals/${approval.id}`, { body });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
      setSent(false);
    }
  };
  return html`<section class="card waiting" aria-label=${t("approval")}>
    <p>${approval.text || t("approval.asks", { tool: approval.tool })}</p>
    ${edits
      ? html`<textarea class="call-shown" dir="ltr" spellcheck=${false} aria-label=${t("approval.edit")} value=${text} disabled=${sent}
          onInput=${(/** @type {any} */ event) => setText(event.target.value)} />`
      : html`<${Call} approval=${approval} />`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="card-actions">
      ${approval.allowed.includes("approve") && html`<${Button} kind="first" disabled=${sent} onClick=${() => decide("approve")}>${t("approve")}<//>`}
      ${approval.allowed.includes("reject") && html`<${Button} disabled=${sent} onClick=${() => decide("reject")}>${t("reject")}<//>`}
    </div>
  </section>`;
}

/** @param {{approval: {tool: string, args: any}}} props */
function Call({ approval: { tool, args } }) {
  if (typeof args?.old_str === "string" && typeof args?.new_str === "string") {
    return html`<${Diff} path=${String(args.path ?? tool)} before=${args.old_str} after=${args.new_str} />`;
  }
  const text = typeof args?.[TEXTS[tool]] === "string" ? args[TEXTS[tool]] : JSON.stringify(args ?? {}, null, 2);
  return html`<pre class="call-shown" dir="ltr" tabindex="0" role="region" aria-label=${tool}>${text}</pre>`;
}

/** @param {{step: import("../state/items.js").Step, thread: import("../state/thread.js").Thread}} props */
function Question({ step, thread }) {
  const form = step.result?.artifact?.human_input ?? {};
  const c = thread.state.value;
  const answered = c.messages.some((message) => message.type === "human" && message.seq > (step.result?.seq ?? 0));
  const options = form.options ?? (step.args.options ?? []).map((/** @type {string} */ label) => ({ label, value: label }));
  return html`<section class="card waiting" aria-label=${t("question")}>
    <p>${form.question ?? step.args.question}</p>
    ${answered
      ? html`<p class="quiet">${t("question.answered")}</p>`
      : html`<div class="card-actions">${options.map((/** @type {any} */ option) => html`<${Button} key=${option.label} onClick=${() => send(thread, String(option.value ?? option.label))}>${option.label}<//>`)}</div>`}
  </section>`;
}
