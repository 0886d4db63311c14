// Two moments beside each other: only what differs.

import { html } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { t } from "../words/words.js";
import { Text, Wait, useLoaded } from "./loaded.js";

/** @param {unknown} value */
const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** @param {{thread: string, left: number, right: number}} props sequences of two events */
export function Compared({ thread, left, right }) {
  const sides = { left: `@seq:${Math.min(left, right)}`, right: `@seq:${Math.max(left, right)}` };
  const compared = useLoaded(() => call("GET", `threads/${thread}/log/diff`, { query: sides }), [thread, left, right]);
  const values = compared.value?.values ?? [];
  return html`<section class="tl-compared" aria-label=${t("timeline.compared")}><h3>${t("timeline.compared")}</h3>
    <${Wait} of=${compared}>
      ${values.length === 0 && html`<p>${t("timeline.same")}</p>`}
      <ul>${values.map((/** @type {any} */ one) => html`<li key=${one.path}><code>${one.path}</code>
        ${"before" in one && html`<del><${Text} text=${written(one.before)} /></del>`}${"after" in one && html`<ins><${Text} text=${written(one.after)} /></ins>`}</li>`)}</ul>
    <//></section>`;
}
