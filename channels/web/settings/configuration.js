// The configuration as it is in force: each key with its value, where that comes from, what it says, and the lines that
// change it. Sections about one matter show the keys of theirs.

import { html, useState } from "../vendor/preact.js";
import { t } from "../words/words.js";
import { FileOnly, Loaded, linesOf, useAnswer } from "./parts.js";

/** @typedef {{path: string, value: string, source: "file"|"env"|"default"|"event", default: string, type: string, text: string, restart: boolean, line: number|null, variable: string}} Key */

const MOST = 60; // keys that are drawn before somebody searches

export function Configuration() {
  const [query, setQuery] = useState("");
  const [changed, setChanged] = useState(false);
  const answer = useAnswer("configuration");
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (/** @type {Key} */ key) => (!changed || key.source !== "default") && words.every((word) => `${key.path} ${key.text}`.toLowerCase().includes(word));
  return html`<p>${t("settings.configuration.text")}</p>
    <${Loaded} of=${answer}>
      ${answer.value?.problem && html`<p class="error" role="alert">${t("begin.problem")}: <bdi>${answer.value.problem}</bdi></p>`}
      ${answer.value?.warnings.map((/** @type {string} */ warning) => html`<p class="warning" key=${warning}><bdi>${warning}</bdi></p>`)}
      <div class="config-search"><input class="field" type="search" aria-label=${t("settings.configuration.search")} placeholder=${t("settings.configuration.search")} value=${query} onInput=${(/** @type {any} */ e) => setQuery(e.target.value)} />
        <label class="check"><input type="checkbox" checked=${changed} onChange=${(/** @type {any} */ e) => setChanged(e.target.checked)} /> ${t("settings.configuration.changed")}</label></div>
      <${KeyList} keys=${answer.value?.keys.filter(fits) ?? []} />
    <//>`;
}

/** The keys of one matter, which only the file decides. @param {{text: string, paths: string[]}} props `paths`: their beginnings */
export function KeysOf({ text, paths }) {
  const answer = useAnswer("configuration");
  const mine = (/** @type {Key} */ key) => paths.some((path) => key.path === path || key.path.startsWith(`${path}.`) || key.path.startsWith(`${path}[`));
  return html`<p>${text}</p><${Loaded} of=${answer}><${KeyList} keys=${answer.value?.keys.filter(mine) ?? []} /><//>`;
}

/** @param {{keys: Key[]}} props */
function KeyList({ keys }) {
  const [all, setAll] = useState(false);
  const drawn = all ? keys : keys.slice(0, MOST);
  return html`<p class="quiet" role="status">${t("settings.configuration.count", { n: keys.length })}</p>
    <ul class="config">${drawn.map((key) => html`<li key=${key.path}><details>
      <summary><code>${key.path}</code><span class="config-value"><code dir="auto">${key.value}</code><span class="source">${sourceOf(key)}</span></span></summary>
      ${key.text && html`<p dir="auto">${key.text}</p>`}
      <p class="quiet">${[key.type, key.default && t("settings.configuration.default", { value: key.default }), key.restart && t("settings.configuration.restart")].filter(Boolean).join(" · ")}</p>
      <${FileOnly} lines=${linesOf(key.path, key.value.includes("***") ? "…" : key.value)} />
    </details></li>`)}</ul>
    ${drawn.length < keys.length && html`<button type="button" class="button" onClick=${() => setAll(true)}>${t("files.more")}</button>`}`;
}

/** @param {Key} key */
function sourceOf({ source, line, variable }) {
  const of = variable ? t("settings.source.variable", { name: variable }) : t(`settings.source.${source}`);
  return line ? `${of}, ${t("settings.source.line", { line })}` : of;
}
