// An answer of the agent: its reasoning, folded; its text; and the calls of tools, each a line.

import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { Icon } from "../kit/icon.js";
import { IconButton } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { still } from "../kit/view.js";
import { Markdown } from "../markdown/text.js";
import { nameOf, placeOf } from "../files/place.js";
import { textOf } from "../state/growing.js";
import { t } from "../words/words.js";
import { Card, needsCard } from "./cards.js";
import { rate } from "./actions.js";
import { Branches } from "./branches.js";
import { ToTimeline } from "./moment.js";
import { StepLine } from "./step.js";
import { Subagent } from "./subagent.js";

/** The second half of a character that is two units of a string. */
const PAIR_ENDS = /[\udc00-\udfff]/;
const FLOW_MS = 30;
/** Characters that are not worth halving. */
const FEW = 12;

/**
 * @param {{item: import("../state/items.js").AnswerItem, thread: import("../state/thread.js").Thread}} props
 */
export const Answer = still(function Answer({ item, thread }) {
  if (!item.message) return html`<${Growing} item=${item} thread=${thread} />`;
  const { text, reasoning, error } = item.message;
  if (error) return null; // the end of the run says it
  return html`<article class="answer" data-at=${item.message.seq} aria-label=${t("answer")}>
    ${reasoning && html`<${Reasoning} text=${reasoning} thread=${thread.id} />`}
    ${text && html`<${Markdown} text=${text} thread=${thread.id} />`}
    ${item.steps.map((/** @type {any} */ step) => html`<${StepOf} key=${step.call.id} step=${step} thread=${thread} />`)}
    ${(item.message.branches || (text && !item.steps.length)) && html`<${Actions} item=${item} thread=${thread} />`}
  </article>`;
});

/** @param {{step: import("../state/items.js").Step, thread: import("../state/thread.js").Thread}} props */
const StepOf = still(function StepOf({ step, thread }) {
  if (step.subagent) return html`<${Subagent} step=${step} thread=${thread.id} />`;
  return html`<${StepLine} step=${step} thread=${thread.id} />${needsCard(step) && html`<${Card} step=${step} thread=${thread} />`}${step.call.name === "present_files" && step.result && html`<${Presented} step=${step} thread=${thread.id} />`}`;
});

/** Files that were presented, each a way to where it is shown. @param {{step: import("../state/items.js").Step, thread: string}} props */
function Presented({ step: { args, result }, thread }) {
  const paths = result?.failed || !Array.isArray(args.filepaths) ? [] : args.filepaths.map(String);
  return html`<div class="files presented">${paths.map((/** @type {string} */ path) => html`<a class="file" key=${path} href=${placeOf(thread, path)}><${Icon} name="file" size=${16} /><bdi>${nameOf(path)}</bdi></a>`)}</div>`;
}

/** Text while it is made. It is the only part that is drawn at each frame. @param {{item: import("../state/items.js").AnswerItem, thread: import("../state/thread.js").Thread}} props */
function Growing({ item, thread }) {
  const growing = thread.growing.value[item.run];
  const reasoning = textOf(growing, "reasoning");
  const text = useFlow(textOf(growing, "text"));
  const calls = growing?.parts.filter((part) => part.part === "call") ?? [];
  return html`<article class="answer growing" aria-label=${t("answer")} aria-busy="true">
    ${reasoning && html`<${Reasoning} text=${reasoning} live=${!text && !calls.length} thread=${thread.id} />`}
    ${text && html`<${Markdown} text=${text} live=${true} thread=${thread.id} />`}
    ${calls.map((part) => html`<p class="step-line coming" key=${part.index}><${Icon} name="spark" size=${16} />${t("tool.coming", { name: part.name.replaceAll("_", " ") })}</p>`)}
  </article>`;
}

/**
 * A text that grows by pieces, shown evenly: 30 times a second a half of what is not shown yet, which costs less than each
 * painted frame and looks as smooth.
 * @param {string} text
 */
function useFlow(text) {
  const [shown, setShown] = useState(text.length);
  const latest = useRef(text);
  latest.current = text;
  const ahead = Math.sign(text.length - shown);
  useLayoutEffect(() => {
    if (!ahead) return;
    const timer = setTimeout(() => setShown(nextEnd(latest.current, shown)), FLOW_MS);
    return () => clearTimeout(timer);
  }, [shown, ahead]);
  return text.slice(0, shown);
}

/** Where a text ends when some more of it is shown. @param {string} text @param {number} shown */
function nextEnd(text, shown) {
  const rest = text.length - shown;
  const end = rest < FEW ? text.length : shown + Math.ceil(rest / 2);
  return PAIR_ENDS.test(text.charAt(end)) ? end + 1 : end;
}

/** @param {{text: string, live?: boolean, thread: string}} props */
function Reasoning({ text, live = false, thread }) {
  const [open, setOpen] = useState(false);
  return html`<div class="reasoning">
    <button type="button" class="reasoning-line" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <${Icon} name=${open ? "down" : "right"} size=${14} />${live ? t("reasoning.now") : t("reasoning")}
    </button>
    ${open && html`<${Markdown} text=${text} live=${live} thread=${thread} />`}
  </div>`;
}

/** @param {{item: import("../state/items.js").AnswerItem, thread: import("../state/thread.js").Thread}} props */
function Actions({ item: { message, run, feedback }, thread }) {
  if (!message) return null;
  const opinion = (/** @type {1|-1} */ rating) => rate(thread, run, message.id, rating, feedback);
  return html`<div class="actions">
    <${Branches} message=${message} thread=${thread} />
    <${IconButton} icon="copy" size=${16} name=${t("copy.answer")} onClick=${() => copyText(message.text)} />
    <${ToTimeline} thread=${thread.id} at=${message.seq} />
    <${IconButton} icon="up" size=${16} name=${t("rate.good")} pressed=${feedback?.rating === 1} onClick=${() => opinion(1)} />
    <${IconButton} icon="thumbDown" size=${16} name=${t("rate.bad")} pressed=${feedback?.rating === -1} onClick=${() => opinion(-1)} />
  </div>`;
}
