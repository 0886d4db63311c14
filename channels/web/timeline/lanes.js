// Lanes over time: what is in view is painted on a canvas. The wheel zooms, dragging and two fingers move and zoom, keys do both.
// The list says the same to people who do not see it.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { IconButton } from "../kit/button.js";
import { useListener } from "../kit/view.js";
import { language, t } from "../words/words.js";
import { LANES } from "./items.js";

const ROW = 16;
const AXIS = 22;
const LANE_GAP = 6;
/** The shortest stretch that is shown, in ms. */
const CLOSEST_MS = 20;
const STEP = 1.4;
/** Pixels around a point that belong to it. */
const NEAR = 8;

/** @typedef {{from: number, to: number}} Range of the shown time */
/** @typedef {import("./items.js").Items} Items */

/** The lanes that have something, with their places. @param {Items} items @returns {{lane: import("./items.js").Lane, top: number, rows: number}[]} */
function placesOf(items) {
  const used = new Set(items.items.map((item) => item.lane));
  let top = AXIS;
  return LANES.filter((lane) => used.has(lane)).map((lane) => {
    const rows = items.rowsOf(lane);
    const place = { lane, top, rows };
    top += rows * ROW + LANE_GAP;
    return place;
  });
}

/** @param {{items: Items, version: number, live: boolean, chosen: number, shown: Set<number> | null, onChoose: (seq: number) => void}} props
 *   `shown`: the events that the filter lets through; null: all */
export function Lanes({ items, version, live, chosen, shown, onChoose }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const [range, setRange] = useState(/** @type {Range | null} */ (null));
  const places = placesOf(items);
  const { begin } = items;
  const end = Math.max(items.end, begin + CLOSEST_MS);
  const whole = end - begin;
  const view = range ?? { from: begin - whole * 0.01, to: end + whole * 0.02 };
  const now = useRef({ view, places, end, items, onChoose });
  now.current = { view, places, end, items, onChoose };
  const set = (/** @type {Range} */ next) => setRange(clamped(next, begin, end));
  const paint = useRef(() => {});
  paint.current = () => void (canvas.current && frame.current && draw(canvas.current, frame.current, items, places, view, chosen, shown));
  useLayoutEffect(() => paint.current(), [version, view.from, view.to, chosen, shown, language.value]);
  useEffect(() => {
    const watcher = new ResizeObserver(() => paint.current());
    const themes = new MutationObserver(() => paint.current());
    if (canvas.current?.parentElement) watcher.observe(canvas.current.parentElement);
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => (watcher.disconnect(), themes.disconnect());
  }, []);
  useHands(canvas, now, set);
  const zoom = (/** @type {number} */ by) => set(zoomed(view, by, (view.from + view.to) / 2));
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const act = keyed(event, view, zoom, set, () => setRange(null));
    if (act) (event.preventDefault(), act());
  };
  const sought = range && chosen ? items.items[items.indexOf(chosen)] : null;
  useEffect(() => {
    if (sought && (sought.x < view.from || sought.x > view.to)) set(around(view, sought.x));
  }, [chosen]);
  useEffect(() => {
    const last = end + whole * 0.02;
    if (live && range && range.to >= end - whole * 0.02) set({ from: range.from + (last - range.to), to: last });
  }, [version]);
  const height = AXIS + places.reduce((sum, { rows }) => sum + rows * ROW + LANE_GAP, 0);
  return html`<div class="tl-lanes" ref=${frame}>
    <ul class="tl-names" aria-hidden="true">${places.map(({ lane, rows }) => html`<li key=${lane} data-lane=${lane} data-rows=${rows}><span class="tl-ink tl-${lane}"></span>${t(`timeline.lane.${lane}`)}</li>`)}</ul>
    <div class="tl-canvas"><canvas ref=${canvas} tabindex="0" role="img" aria-label=${t("timeline.lanes.name")} aria-describedby="tl-keys" height=${height} onKeyDown=${onKey}></canvas></div>
    <span class="visually-hidden" id="tl-keys">${t("timeline.lanes.keys")}</span>
    <span class="tl-ink tl-bad" hidden></span>
    <div class="tl-zoom">
      <${IconButton} icon="plus" size=${16} name=${t("timeline.zoom.in")} onClick=${() => zoom(1 / STEP)} />
      <button type="button" class="icon-button" aria-label=${t("timeline.zoom.out")} title=${t("timeline.zoom.out")} onClick=${() => zoom(STEP)}>−</button>
      <button type="button" class="button quiet" onClick=${() => setRange(null)}>${t("timeline.zoom.all")}</button>
    </div>
  </div>`;
}

