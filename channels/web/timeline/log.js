// A log that is looked at: read from the server page by page and then followed, or from a file that was exported.

import { signal } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Follower } from "../api/follower.js";
import { Items } from "./items.js";

const PAGE = 1000;
/** Events that are read at once; further ones when they are asked for. */
const MOST = 20_000;

/** @typedef {{seq: number, event: any}} Entry */

export class Log {
  items = new Items();
  /** Counts what changed: a view that reads it is drawn again. */
  changed = signal(0);
  condition = signal(/** @type {"loading" | "live" | "more" | "done" | "lost"} */ ("loading"));
  failure = signal(/** @type {unknown} */ (null));
  #closed = false;
  #timer = 0;
  /** @type {Follower | null} */ #follower = null;

  after = 0;

  /** @param {string} thread @param {number} until the sequence of an event that is read at once, too */
  constructor(thread, until) {
    this.thread = thread;
    this.until = until;
  }

  /** Reads on, up to a bound, then follows. */
  async read() {
    this.condition.value = "loading";
    const bound = this.items.items.length + MOST;
    try {
      for (;;) {
        const page = await call("GET", `threads/${this.thread}/log/events`, { query: { after: this.after, limit: PAGE } });
        if (this.#closed) return;
        for (const { seq, event } of page.events) this.items.add(seq, event);
        this.#tell();
        if (page.next === null || page.next === undefined) return this.#follow();
        this.after = page.next;
        if (this.items.items.length >= bound && this.items.last >= this.until) return void (this.condition.value = "more");
        await new Promise((resolve) => setTimeout(resolve));
      }
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.failure.value = error;
    }
  }

  #follow() {
    this.#follower = new Follower({
      path: `threads/${this.thread}/log`, query: { follow: 1, after: this.items.last },
      take: (frames) => {
        for (const { id, data } of frames) if (id) this.items.add(Number(id), JSON.parse(data));
        this.#tell();
      },
      tell: ({ kind }) => (this.condition.value = kind === "open" || kind === "opening" ? "live" : "lost"),
    });
  }

  /** Draws once for many events. */
  #tell() {
    if (this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.changed.value += 1;
    }, 50);
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#follower?.close();
  }

  /** The next event at which a replay would stop; 0 if there is none. @param {string} stop as `sika log replay --break` has it @param {number} after */
  async next(stop, after) {
    for (let from = after; ; ) {
      const page = await call("GET", `threads/${this.thread}/log/events`, { query: { stop, after: from, limit: 1 } });
      if (page.events[0] || page.next == null) return page.events[0]?.seq ?? 0;
      from = page.next;
    }
  }

  /** The event as it is stored. @param {number} seq */
  async event(seq) {
    const page = await call("GET", `threads/${this.thread}/log/events`, { query: { after: seq - 1, limit: 1 } });
    return page.events[0]?.event ?? null;
  }

  /** The causes of an event, the first one first. @param {number} seq @returns {Promise<{kind: string, aggregate: string, seq: number, event: any}[]>} */
  why(seq) {
    return call("GET", `threads/${this.thread}/log/why`, { query: { event: `seq:${seq}` } });
  }

  /** The state after an event, with its newest messages; null if nothing here can tell. @param {number} seq @param {number} [messages] all by default */
  state(seq, messages) {
    return call("GET", `threads/${this.thread}/log/state`, { query: { at: `seq:${seq}`, runs: 1, messages } });
  }
}

/** The longest file that is read. */
const FILE_BYTES = 512 << 20;

/** A log in a file that `sika log export` or the page wrote: no server is asked. */
export class FileLog {
  items = new Items();
  changed = signal(0);
  condition = signal(/** @type {"loading" | "live" | "more" | "done" | "lost"} */ ("loading"));
  failure = signal(/** @type {unknown} */ (null));
  thread = "";
  /** @type {Map<number, any>} */ #events = new Map();
  /** @type {Map<string, {kind: string, aggregate: string, seq: number, event: any}>} of all logs, by their ids */ #byId = new Map();

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
      if (!(error instanceof SyntaxError)) throw error;
      this.failure.value = "timeline.file.wrong";
    }
    if (!this.thread) this.failure.value = "timeline.file.wrong";
    this.condition.value = "done";
    this.changed.value += 1;
  }

  /** @param {any} line */
  #take(line) {
    if (line?.line === "header") this.thread = String(line.thread);
    if (line?.line !== "event" || typeof line.event !== "object") return;
    const { seq, event } = line;
    this.#byId.set(event.id, { kind: event.kind, aggregate: event.aggregate, seq, event });
    if (event.aggregate !== this.thread || event.kind === "workspace") return;
    this.#events.set(seq, event);
    this.items.add(seq, event);
  }

  close() {}

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

  /** @param {number} _seq @param {number} [_messages] */
  async state(_seq, _messages) {
    return null;
  }
}
