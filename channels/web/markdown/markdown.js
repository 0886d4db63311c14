// Markdown on the screen. Each block is drawn once; while the text grows, only the last one is drawn again.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { still } from "../kit/view.js";
import { htmlOf, read } from "./blocks.js";
import { enrich } from "./enrich.js";
import { safeHtml } from "./safe.js";

/** @param {{text: string, live?: boolean, thread: string}} props `live`: more text may come */
export function Markdown({ text, live = false, thread }) {
  const before = useRef(/** @type {import("./blocks.js").Read | undefined} */ (undefined));
  before.current = read(text, before.current);
  const { blocks } = before.current;
  return html`<div class="markdown" dir="auto">
    ${blocks.map((block, index) => html`<${Block} key=${index} raw=${block.raw} block=${block} whole=${!live || index < blocks.length - 1} thread=${thread} />`)}
  </div>`;
}

/** @type {any} */
const Block = still(function Block(/** @type {{raw: string, block: any, whole: boolean, thread: string}} */ { raw, block, whole, thread }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    const fragment = safeHtml(htmlOf(block));
    enrich(fragment, { thread, whole });
    box.current?.replaceChildren(fragment);
  }, [raw, whole, thread]);
  return html`<div class="block" dir="auto" ref=${box} />`;
});
