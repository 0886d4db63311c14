// An approval or a question, in place in the conversation and in the room of all that waits.

import { html, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { send } from "../chat/actions.js";
import { moment, t, wordsOf } from "../words/words.js";
import { Call, textOf } from "./call.js";
import { contentOf, fieldsOfSchema } from "./fields.js";
import { Form } from "./form.js";
import { Question } from "./question.js";

/** @typedef {{id: string, tool: string, args: any, text: string, allowed: string[], deadline: string|null, form: any}} Asked */

/** @param {{step: import("../state/items.js").Step, thread: import("../state/thread.js").Thread}} props */
export function ApprovalCard({ step, thread }) {
  const { approval } = step;
  if (approval) return html`<${Approval} approval=${approval} thread=${thread.id} />`;
  const card = step.result?.artifact?.human_input ?? {};
  const answered = thread.state.value.messages.some((message) => message.type === "human" && message.seq > (step.result?.seq ?? 0));
  const options = card.options ?? (Array.isArray(step.args.options) ? step.args.options : []).map((/** @type {any} */ label) => ({ label: String(label), value: String(label) }));
  const question = { text: String(card.question ?? step.args.question ?? ""), context: String(card.context ?? ""), options, fields: card.fields ?? [], request: card.request_id ?? "", source: card.source ?? "" };
  return html`<${Question} question=${question} answered=${answered} onAnswer=${(/** @type {string} */ text, /** @type {any} */ response) => send(thread, text, { response })} />`;
}

/** @param {{approval: Asked, thread: string}} props */
export function Approval({ approval, thread }) {
  const { id, allowed, form, deadline } = approval;
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState(false);
  const [message, setMessage] = useState("");
  const name = textOf(approval);
  const original = name ? String(approval.args[name]) : "";
  const [text, setText] = useState(original);
  const decide = async (/** @type {any} */ decision) => {
    setSent(true);
    setProblem("");
    try {
      await call("POST", `threads/${thread}/approvals/${id}`, { body: { ...decision, ...(message.trim() ? { message: message.trim() } : {}) } });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
      setSent(false);
    }
  };
  const edited = text !== original;
  const approve = () => decide(edited ? { decision: "edit", args: { ...approval.args, [name]: text } } : { decision: "approve" });
  const fields = form ? fieldsOfSchema(form) : [];
  const reject = allowed.includes("reject") && html`<${Button} disabled=${sent} onClick=${() => decide({ decision: "reject" })}>${form ? t("approval.decline") : t("reject")}<//>`;
  return html`<section class="card waiting" role="group" aria-label=${t("approval")}>
    <p class="card-title" dir="auto">${titleOf(approval)}</p>
    ${deadline && html`<p class="quiet">${t("approval.until", { time: moment(deadline) })}</p>`}
    ${!form && html`<${Call} call=${approval} thread=${thread} text=${text} edits=${Boolean(name) && allowed.includes("edit")} sent=${sent} onInput=${setText} />`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${fields.length > 0
      ? html`<${Form} fields=${fields} name=${t("send")} sent=${sent} onSend=${(/** @type {any} */ values) => decide({ decision: "edit", args: contentOf(fields, values) })}>${reject}<//>`
      : html`<input class="field" dir="auto" maxlength="2000" disabled=${sent} aria-label=${t("approval.message")} placeholder=${t("approval.message")} value=${message} onInput=${(/** @type {any} */ e) => setMessage(e.target.value)} />
          <div class="card-actions">
            ${allowed.includes("approve") && html`<${Button} kind="first" disabled=${sent} onClick=${approve}>${edited ? t("approve.edited") : t("approve")}<//>`}
            ${reject}
            ${edited && html`<${Button} kind="quiet" disabled=${sent} onClick=${() => setText(original)}>${t("approval.edit.undo")}<//>`}
          </div>`}
    ${sent && html`<p class="quiet" role="status">${t("approval.sent")}</p>`}
  </section>`;
}

/** @param {Asked} approval */
function titleOf({ tool, text, args }) {
  if (text) return text;
  if (tool === "bash") return t("approval.asks.bash");
  if (args?.path) return t("approval.asks.file", { path: String(args.path) });
  return t("approval.asks", { tool });
}
