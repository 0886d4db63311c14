// One stream that is followed for ever: it is opened again after the last frame, whatever ended it, with pauses that grow.
// A page that nobody looks at lets go of it: browsers open few connections to a server at once.

import { address, failureOf, sessionFor } from "./client.js";
import { readFrames } from "./sse.js";

/** @typedef {import("./client.js").Failure} Failure */

const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 10_000;
/** Silence after which a connection counts as lost, until the server has said how often its heart beats. */
const SILENCE_MS = 35_000;
/** Heartbeats that may be missed, with some room. */
const BEATS = 2.4;
/** How long a page is hidden before it lets go. */
const HIDDEN_MS = 30_000;

/**
 * `open`: frames come. `lost`: they do not, and it is tried again (`attempt`). `resting`: nobody looks. `over`: the
 * server refused it, and why (`failure`).
 * @typedef {{kind: "opening"|"open"|"lost"|"resting"|"over", attempt: number, failure?: Failure}} Condition
 */

export class Follower {
  #last = "";
  #attempt = 0;
  #silence = SILENCE_MS;
  #isNew = true;
  #quietTimer = 0;
  #hiddenTimer = 0;
  #closed = false;
  /** @type {AbortController | null} */ #connection = null;
  /** @type {(() => void) | null} */ #wake = null;
  #resting = false;

  /**
   * @param {{path: string, query?: Record<string, unknown>, rests?: boolean, last?: string,
   *   take: (frames: import("./sse.js").Frame[]) => void, tell: (condition: Condition) => void}} about
   *   `rests`: lets go while the page is hidden.
   */
  constructor({ path, query = {}, rests = true, last = "", take, tell }) {
    this.path = path;
    this.query = query;
    this.rests = rests;
    this.take = take;
    this.tell = tell;
    this.#last = last;
    addEventListener("online", this.#again);
    addEventListener("offline", this.#lose);
    document.addEventListener("visibilitychange", this.#look);
    document.addEventListener("resume", this.#again);
    void this.#run();
  }

  close() {
    this.#closed = true;
    removeEventListener("online", this.#again);
    removeEventListener("offline", this.#lose);
    document.removeEventListener("visibilitychange", this.#look);
    document.removeEventListener("resume", this.#again);
    clearTimeout(this.#hiddenTimer);
    clearTimeout(this.#quietTimer);
    this.#connection?.abort();
    this.#connection = null;
    this.#wake?.();
  }

  async #run() {
    this.tell({ kind: "opening", attempt: 0 });
    while (!this.#closed) {
      if (this.#resting) {
        this.tell({ kind: "resting", attempt: 0 });
        await this.#pause(2 ** 31 - 1);
        continue;
      }
      const failure = await this.#connect();
      if (this.#closed || this.#resting) continue;
      if (failure && (await sessionFor(failure, this.path))) continue;
      if (failure && failure.status >= 400 && !failure.passing) return this.#end(failure);
      this.#attempt += 1;
      this.tell({ kind: "lost", attempt: this.#attempt });
      const pause = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (this.#attempt - 1));
      await this.#pause(Math.max(pause * (0.5 + Math.random() / 2), 1000 * (failure?.retryAfter ?? 0)));
    }
  }

  /** @param {Failure} failure */
  #end(failure) {
    this.tell({ kind: "over", attempt: 0, failure });
    this.close();
  }

  /** Reads until the connection ends. Returns why it could not be had. @returns {Promise<Failure | null>} */
  async #connect() {
    const connection = new AbortController();
    this.#connection = connection;
    this.#listen();
    try {
      const headers = { accept: "text/event-stream", ...(this.#last ? { "last-event-id": this.#last } : {}) };
      const response = await fetch(address(this.path, this.query), { headers, signal: connection.signal, cache: "no-store" });
      if (!response.ok) return await failureOf(response);
      this.#silence = BEATS * 1000 * Number(response.headers.get("x-heartbeat-seconds")) || SILENCE_MS;
      await readFrames(response, (frames) => connection.signal.aborted || this.#receive(frames));
    } catch {
      return null;
    } finally {
      connection.abort();
      if (this.#connection === connection) this.#connection = null; // its reason keeps alive what ran when it was aborted
      clearTimeout(this.#quietTimer);
    }
    return null;
  }

  /** @param {import("./sse.js").Frame[]} frames */
  #receive(frames) {
    if (this.#attempt || this.#isNew) this.tell({ kind: "open", attempt: 0 });
    this.#attempt = 0;
    this.#isNew = false;
    for (const frame of frames) if (frame.id) this.#last = frame.id;
    this.#listen();
    const news = frames.filter((frame) => frame.event);
    if (news.length) this.take(news);
  }

  #listen() {
    clearTimeout(this.#quietTimer);
    this.#quietTimer = setTimeout(this.#lose, this.#silence);
  }

  #lose = () => this.#connection?.abort();

  #again = () => {
    this.#attempt = Math.min(this.#attempt, 1);
    this.#connection?.abort();
    this.#wake?.();
  };

  #look = () => {
    clearTimeout(this.#hiddenTimer);
    if (!this.rests) return;
    if (document.hidden) this.#hiddenTimer = setTimeout(() => this.#rest(true), HIDDEN_MS);
    else if (this.#resting) this.#rest(false);
  };

  /** @param {boolean} resting */
  #rest(resting) {
    this.#resting = resting;
    this.#attempt = 0;
    this.#isNew = true;
    this.#connection?.abort();
    this.#wake?.();
  }

  /** @param {number} ms @returns {Promise<void>} */
  #pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
