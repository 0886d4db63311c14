// The timeline of a conversation: what went wrong, lanes over time, the same as a list, and the moment that is chosen.

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { Failure } from "../api/client.js";
import { addSheet } from "../kit/sheet.js";
import { Icon } from "../kit/icon.js";
import { useListener } from "../kit/view.js";
import { visible } from "../kit/visible.js";
import { go } from "../state/route.js";
import { entryOf } from "../state/threads.js";
import { language, learn, t, wordsOf } from "../words/words.js";
import { Import } from "./import.js";
import { LANES } from "./items.js";
import { Lanes } from "./lanes.js";
import { List } from "./list.js";
import { FileLog, Log, SharedLog } from "./log.js";
import { Moment } from "./moment.js";
import { phraseOf } from "./phrases.js";
import { Stepping } from "./stepping.js";
import { en } from "./words/en.js";
import { zh } from "./words/zh.js";

learn({ en, zh });
const styled = addSheet(new URL("./timeline.css", import.meta.url));
/** Problems that are named above all. */
const NAMED = 4;

/** @typedef {{text: string, lane: string, run: string, faults: boolean}} Filter */
/** @typedef {{token: string, thread: string, title: string}} Shared a log that somebody else shared */

/** @param {{path: string[]}} props the conversation, and the sequence of an event */
export function View({ path: [thread = "", seq = ""] }) {
  const [ready, setReady] = useState(false);
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  useEffect(() => void styled.then(() => setReady(true)), []);
  useEffect(() => setFile(null), [thread]);
  useListener(window, "dragover", (/** @type {DragEvent} */ event) => event.preventDefault());
  useListener(window, "drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    setFile(event.dataTransfer?.files[0] ?? null);
  });
  if (!ready) return html`<p class="quiet center">${t("loading")}</p>`;
  if (!file && (!thread || thread === "file")) return html`<${Begin} onFile=${setFile} />`;
  return html`<${Timeline} key=${file ? `file ${file.name} ${file.lastModified}` : thread} thread=${thread} file=${file} seq=${Number(seq) || 0} />`;
}

/** @param {{shared: Shared, seq: number}} props */
export function SharedTimeline({ shared, seq }) {
  const [ready, setReady] = useState(false);
  useEffect(() => void styled.then(() => setReady(true)), []);
  return ready ? html`<${Timeline} thread=${shared.thread} file=${null} shared=${shared} seq=${seq} />` : html`<p class="quiet center">${t("loading")}</p>`;
}

/** @param {{onFile: (file: File | null) => void}} props */
function Begin({ onFile }) {
  return html`<section class="tl-begin"><h1>${t("timeline")}</h1><p>${t("timeline.file.text")}</p>
    <label class="button first">${t("timeline.file.open")}<input class="visually-hidden" type="file" accept=".jsonl" onChange=${(/** @type {any} */ e) => onFile(e.target.files[0] ?? null)} /></label></section>`;
}

/** @param {{thread: string, file: File | null, shared?: Shared, seq: number}} props */
function Timeline({ thread, file, shared, seq }) {
  const log = useMemo(() => (file ? new FileLog(file) : shared ? new SharedLog(shared.token, thread, seq) : new Log(thread, seq)), []);
  const [room, conversation] = shared ? [`shared/${shared.token}`, `shared/${shared.token}`] : [`timeline/${encodeURIComponent(thread)}`, `t/${encodeURIComponent(thread)}`];
  const [at, setAt] = useState(0);
  const [marked, setMarked] = useState(0);
  const [filter, setFilter] = useState(/** @type {Filter} */ ({ text: "", lane: "", run: "", faults: false }));
  useEffect(() => (void log.read(), () => log.close()), []);
  useEffect(() => void (seq && "reach" in log && log.reach(seq)), [seq]);
  const version = log.changed.value;
  const { items } = log;
  const named = file ? at : seq;
  const chosen = (named && items.items[items.indexOf(named)]?.seq) || 0;
  if ("looked" in log) log.looked = chosen;
  const choose = (/** @type {number} */ next) => (file ? setAt(next) : go(`${room}/${next}`, { replace: true }));
  const filtering = Boolean(filter.text || filter.lane || filter.run || filter.faults);
  const rows = useMemo(() => (filtering ? items.items.filter(matching(filter)) : items.items), [version, filter, language.value]);
  const shown = useMemo(() => (filtering ? new Set(rows.map((item) => item.seq)) : null), [rows]);
  const problems = useMemo(() => items.problems(), [version]);
  const failure = log.failure.value;
  if (failure) return html`<p class="error center" role="alert">${failure instanceof Failure ? (failure.status === 404 ? t("thread.missing") : wordsOf(failure)) : t(String(failure))}</p>`;
  const condition = log.condition.value;
  const title = file ? file.name : (shared?.title ?? entryOf(thread)?.title) || t("thread.untitled");
  return html`<section class="timeline" aria-label=${t("timeline")}>
    <header class="tl-header">
      <h1 dir="auto">${visible(title)}</h1>
      ${!file && html`<a class="icon-button" href="#/${conversation}" aria-label=${t("timeline.chat")} title=${t("timeline.chat")}><${Icon} name="left" /></a>`}
      ${file && html`<${Import} file=${file} />`}
      <span class="quiet" role="status">${t(`timeline.condition.${condition}`)} · ${t("timeline.events", { n: items.items.length })}</span>
      ${"redacted" in log && log.redacted && html`<span class="quiet">${t("timeline.file.redacted")}</span>`}
      ${"cut" in log && log.cut && condition === "done" && html`<span class="error" role="alert">${t("timeline.file.cut")}</span>`}
      ${!log.whole && html`<button type="button" class="button" disabled=${condition === "loading"} onClick=${() => "earlier" in log && log.earlier()}>${t("timeline.earlier")}</button>`}
      ${!log.newest && html`<button type="button" class="button" disabled=${condition === "loading"} onClick=${() => "later" in log && log.later()}>${t("timeline.later")}</button>`}
    </header>
    <${Problems} problems=${problems} chosen=${chosen} onChoose=${choose} />
    <${Filters} log=${log} filter=${filter} onFilter=${setFilter} version=${version} />
    <${Stepping} log=${log} chosen=${chosen} onChoose=${choose} />
    <${Lanes} items=${items} version=${version} live=${condition === "live"} chosen=${chosen} shown=${shown} onChoose=${choose} />
    <div class="tl-below">
      <${List} items=${rows} chosen=${chosen} onChoose=${choose} version=${version} />
      <${Moment} log=${log} seq=${chosen} marked=${marked} onMark=${setMarked} onChoose=${choose} />
    </div>
  </section>`;
}

