// How many conversations wait for the person, for the sidebar: asked for when the news say that it may have changed.

import { effect, signal } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { news } from "../state/threads.js";
import { announce } from "./notify.js";

/** News after which something else may wait. */
export const CHANGES = /^(ready|gap|approval\.|question\.|run\.|thread\.deleted)/;
const PAUSE_MS = 300;
const WAITING = /^(approval|question)\.waiting$/;

export const waiting = signal(0);

/** Keeps the number, and tells of what begins to wait. */
export function countWaiting() {
  let timer = 0;
  const read = () => call("GET", "approvals", { query: { limit: 1 } }).then((page) => (waiting.value = page.threads)).catch(() => {});
  effect(() => {
    const item = news.value;
    if (item && WAITING.test(item.event)) announce(item);
    if (!item || !CHANGES.test(item.event)) return;
    clearTimeout(timer);
    timer = setTimeout(() => void read(), PAUSE_MS);
  });
}
