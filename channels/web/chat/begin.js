// The empty page: what this is, who answers, and things that can be tried.

import { html } from "../vendor/preact.js";
import { go } from "../state/route.js";
import { t } from "../words/words.js";
import { send } from "./actions.js";
import { model } from "./choices.js";

/** What can be tried; each ends in something that is seen. */
const TRIES = ["try.research", "try.file", "try.command", "try.list"];

/** @param {{thread: import("../state/thread.js").Thread}} props */
export function Begin({ thread }) {
  const now = model.value;
  const start = async (/** @type {string} */ text) => {
    if (await send(thread, text)) go(`t/${thread.id}`, { replace: true });
  };
  return html`<div class="conversation begin"><div class="column">
    <h1>${t("begin.title")}</h1>
    <p>${t("begin.text")}</p>
    ${now && html`<p class="quiet">${now.name === "demo" ? t("begin.demo") : t("begin.model", { name: now.display_name || now.name })}</p>`}
    <div class="tries">${TRIES.map((key) => html`<button type="button" class="try" key=${key} onClick=${() => start(t(`${key}.text`))}><strong>${t(key)}</strong><small>${t(`${key}.text`)}</small></button>`)}</div>
  </div></div>`;
}