/** @param {Filter} filter @returns {(item: import("./items.js").Item) => boolean} */
function matching({ text, lane, run, faults }) {
  const sought = text.toLocaleLowerCase();
  return (item) =>
    (!lane || item.lane === lane) && (!run || item.run === run) && (!faults || item.fault !== "") &&
    (!sought || item.about[language.value].toLocaleLowerCase().includes(sought) || phraseOf(item.type).toLocaleLowerCase().includes(sought) || item.type.includes(sought));
}

/** @param {{problems: import("./items.js").Item[], chosen: number, onChoose: (seq: number) => void}} props */
function Problems({ problems, chosen, onChoose }) {
  if (!problems.length) return null;
  return html`<section class="tl-problems" aria-label=${t("timeline.problems", { n: problems.length })}><h2>${t("timeline.problems", { n: problems.length })}</h2>
    <ul>${chief(problems).map(({ item, count }) => html`<li key=${item.seq}><button type="button" aria-pressed=${String(item.seq === chosen)} class="tl-problem tl-fault-${item.fault || "warn"}" onClick=${() => onChoose(item.seq)}><b>${phraseOf(item.type)}${count > 1 && ` ×${count}`}</b> <span dir="auto">${item.about[language.value]}</span></button></li>`)}</ul>
  </section>`;
}

/** The problems that are named, the same ones as one: what is bad before what is odd, in their order.
 * @param {import("./items.js").Item[]} problems @returns {{item: import("./items.js").Item, count: number}[]} */
function chief(problems) {
  /** @type {Map<string, {item: import("./items.js").Item, count: number}>} */
  const groups = new Map();
  for (const item of problems) {
    const key = `${item.type} ${item.alike || item.about.en}`;
    groups.set(key, { item: groups.get(key)?.item ?? item, count: (groups.get(key)?.count ?? 0) + 1 });
  }
  const rank = (/** @type {import("./items.js").Item} */ { fault }) => (fault === "warn" ? 1 : 0);
  const most = [...groups.values()].sort((one, other) => rank(one.item) - rank(other.item)).slice(0, NAMED);
  return most.sort((one, other) => one.item.seq - other.item.seq);
}

/** @param {{log: import("./log.js").Log | import("./log.js").FileLog, filter: Filter, onFilter: (filter: Filter) => void, version: number}} props */
function Filters({ log: { items }, filter, onFilter, version }) {
  const runs = useMemo(() => [...new Set(items.items.map((item) => item.run).filter(Boolean))], [version]);
  const set = (/** @type {Partial<Filter>} */ change) => onFilter({ ...filter, ...change });
  return html`<form class="tl-filters" role="search" onSubmit=${(/** @type {Event} */ e) => e.preventDefault()}>
    <input class="field" type="search" dir="auto" aria-label=${t("timeline.filter.text")} placeholder=${t("timeline.filter.text")} value=${filter.text} onInput=${(/** @type {any} */ e) => set({ text: e.target.value })} />
    <select class="field" aria-label=${t("timeline.filter.lane")} value=${filter.lane} onChange=${(/** @type {any} */ e) => set({ lane: e.target.value })}>
      <option value="">${t("timeline.filter.lane")}</option>${LANES.map((lane) => html`<option key=${lane} value=${lane}>${t(`timeline.lane.${lane}`)}</option>`)}</select>
    <select class="field" aria-label=${t("timeline.filter.run")} value=${filter.run} onChange=${(/** @type {any} */ e) => set({ run: e.target.value })}>
      <option value="">${t("timeline.filter.run")}</option>${runs.map((run, index) => html`<option key=${run} value=${run}>${t("timeline.run", { number: index + 1 })}</option>`)}</select>
    <label class="check"><input type="checkbox" checked=${filter.faults} onChange=${(/** @type {any} */ e) => set({ faults: e.target.checked })} /> ${t("timeline.filter.faults")}</label>
  </form>`;
}
