// Events as the timeline shows them: each in a lane, those that belong together as spans, what went wrong marked. Pure.

import { aboutOf, oneLine } from "./phrases.js";

/**
 * @typedef {"person"|"queue"|"run"|"model"|"retry"|"tool"|"approval"|"subagent"|"file"|"other"} Lane
 * @typedef {"" | "bad" | "warn"} Fault
 * @typedef {{seq: number, id: string, at: number, x: number, lane: Lane, type: string, run: string, cause: string, actor: string,
 *   about: {en: string, zh: string}, alike: string, worker: string, fault: Fault, tokens: number, subagent: string, row: number}} Item
 *   `at`: ms; `x`: ms of the shown time, without idle hours; `about`: what it says, by language; `alike`: the same
 *   for problems that differ by nothing but time and tokens; `worker`: the process that began the run
 * @typedef {{lane: Lane, row: number, begin: number, end: number | null, item: Item, fault: Fault}} Span
 *   `begin`, `end`: shown time; `end` is null while it is open; `item`: the event that ended it, or began it
 */

/** @type {readonly Lane[]} */
export const LANES = ["person", "queue", "run", "model", "retry", "tool", "approval", "subagent", "file", "other"];

/** Characters of a quoted text; of all that an event says, twice as many. */
const ABOUT = 200;
/** Rows of a lane: more at once share the last one. */
export const ROWS = 8;
/** Idle time that is shown; longer pauses are shortened to it. */
const IDLE_MS = 3000;
/** Open spans, calls and subagents that are remembered: the oldest ones are forgotten. */
const OPEN = 1000;

/** @type {[RegExp, Lane][]} */
const LANE_OF = [
  [/^(message|run\.(steered|cancel_requested)|feedback|state\.patched|questions|chat|connection|schedule)/, "person"],
  [/^run\.(requested|admitted|refused)/, "queue"],
  [/^(run|goal|webhook|context|thread)\b/, "run"],
  [/^model\.failed/, "retry"],
  [/^model\./, "model"],
  [/^(tool|network|sandbox|command|mcp)\./, "tool"],
  [/^approval\./, "approval"],
  [/^subagent\./, "subagent"],
  [/^(file|artifact|workspace|folder)\./, "file"],
];

/** @param {string} type @returns {Lane} */
export const laneOf = (type) => LANE_OF.find(([pattern]) => pattern.test(type))?.[1] ?? "other";

/** @param {any} event @returns {Item["about"]} */
function shortAbout(event) {
  const { en, zh } = aboutOf(event, ABOUT);
  const cut = oneLine(en, 2 * ABOUT);
  return { en: cut, zh: zh === en ? cut : oneLine(zh, 2 * ABOUT) };
}

/** @param {any} event */
const alikeOf = (event) => aboutOf({ ...event, duration_ms: 0, message: event.message && { ...event.message, usage_metadata: null } }).en;

/** What policies do with an answer after which the run goes no further. */
const STOPS = ["stopped", "ended", "refused"];

/** What is wrong, by type. @type {Record<string, (e: any) => Fault>} */
const FAULT_OF = {
  "run.failed": () => "bad",
  "run.suspended": () => "warn",
  "run.started": (e) => (e.attempt > 1 ? "warn" : ""),
  "model.failed": (e) => (e.wait_ms == null ? "bad" : "warn"),
  "model.completed": (e) => (e.decisions?.some((/** @type {any} */ d) => STOPS.includes(d.action)) ? "bad" : e.decisions?.length ? "warn" : ""),
  "tool.completed": (e) => (e.message?.status === "error" || e.exit_code || e.unknown ? "bad" : e.decisions?.length ? "warn" : ""),
  "subagent.completed": (e) => (e.status !== "completed" ? "bad" : e.stop_reason ? "warn" : ""),
  "approval.requested": () => "",
  "approval.resolved": (e) => (e.decision === "expire" ? "bad" : e.decision === "reject" ? "warn" : ""),
  "webhook.failed": (e) => (e.again_at ? "warn" : "bad"),
  "file.rejected": () => "bad",
  "goal.paused": () => "warn",
  "command.ended": (e) => (e.exit_code ? "warn" : ""),
  "sandbox.failed": () => "bad",
};

