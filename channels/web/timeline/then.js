// What else was there at a moment, read when somebody opens it: the files, and what had been used. And what a file lacks
// of it.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { money, short, t } from "../words/words.js";
import { Wait, useLoaded } from "./loaded.js";
import { phraseOf } from "./phrases.js";

/** Events that are named. */
const NAMED = 20;

/** A part that is read once it is opened. @param {{title: string, children: any}} props */
export function Opened({ title, children }) {
  const [open, setOpen] = useState(false);
  return html`<details open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}><summary>${title}</summary>${open && children}</details>`;
}

/** The events whose changes a file does not tell. @param {{of: {seq: number, type: string}[], onChoose: (seq: number) => void}} props */
export function Lacks({ of = [], onChoose }) {
  if (of.length === 0) return null;
  return html`<details><summary>${t("timeline.lacks", { n: of.length })}</summary><p>${t("timeline.lacks.text")}</p>
    <ul>${of.slice(0, NAMED).map(({ seq, type }) => html`<li key=${seq}><button type="button" class="button quiet" onClick=${() => onChoose(seq)}>${phraseOf(type)}</button></li>`)}</ul></details>`;
}

/** @param {{log: import("./moment.js").AnyLog, seq: number}} props */
export function Files({ log, seq }) {
  const listed = useLoaded(() => log.files(seq), [seq]);
  const files = listed.value?.files ?? [];
  return html`<${Wait} of=${listed}>
    ${files.length === 0 ? html`<p>${t("timeline.files.none")}</p>` : html`<ul>${files.map((/** @type {any} */ { path, size }) => html`<li key=${path}><bdi>${path}</bdi>${size != null && html` <small>${t("timeline.bytes", { n: size })}</small>`}</li>`)}</ul>`}
    ${listed.value?.truncated && html`<p class="quiet">${t("timeline.files.more")}</p>`}<//>`;
}

/** @param {{log: import("./log.js").Log, seq: number}} props */
export function Usage({ log, seq }) {
  const used = useLoaded(() => call("GET", `${log.path}/usage`, { query: { at: `seq:${seq}` } }), [seq]);
  const { tokens = {}, cost = null, currency = null } = used.value ?? {};
  return html`<${Wait} of=${used}><ul>${Object.entries(tokens).map(([model, each]) => html`<li key=${model}><bdi>${model}</bdi>: ${t("timeline.usage.of", { n: each.calls, input: short(each.input), output: short(each.output) })}</li>`)}</ul>
    ${cost !== null && currency && html`<p><b>${money(cost, currency)}</b></p>`}<//>`;
}