/** @param {Range} range @param {number} begin @param {number} end @returns {Range} */
function clamped({ from, to }, begin, end) {
  const whole = end - begin;
  const width = Math.min(Math.max(whole * 1.1, CLOSEST_MS), Math.max(CLOSEST_MS, to - from));
  const first = Math.min(Math.max(from, begin - whole * 0.05), end + whole * 0.05 - width / 2);
  return { from: first, to: first + width };
}

/** @param {Range} range @param {number} by @param {number} at that stays where it is @returns {Range} */
const zoomed = ({ from, to }, by, at) => ({ from: at - (at - from) * by, to: at + (to - at) * by });
/** @param {Range} range @param {number} at @returns {Range} */
const around = ({ from, to }, at) => ({ from: at - (to - from) / 2, to: at + (to - from) / 2 });

/**
 * @param {KeyboardEvent} event @param {Range} view @param {(by: number) => void} zoom @param {(range: Range) => void} set @param {() => void} all
 * @returns {(() => void) | undefined}
 */
function keyed({ key, ctrlKey, metaKey, altKey }, view, zoom, set, all) {
  if (ctrlKey || metaKey || altKey) return undefined;
  const move = (/** @type {number} */ share) => () => set({ from: view.from + (view.to - view.from) * share, to: view.to + (view.to - view.from) * share });
  /** @type {Record<string, () => void>} */
  const acts = { "+": () => zoom(1 / STEP), "=": () => zoom(1 / STEP), "-": () => zoom(STEP), ArrowLeft: move(-0.2), ArrowRight: move(0.2), PageUp: move(-0.9), PageDown: move(0.9), 0: all, Home: all };
  return acts[key];
}

/** Mouse and fingers. @param {{current: HTMLCanvasElement | null}} canvas @param {{current: any}} now @param {(range: Range) => void} set */
function useHands(canvas, now, set) {
  const points = useRef(/** @type {Map<number, {x: number, y: number}>} */ (new Map()));
  const moved = useRef(0);
  const newest = useRef(set);
  newest.current = set;
  const at = (/** @type {number} */ clientX) => {
    const box = /** @type {HTMLCanvasElement} */ (canvas.current).getBoundingClientRect();
    const { from, to } = now.current.view;
    return from + ((clientX - box.left) / box.width) * (to - from);
  };
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const perPixel = () => (now.current.view.to - now.current.view.from) / element.clientWidth;
    const onWheel = (/** @type {WheelEvent} */ event) => {
      event.preventDefault();
      const side = event.shiftKey ? event.deltaY : event.deltaX;
      if (Math.abs(side) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
        const by = side * perPixel();
        newest.current({ from: now.current.view.from + by, to: now.current.view.to + by });
      } else newest.current(zoomed(now.current.view, Math.exp(event.deltaY / 400), at(event.clientX)));
    };
    const onDown = (/** @type {PointerEvent} */ event) => {
      element.setPointerCapture(event.pointerId);
      points.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (points.current.size === 1) moved.current = 0;
    };
    const onMove = (/** @type {PointerEvent} */ event) => {
      const before = points.current.get(event.pointerId);
      if (!before) return;
      const others = [...points.current].filter(([id]) => id !== event.pointerId);
      const by = before.x - event.clientX;
      moved.current += Math.abs(by);
      const view = now.current.view;
      if (!others.length) newest.current({ from: view.from + by * perPixel(), to: view.to + by * perPixel() });
      else {
        const still = /** @type {[number, {x: number, y: number}]} */ (others[0])[1];
        const ratio = Math.max(1, Math.abs(before.x - still.x)) / Math.max(1, Math.abs(event.clientX - still.x));
        newest.current(zoomed(view, ratio, at(still.x)));
      }
      points.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
    };
    const onUp = (/** @type {PointerEvent} */ event) => {
      if (points.current.delete(event.pointerId) && event.type === "pointerup" && moved.current < 4) choose(event);
    };
    const choose = (/** @type {PointerEvent} */ event) => {
      const box = element.getBoundingClientRect();
      const seq = nearest(now.current, at(event.clientX), event.clientY - box.top, perPixel());
      if (seq) now.current.onChoose(seq);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    element.addEventListener("pointerdown", onDown);
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerup", onUp);
    element.addEventListener("pointercancel", onUp);
    return () => {
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("pointerdown", onDown);
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerup", onUp);
      element.removeEventListener("pointercancel", onUp);
    };
  }, []);
  useListener(window, "blur", () => points.current.clear());
}

