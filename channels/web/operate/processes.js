// The processes with their load, and their actors with durations; and the queue, with the lag of each actor.

import { html } from "../vendor/preact.js";
import { duration, moment, size, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";
import { Bar, Table } from "./table.js";

export function Processes() {
  const answer = useLive("actors", 5000);
  const { processes = [], backlogs = [] } = answer.value ?? {};
  const queued = backlogs.filter((/** @type {any} */ one) => one.waiting || one.delivered);
  return html`<${Shown} of=${answer}>
    <h3>${t("operate.queue")}</h3>
    <${Table} name=${t("operate.queue")} none=${t("operate.queue.none")} columns=${[{ name: t("operate.actor") }, { name: t("operate.queue.waiting"), number: true }, { name: t("operate.queue.delivered"), number: true }, { name: t("operate.lag"), number: true }]}
      rows=${queued.map((/** @type {any} */ one) => ({ key: one.actor, cells: [one.actor, one.waiting, one.delivered, one.lag_seconds === null ? "" : duration(1000 * one.lag_seconds)] }))} />
    ${processes.map((/** @type {any} */ process) => html`<${Process} key=${process.process} process=${process} />`)}
  <//>`;
}

const COLUMNS = () => [
  { name: t("operate.actor") },
  { name: t("operate.inFlight"), number: true },
  { name: t("operate.load") },
  { name: t("operate.handled"), number: true },
  { name: t("operate.failedTries"), number: true },
  { name: "p50", number: true },
  { name: "p95", number: true },
  { name: t("operate.lastError") },
];

/** @param {{process: any}} props */
function Process({ process }) {
  const about = [process.host, `pid ${process.pid}`, t("operate.since", { time: moment(process.started_at) })];
  const load = process.memory_bytes === null ? "" : t("operate.process.load", { memory: size(process.memory_bytes), cpu: process.cpu_percent });
  const ms = (/** @type {number|null} */ value) => (value === null ? "" : duration(value));
  return html`<article class="process">
    <h3><bdi>${process.process}</bdi></h3>
    <p class="quiet">${about.join(" · ")}${load && html` · <strong class="process-load">${load}</strong>`}</p>
    <${Table} name=${process.process} columns=${COLUMNS()} rows=${process.actors.map((/** @type {any} */ actor) => ({
      key: actor.name,
      cells: [
        actor.name,
        `${actor.in_flight}/${actor.limit}`,
        html`<${Bar} parts=${[actor.in_flight]} most=${actor.limit} />`,
        actor.handled,
        actor.failed,
        ms(actor.p50_ms),
        ms(actor.p95_ms),
        actor.last_error ? html`<span class="bad" dir="auto">${actor.last_error.text}</span> <small>${moment(actor.last_error.at)}</small>` : "",
      ],
    }))} />
  </article>`;
}
