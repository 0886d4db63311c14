// The prompt of a call: what the model got, and what of it is other than at the call before.

import { html } from "../vendor/preact.js";
import { Button } from "../kit/button.js";
import { t } from "../words/words.js";
import { Text, Wait, useLoaded } from "./loaded.js";
import { Messages } from "./messages.js";
import { written } from "./steps.js";
import { Lacks } from "./then.js";

/** @typedef {{part: "prompt"|"tool"|"model"|"message"|"note", name: string, change: "added"|"removed"|"changed", before?: any}} Change */
/** @typedef {{name: string, description?: string}} Tool */

/** @param {{log: import("./moment.js").AnyLog, seq: number, onChoose: (seq: number) => void}} props the end of a call */
export function Prompt({ log, seq, onChoose }) {
  const loaded = useLoaded(() => log.prompt(seq), [log, seq]);
  const { request = {}, before = null, changes = [], missing = [] } = loaded.value ?? {};
  const changed = new Map(changes.map((/** @type {Change} */ one) => [`${one.part} ${one.name}`, one.change]));
  const mark = (/** @type {string} */ part, /** @type {string} */ name) => (changed.has(`${part} ${name}`) ? `● ${t(`timeline.prompt.${changed.get(`${part} ${name}`)}`)}` : "");
  return html`<${Wait} of=${loaded}>
    <${Lacks} of=${missing} onChoose=${onChoose} />
    ${before !== null && html`<p><${Button} kind="quiet" onClick=${() => onChoose(before)}>${t("timeline.prompt.before")}<//></p>`}
    ${before !== null && html`<section aria-label=${t("timeline.prompt.changes")}><h3>${t("timeline.prompt.changes")}</h3>
      ${changes.length === 0 && html`<p>${t("timeline.same")}</p>`}
      <ul class="tl-compared">${changes.map((/** @type {Change} */ one, /** @type {number} */ index) => html`<${Changed} key=${index} change=${one} />`)}</ul></section>`}
    ${Object.entries(request.missing ?? {}).map(([part, why]) => html`<p class="quiet" key=${part}>${t(`timeline.prompt.${part}`)}: ${t(String(why))}</p>`)}
    ${request.prompt && html`<h3>${t("timeline.prompt.prompt")} <small>${mark("prompt", "")}</small></h3><${Text} text=${request.prompt} />`}
    <h3>${t("timeline.prompt.messages")}</h3><${Messages} messages=${request.messages ?? []} mark=${(/** @type {any} */ one) => mark("message", one.id)} />
    ${request.notes?.length > 0 && html`<h3>${t("timeline.prompt.notes")}</h3>${request.notes.map((/** @type {any} */ one, /** @type {number} */ index) => html`<${Text} key=${index} text=${written(one)} />`)}`}
    ${request.tools?.length > 0 && html`<details><summary>${t("timeline.prompt.tools")} (${request.tools.length})</summary>
      ${request.tools.map((/** @type {Tool} */ one) => html`<figure class="output" key=${one.name}><figcaption>${one.name} ${mark("tool", one.name)}</figcaption><${Text} text=${written(one)} /></figure>`)}</details>`}
    ${request.model && html`<details><summary>${t("timeline.prompt.model")} ${mark("model", "")}</summary><${Text} text=${written(request.model)} /></details>`}
  <//>`;
}

/** @param {{change: Change}} props */
function Changed({ change: { part, name, change, before } }) {
  return html`<li><b>${t(`timeline.prompt.${part}`)}</b> <bdi>${name}</bdi> ${t(`timeline.prompt.${change}`)}
    ${before !== undefined && html`<details><summary>${t("timeline.prompt.was")}</summary><del><${Text} text=${written(before)} /></del></details>`}</li>`;
}
