// A log that is looked at: read from the server page by page and then followed, or from a file that was exported.

import { signal } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Follower } from "../api/follower.js";
import { breakpointOf } from "./breakpoints.js";
import { changesOf } from "./changes.js";
import { Fold, filesAt } from "./fold.js";
import { Items } from "./items.js";
import { sentAt } from "./sent.js";

const PAGE = 1000;
/** Events of the page that is shown at first. */
const FIRST = 200;
/** Events that are taken in one task: others have their turn in between. */
const SLICE = 250;
const DRAWN_MS = 100;
/** Events of a window: a longer log is looked at window by window. */
const WINDOW = 10_000;

/** @typedef {{seq: number, event: any}} Entry */

export class Log {
  items = new Items();
  /** Counts what changed: a view that reads it is drawn again. */
  changed = signal(0);
  condition = signal(/** @type {"loading" | "live" | "more" | "done" | "lost" | "shared"} */ ("loading"));
  failure = signal(/** @type {unknown} */ (null));
  /** True for a conversation of who looks: it goes on, and may be gone on with from any moment. */
  own = true;
  #closed = false;
  #timer = 0;
  /** @type {Follower | null} */ #follower = null;

  /** The event that somebody looks at, which stays in the window; 0: none. */
  looked = 0;

  /** True if the window begins with the first event of the log. */ whole = false;
  /** True if the window ends with the last one, which is followed. */ newest = false;

  /** @param {string} thread @param {number} at the sequence of an event around which the window lies; 0: the newest ones */
  constructor(thread, at) {
    this.thread = thread;
    this.at = at;
    /** Where the log is read. */
    this.path = `threads/${thread}/log`;
  }

  /** Reads the window. */
  read() {
    return this.#window(async () => {
      if (!this.at) return this.#down(0, WINDOW);
      const before = await this.#down(this.at + 1, WINDOW / 2);
      return [...before, ...(await this.#up(this.at, WINDOW / 2))];
    });
  }

  /** Moves the window to the events before it, with the first of it as the last one. */
  earlier() {
    return this.#window(() => this.#down(this.items.first + 1, WINDOW));
  }

