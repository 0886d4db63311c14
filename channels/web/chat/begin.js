// The empty page: what this is, who answers, and things that can be tried.

import { html } from "../vendor/preact.js";
import { go } from "../state/route.js";
import { t } from "../words/words.js";
import { send } from "./actions.js";
import { model, problem } from "./choices.js";

/** What can be tried; each ends in something that is seen. */
const TRIES = ["try.chart", "try.table", "try.research", "try.file"];

/** @param {{thread: import("../state/thread.js").Thread}} props */
export function Begin({ thread }) {
  const now = model.value;
  const start = async (/** @type {string} */ text) => {
    if (await send(thread, text)) go(`t/${thread.id}`, { replace: true });
  };
  return html`<div class="conversation begin"><div class="column">
    <h1>${t("begin.title")}</h1>
    <p>${t("begin.text")}</p>
    ${now && html`<p class="quiet">${now.name === "demo" ? html`${coded(t("begin.demo"))} <a href="#/settings/models">${t("begin.add")}</a>` : t("begin.model", { name: now.display_name || now.name })}</p>`}
    ${problem.value && html`<section class="card error-card" role="group" aria-label=${t("begin.problem")}><h2>${t("begin.problem")}</h2><p dir="auto">${problem.value}</p></section>`}
    <div class="tries">${TRIES.map((key) => html`<button type="button" class="try" key=${key} onClick=${() => start(t(`${key}.text`))}><strong>${t(key)}</strong><small>${t(`${key}.text`)}</small></button>`)}</div>
  </div></div>`;
}

/** A text whose parts in backticks are code. @param {string} text */
const coded = (text) => text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? html`<code key=${index}>${part}</code>` : part));
