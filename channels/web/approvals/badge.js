// Which conversations wait for the person, and how many, kept up to date: a list of them says it, and of those that the news
// are about it is asked again.

import { news, readWaiting } from "../state/threads.js";
import { announce } from "./notify.js";

/** News after which something else may wait. */
export const CHANGES = /^(ready|gap|approval\.|question\.|run\.|thread\.deleted)/;
const PAUSE_MS = 300;
/** Conversations of one request. */
const MOST = 100;
const WAITING = /^(approval|question)\.waiting$/;

/** Follows what waits, and tells of what begins to. */
export function keepWaiting() {
  /** @type {Set<string>} */ const changed = new Set();
  let timer = 0;
  const later = () => void (timer ||= setTimeout(read, PAUSE_MS));
  const read = () => {
    timer = 0;
    const ids = [...changed].slice(0, MOST);
    for (const id of ids) changed.delete(id);
    if (changed.size) later();
    readWaiting(ids).catch(() => ids.forEach((id) => changed.add(id))); // they are asked for again with the next
  };
  news.subscribe((item) => {
    if (item && WAITING.test(item.event)) announce(item);
    if (!item?.data.thread_id || !CHANGES.test(item.event)) return;
    changed.add(item.data.thread_id);
    later();
  });
}