/** Keys of open spans during which something is at work. */
const WORK = /^(tool|subagent):/;

/** @param {any} event */
const callOf = (event) => String(event.call_id ?? "");

/** The events of a log, in order, and the spans that they make. */
export class Items {
  /** @type {Item[]} */ items = [];
  /** @type {Span[]} */ spans = [];
  /** @type {Map<string, Span>} */ #open = new Map();
  /** @type {Map<Lane, (number | null)[]>} the ends of the rows of each lane; null: open */ #rows = new Map();
  /** The subagents of calls. @type {Map<string, string>} */ #subagents = new Map();
  /** The arguments of open calls, as the model asked for them. @type {Map<string, any>} */ #calls = new Map();
  #busy = 0;
  last = 0;

  /** The rows of a lane. @param {Lane} lane */
  rowsOf(lane) {
    return Math.max(1, this.#rows.get(lane)?.length ?? 0);
  }

  /** Takes the next event. Returns false if it is known. @param {number} seq @param {any} event */
  add(seq, event) {
    if (seq <= this.last) return false;
    this.last = seq;
    const usage = event.message?.usage_metadata ?? event.usage ?? {};
    const own = event.type === "model.completed" || event.type === "subagent.completed";
    const whole = event.type === "tool.requested" && !event.args ? { ...event, args: this.#calls.get(callOf(event)) ?? null } : event;
    const fault = FAULT_OF[event.type]?.(event) ?? "";
    /** @type {Item} */
    const item = {
      seq, id: String(event.id ?? ""), at: Date.parse(event.at) || 0, x: 0, lane: laneOf(String(event.type)), type: String(event.type), run: event.run ?? "", cause: event.cause ?? "",
      actor: event.actor ?? "", about: shortAbout(whole), alike: fault && alikeOf(whole), worker: String(event.worker ?? ""), fault, tokens: own ? (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0) : 0,
      subagent: String(event.subagent ?? this.#subagents.get(callOf(event)) ?? ""), row: 0,
    };
    for (const one of event.message?.tool_calls ?? []) this.#calls.set(String(one.id), one.args);
    if (event.type === "tool.completed") for (const known of [this.#calls, this.#subagents]) known.delete(callOf(event));
    if (event.type === "subagent.started") this.#subagents.set(callOf(event), item.subagent);
    item.x = this.#place(item.at, event.type === "model.completed" ? (event.duration_ms ?? 0) : 0);
    this.items.push(item);
    this.#fold(item, event);
    return true;
  }

  /** Where an event stands: after the one before, by the time between, of which little is shown if nothing was at work.
   * @param {number} at @param {number} ms for which its work took */
  #place(at, ms) {
    const before = this.items.at(-1);
    if (!before) return 0;
    const gap = Math.max(0, at - before.at);
    return before.x + (this.#busy > 0 ? gap : Math.min(gap, Math.max(IDLE_MS, ms)));
  }

  /** @param {Item} item @param {any} event */
  #fold(item, event) {
    const run = `run:${item.run}`;
    const queue = `queue:${item.run}`;
    switch (item.type) {
      case "run.requested":
        return this.#begin(queue, item);
      case "run.started":
        this.#end(queue, item);
        this.#end(run, item, "bad");
        return this.#begin(run, item);
      case "run.completed": case "run.failed": case "run.cancelled": case "run.rolled_back": case "run.paused": case "run.suspended":
        this.#end(queue, item);
        return this.#end(run, item, item.fault);
      case "model.completed":
        return this.#whole(item, Math.max(0, item.x - (event.duration_ms ?? 0)), item.x);
      case "model.failed":
        return this.#whole(item, item.x, item.x + Math.min(event.wait_ms ?? 0, IDLE_MS * 20));
      case "tool.requested":
        return this.#begin(`tool:${callOf(event)}`, item, 1);
      case "tool.completed":
        return this.#end(`tool:${callOf(event)}`, item, item.fault);
      case "subagent.started":
        return this.#begin(`subagent:${callOf(event)}`, item, 1);
      case "subagent.completed":
        return this.#end(`subagent:${callOf(event)}`, item, item.fault);
      case "approval.requested":
        return this.#begin(`approval:${event.approval}`, item);
      case "approval.resolved":
        return this.#end(`approval:${event.approval}`, item, item.fault);
    }
    return undefined;
  }

  /** @param {Item} item @param {number} begin @returns {Span} */
  #span(item, begin) {
    const rows = this.#rows.get(item.lane) ?? [];
    this.#rows.set(item.lane, rows);
    const free = rows.findIndex((end) => end !== null && end <= begin);
    const row = free >= 0 ? free : Math.min(rows.length, ROWS - 1);
    rows[row] = null;
    item.row = row;
    const span = { lane: item.lane, row, begin, end: null, item, fault: item.fault };
    this.spans.push(span);
    return span;
  }

  /** @param {Item} item @param {number} begin @param {number} end */
  #whole(item, begin, end) {
    this.#close(this.#span(item, begin), end);
  }

  /** @param {Span} span @param {number} end */
  #close(span, end) {
    span.end = Math.max(end, span.begin);
    const rows = this.#rows.get(span.lane);
    if (rows) rows[span.row] = span.end;
  }

  /** @param {string} key @param {Item} item @param {number} [busy] */
  #begin(key, item, busy = 0) {
    this.#busy += busy;
    this.#open.set(key, this.#span(item, item.x));
  }

