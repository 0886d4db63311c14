// The views that installed packages add, as the document names them.

/** @typedef {{name: string, script: string, style: string, words: Record<"en" | "zh", Record<string, string>>}} Added */

const meta = /** @type {HTMLMetaElement | null} */ (document.querySelector('meta[name="views"]'));
export const added = /** @type {Added[]} */ (JSON.parse(meta?.content || "[]"));

/** The words of a view under keys of its own, in each language. @param {Added} view */
export function wordsOf({ name, words }) {
  const keyed = (/** @type {Record<string, string>} */ texts) => Object.fromEntries(Object.entries(texts).map(([key, text]) => [`added.${name}.${key}`, text]));
  return { en: keyed(words.en), zh: keyed(words.zh) };
}
