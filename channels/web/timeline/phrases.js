// Events in people's words: the templates of `core/phrases.py`, on events as they are stored. Both hold to one table of
// examples (tests/core/test_phrases.py).

import { language } from "../words/words.js";
import { ENVELOPE, PHRASES } from "./catalogue.js";

/** @typedef {{path: string[], filter: string}} Field */
/** @typedef {{field: Field, sign: string, text: string}} Condition `sign`: "" (not empty), "!" (empty), "=" or "!=" */
/** @typedef {{optional: boolean, conditions: Condition[], texts: string[], fields: Field[]}} Part texts with fields between them */

/** Characters of a quoted text, of an event's text, and of lists that are looked at. */
const QUOTED = 90;
const LONGEST = 2000;
/** Arguments that say what a call is about, the most specific first. */
const SUBJECTS = ["description", "command", "path", "pattern", "query", "url", "prompt", "question"];

/** A sequence that commands a terminal, and characters that move a cursor or disguise a text. */
const UNCLEAN = /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)|[ -/]*[0-~])|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const SPACES = /[\t\n \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/gu;

/** An event's kind in people's words; that of a type without words by its name. @param {string} type */
export function phraseOf(type) {
  return PHRASES.get(type)?.[language.value][0] ?? oneLine(String(type).replace(/[._]/g, " "), QUOTED);
}

/** What an event says, by language. @param {any} event as it is stored @param {number} [limit] of the characters of a quoted text */
export function aboutOf(event, limit = QUOTED) {
  const phrase = PHRASES.get(event.type);
  if (!phrase) {
    const fields = detail("{fields:json}", { fields: ownOf(event) }, limit);
    return { en: fields, zh: fields };
  }
  const whole = completed(event, phrase);
  const en = detail(phrase.en[1], whole, limit);
  return { en, zh: phrase.zh[1] === phrase.en[1] ? en : detail(phrase.zh[1], whole, limit) };
}

/** A value with what is left out of it as it is stored. @param {any} value @param {import("./catalogue.js").LeftOut} leftOut @returns {any} */
function completed(value, { defaults, within }) {
  if (Array.isArray(value)) return value.map((one) => completed(one, { defaults, within }));
  if (!isObject(value) || !(defaults || within)) return value;
  const whole = { ...defaults, ...value };
  for (const [name, inner] of Object.entries(within ?? {})) whole[name] = completed(whole[name], inner);
  return whole;
}

/** @param {any} event */
const ownOf = (event) => Object.fromEntries(Object.entries(event).filter(([name]) => !ENVELOPE.includes(name)));

/** What a template says of an event, on one line. @param {string} template @param {any} event @param {number} [limit] */
export function detail(template, event, limit = QUOTED) {
  return oneLine(parsed(template).map((part) => written(part, event, limit)).join(""), LONGEST);
}

// ── templates ────────────────────────────────────────────────────────────────────────────────────────────────────────

/** @type {Map<string, Part[]>} */
const templates = new Map();

/** @param {string} template */
function parsed(template) {
  const known = templates.get(template);
  if (known) return known;
  const parts = [...template.matchAll(/<(?:([^<>?{}\s]+)\?)?([^<>]*)>|[^<>]+|[<>]/gu)].map(partOf);
  templates.set(template, parts);
  return parts;
}

/** @param {RegExpMatchArray} match @returns {Part} */
function partOf([whole, conditions, inner]) {
  const pieces = (inner ?? whole).split(/\{([\w.]+)(?::(\w+))?\}/u);
  const fields = pieces.flatMap((path, index) => (index % 3 === 1 ? [{ path: path.split("."), filter: pieces[index + 1] ?? "" }] : []));
  return { optional: inner !== undefined, conditions: conditions ? conditions.split("&").map(conditionOf) : [], texts: pieces.filter((_, index) => index % 3 === 0), fields };
}

/** @param {string} text @returns {Condition} */
function conditionOf(text) {
  const [, sign = "", path = "", filter = "", equal = "", other = ""] = /^(!?)([\w.]+)(?::(\w+))?(?:(!?=)(.*))?$/u.exec(text) ?? [];
  return { field: { path: path.split("."), filter }, sign: equal || sign, text: other };
}

/** @param {Part} part @param {any} event @param {number} limit */
function written({ optional, conditions, texts, fields }, event, limit) {
  if (!conditions.every((condition) => holds(condition, event))) return "";
  const values = fields.map((field) => textIn(field, event, limit));
  if (optional && !values.every(Boolean)) return "";
  return texts.map((text, index) => text + (values[index] ?? "")).join("");
}

/** @param {Condition} condition @param {any} event */
function holds({ field, sign, text }, event) {
  const value = textIn(field, event, QUOTED);
  const equal = sign.includes("=") ? value === text : !value;
  return sign === "!" || sign === "=" ? equal : !equal;
}

/** @param {Field} field @param {any} event @param {number} limit */
function textIn({ path, filter }, event, limit) {
  const value = path.reduce(get, event);
  return filter in FILTERS ? /** @type {Filter} */ (FILTERS[filter])(value, limit) : plain(value);
}

/** A field of an object, or of each object in a list. @param {any} value @param {string} name @returns {any} */
function get(value, name) {
  if (Array.isArray(value)) return value.map((one) => get(one, name));
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : null;
}

// ── fields as text ───────────────────────────────────────────────────────────────────────────────────────────────────

/** @param {any} value */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {any} value @returns {any[]} */
const objects = (value) => (Array.isArray(value) ? value.filter(isObject) : []);

/** @param {any} value @returns {any[]} */
const list = (value) => (Array.isArray(value) ? value : []);

/** Cleaned, and on one line of at most so many characters. @param {string} text @param {number} limit */
export function oneLine(text, limit) {
  const begin = text.length > limit * 8 ? [...text.slice(0, limit * 16)].slice(0, limit * 8).join("") : text;
  const line = begin.replace(UNCLEAN, "").replace(SPACES, " ").replace(/^ | $/g, "");
  if (line.length <= limit) return line;
  const characters = [...line];
  return characters.length <= limit ? line : `${characters.slice(0, limit - 1).join("").trimEnd()}…`;
}

/** The text of a message's content. @param {any} content @returns {string} */
export function textOf(content) {
  if (typeof content === "string") return content;
  return list(content).map((part) => (typeof part === "string" ? part : isObject(part) ? String(part.text || "") : "")).join("");
}

/** @param {any} value @returns {string} */
function plain(value) {
  if (value === null || value === undefined || value === false) return "";
  if (Array.isArray(value)) return value.map(plain).filter(Boolean).join(", ");
  return isObject(value) ? Object.keys(value).join(", ") : String(value);
}

/** @typedef {(value: any, limit: number) => string} Filter */

/** @param {(value: number) => string} write @returns {Filter} */
const number = (write) => (value) => (typeof value === "number" ? write(value) : plain(value));

/** @type {Filter} */
function quote(value, limit) {
  if (Array.isArray(value)) return value.map((one) => quote(one, limit)).filter(Boolean).join("; ");
  const text = isObject(value) ? textOf(value.content) : value;
  return typeof text === "string" && text.trim() ? `“${oneLine(text, limit)}”` : "";
}

/** What a call is about, by its arguments. @param {any} args @param {number} limit @param {string[]} [names] */
function subject(args, limit, names = SUBJECTS) {
  if (!isObject(args)) return "";
  const name = names.find((one) => typeof args[one] === "string" && args[one].trim());
  if (name) return oneLine(args[name].trim(), limit);
  if (Array.isArray(args.filepaths)) return oneLine(args.filepaths.map(String).join(", "), limit);
  if (Array.isArray(args.todos)) return `☑ ${objects(args.todos).filter(({ status }) => status === "completed").length}/${args.todos.length}`;
  return Object.keys(args).length ? oneLine(JSON.stringify(args), limit) : "";
}

/** @type {Filter} */
function calls(message, limit) {
  const requests = isObject(message) ? objects(message.tool_calls) : [];
  return requests.map(({ name, args }) => `→ ${name || "?"}(${subject(args, Math.min(50, limit))})`).join(" ");
}

/** @param {any} access */
function host(access) {
  const result = access.refused ? `✗ ${access.refused}` : `↑ ${access.sent ?? 0} B ↓ ${access.received ?? 0} B`;
  return `${access.host}:${access.port} ×${access.connections} (${result})`;
}

/** The calls that a question wants approved. @param {any} value */
const approvalOf = (value) => (isObject(value) && value.type === "approval" ? objects(value.action_requests) : []);

/** @type {Record<string, Filter>} */
const FILTERS = {
  quote,
  last: (value, limit) => quote(list(value).slice(-2), limit),
  short: (value, limit) => oneLine(String(value || ""), Math.min(60, limit)),
  json: (value) => (value && !(typeof value === "object" && !Object.keys(value).length) ? JSON.stringify(value) : ""),
  count: (value) => String(typeof value === "string" ? [...value].length : isObject(value) ? Object.keys(value).length : list(value).length),
  next: number((value) => String(value + 1)),
  signed: number((value) => (value < 0 ? String(value) : `+${value}`)),
  seconds: number((value) => (value < 1000 ? `${value} ms` : `${(Math.floor((value + 50) / 100) / 10).toFixed(1)} s`)),
  calls,
  subject,
  arguments: (value, limit) => {
    const { description: _, ...others } = isObject(value) ? value : {};
    return subject(others, limit);
  },
  decisions: (value, limit) => list(value).map((one) => `⟨${one?.policy || ""} ${one?.action || ""}: ${oneLine(String(one?.text || ""), limit)}⟩`).join(" "),
  hosts: (value) => list(value).filter(isObject).map(host).join(", "),
  approvals: (value, limit) =>
    list(get(value, "value")).flatMap(approvalOf).map(({ name, args }) => `${name || "?"} ${subject(args, limit)}`.trimEnd()).join(", "),
  questions: (value, limit) =>
    list(get(value, "value")).filter((one) => !approvalOf(one).length).map((one) => (typeof one === "string" ? quote(one, limit) : oneLine(JSON.stringify(one), limit))).join("; "),
};
