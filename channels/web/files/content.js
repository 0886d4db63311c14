// A file as what it is: Markdown drawn, code coloured, tables as tables, documents by their text, pictures, sound, pages.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { send } from "../api/client.js";
import { artifactOf, fileUrl } from "../api/files.js";
import { highlight } from "../markdown/highlight.js";
import { Markdown } from "../markdown/text.js";
import { t } from "../words/words.js";
import { tableOf } from "./csv.js";
import { Pdf } from "./pdf.js";

/** Rows of a table that are drawn at once, and that are read at all. */
const ROWS = 200;
const MOST_ROWS = 5000;
const MOST_COLUMNS = 100;
/** Lines of a text that are drawn at once. */
const LINES = 5000;
const LANGUAGE = /** @type {Record<string, string>} */ ({ htm: "html", mjs: "js", cjs: "js", yml: "yaml", bash: "sh", h: "c", hpp: "cpp", cc: "cpp", ipynb: "json", jsonl: "json", svg: "xml", cfg: "ini", conf: "ini", env: "ini", dockerfile: "docker", makefile: "make" });

/** @typedef {{thread: string, path: string, name: string, media: string, kind: import("./look.js").Kind, size: number, text: string, cut: boolean}} Shown */

/** @param {{file: Shown, source: boolean}} props `source`: the text itself, not what it makes */
export function Content({ file, source }) {
  const { thread, path, name, kind, text } = file;
  const url = fileUrl(thread, path);
  if (kind === "frame") return html`<${Frame} file=${file} />`;
  if (kind === "pdf") return html`<${Pdf} place=${path} size=${file.size} load=${(/** @type {AbortSignal} */ signal) => send("GET", artifactOf(thread, path), { signal })} />`;
  if (kind === "image") return html`<div class="file-picture"><img src=${url} alt=${name} /></div>`;
  if (kind === "audio") return html`<audio controls src=${url} aria-label=${name}></audio>`;
  if (kind === "video") return html`<video controls src=${url} aria-label=${name}></video>`;
  if (kind === "none") return html`<p class="quiet file-note">${t("files.unshown")}</p>`;
  if (kind === "markdown" && !source) return html`<div class="file-page"><${Markdown} text=${text} thread=${thread} /></div>`;
  if (kind === "document") return html`<div class="file-page document"><${Markdown} text=${text} thread=${thread} /></div>`;
  if (kind === "table" && !source) return html`<${Table} text=${text} name=${name} />`;
  return html`<${Code} text=${text} name=${name} />`;
}

/** Pages and drawings, in a frame without rights. @param {{file: Shown}} props */
function Frame({ file: { thread, path, name } }) {
  return html`<iframe src=${fileUrl(thread, path, { view: "sandbox" })} sandbox="allow-scripts" title=${name} referrerpolicy="no-referrer"></iframe>`;
}

/** @param {{text: string, name: string}} props */
function Table({ text, name }) {
  const [shown, setShown] = useState(ROWS);
  const { rows, more } = tableOf(text, MOST_ROWS);
  const [head = [], ...body] = rows;
  const columns = Math.min(MOST_COLUMNS, Math.max(0, ...rows.map((row) => row.length)));
  const places = Array.from({ length: columns }, (_, index) => index);
  const counted = more ? t("files.rows.more", { n: body.length }) : t("files.rows", { n: body.length });
  return html`<div class="file-table" tabindex="0" role="group" aria-label=${t("files.table", { name })}>
      <table><thead><tr><th class="row-number"><span class="visually-hidden">${t("files.row")}</span></th>${places.map((at) => html`<th scope="col" dir="auto">${head[at] ?? ""}</th>`)}</tr></thead>
      <tbody>${body.slice(0, shown).map((row, index) => html`<tr key=${index}><th scope="row" class="row-number">${index + 1}</th>${places.map((at) => html`<td dir="auto" class=${isNumber(row[at]) ? "number" : ""}>${row[at] ?? ""}</td>`)}</tr>`)}</tbody></table>
    </div>
    <p class="quiet file-note">${counted}${columns === MOST_COLUMNS && ` · ${t("files.columns", { n: columns })}`}
      ${shown < body.length && html` <button type="button" class="button" onClick=${() => setShown(shown + 4 * ROWS)}>${t("files.rows.show", { n: Math.min(4 * ROWS, body.length - shown) })}</button>`}</p>`;
}

/** True for what is set to the right: a number, not an id that begins with a zero. @param {string | undefined} value */
const isNumber = (value) => /^[-+−]?(?:0|[1-9][\d,' ]*)?(?:\.\d+)?(?:e[-+]?\d+)?\s?%?$/i.test(value ?? "") && /\d/.test(value ?? "");

/** @param {{text: string, name: string}} props */
function Code({ text, name }) {
  const code = useRef(/** @type {HTMLElement | null} */ (null));
  const [whole, setWhole] = useState(false);
  const lines = text.split("\n");
  const cut = !whole && lines.length > LINES;
  const shown = cut ? lines.slice(0, LINES).join("\n") : text;
  const count = cut ? LINES : lines.length - Number(text.endsWith("\n"));
  useLayoutEffect(() => void (code.current && (code.current.textContent = "")), [shown]);
  useEffect(() => {
    if (!code.current) return;
    code.current.textContent = shown;
    const language = languageOf(name);
    if (language) void highlight(code.current, language);
  }, [shown, name]);
  return html`<div class="file-code" tabindex="0" role="group" aria-label=${t("files.text", { name })}>
      <pre class="line-numbers" aria-hidden="true">${Array.from({ length: count }, (_, index) => index + 1).join("\n")}</pre>
      <pre dir=${languageOf(name) ? "ltr" : "auto"}><code ref=${code}></code></pre>
    </div>
    ${cut && html`<p class="quiet file-note">${t("files.lines", { n: LINES })} <button type="button" class="button" onClick=${() => setWhole(true)}>${t("files.lines.all", { n: lines.length })}</button></p>`}`;
}

/** @param {string} name */
function languageOf(name) {
  const end = name.slice(name.lastIndexOf(".") + 1).toLowerCase();
  return end === name.toLowerCase() && !LANGUAGE[end] ? "" : end === "txt" || end === "log" ? "" : (LANGUAGE[end] ?? end);
}
