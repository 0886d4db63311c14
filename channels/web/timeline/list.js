// The events as a list: only the rows in view are there, whatever the length.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { classes } from "../kit/view.js";
import { language, t } from "../words/words.js";
import { phraseOf } from "./phrases.js";

const ROW = 34;
const AROUND = 8;
/** The tallest element that browsers lay out well; longer lists move faster than the scroll bar. */
const TALLEST = 8_000_000;

/** @type {Map<string, Intl.DateTimeFormat>} */
const clocks = new Map();

/** @param {number} at ms */
export function clock(at) {
  const format = clocks.get(language.value) ?? new Intl.DateTimeFormat(language.value, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1 });
  clocks.set(language.value, format);
  return format.format(at);
}

/** @param {{items: import("./items.js").Item[], chosen: number, onChoose: (seq: number) => void}} props */
export function List({ items, chosen, onChoose }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, high: 600 });
  const at = placeOf(items, chosen);
  const tall = Math.min(TALLEST, items.length * ROW);
  const ratio = items.length * ROW > TALLEST ? (items.length * ROW - view.high) / Math.max(1, tall - view.high) : 1;
  const first = Math.max(0, Math.floor((view.top * ratio) / ROW) - AROUND);
  const rows = items.slice(first, first + Math.ceil(view.high / ROW) + 2 * AROUND);
  const seen = useRef(0); // the first event in view
  const look = () => box.current && setView({ top: box.current.scrollTop, high: box.current.clientHeight });
  const onScroll = () => {
    look();
    seen.current = items[Math.floor(((box.current?.scrollTop ?? 0) * ratio) / ROW)]?.seq ?? 0;
  };
  useEffect(() => {
    const watcher = new ResizeObserver(() => look());
    if (box.current) watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || at < 0) return;
    const top = (at * ROW) / ratio;
    if (top < element.scrollTop || top + ROW > element.scrollTop + element.clientHeight) element.scrollTop = top - element.clientHeight / 3;
  }, [chosen, items.length > at && at]);
  useLayoutEffect(() => {
    const place = placeOf(items, seen.current);
    if (box.current && place > 0) box.current.scrollTop = (place * ROW) / ratio; // what was before it is not there any more
  }, [items[0]?.seq]);
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const next = movedTo(event.key, at, items.length, Math.max(1, Math.floor(view.high / ROW) - 1));
    const item = items[next];
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    onChoose(item.seq);
  };
  const shift = (/** @type {HTMLElement | null} */ element) => {
    if (!element) return;
    element.style.blockSize = `${tall}px`;
    const inner = /** @type {HTMLElement} */ (element.firstElementChild);
    inner.style.transform = `translateY(${first * ROW - view.top * (ratio - 1)}px)`;
  };
  const active = at >= first && at < first + rows.length ? `tl-row-${chosen}` : undefined;
  return html`<div class="tl-list" ref=${box} role="listbox" tabindex="0" aria-label=${t("timeline.list")} aria-activedescendant=${active} onScroll=${onScroll} onKeyDown=${onKey}>
    ${items.length === 0 && html`<p class="quiet center" role="option" aria-selected="false">${t("timeline.none")}</p>`}
    <div role="presentation" ref=${shift}><div role="presentation">
      ${rows.map((item, index) => html`<${Row} key=${item.seq} item=${item} place=${first + index} count=${items.length} on=${item.seq === chosen} onChoose=${onChoose} />`)}
    </div></div>
  </div>`;
}

/** @param {import("./items.js").Item[]} items in order @param {number} seq */
function placeOf(items, seq) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {import("./items.js").Item} */ (items[middle]).seq < seq) low = middle + 1;
    else high = middle;
  }
  return items[low]?.seq === seq ? low : -1;
}

/** @param {string} key @param {number} at @param {number} count @param {number} page */
function movedTo(key, at, count, page) {
  const steps = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page });
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  return key in steps ? Math.min(count - 1, Math.max(0, at + (steps[key] ?? 0))) : -1;
}

/** @param {{item: import("./items.js").Item, place: number, count: number, on: boolean, onChoose: (seq: number) => void}} props */
function Row({ item, place, count, on, onChoose }) {
  return html`<div class=${classes("tl-row", item.fault && `tl-fault-${item.fault}`)} id="tl-row-${item.seq}" role="option" aria-selected=${String(on)} aria-posinset=${place + 1} aria-setsize=${count} onClick=${() => onChoose(item.seq)}>
    <time>${clock(item.at)}</time><span class="tl-ink tl-${item.lane}" aria-hidden="true"></span>
    <span class="tl-phrase">${item.fault && html`<b>${t(`timeline.fault.${item.fault}`)} </b>`}${phraseOf(item.type)}</span>
    <span class="tl-about" dir="auto">${item.about[language.value]}</span>
  </div>`;
}
