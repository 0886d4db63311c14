// What kinds of events are called.

import { language, t } from "../words/words.js";

/** @type {Map<string, string>} */
const phrases = new Map();

/** An event's kind in people's words; that of an extension by its name. @param {string} type */
export function phraseOf(type) {
  const key = `${language.value} ${type}`;
  const known = phrases.get(key);
  if (known) return known;
  const text = t(`timeline.event.${type}`);
  const phrase = text.startsWith("timeline.event.") ? type.replace(/[._]/g, " ") : text;
  if (phrases.size < 2000) phrases.set(key, phrase);
  return phrase;
}