  /** @param {string} key @param {Item} item @param {Fault} [fault] */
  #end(key, item, fault = "") {
    const span = this.#open.get(key);
    if (!span) return;
    this.#forget(key);
    span.fault = fault || span.fault;
    if (item.lane === span.lane) item.row = span.row;
    if (!key.startsWith("queue:")) span.item = item;
    this.#close(span, item.x);
  }

  /** Forgets all events but the newest, with the spans that ended before them. @param {number} most */
  drop(most) {
    this.items.splice(0, Math.max(0, this.items.length - most));
    for (const known of [this.#calls, this.#subagents]) for (const key of known.keys()) if (known.size > OPEN) known.delete(key);
    for (const key of this.#open.keys()) if (this.#open.size > OPEN && WORK.test(key)) this.#forget(key);
    const open = new Set(this.#open.values());
    this.spans = this.spans.filter((span) => (span.end === null ? open.has(span) : span.end >= this.begin));
  }

  /** @param {string} key of an open span */
  #forget(key) {
    this.#open.delete(key);
    if (WORK.test(key)) this.#busy = Math.max(0, this.#busy - 1);
  }

  /** The sequence of the first event; 0 if there is none. */
  get first() {
    return this.items[0]?.seq ?? 0;
  }

  /** Where the shown time begins. */
  get begin() {
    return this.items[0]?.x ?? 0;
  }

  /** Where the shown time ends. */
  get end() {
    return this.items.at(-1)?.x ?? 0;
  }

  /** The place in `items` of the last event at or before a sequence; -1 if there is none. @param {number} seq */
  indexOf(seq) {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (/** @type {Item} */ (this.items[middle]).seq <= seq) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** The time of the clock at a place of the shown time, in ms. @param {number} x */
  clockAt(x) {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (/** @type {Item} */ (this.items[middle]).x <= x) low = middle + 1;
      else high = middle;
    }
    const item = this.items[Math.max(0, low - 1)];
    return item ? item.at + (x - item.x) : 0;
  }

  /** What went wrong, and the questions that nobody has answered. @returns {Item[]} */
  problems() {
    const waiting = [...this.#open].filter(([key]) => key.startsWith("approval:")).map(([, span]) => span.item.seq);
    return this.items.filter((item) => item.fault || waiting.includes(item.seq));
  }

  /** The tokens that models used up to an event. @param {number} index */
  tokensAt(index) {
    let sum = 0;
    for (let place = 0; place <= index; place += 1) sum += this.items[place]?.tokens ?? 0;
    return sum;
  }
}