/** The event at a place of the canvas: a span there, or else the nearest event of the lane, or of all. @param {any} now @param {number} x @param {number} y @param {number} perPixel @returns {number} */
function nearest({ items, places }, x, y, perPixel) {
  const place = places.find((/** @type {any} */ one) => y >= one.top && y < one.top + one.rows * ROW + LANE_GAP);
  const row = place ? Math.floor((y - place.top) / ROW) : -1;
  let best = { far: Infinity, seq: 0 };
  for (const { lane, row: at, begin, end, item } of /** @type {Items} */ (items).spans) {
    if (lane !== place?.lane || at !== row) continue;
    const far = Math.max(begin - x, x - (end ?? items.end), 0) - (item.fault ? perPixel : 0);
    if (far <= NEAR * perPixel && far < best.far) best = { far, seq: item.seq };
  }
  if (best.seq) return best.seq;
  for (const item of items.items) {
    if (place && item.lane !== place.lane) continue;
    const far = Math.abs(item.x - x);
    if (far < best.far) best = { far, seq: item.seq };
  }
  return best.seq;
}

/**
 * @param {HTMLCanvasElement} canvas @param {HTMLElement} frame @param {Items} items @param {ReturnType<typeof placesOf>} places
 * @param {Range} view @param {number} chosen @param {Set<number> | null} shown
 */
