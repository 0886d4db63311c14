// The file that is chosen: what it is called, what can be done with it, and what is in it. It is read again when it changes.

import { html, useEffect, useState } from "../vendor/preact.js";
import { fileUrl } from "../api/files.js";
import { IconButton } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { Icon } from "../kit/icon.js";
import { size, t } from "../words/words.js";
import { Content } from "./content.js";
import { look, problemOf } from "./look.js";
import { nameOf, placeOf, shortOf } from "./place.js";

/** @param {{thread: string, path: string, tick: number}} props */
export function Shown({ thread, path, tick }) {
  const [found, setFound] = useState(/** @type {import("./look.js").Look | null} */ (null));
  const [problem, setProblem] = useState("");
  const [source, setSource] = useState(false);
  const name = nameOf(path);
  useEffect(() => {
    const leaving = new AbortController();
    look(thread, path, leaving.signal).then(
      (next) => (setProblem(""), setFound((before) => (before && before.tag === next.tag ? before : next))),
      (error) => error.name === "AbortError" || setProblem(problemOf(error)),
    );
    return () => leaving.abort();
  }, [thread, path, tick]);
  const both = found?.kind === "markdown" || found?.kind === "table";
  return html`<article class="file-shown" aria-label=${name}>
    <header class="file-head">
      <a class="icon-button" href=${placeOf(thread)} aria-label=${t("files.all")} title=${t("files.all")}><${Icon} name="left" /></a>
      <span class="file-title"><strong><bdi>${name}</bdi></strong><small><bdi>${shortOf(path)}</bdi>${found && ` · ${size(found.size)}`}</small></span>
      ${both && html`<button type="button" class="button quiet" aria-pressed=${String(source)} onClick=${() => setSource(!source)}>${t("files.source")}</button>`}
      ${found?.text && html`<${IconButton} icon="copy" name=${t("files.copy")} onClick=${() => copyText(found.text)} />`}
      <a class="icon-button" href=${fileUrl(thread, path, { download: true })} download=${name} aria-label=${t("files.save", { name })} title=${t("files.save", { name })}><${Icon} name="save" /></a>
      <a class="icon-button" href=${`#/t/${thread}`} aria-label=${t("files.close")} title=${t("files.close")}><${Icon} name="cross" /></a>
    </header>
    ${problem
      ? html`<p class="error file-note" role="alert">${problem}</p>`
      : found
        ? html`<div class="file-body" key=${found.tag}>
            ${found.kind === "document" && html`<p class="quiet file-note">${t("files.converted")}</p>`}
            <${Content} file=${{ ...found, thread, path, name }} source=${source} />
            ${found.size === 0 && html`<p class="quiet file-note">${t("files.empty")}</p>`}
            ${found.cut && html`<p class="quiet file-note">${t("files.cut")}</p>`}
          </div>`
        : html`<p class="quiet file-note">${t("loading")}</p>`}
  </article>`;
}
