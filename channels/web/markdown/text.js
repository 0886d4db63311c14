// Markdown for views that are there before what reads it: that is loaded after the first paint, and nothing is shown until
// then that would change its size.

import { html, signal } from "../vendor/preact.js";

/** @type {import("../vendor/preact.js").Signal<{draw: any} | null>} */
export const reader = signal(null);

export async function loadMarkdown() {
  const { Markdown: draw } = await import("./markdown.js");
  reader.value = { draw };
}

/** @param {{text: string, live?: boolean, thread: string}} props `live`: more text may come */
export function Markdown(props) {
  return reader.value && html`<${reader.value.draw} ...${props} />`;
}
