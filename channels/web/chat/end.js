// How a run ended: one line of numbers, or a card in words if it failed, with what can be done about it.

import { html } from "../vendor/preact.js";
import { Button, IconButton } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { still } from "../kit/view.js";
import { duration, money, short, t } from "../words/words.js";
import { timelineOf } from "../timeline/place.js";
import { regenerate } from "./actions.js";

/** @param {{item: import("../state/items.js").EndItem, thread: import("../state/thread.js").Thread}} props */
export const RunEnd = still(function RunEnd({ item: { run, tokens, answer, problem }, thread }) {
  const error = problem || run.summary?.error || run.error;
  if (run.status === "error") return html`<${Failed} text=${error} kind=${run.errorKind} thread=${thread} run=${run} answer=${answer} />`;
  return html`<footer class="run-end">
    ${run.status === "interrupted" && html`<span class="stopped">${t("run.stopped")}</span>`}
    <span>${numbersOf(run, tokens).join(" · ")}</span>
    ${answer && run.status !== "paused" && html`<${IconButton} icon="retry" size=${16} name=${t("retry")} onClick=${() => regenerate(thread, answer)} />`}
  </footer>`;
});

/** @param {import("../state/conversation.js").Run} run @param {number} tokens */
function numbersOf(run, tokens) {
  const summary = run.summary;
  const ms = run.endedAt && run.startedAt ? new Date(run.endedAt).getTime() - new Date(run.startedAt).getTime() : (summary?.duration_ms ?? 0);
  const { cost, currency } = summary?.usage ?? {};
  const changes = summary?.changes;
  return [
    run.model || summary?.model || "",
    ms > 0 ? duration(ms) : "",
    tokens > 0 ? t("tokens", { tokens: short(tokens) }) : "",
    cost ? money(cost, currency ?? "USD") : "",
    changes?.files ? `${t("changes.files", { n: changes.files })} +${changes.additions} −${changes.deletions}` : "",
  ].filter(Boolean);
}

/** @param {{text: string, kind: string, run: import("../state/conversation.js").Run, answer: string, thread: import("../state/thread.js").Thread}} props */
function Failed({ text, kind, run, answer, thread }) {
  const details = JSON.stringify({ thread: thread.id, run: run.id, error: kind, text, at: run.endedAt }, null, 2);
  return html`<section class="card error-card" role="group" aria-label=${t("run.failed")}>
    <h2>${t("run.failed")}</h2>
    <p dir="auto">${text || t("run.failed.unknown")}</p>
    <div class="card-actions">
      ${answer && html`<${Button} kind="first" onClick=${() => regenerate(thread, answer)}>${t("retry")}<//>`}
      <${Button} onClick=${() => copyText(details)}>${t("copy.details")}<//>
      <a class="button" href=${timelineOf(thread.id)}>${t("timeline")}</a>
    </div>
  </section>`;
}
