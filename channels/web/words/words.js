// The words of the page in the person's language, and numbers, sizes, times as that language writes them.

import { signal } from "../vendor/preact.js";
import { recall, remember } from "../state/stored.js";
import { en } from "./en.js";

/** The languages, and where the words of each are. English is there at once. */
const CATALOGUES = /** @type {const} */ ({
  en: async () => en,
  zh: async () => (await import("./zh.js")).zh,
});
export const LANGUAGES = /** @type {const} */ ({ en: "English", zh: "中文" });
/** @typedef {keyof typeof LANGUAGES} Language */

export const language = signal(/** @type {Language} */ ("en"));
/** @type {Record<string, string>} */
let words = en;
/** The words of rooms that bring their own. @type {Record<Language, Record<string, string>>} */
const added = { en: {}, zh: {} };

/** Takes the words of a room, before it is drawn. @param {Record<Language, Record<string, string>>} catalogues */
export function learn(catalogues) {
  for (const [key, texts] of Object.entries(catalogues)) Object.assign(added[/** @type {Language} */ (key)], texts);
  words = { ...words, ...added[language.value] };
}

/** The language that was chosen, or else the browser's, if the page has it. @returns {Language} */
function preferred() {
  const chosen = recall("language");
  const wanted = [chosen, ...navigator.languages].map((one) => String(one ?? "").slice(0, 2));
  return /** @type {Language} */ (wanted.find((one) => one in CATALOGUES) ?? "en");
}

/** Changes the language; without one, to the preferred. @param {Language} [chosen] */
export async function speak(chosen) {
  if (chosen) remember("language", chosen);
  const next = chosen ?? preferred();
  words = { ...(await CATALOGUES[next]()), ...added[next] };
  document.documentElement.lang = next === "zh" ? "zh-CN" : next;
  language.value = next;
}

/**
 * The text of a key, with `{name}` replaced. With `n`, the form for that number: `key.one`, `key.other`.
 * @param {string} key @param {Record<string, string | number>} [values]
 */
export function t(key, values = {}) {
  const shown = language.value;
  const form = typeof values.n === "number" ? `${key}.${new Intl.PluralRules(shown).select(values.n)}` : key;
  const text = words[form] ?? words[`${key}.other`] ?? words[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

/** Formats are kept: to make one takes longer than to use it a hundred times. @type {Map<string, Intl.NumberFormat>} */
const formats = new Map();

/** @param {number} value @param {Intl.NumberFormatOptions} options */
function formatted(value, options) {
  const key = JSON.stringify([language.value, options]);
  const format = formats.get(key) ?? new Intl.NumberFormat(language.value, options);
  formats.set(key, format);
  return format.format(value);
}

/** @param {number} ms */
export function duration(ms) {
  if (ms < 950) return t("time.ms", { ms: Math.max(1, Math.round(ms)) });
  const seconds = ms / 1000;
  if (seconds < 60) return t("time.s", { s: seconds < 10 ? seconds.toFixed(1) : Math.round(seconds) });
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return t("time.min", { min: minutes, s: Math.round(seconds % 60) });
  return t("time.h", { h: Math.floor(minutes / 60), min: minutes % 60 });
}

/** A number with few digits, as 12.3k. @param {number} value */
export const short = (value) => formatted(value, { notation: "compact", maximumFractionDigits: 1 });

/** @param {number} bytes */
export function size(bytes) {
  const units = /** @type {const} */ (["byte", "kilobyte", "megabyte", "gigabyte"]);
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return formatted(value, { style: "unit", unit: units[unit], unitDisplay: "narrow", maximumFractionDigits: unit ? 1 : 0 });
}

/** @param {number} amount @param {string} currency */
export function money(amount, currency) {
  const digits = amount && amount < 0.01 ? 4 : 2;
  return formatted(amount, { style: "currency", currency, maximumFractionDigits: digits });
}

/** A time of day, with the date if it was not today. @param {string} at ISO 8601 */
export function moment(at) {
  const date = new Date(at);
  const today = date.toDateString() === new Date().toDateString();
  return new Intl.DateTimeFormat(language.value, today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" }).format(date);
}

/** The group of a day: today, yesterday, the last week, or a month. @param {string} at */
export function dayOf(at) {
  const date = new Date(at);
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight.getTime() - date.getTime()) / 86_400_000);
  if (days <= 0) return t("day.today");
  if (days === 1) return t("day.yesterday");
  if (days <= 7) return t("day.week");
  return new Intl.DateTimeFormat(language.value, { month: "long", year: "numeric" }).format(date);
}

/** What went wrong, in words. @param {import("../api/client.js").Failure} failure */
export function wordsOf(failure) {
  const known = { 0: "error.unreachable", 401: "error.signedOut", 413: "error.tooLarge", 429: "error.tooMany" }[failure.status];
  if (known) return t(known, { seconds: failure.retryAfter || 1 });
  if (failure.status >= 500) return failure.detail ? t("error.serverSays", { text: failure.detail }) : t("error.server");
  return failure.detail || t("error.other", { status: failure.status });
}
