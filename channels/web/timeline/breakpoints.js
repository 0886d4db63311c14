// Breakpoints, as `core/replay/breakpoints.py` reads them, for files that no server has. Pure.

import { Failure } from "../api/client.js";

const CONDITION = /^([A-Za-z_][\p{L}\p{N}_.]*)(=|!=|~)(.*)$/su;

/** @typedef {{path: string[], operator: string, holds: (text: string) => boolean}} Condition */

/** @param {string} text @param {string} detail @returns {Failure} */
const refusal = (text, detail) => new Failure(422, "invalid", `breakpoint ${JSON.stringify(text)}: ${detail}`);

/**
 * Reads `tool.requested name=bash args.command~rm`. Raises `Failure` with the part that is wrong.
 * @param {string} text @returns {(step: any) => boolean} tells whether it stops at an event
 */
export function breakpointOf(text) {
  const words = wordsIn(text);
  if (words[0] === undefined) throw refusal(text, "empty; write a type and conditions, such as 'tool.requested name=bash'");
  const named = !CONDITION.test(words[0]);
  const type = patternOf(named ? words[0] : "*");
  const conditions = words.slice(named ? 1 : 0).map((word) => conditionOf(text, word));
  return (step) => type.test(String(step.type ?? "")) && conditions.every((one) => holds(one, step));
}

/** @param {string} text @param {string} word @returns {Condition} */
function conditionOf(text, word) {
  const match = CONDITION.exec(word);
  if (!match) throw refusal(text, `${JSON.stringify(word)} is no condition; write FIELD=VALUE, != or ~`);
  const [, path = "", operator = "", value = ""] = match;
  const pattern = patternOf(value);
  return { path: path.split("."), operator, holds: operator === "~" ? (one) => one.includes(value) : (one) => pattern.test(one) };
}

/** @param {Condition} condition @param {any} step */
const holds = ({ path, operator, holds: met }, step) => textsAt(step, path).some(met) !== (operator === "!=");

/** The texts at a path; of lists, those of each item. @param {any} value @param {string[]} path @returns {string[]} */
function textsAt(value, path) {
  if (Array.isArray(value)) return value.flatMap((item) => textsAt(item, path));
  const [name, ...rest] = path;
  if (name === undefined) return [typeof value === "string" ? value : JSON.stringify(value)];
  return value !== null && typeof value === "object" && Object.hasOwn(value, name) ? textsAt(value[name], rest) : [];
}

/** A pattern of file names: `*`, `?`, `[a-z]`, `[!a-z]`. @param {string} text */
function patternOf(text) {
  const escaped = (/** @type {string} */ one) => one.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
  const set = (/** @type {string} */ one) => {
    const not = one[1] === "!";
    const ranges = one.slice(not ? 2 : 1, -1).replace(/(.)-(.)/gu, (range, first, last) => (first > last ? "" : range));
    const items = ranges.replace(/[\\^\][]/g, "\\$&");
    return `[${not ? "^" : ""}${items}]`;
  };
  const parts = text.match(/\*|\?|\[!?\]?[^\]]*\]|[^]/gu) ?? [];
  return new RegExp(`^${parts.map((one) => (one === "*" ? ".*" : one === "?" ? "." : one.length > 2 ? set(one) : escaped(one))).join("")}$`, "su");
}

/** The words of a line, with quotes and backslashes as a shell has them. @param {string} text */
function wordsIn(text) {
  /** @type {string[]} */
  const words = [];
  let rest = text;
  for (let word = "", begun = false; ; ) {
    const part = /^\s+|^'[^']*'|^"(?:[^"\\]|\\[^])*"|^\\[^]|^[^\s'"\\]+/u.exec(rest)?.[0];
    if (begun && (part === undefined || !part.trim())) {
      words.push(word);
      [word, begun] = ["", false];
    }
    if (part === undefined) break;
    rest = rest.slice(part.length);
    if (!part.trim()) continue;
    begun = true;
    if (part[0] === "'") word += part.slice(1, -1);
    else if (part[0] === '"') word += part.slice(1, -1).replace(/\\(["\\])/g, "$1");
    else word += part[0] === "\\" ? part.slice(1) : part;
  }
  if (rest) throw refusal(text, rest[0] === "\\" ? "No escaped character" : "No closing quotation");
  return words;
}
