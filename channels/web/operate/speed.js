// How long tools and models take: the median, the 95th percentile, the longest.

import { html, useState } from "../vendor/preact.js";
import { duration, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";
import { Choice } from "./choice.js";
import { Bar, Table } from "./table.js";

const HOURS = [1, 24, 168];

export function Speed() {
  const [hours, setHours] = useState(24);
  const answer = useLive(`operations/calls?hours=${hours}`, 15_000);
  return html`<p>${t("operate.speed.text")}</p>
    <${Choice} name=${t("operate.span")} values=${HOURS} value=${hours} onChange=${setHours} say=${(/** @type {number} */ n) => t("operate.hours", { n })} />
    <${Shown} of=${answer}>${["model", "tool"].map((kind) => html`<${Kind} key=${kind} kind=${kind} calls=${answer.value?.calls.filter((/** @type {any} */ one) => one.kind === kind) ?? []} />`)}<//>`;
}

/** @param {{kind: string, calls: any[]}} props */
function Kind({ kind, calls }) {
  const most = Math.max(1, ...calls.map((one) => one.p95_ms));
  const name = t(`operate.speed.${kind}`);
  const number = (/** @type {string} */ text) => ({ name: text, number: true });
  return html`<h3>${name}</h3>
    <${Table} name=${name} columns=${[{ name: t("operate.name") }, { name: t("operate.speed.bar") }, number("p50"), number("p95"), number(t("operate.speed.longest")), number(t("operate.calls")), number(t("operate.speed.failed"))]}
      rows=${calls.map((one) => ({ key: one.name, cells: [one.name, html`<${Bar} parts=${[one.p50_ms, one.p95_ms]} most=${most} />`, duration(one.p50_ms), duration(one.p95_ms), duration(one.longest_ms), one.calls, one.failed] }))} />`;
}
