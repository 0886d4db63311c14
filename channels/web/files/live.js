// When the files of a conversation may have changed: its own stream says so while it is open, and the news of all
// conversations otherwise.

import { effect, useEffect, useState } from "../vendor/preact.js";
import { open } from "../chat/open.js";
import { news } from "../state/threads.js";

const PAUSE_MS = 400;
const CHANGES = /^(ready|gap|file\.|run\.ended)/;

/** A number that grows when files may have changed. @param {string} thread */
export function useFilesTick(thread) {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    /** @type {ReturnType<typeof setTimeout>[]} */ let timers = [];
    let [results, newest] = [resultsOf(thread), news.peek()];
    const soon = (/** @type {number} */ ms) => timers.push(setTimeout(() => ((timers = timers.slice(1)), setTick((at) => at + 1)), ms));
    const stop = effect(() => {
      const [count, item] = [resultsOf(thread), news.value];
      if (count !== results && !timers.length) soon(PAUSE_MS);
      if (item && item !== newest && CHANGES.test(item.event) && (item.data.thread_id ?? thread) === thread) soon(PAUSE_MS);
      [results, newest] = [count, item];
    });
    return () => {
      stop();
      timers.forEach(clearTimeout);
    };
  }, [thread]);
  return tick;
}

/** How many tool calls have ended in a conversation, if it is open. @param {string} thread */
const resultsOf = (thread) => (open.value?.id === thread ? Object.keys(open.value.state.value.results).length : 0);
