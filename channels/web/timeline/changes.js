// The values that differ in two states, as the server finds them (`core/replay/diff.py`).

import { isObject } from "./phrases.js";

/** @typedef {{path: string, before?: any, after?: any}} Change a value that differs; without the side on which it is not */

/** Items of lists with an `id` are compared by it. @param {any} before @param {any} after @param {string} [path] @returns {Generator<Change>} */
export function* changesOf(before, after, path = "") {
  if (isObject(before) && isObject(after)) {
    for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) yield* changesOf(before[name], after[name], path ? `${path}.${name}` : name);
  } else if (Array.isArray(before) && Array.isArray(after)) {
    const [olds, news] = [byId(before), byId(after)];
    const keys = olds && news ? new Set([...olds.keys(), ...news.keys()]) : Array(Math.max(before.length, after.length)).keys();
    for (const key of keys) yield* changesOf(olds && news ? olds.get(key) : before[Number(key)], olds && news ? news.get(key) : after[Number(key)], `${path}[${key}]`);
  } else if (before !== after) {
    yield { path, ...(before !== undefined && { before }), ...(after !== undefined && { after }) };
  }
}

/** The items by their ids; null if one has none, or two have the same. @param {any[]} items @returns {Map<any, any> | null} */
function byId(items) {
  const known = new Map(items.filter((item) => isObject(item) && item.id).map((item) => [String(item.id), item]));
  return known.size === items.length ? known : null;
}
