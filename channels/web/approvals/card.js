// An approval or a question, in place in the conversation.

import { html, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { send } from "../chat/actions.js";
import { t, wordsOf } from "../words/words.js";

/** @param {{step: import("../state/items.js").Step, thread: import("../state/thread.js").Thread}} props */
export function ApprovalCard({ step, thread }) {
  const { approval } = step;
  if (!approval) return html`<${Question} step=${step} thread=${thread} />`;
  return html`<${Approval} approval=${approval} thread=${thread} />`;
}

/** @param {{approval: import("../state/conversation.js").Approval, thread: import("../state/thread.js").Thread}} props */
function Approval({ approval, thread }) {
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState(false);
  const decide = async (/** @type {string} */ decision) => {
    setSent(true);
    try {
      await call("POST", `threads/${thread.id}/approvals/${approval.id}`, { body: { decision } });
    } catch (error) {
      setProblem(error instanceof Failure ? wordsOf(error) : String(error));
      setSent(false);
    }
  };
  return html`<section class="card waiting" aria-label=${t("approval")}>
    <p>${approval.text || t("approval.asks", { tool: approval.tool })}</p>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="card-actions">
      ${approval.allowed.includes("approve") && html`<${Button} kind="first" disabled=${sent} onClick=${() => decide("approve")}>${t("approve")}<//>`}
      ${approval.allowed.includes("reject") && html`<${Button} disabled=${sent} onClick=${() => decide("reject")}>${t("reject")}<//>`}
    </div>
  </section>`;
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
