// Failed runs by their reason, with the newest of each.

import { html } from "../vendor/preact.js";
import { moment, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";
import { Conversation, personOf } from "./run.js";
import { Bar } from "./table.js";

export function Failures() {
  const answer = useLive("operations/failures", 15_000);
  const groups = answer.value?.groups ?? [];
  const most = Math.max(1, ...groups.map((/** @type {any} */ group) => group.runs));
  return html`<p>${t("operate.failures.text")}</p>
    <${Shown} of=${answer}>
      ${!groups.length && html`<p class="quiet">${t("operate.failures.none")}</p>`}
      <ol class="groups">${groups.map(
        (/** @type {any} */ group) => html`<li key=${group.reason}>
          <p class="reason" dir="auto">${group.reason || t("operate.failures.silent")}</p>
          <${Bar} parts=${[group.runs]} most=${most} />
          <p class="quiet">${t("operate.failures.count", { n: group.runs })} · ${t("operate.failures.users", { n: group.users })} · ${group.models.join(", ")} · ${t("operate.failures.last", { time: moment(group.last_at) })}</p>
          <ul class="examples">${group.examples.map((/** @type {any} */ run) => html`<li key=${run.run_id}><${Conversation} run=${run} /> <small>${personOf(run)} · ${moment(run.created_at)}</small></li>`)}</ul>
        </li>`,
      )}</ol>
    <//>`;
}