  /** Moves the window to the events after it, with the last of it as the first one. */
  later() {
    return this.#window(() => {
      this.whole = false;
      return this.#up(this.items.last - 1, WINDOW);
    });
  }

  /** Moves the window to an event that is not in it. @param {number} seq */
  reach(seq) {
    if (this.condition.value === "loading" || !this.items.items.length) return;
    if ((seq >= this.items.first || this.whole) && (seq <= this.items.last || this.newest)) return;
    this.at = seq;
    void this.read();
  }

  /** @param {() => Promise<Entry[]>} entries */
  async #window(entries) {
    this.#follower?.close();
    this.condition.value = "loading";
    try {
      await this.#show(await entries());
      if (this.#closed) return;
      if (!this.newest) this.condition.value = "more";
      else if (this.own) this.#follow();
      else this.condition.value = "shared";
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.failure.value = error;
    }
  }

  /** Takes events in slices, and shows them then. @param {Entry[]} entries */
  async #show(entries) {
    const items = new Items();
    for (let place = 0; place < entries.length; place += SLICE) {
      if (place) await new Promise((resolve) => setTimeout(resolve));
      for (const { seq, event } of entries.slice(place, place + SLICE)) items.add(seq, event);
    }
    if (this.#closed) return;
    this.items = items;
    this.changed.value += 1;
  }

  /** Reads the newest events before a sequence (0: of all), and shows the first page of them at once where there is nothing yet. @param {number} before @param {number} most @returns {Promise<Entry[]>} oldest first */
  async #down(before, most) {
    /** @type {Entry[][]} */
    const pages = [];
    this.newest = before === 0;
    for (let from = before, count = 0; count < most && !this.#closed; ) {
      const page = await this.#page({ before: from }, count || this.items.items.length ? PAGE : FIRST);
      pages.unshift(page.events.reverse());
      count += page.events.length;
      this.whole = page.next == null;
      if (this.whole) break;
      from = page.next;
      if (this.items.items.length === 0) await this.#show(page.events);
    }
    return pages.flat();
  }

  /** @param {number} after @param {number} most @returns {Promise<Entry[]>} */
  async #up(after, most) {
    /** @type {Entry[][]} */
    const pages = [];
    for (let from = after, count = 0; count < most && !this.#closed; ) {
      const page = await this.#page({ after: from });
      pages.push(page.events);
      count += page.events.length;
      this.newest = page.next == null;
      if (this.newest) break;
      from = page.next;
    }
    return pages.flat();
  }

  /** @param {{before: number} | {after: number}} from */
  #page(from, limit = PAGE) {
    return call("GET", `${this.path}/events`, { query: { ...from, phrases: 0, limit } });
  }

  #follow() {
    this.#follower = new Follower({
      path: this.path, query: { follow: 1, after: this.items.last },
      take: (frames) => {
        for (const { id, data } of frames) if (id) this.items.add(Number(id), JSON.parse(data));
        this.#bound();
        this.#tell();
      },
      tell: ({ kind }) => (this.condition.value = kind === "open" || kind === "opening" ? "live" : "lost"),
    });
  }

  /** Keeps the window a window while it is followed: what is far from its end is dropped. Ends following where that would
   * drop what somebody looks at: the rest is there as later events. */
  #bound() {
    const { items } = this.items;
    if (items.length < WINDOW + PAGE) return;
    if (this.looked && this.looked < (items.at(-WINDOW)?.seq ?? 0)) {
      this.#follower?.close();
      this.newest = false;
      this.condition.value = "more";
      return;
    }
    this.items.drop(WINDOW);
    this.whole = false;
  }

  /** Draws once for the events of `DRAWN_MS`. */
  #tell() {
    if (this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.changed.value += 1;
    }, DRAWN_MS);
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#follower?.close();
  }

  /** The next event at which a replay would stop; 0 if there is none. @param {string} stop as `sika log replay --break` has it @param {number} after */
  async next(stop, after) {
    for (let from = after; ; ) {
      const page = await call("GET", `${this.path}/events`, { query: { phrases: 0, stop, after: from, limit: 1 } });
      if (page.events[0] || page.next == null) return page.events[0]?.seq ?? 0;
      from = page.next;
    }
  }

  /** The event as it is stored. @param {number} seq */
  async event(seq) {
    const page = await call("GET", `${this.path}/events`, { query: { phrases: 0, after: seq - 1, limit: 1 } });
    return page.events[0]?.event ?? null;
  }

  /** The causes of an event, the first one first. @param {number} seq @returns {Promise<{kind: string, aggregate: string, seq: number, event: any}[]>} */
  why(seq) {
    return call("GET", `${this.path}/why`, { query: { event: `seq:${seq}` } });
  }

  /** The state after an event, with its newest messages. @param {number} seq @param {number} [messages] all by default */
  state(seq, messages) {
    return call("GET", `${this.path}/state`, { query: { at: `seq:${seq}`, runs: 1, messages } });
  }

  /** What a model got in the call that ended with an event. @param {number} seq */
  prompt(seq) {
    return call("GET", `${this.path}/prompt`, { query: { at: `seq:${seq}` } });
  }

  /** The files as they were known at an event. @param {number} seq */
  files(seq) {
    return call("GET", `${this.path}/files`, { query: { at: `seq:${seq}` } });
  }

  /** True if the states after two events can be compared. */
  get compares() {
    return this.own;
  }

  /** The values of the states after two events that differ. @param {number} left @param {number} right @returns {Promise<import("./changes.js").Change[]>} */
  async compared(left, right) {
    return (await call("GET", `${this.path}/diff`, { query: { left: `@seq:${left}`, right: `@seq:${right}` } })).values;
  }

  /** True if the conversation of a subagent can be looked at. @param {string} id */
  tellsOf(id) {
    return this.own && id !== "";
  }

  /** What a subagent was told, and did. @param {string} id */
  async subagent(id) {
    const at = `threads/${this.thread}/subagents/${encodeURIComponent(id)}`;
    const [about, page] = await Promise.all([call("GET", at), call("GET", `${at}/messages`, { query: { limit: 200 } })]);
    return { ...about, messages: page.data.map((/** @type {any} */ row) => row.content) };
  }
}

/** A log up to the moment at which somebody else shared it. */
export class SharedLog extends Log {
  own = false;

  /** @param {string} token @param {string} thread @param {number} at */
  constructor(token, thread, at) {
    super(thread, at);
    this.path = `shares/${token}/log`;
  }
}

/** The longest file that is read. */
const FILE_BYTES = 512 << 20;

/** A log in a file that `sika log export` or the page wrote: no server is asked. */
export class FileLog {
  items = new Items();
  changed = signal(0);
  condition = signal(/** @type {"loading" | "live" | "more" | "done" | "lost" | "shared"} */ ("loading"));
  failure = signal(/** @type {unknown} */ (null));
  own = false;
  thread = "";
  whole = true;
  newest = true;
  /** True if secrets were replaced in it. */ redacted = false;
  /** True if its last line is missing. */ cut = true;
  /** @type {Map<number, any>} of the conversation, in their order */ #events = new Map();
  /** @type {Map<string, {kind: string, aggregate: string, seq: number, event: any}>} of all logs, by their ids */ #byId = new Map();
  /** @type {Map<string, Entry[]>} of the other logs */ #logs = new Map();
  /** @type {Map<string, any>} by their hashes */ #bodies = new Map();
  #kind = "thread";
  #fold = new Fold();
  /** Events whose bodies the file does not have. */
  bodiless = 0;