function draw(canvas, frame, items, places, view, chosen, shown) {
  const wide = canvas.parentElement?.clientWidth ?? 0;
  const high = AXIS + places.reduce((sum, { rows }) => sum + rows * ROW + LANE_GAP, 0);
  const scale = devicePixelRatio || 1;
  if (!wide) return;
  canvas.style.blockSize = `${high}px`;
  canvas.width = Math.round(wide * scale);
  canvas.height = Math.round(high * scale);
  for (const name of frame.querySelectorAll("[data-rows]")) if (name instanceof HTMLElement) name.style.blockSize = `${Number(name.dataset.rows) * ROW + LANE_GAP}px`;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const inks = inksOf(frame);
  const x = (/** @type {number} */ at) => ((at - view.from) / (view.to - view.from)) * wide;
  pen.scale(scale, scale);
  axis(pen, items, view, wide, high, x, inks);
  const tops = new Map(places.map(({ lane, top }) => [lane, top]));
  /** The last pixel that was painted in each row, so that a pixel is painted once. @type {Map<string, number>} */
  const painted = new Map();
  let last = "";
  const dip = (/** @type {string} */ ink) => void (ink !== last && (pen.fillStyle = last = ink));
  for (const { lane, row, begin, end, item, fault } of items.spans) {
    const until = end ?? items.end;
    if (until < view.from || begin > view.to) continue;
    const left = Math.max(-2, x(begin));
    const right = Math.min(wide + 2, Math.max(x(until), x(begin) + 2));
    const key = `${lane}${row}${fault}`;
    if (right <= (painted.get(key) ?? -3)) continue;
    painted.set(key, right);
    pen.globalAlpha = shown && !shown.has(item.seq) ? 0.15 : end === null ? 0.5 : 0.85;
    dip(fault === "bad" ? inks.bad : (inks[lane] ?? inks.line));
    pen.fillRect(left, /** @type {number} */ (tops.get(lane)) + row * ROW + 2, Math.max(1.5, right - left), ROW - 4);
  }
  painted.clear();
  for (const item of items.items) {
    if (item.x < view.from || item.x > view.to) continue;
    const place = Math.round(x(item.x));
    const key = `${item.lane}${item.row}${item.fault}`;
    if (painted.get(key) === place) continue;
    painted.set(key, place);
    const top = /** @type {number} */ (tops.get(item.lane)) + item.row * ROW;
    pen.globalAlpha = shown && !shown.has(item.seq) ? 0.15 : 1;
    dip(item.fault === "bad" ? inks.bad : (inks[item.lane] ?? inks.line));
    pen.fillRect(place - 1, top + 1, 2, ROW - 2);
    if (item.fault === "bad") cross(pen, place, top + ROW / 2, inks);
  }
  pen.globalAlpha = 1;
  const at = items.items[items.indexOf(chosen)];
  if (chosen && at) {
    pen.fillStyle = inks.text;
    pen.fillRect(Math.round(x(at.x)) - 0.5, 0, 1.5, high);
  }
}

/** Faults are told by a form, too, not by a colour alone. @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {Record<string, string>} inks */
function cross(pen, x, y, inks) {
  for (const [ink, width] of /** @type {[string, number][]} */ ([[inks.paper, 5], [inks.bad, 2.5]])) {
    pen.strokeStyle = ink;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(x - 5, y - 5);
    pen.lineTo(x + 5, y + 5);
    pen.moveTo(x + 5, y - 5);
    pen.lineTo(x - 5, y + 5);
    pen.stroke();
  }
}

/** The colours of the theme, as the names beside the lanes have them. @param {HTMLElement} frame @returns {Record<string, string> & {bad: string, text: string, line: string, paper: string}} */
function inksOf(frame) {
  /** @type {any} */
  const inks = { text: getComputedStyle(frame).color, line: getComputedStyle(frame).borderBlockEndColor, paper: getComputedStyle(frame).backgroundColor };
  for (const ink of frame.querySelectorAll(".tl-ink")) inks[(ink.className.match(/tl-(?!ink)(\w+)/) ?? [])[1] ?? ""] = getComputedStyle(ink).color;
  return inks;
}

const STEPS = [1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000];

/** @param {CanvasRenderingContext2D} pen @param {Items} items @param {Range} view @param {number} wide @param {number} high @param {(at: number) => number} x @param {Record<string, string>} inks */
function axis(pen, items, view, wide, high, x, inks) {
  const rough = ((view.to - view.from) / wide) * 110;
  const step = STEPS.find((one) => one >= rough) ?? rough;
  const format = new Intl.DateTimeFormat(language.value, step < 1000 ? { minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 } : { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  pen.font = "11px ui-sans-serif, system-ui, sans-serif";
  for (let at = Math.ceil(Math.max(items.begin, view.from) / step) * step; at <= Math.min(view.to, items.end); at += step) {
    pen.fillStyle = inks.line ?? "";
    pen.fillRect(Math.round(x(at)), AXIS - 6, 1, high);
    pen.fillStyle = inks.text ?? "";
    pen.fillText(format.format(items.clockAt(at)), x(at) + 3, 12);
  }
}
