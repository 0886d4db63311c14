// What runs now: the numbers, by user, and each run with its age.

import { html } from "../vendor/preact.js";
import { duration, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";
import { Conversation, personOf } from "./run.js";
import { Table } from "./table.js";

export function Now() {
  const now = useLive("operations/now", 5000);
  const letters = useLive("dlq?limit=1", 15_000);
  const failures = useLive("operations/failures", 30_000);
  const { value } = now;
  return html`<${Shown} of=${now}>
    <ul class="tiles">
      <${Tile} number=${value?.running} name=${t("operate.running")} />
      <${Tile} number=${value?.pending} name=${t("operate.pending")} />
      <${Tile} number=${value?.waiting} name=${t("operate.waiting")} />
      <${Tile} number=${failures.value?.runs} name=${t("operate.failed.week")} to="failures" bad=${true} />
      <${Tile} number=${letters.value?.total} name=${t("operate.letters")} to="letters" bad=${true} />
    </ul>
    <h3>${t("operate.byUser")}</h3>
    <${Table} name=${t("operate.byUser")} none=${t("operate.nothingRuns")} columns=${[{ name: t("operate.user") }, { name: t("operate.state") }, { name: t("operate.runs"), number: true }, { name: t("operate.oldest"), number: true }]}
      rows=${value?.by_user.map((/** @type {any} */ one) => ({ key: `${one.user_id} ${one.status}`, cells: [personOf(one), t(`operate.${one.status}`), one.runs, age(one.oldest_at)] })) ?? []} />
    <h3>${t("operate.oldestRuns")}</h3>
    <${Table} name=${t("operate.oldestRuns")} none=${t("operate.nothingRuns")} columns=${[{ name: t("operate.conversation") }, { name: t("operate.user") }, { name: t("operate.model") }, { name: t("operate.state") }, { name: t("operate.age"), number: true }]}
      rows=${value?.runs.map((/** @type {any} */ run) => ({ key: run.run_id, cells: [html`<${Conversation} run=${run} />`, personOf(run), run.model_name ?? "", t(`operate.${run.status}`), age(run.created_at)] })) ?? []} />
  <//>`;
}

/** How long ago something was. @param {string} at */
const age = (at) => duration(Math.max(0, Date.now() - new Date(at).getTime()));

/** @param {{number: number | undefined, name: string, to?: string, bad?: boolean}} props `bad`: any is too many */
function Tile({ number, name, to, bad }) {
  const inner = html`<strong class=${bad && number ? "bad" : ""}>${number ?? "…"}</strong><span>${name}</span>`;
  return html`<li>${to ? html`<a href="#/operate/${to}">${inner}</a>` : inner}</li>`;
}
