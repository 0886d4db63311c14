// Two moments beside each other: only what differs.

import { html } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { t } from "../words/words.js";
import { Text, Wait, useLoaded } from "./loaded.js";
import { Step, written } from "./steps.js";

/** @param {{log: import("./moment.js").AnyLog, left: number, right: number}} props sequences of two events */
export function Compared({ log, left, right }) {
  const compared = useLoaded(() => log.compared(Math.min(left, right), Math.max(left, right)), [log, left, right]);
  const values = compared.value ?? [];
  return html`<section class="tl-compared" aria-label=${t("timeline.compared")}><h3>${t("timeline.compared")}</h3>
    <${Wait} of=${compared}>
      ${values.length === 0 && html`<p>${t("timeline.same")}</p>`}
      <ul>${values.map((one) => html`<li key=${one.path}><code>${one.path}</code>
        ${"before" in one && html`<del><${Text} text=${written(one.before)} /></del>`}${"after" in one && html`<ins><${Text} text=${written(one.after)} /></ins>`}</li>`)}</ul>
    <//></section>`;
}

/** Two runs step by step: what differs first, in order. @param {{thread: string, left: string, right: string, onChoose: (seq: number) => void}} props ids of runs */
export function ComparedRuns({ thread, left, right, onChoose }) {
  const compared = useLoaded(() => call("GET", `threads/${thread}/log/diff`, { query: { left: `#${left}`, right: `#${right}` } }), [thread, left, right]);
  return html`<section class="tl-compared" aria-label=${t("timeline.runs.compared")}><h3>${t("timeline.runs.compared")}</h3>
    <${Wait} of=${compared}><${Differences} ...${compared.value} onChoose=${onChoose} /><//></section>`;
}

/** What differs in two runs, in order, and how much does not. @param {{steps?: any[], setups?: any[], onChoose: (seq: number) => void}} props */
export function Differences({ steps = [], setups = [], onChoose }) {
  const different = steps.filter((one) => one.difference);
  return html`${different.length + setups.length === 0 ? html`<p>${t("timeline.same")}</p>` : html`<p class="quiet">${t("timeline.runs.same", { n: steps.length - different.length })}</p>`}
    <ul>${setups.map((one) => html`<li key=${one.part}><b>${one.part}</b>${one.before !== null && html`<del><${Text} text=${one.before} /></del>`}${one.after !== null && html`<ins><${Text} text=${one.after} /></ins>`}</li>`)}
    ${different.map((one, index) => html`<${Step} key=${index} step=${one} onChoose=${onChoose} />`)}</ul>`;
}
