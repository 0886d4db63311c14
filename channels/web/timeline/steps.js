// Two steps of runs beside each other: an answer of a model or a call of a tool, with what it got and what it gave.

import { html } from "../vendor/preact.js";
import { t } from "../words/words.js";
import { Text } from "./loaded.js";

/** @param {unknown} value */
export const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** @typedef {"" | "input" | "output" | "only left" | "only right"} Difference */

/** In which part two steps differ. @param {any} left @param {any} right @returns {Difference} */
export function differenceOf(left, right) {
  if (!left || !right) return left ? "only left" : "only right";
  const key = (/** @type {any} */ { kind, name, input }) => JSON.stringify([kind, name, input]);
  if (key(left) !== key(right)) return "input";
  return JSON.stringify(left.output) === JSON.stringify(right.output) ? "" : "output";
}

/** Which side of a comparison says something else. @type {Record<string, string>} */
const DIFFERS = { input: "timeline.differs.input", output: "timeline.differs.output", "only left": "timeline.differs.left", "only right": "timeline.differs.right" };

/** @param {{step: {difference: string, left: any, right: any}, onChoose?: (seq: number) => void}} props `onChoose`: where both are in the log */
export function Step({ step: { difference, left, right }, onChoose }) {
  const { kind, name } = right ?? left;
  return html`<li><b>${kind} ${name}</b> ${t(/** @type {string} */ (DIFFERS[difference]))}
    ${[left, right].map((side, index) => side && html`<${index ? "ins" : "del"} key=${index}>${difference === "input" && html`<${Text} text=${written(side.input)} />`}<${Text} text=${written(side.output)} />${onChoose && html`<button type="button" class="button quiet" onClick=${() => onChoose(side.seq)}>${t("timeline.runs.go")}</button>`}<//>`)}</li>`;
}
