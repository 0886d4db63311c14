// The conversation as a list that follows its end while one is there, and stays where it is while one reads above.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { Button, IconButton } from "../kit/button.js";
import { activeRun, isBusy } from "../state/conversation.js";
import { PLACES } from "../state/message.js";
import { go, route } from "../state/route.js";
import { short, t } from "../words/words.js";
import { reader } from "../markdown/text.js";
import { Answer } from "./answer.js";
import { RunEnd } from "./end.js";
import { Person } from "./person.js";
import { Since } from "./step.js";

const NEAR = 48;
/** Items that are drawn in one painted frame. */
const SLICE = 8;
const KINDS = { person: Person, answer: Answer, end: RunEnd, note: Note };

/** @param {{thread: import("../state/thread.js").Thread}} props */
export function Conversation({ thread }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [below, follow] = useFollowing(box, thread);
  const items = reader.value ? thread.items.value : [];
  const drawn = useSlices(items);
  const { first, loaded } = thread.state.value;
  const older = first != null && drawn.length > 0 && drawn.length === items.length;
  useStanding(box, `${older} ${drawn[0]?.key}`);
  useJump(box, thread, loaded && drawn.length === items.length);
  return html`<div class="conversation" ref=${box} tabindex="0" role="log" aria-label=${t("conversation")} aria-live="off">
    <div class="column">
      ${older && html`<${Older} thread=${thread} box=${box} />`}
      ${!loaded && !items.length && html`<p class="quiet center">${t("loading")}</p>`}
      ${drawn.map((item) => html`<${KINDS[item.kind]} key=${item.key} item=${item} thread=${thread} />`)}
      <${Now} thread=${thread} />
    </div>
    ${below && html`<div class="to-end"><${IconButton} icon="down" name=${t("toEnd")} onClick=${follow} /></div>`}
  </div>`;
}

/** What the agent does where nothing else says it: it begins, waits, or asks its model again. @param {{thread: import("../state/thread.js").Thread}} props */
function Now({ thread }) {
  const c = thread.state.value;
  const run = activeRun(c);
  if (!run) return null;
  if (run.suspended) return html`<p class="now">${t("run.suspended", { reason: run.suspended })}</p>`;
  if (run.retry && !c.growing[run.id]) return html`<p class="now" role="status">${t("run.retry", { attempt: run.retry.attempt, most: run.retry.most, seconds: Math.ceil(run.retry.waitMs / 1000) })}</p>`;
  const working = Object.values(c.requests).length > 0 && thread.items.value.some((item) => item.kind === "answer" && item.steps.some((step) => step.live));
  if (c.growing[run.id] || working) return null;
  return html`<p class="now">${t("thinking")} <${Since} at=${run.startedAt} /></p>`;
}

/** @param {{item: import("../state/items.js").NoteItem}} props */
function Note({ item: { note } }) {
  const text = note.kind === "goal" ? t("goal.reached", { reason: note.reason ?? "" }) : t("note.compacted", { before: short(note.before ?? 0), after: short(note.after ?? 0) });
  return html`<p class="note" dir="auto">${text}</p>`;
}

/** @param {{thread: import("../state/thread.js").Thread, box: {current: HTMLElement | null}}} props */
function Older({ thread, box }) {
  const [busy, setBusy] = useState(false);
  const mark = useRef(/** @type {HTMLElement | null} */ (null));
  const load = async () => {
    if (busy) return;
    setBusy(true);
    await thread.older().catch(() => {});
    setBusy(false);
  };
  useEffect(() => {
    const watcher = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && void load(), { root: box.current, rootMargin: "200px" });
    if (mark.current) watcher.observe(mark.current);
    return () => watcher.disconnect();
  });
  return html`<div class="older" ref=${mark}><${Button} kind="quiet" disabled=${busy} onClick=${load}>${busy ? t("loading") : t("older")}<//></div>`;
}

/**
 * The end of a list, which grows by a slice at each painted frame until all is drawn.
 * @param {import("../state/items.js").Item[]} items
 */
function useSlices(items) {
  const drawn = useRef(/** @type {Set<string>} */ (new Set()));
  const [, setFrames] = useState(0);
  const place = items.findIndex((item) => drawn.current.has(item.key));
  const start = place < 0 ? Math.max(0, items.length - SLICE) : place;
  useLayoutEffect(() => {
    drawn.current = new Set(items.slice(start).map((item) => item.key));
    if (!start) return;
    const frame = requestAnimationFrame(() => {
      for (const item of items.slice(Math.max(0, start - SLICE), start)) drawn.current.add(item.key);
      setFrames((frames) => frames + 1);
    });
    return () => cancelAnimationFrame(frame);
  });
  return start ? items.slice(start) : items;
}

/** Goes to the message that the address names, as the timeline does. @param {{current: HTMLElement | null}} box
 * @param {import("../state/thread.js").Thread} thread @param {boolean} ready */
function useJump(box, thread, ready) {
  const at = Number(route.value.query.get("at"));
  const first = thread.state.value.first;
  useEffect(() => {
    if (!at || !ready || !box.current) return;
    const all = [...box.current.querySelectorAll("[data-at]")];
    const before = all.filter((one) => Number(one.getAttribute("data-at")) < (at + 1) * PLACES);
    if (!before.length && first != null) return void thread.older();
    go(`t/${thread.id}`, { replace: true });
    requestAnimationFrame(() => (before.at(-1) ?? all[0])?.scrollIntoView({ block: "center" }));
  }, [at, ready, first]);
}

/** Keeps what is in view where it is when something comes above it. @param {{current: HTMLElement | null}} box @param {string} top what stands first */
function useStanding(box, top) {
  const before = useRef({ top, below: 0 });
  if (box.current && before.current.top !== top) before.current = { top, below: box.current.scrollHeight - box.current.scrollTop };
  useLayoutEffect(() => {
    if (box.current && before.current.below) box.current.scrollTop = box.current.scrollHeight - before.current.below;
  }, [top]);
}

/**
 * Keeps the end in view while it is; tells whether there is something below, and goes there.
 * @param {{current: HTMLElement | null}} box @param {import("../state/thread.js").Thread} thread @returns {[boolean, () => void]}
 */
function useFollowing(box, thread) {
  const [below, setBelow] = useState(false);
  const following = useRef(true);
  const toEnd = () => {
    following.current = true;
    setBelow(false);
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    following.current = true;
    const onScroll = () => {
      const distance = element.scrollHeight - element.scrollTop - element.clientHeight;
      following.current = distance < NEAR;
      setBelow(distance > element.clientHeight / 2);
    };
    element.addEventListener("scroll", onScroll, { passive: true });
    const watcher = new ResizeObserver(() => following.current && (element.scrollTop = element.scrollHeight));
    watcher.observe(/** @type {Element} */ (element.firstElementChild));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      element.removeEventListener("scroll", onScroll);
    };
  }, [thread]);
  const mine = thread.items.value.findLast((item) => item.kind === "person")?.key;
  useEffect(() => {
    if (mine && isBusy(thread.state.value)) toEnd();
  }, [mine]);
  return [below, toEnd];
}
