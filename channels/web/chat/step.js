// A tool call: one quiet line that opens to what was asked, what came out, and what it changed. A failure opens by itself.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Icon } from "../kit/icon.js";
import { classes, still } from "../kit/view.js";
import { duration, t } from "../words/words.js";
import { Diff } from "./diff.js";
import { ToTimeline } from "./moment.js";
import { editsOf, iconOf, lastLine, linesOf, wordsOfStep } from "./tools.js";

/** Characters of an output that are shown before it is opened further. */
const SHOWN = 20_000;

/** @param {{step: import("../state/items.js").Step, thread: string}} props */
export const StepLine = still(function StepLine({ step, thread }) {
  const { result, live } = step;
  const failed = Boolean(result?.failed);
  const [open, setOpen] = useState(failed);
  useEffect(() => void (failed && setOpen(true)), [failed]);
  const { verb, about } = wordsOfStep(step);
  const lines = linesOf(step);
  return html`<div class=${classes("step", failed && "failed", live && "live")}>
    <button type="button" class="step-line" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <${Icon} name=${failed ? "warn" : iconOf(step)} size=${16} />
      <span class="step-words"><span>${verb}</span> <code dir="auto">${about}</code></span>
      ${step.edited && html`<span class="step-edited">${t("tool.edited")}</span>`}
      ${lines && result && !failed && html`<span class="step-lines"><ins>+${lines.added}</ins> ${lines.removed > 0 && html`<del>−${lines.removed}</del>`}</span>`}
      <${Outcome} step=${step} />
    </button>
    ${failed && !open && result && html`<p class="step-last">${lastLine(result.text)}</p>`}
    ${live && !open && step.progress && html`<p class="step-last" dir="auto">${lastLine(step.progress)}</p>`}
    ${open && html`<${Details} step=${step} thread=${thread} />`}
  </div>`;
});

/** How a call ended, or for how long it has been at work. @param {{step: import("../state/items.js").Step}} props */
function Outcome({ step: { result, live, at } }) {
  if (!result) return live ? html`<${Since} at=${at} />` : html`<span class="step-state">${t("tool.unfinished")}</span>`;
  const code = result.exitCode !== null && result.exitCode !== 0 ? t("tool.exit", { code: result.exitCode }) : result.failed ? t("tool.failed") : "";
  return html`<span class="step-state">${code}${code && result.ms > 0 && " · "}${result.ms > 0 && duration(result.ms)}</span>`;
}

/** Seconds that go by. @param {{at: string}} props */
export function Since({ at }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const ms = now - new Date(at).getTime();
  return html`<span class="step-state working"><span class="pulse" aria-hidden="true"></span>${ms >= 1000 ? duration(Math.floor(ms / 1000) * 1000) : ""}</span>`;
}

/** @param {{step: import("../state/items.js").Step, thread: string}} props */
function Details({ step, thread }) {
  const edits = editsOf(step);
  const command = step.call.name === "bash" ? String(step.args.command ?? "") : "";
  const output = step.result?.text ?? step.progress;
  const asked = step.edited ? editedText(step.call.args, step.args) : null;
  return html`<div class="step-details">
    ${asked && html`<${Diff} path=${t("tool.command.asked")} before=${asked[0]} after=${asked[1]} />`}
    ${command && html`<${Output} name=${t("tool.command")} text=${command} />`}
    ${edits.map((edit, index) => html`<${Diff} key=${index} ...${edit} thread=${thread} />`)}
    ${!command && !edits.length && Object.keys(step.args).length > 0 && html`<${Output} name=${t("tool.arguments")} text=${argumentsOf(step.args)} />`}
    ${output && html`<${Output} name=${step.result ? t("tool.output") : t("tool.outputSoFar")} text=${output} tail=${!step.result} />`}
    ${step.result && html`<${ToTimeline} thread=${thread} at=${step.result.seq} />`}
  </div>`;
}

/** The text that a person changed, before and after. @param {Record<string, any>} before @param {Record<string, any>} after @returns {[string, string] | null} */
function editedText(before, after) {
  const name = Object.keys(after).find((one) => after[one] !== before[one]);
  return name ? [String(before[name] ?? ""), String(after[name])] : null;
}

/** @param {Record<string, unknown>} args */
function argumentsOf(args) {
  const shown = (/** @type {unknown} */ value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  return Object.entries(args).map(([name, value]) => `${name}: ${shown(value)}`).join("\n");
}

/** Text of a fixed width; a long one is cut until it is asked for. @param {{name: string, text: string, tail?: boolean}} props */
function Output({ name, text, tail = false }) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && text.length > SHOWN;
  const shown = cut ? (tail ? text.slice(-SHOWN) : text.slice(0, SHOWN)) : text;
  return html`<figure class="output">
    <figcaption>${name}</figcaption>
    <pre tabindex="0" role="group" aria-label=${name} dir="auto">${shown}</pre>
    ${cut && html`<button type="button" class="button quiet" onClick=${() => setWhole(true)}>${t("output.all", { n: text.length })}</button>`}
  </figure>`;
}