  /** @param {File} file */
  constructor(file) {
    this.file = file;
    this.name = file.name;
  }

  async read() {
    if (this.file.size > FILE_BYTES) return void (this.failure.value = "timeline.file.large");
    try {
      for (const line of (await this.file.text()).split("\n")) if (line) this.#take(JSON.parse(line));
    } catch (error) {
      if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error; // no JSON, or too deep: what was before it is shown
    }
    if (!this.thread) this.failure.value = "timeline.file.wrong";
    this.condition.value = "done";
    this.changed.value += 1;
  }

  /** @param {any} line */
  #take(line) {
    if (line?.line === "header") {
      this.thread = String(line.thread);
      this.#kind = line.kind ?? "thread";
      this.redacted = line.redacted === true;
    }
    if (line?.line === "end") this.cut = false;
    if (line?.line === "blob") this.#bodies.set(line.sha256, line.body);
    if (line?.line !== "event" || typeof line.event !== "object" || !line.event) return;
    const { seq } = line;
    const event = this.#bodies.get(line.event.blob?.sha256) ?? line.event;
    this.#byId.set(event.id, { kind: event.kind, aggregate: event.aggregate, seq, event });
    if (event.aggregate !== this.thread || event.kind !== this.#kind) {
      const key = `${event.kind} ${event.aggregate}`;
      const entries = this.#logs.get(key) ?? [];
      entries.push({ seq, event });
      return void this.#logs.set(key, entries);
    }
    this.#events.set(seq, event);
    if (event === line.event && event.blob) this.bodiless += 1;
    this.items.add(seq, event);
  }

  close() {}

  /** The next event at which a breakpoint stops; 0 if there is none. Raises `Failure`. @param {string} stop @param {number} after */
  async next(stop, after) {
    const stops = breakpointOf(stop);
    for (const [seq, event] of this.#events) if (seq > after && stops({ ...event, seq })) return seq;
    return 0;
  }

  /** @param {number} seq */
  async event(seq) {
    return this.#events.get(seq) ?? null;
  }

  /** @param {number} seq */
  async why(seq) {
    const chain = [];
    const known = new Set();
    let entry = this.#byId.get(this.#events.get(seq)?.id);
    while (entry && !known.has(entry.event.id)) {
      known.add(entry.event.id);
      chain.unshift(entry);
      entry = this.#byId.get(entry.event.cause);
    }
    return chain;
  }

  /** @param {number} seq @param {number} [messages] */
  async state(seq, messages = Infinity) {
    const { status, checkpoint, values, messages: all, missing } = this.#foldAt(seq);
    const newest = all.slice(Math.max(0, all.length - messages));
    return { seq, status, checkpoint, values: values["messages"] ? { ...values, messages: newest } : { ...values }, messages: all.length, missing: [...missing] };
  }

  /** @param {number} seq */
  async prompt(seq) {
    const absent = this.redacted ? "timeline.prompt.redacted" : "timeline.prompt.absent";
    const logOf = (/** @type {string} */ kind, /** @type {string} */ aggregate) => this.#logs.get(`${kind} ${aggregate}`) ?? [];
    const sent = await sentAt(this.#events.get(seq), seq, (upto) => this.#foldAt(upto), logOf, absent);
    return { ...sent, missing: [...this.#foldAt(seq - 1).missing] };
  }

  /** @param {number} seq */
  async files(seq) {
    const events = Array.from(this.#events, ([at, event]) => ({ seq: at, event }));
    return filesAt(this.#logs.get(`workspace ${this.thread}`) ?? [], events, seq);
  }

  compares = true;

  /** @param {number} left @param {number} right */
  async compared(left, right) {
    const [before, after] = [left, right].map((seq) => {
      const { values, status } = this.#foldAt(seq);
      return structuredClone({ ...values, status }); // the fold goes on in place
    });
    return [...changesOf(before, after)];
  }

  /** @param {string} id */
  tellsOf(id) {
    return this.#logs.has(`subagent ${id}`);
  }

  /** @param {string} id */
  async subagent(id) {
    const fold = new Fold();
    for (const { seq, event } of this.#logs.get(`subagent ${id}`) ?? []) fold.apply(seq, event);
    return { name: "", status: [...fold.runs.values()].at(-1)?.status ?? "", prompt: "", messages: fold.messages };
  }

  /** The conversation up to a sequence: goes on from where it was, or from the beginning. @param {number} seq */
  #foldAt(seq) {
    if (seq < this.#fold.seq) this.#fold = new Fold();
    for (const [at, event] of this.#events) if (at > this.#fold.seq && at <= seq) this.#fold.apply(at, event);
    return this.#fold;
  }
}
