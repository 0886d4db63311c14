// What an edit changed in a file, line by line. The library comes when the first one is opened.

import { html, useEffect, useState } from "../vendor/preact.js";
import { t } from "../words/words.js";

const CONTEXT = 3;
const MOST_LINES = 2000;

/** @param {{path: string, before: string, after: string}} props */
export function Diff({ path, before, after }) {
  const [lines, setLines] = useState(/** @type {string[] | null} */ (null));
  useEffect(() => {
    let current = true;
    void linesOf(before, after).then((found) => current && setLines(found));
    return () => {
      current = false;
    };
  }, [before, after]);
  return html`<figure class="output diff">
    <figcaption><bdi>${path}</bdi></figcaption>
    <pre tabindex="0" role="group" aria-label=${t("diff.of", { path })} dir="ltr">
${(lines ?? []).slice(0, MOST_LINES).map((line) => html`<span class=${kindOf(line)}>${line}${"\n"}</span>`)}</pre>
    ${lines && lines.length > MOST_LINES && html`<p>${t("diff.more", { n: lines.length - MOST_LINES })}</p>`}
  </figure>`;
}

/** @param {string} before @param {string} after @returns {Promise<string[]>} lines with their sign */
export async function linesOf(before, after) {
  const { structuredPatch } = await import("../vendor/diff.js");
  const { hunks } = structuredPatch("", "", before, after, "", "", { context: CONTEXT });
  return hunks.flatMap((/** @type {any} */ hunk, /** @type {number} */ index) => [...(index ? ["⋯"] : []), ...hunk.lines]).filter((/** @type {string} */ line) => !line.startsWith("\\"));
}

/** @param {string} line */
const kindOf = (line) => ({ "+": "added", "-": "removed", "⋯": "gap" })[line[0]] ?? "same";
