// The caller's conversations as the sidebar lists them, kept up to date by the stream of what happens in all of them. One
// tab of a browser holds that stream, and tells the others: a server is given few connections.

import { batch, computed, signal } from "../vendor/preact.js";
import { Failure, send } from "../api/client.js";
import { Follower } from "../api/follower.js";
import { withoutMarkdown } from "./excerpt.js";

/**
 * @typedef {{id: string, title: string, status: string, updatedAt: string, pinned: boolean, excerpt: string}} Entry
 */

const PAGE = 50;
const ATTEMPTS = 5;
const SELECT = ["thread_id", "status", "updated_at", "metadata", "waiting"];
const LISTED = { select: SELECT, extract: { title: "values.title" }, sort_by: "updated_at", sort_order: "desc" };

/** @type {import("../vendor/preact.js").Signal<Map<string, Entry>>} */
const entries = signal(new Map());
/** True once the list was read. */
export const listed = signal(false);
/** True if there are older ones than are listed. */
export const more = signal(false);
/** Those of the threads that were read which wait for the person. @type {import("../vendor/preact.js").Signal<Set<string>>} */
export const waits = signal(new Set());
/** How many there are that wait, of all. */
export const waiting = signal(0);
/** Threads that were deleted and can still be had back. @type {import("../vendor/preact.js").Signal<Set<string>>} */
export const leaving = signal(new Set());
/** The newest event of any thread, for views that show more than one. @type {import("../vendor/preact.js").Signal<News|null>} */
export const news = signal(null);
/** @typedef {{event: string, data: any}} News */

/** The lock of the tab that follows, and the channel by which it tells the others. */
const NEWS = "sika.events";

/** Pinned ones first, then the newest. */
export const threads = computed(() =>
  [...entries.value.values()]
    .filter((entry) => !leaving.value.has(entry.id))
    .sort((one, other) => Number(other.pinned) - Number(one.pinned) || (one.updatedAt < other.updatedAt ? 1 : -1)),
);
/** Conversations in which something works now. */
export const working = computed(() => threads.value.filter((entry) => entry.status === "busy"));

/** @param {string} id */
export const entryOf = (id) => entries.value.get(id);

/** @param {any} thread @returns {Entry} */
function entryFrom(thread) {
  const { thread_id: id, status, updated_at: updatedAt, metadata = {}, extracted = {}, values = {} } = thread;
  return { id, status, updatedAt, title: extracted.title ?? values?.title ?? "", pinned: Boolean(metadata?.pinned), excerpt: excerptOf(thread) };
}

/** @param {any} thread */
function excerptOf({ highlights }) {
  const first = Array.isArray(highlights) ? highlights[0] : null;
  return withoutMarkdown(typeof first === "string" ? first : (first?.text ?? ""));
}

/** Reads threads, and which of them wait. @param {any} body @param {AbortSignal} [stop] @returns {Promise<any[]>} */
async function find(body, stop) {
  const response = await sent(body, stop);
  const found = await response.json();
  const next = new Set(waits.value);
  for (const thread of found) next[thread.waiting ? "add" : "delete"](thread.thread_id);
  batch(() => {
    waits.value = next;
    waiting.value = Number(response.headers.get("x-waiting-total"));
  });
  return found;
}

/** Sends a search. What a busy server refuses for now is sent again: nothing else would bring the list. @param {any} body @param {AbortSignal} [stop] */
async function sent(body, stop) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await send("POST", "threads/search", { body, signal: stop });
    } catch (error) {
      if (!(error instanceof Failure && error.status && error.passing) || attempt === ATTEMPTS) throw error;
      await new Promise((done) => setTimeout(done, 1000 * Math.max(error.retryAfter, attempt)));
    }
  }
}

/** Reads again which of these threads wait, and how many do. @param {string[]} ids */
export const readWaiting = (ids) => afterNews(() => find({ ids, select: ["thread_id", "waiting"], limit: ids.length }));

/** Reads more of the list. */
export const listMore = () => afterNews(() => list(entries.value.size));

/** Reads the list, from a place on. @param {number} [after] */
async function list(after = 0) {
  const found = await find({ ...LISTED, limit: PAGE, offset: after });
  batch(() => {
    const next = new Map(after ? entries.value : []);
    for (const thread of found) next.set(thread.thread_id, entryFrom(thread));
    entries.value = next;
    more.value = found.length === PAGE;
    listed.value = true;
  });
}

/** Finds threads by words. @param {string} words @param {AbortSignal} stop @returns {Promise<Entry[]>} */
export async function search(words, stop) {
  const found = await find({ ...LISTED, select: [...SELECT, "highlights"], query: words, limit: 30 }, stop);
  return found.map(entryFrom);
}

/** Changes an entry here, before or after the server does. @param {string} id @param {Partial<Entry>} change */
export function touch(id, change) {
  const now = new Date().toISOString();
  const before = entries.value.get(id) ?? { id, title: "", status: "idle", updatedAt: now, pinned: false, excerpt: "" };
  entries.value = new Map(entries.value).set(id, { ...before, ...change });
}

/** @param {string} id */
export function drop(id) {
  const next = new Map(entries.value);
  next.delete(id);
  entries.value = next;
}

// ── what the server says ─────────────────────────────────────────────────────────────────────────────────────────────

/** @type {Record<string, (id: string, data: any) => void>} */
const CHANGES = {
  "thread.created": (id, { at, metadata, title }) => touch(id, { updatedAt: at, pinned: Boolean(metadata?.pinned), ...(title ? { title } : {}) }),
  "thread.titled": (id, { title }) => touch(id, { title }),
  "thread.renamed": (id, { title }) => touch(id, { title }),
  "thread.annotated": (id, { metadata }) => "pinned" in (metadata ?? {}) && touch(id, { pinned: Boolean(metadata.pinned) }),
  "thread.deleted": drop,
  "run.requested": (id, { at }) => touch(id, { status: "busy", updatedAt: at }),
  "run.started": (id, { at }) => touch(id, { status: "busy", updatedAt: at }),
  "run.ended": (id, { at, status, paused }) => touch(id, { updatedAt: at, status: status === "error" ? "error" : paused ? "interrupted" : "idle" }),
};

/** What is done with the news, one after another: an answer that is older than what was heard since must not go before it. */
let work = Promise.resolve();

/** @param {() => unknown} act */
function afterNews(act) {
  const done = work.then(act);
  work = done.then(() => {}, () => {});
  return done;
}

/** Takes what is heard; of a stream that begins, after the list that it goes on from. @param {News} item */
const heard = ({ event, data }) =>
  afterNews(async () => {
    if (event === "ready" || event === "gap") await list().catch(() => {});
    batch(() => {
      if (data.thread_id) CHANGES[event]?.(data.thread_id, data);
      news.value = { event, data };
    });
  });

/** Follows what happens, in one tab of the browser for all: where another one does, this one begins with what there is. */
export function watch() {
  const channel = new BroadcastChannel(NEWS);
  channel.onmessage = ({ data }) => void heard(data);
  const follow = () =>
    new Follower({
      path: "events",
      rests: false,
      tell: ({ kind }) => kind === "over" && void afterNews(list).catch(() => {}),
      take: (frames) => {
        for (const frame of frames) {
          const item = { event: frame.event, data: JSON.parse(frame.data) };
          void heard(item);
          channel.postMessage(item);
        }
      },
    });
  if (!navigator.locks) return void follow();
  void navigator.locks.query().then(({ held }) => held?.some(({ name }) => name === NEWS) && void heard({ event: "ready", data: {} }));
  void navigator.locks.request(NEWS, () => new Promise(follow));
}
