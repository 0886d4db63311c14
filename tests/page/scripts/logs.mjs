// Recorded logs as frames of the stream that the page follows.
import { readFileSync } from "node:fs";

const GOLDEN = new URL("../../golden/", import.meta.url);
export const STORIES = ["commands", "delegates", "pauses", "policies", "research"];

/** The frames of a recorded log: the place of an event is its sequence. */
export function framesOf(story) {
  const lines = readFileSync(new URL(`${story}.jsonl`, GOLDEN), "utf8").trimEnd().split("\n");
  return lines.map((data, index) => ({ event: JSON.parse(data).type, data, id: String(index + 1) }));
}

/** The state that the server folds of the same log. */
export const stateOf = (story) => JSON.parse(readFileSync(new URL(`${story}.state.json`, GOLDEN), "utf8"));

/** Numbers that look like chance, and are the same in each run of the tests. */
export function chance(seed) {
  let state = seed + 1;
  return () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state / 0x7fffffff;
  };
}

/** A list cut into pieces of any length. */
export function cut(list, random) {
  const pieces = [];
  for (let at = 0; at < list.length; ) {
    const length = 1 + Math.floor(random() * 6);
    pieces.push(list.slice(at, at + length));
    at += length;
  }
  return pieces;
}
