// How many conversations wait for the person, and which, for the sidebar: asked for when the news say that it may have changed.

import { effect, signal } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { news, threads } from "../state/threads.js";
import { announce } from "./notify.js";

/** News after which something else may wait. */
export const CHANGES = /^(ready|gap|approval\.|question\.|run\.|thread\.deleted)/;
const PAUSE_MS = 300;
const MOST = 50;
const WAITING = /^(approval|question)\.waiting$/;

/** How many there are, which may be more than are read. */
export const waiting = signal(0);
/** The newest of these conversations. @type {import("../vendor/preact.js").Signal<Set<string>>} */
export const waits = signal(new Set());

/** Keeps the number, and tells of what begins to wait. */
export function countWaiting() {
  let timer = 0;
  const read = async () => {
    if (!threads.peek().length) return void (waiting.value = 0);
    const page = await call("GET", "approvals", { query: { limit: MOST } });
    waiting.value = page.threads;
    waits.value = new Set(page.waiting.map((/** @type {any} */ one) => one.thread_id));
  };
  effect(() => {
    const item = news.value;
    if (item && WAITING.test(item.event)) announce(item);
    if (!item || !CHANGES.test(item.event)) return;
    clearTimeout(timer);
    timer = setTimeout(() => void read().catch(() => {}), PAUSE_MS);
  });
}
