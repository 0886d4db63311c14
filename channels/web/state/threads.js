// The caller's conversations as the sidebar lists them, kept up to date by the stream of what happens in all of them. One
// tab of a browser holds that stream, and tells the others: a server is given few connections.

import { batch, computed, signal } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Follower } from "../api/follower.js";
import { withoutMarkdown } from "./excerpt.js";

/**
 * @typedef {{id: string, title: string, status: string, updatedAt: string, pinned: boolean, waiting: boolean, excerpt: string}} Entry
 */

const PAGE = 50;
const SELECT = ["thread_id", "status", "updated_at", "metadata"];
const LISTED = { select: SELECT, extract: { title: "values.title" }, sort_by: "updated_at", sort_order: "desc" };

/** @type {import("../vendor/preact.js").Signal<Map<string, Entry>>} */
const entries = signal(new Map());
/** True once the list was read. */
export const listed = signal(false);
/** True if there are older ones than are listed. */
export const more = signal(false);
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
  return { id, status, updatedAt, title: extracted.title ?? values?.title ?? "", pinned: Boolean(metadata?.pinned), waiting: status === "interrupted", excerpt: excerptOf(thread) };
}

/** @param {any} thread */
function excerptOf({ highlights }) {
  const first = Array.isArray(highlights) ? highlights[0] : null;
  return withoutMarkdown(typeof first === "string" ? first : (first?.text ?? ""));
}

/** Reads the list, or more of it. @param {{after?: number}} [how] */
export async function list({ after = 0 } = {}) {
  const found = await call("POST", "threads/search", { body: { ...LISTED, limit: PAGE, offset: after } });
  batch(() => {
    const next = new Map(after ? entries.value : []);
    for (const thread of found) next.set(thread.thread_id, entryFrom(thread));
    entries.value = next;
    more.value = found.length === PAGE;
    listed.value = true;
  });
}

/** Finds threads by words. @param {string} words @param {AbortSignal} signal @returns {Promise<Entry[]>} */
export async function search(words, signal) {
  const found = await call("POST", "threads/search", { body: { ...LISTED, select: [...SELECT, "highlights"], query: words, limit: 30 }, signal });
  return found.map(entryFrom);
}

/** Changes an entry here, before or after the server does. @param {string} id @param {Partial<Entry>} change */
export function touch(id, change) {
  const now = new Date().toISOString();
  const before = entries.value.get(id) ?? { id, title: "", status: "idle", updatedAt: now, pinned: false, waiting: false, excerpt: "" };
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
  "run.requested": (id, { at }) => touch(id, { status: "busy", updatedAt: at, waiting: false }),
  "run.started": (id, { at }) => touch(id, { status: "busy", updatedAt: at, waiting: false }),
  "run.ended": (id, { at, status, paused }) => touch(id, { updatedAt: at, status: status === "error" ? "error" : paused ? "interrupted" : "idle", waiting: Boolean(paused) }),
  "approval.waiting": (id) => touch(id, { waiting: true }),
  "question.waiting": (id) => touch(id, { waiting: true }),
  "approval.answered": (id) => touch(id, { waiting: false }),
  "question.answered": (id) => touch(id, { waiting: false }),
};

/** Takes what is heard; of a stream that begins, after the list that it goes on from. @param {News} item */
async function heard({ event, data }) {
  if (event === "ready" || event === "gap") await list().catch(() => {});
  batch(() => {
    if (data.thread_id) CHANGES[event]?.(data.thread_id, data);
    news.value = { event, data };
  });
}

/** Follows what happens, in one tab of the browser for all: where another one does, this one begins with what there is. */
export function watch() {
  const channel = new BroadcastChannel(NEWS);
  channel.onmessage = ({ data }) => void heard(data);
  const follow = () =>
    new Follower({
      path: "events",
      rests: false,
      tell: ({ kind }) => kind === "over" && void list().catch(() => {}),
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
