// Messages as the model has them.

import { html, useState } from "../vendor/preact.js";
import { Button } from "../kit/button.js";
import { t } from "../words/words.js";
import { Text } from "./loaded.js";
import { textOf } from "./phrases.js";

/** Messages that are shown at once. */
export const LAST = 12;

/** @param {{messages: any[], more?: (() => void) | null, mark?: (message: any) => string}} props `more`: reads those before. `mark`: what is special about a message */
export function Messages({ messages, more = null, mark = () => "" }) {
  const [all, setAll] = useState(false);
  const shown = all || more ? messages : messages.slice(-LAST);
  const before = more ?? (shown.length < messages.length ? () => setAll(true) : null);
  return html`${before && html`<${Button} kind="quiet" onClick=${before}>${t("timeline.messages.all")}<//>`}
    <ol class="tl-messages">${shown.map((one, index) => html`<li key=${one.id ?? index}><small>${[one.type, one.name, mark(one)].filter(Boolean).join(" ")}</small><${Text} text=${[textOf(one.content), ...(one.tool_calls ?? []).map((/** @type {any} */ c) => `→ ${c.name}(${JSON.stringify(c.args)})`)].filter(Boolean).join("\n")} /></li>`)}</ol>`;
}
