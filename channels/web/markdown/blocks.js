// Markdown as blocks: paragraphs, lists, tables, code. While a text grows only its last block can change, so only that is
// read again. No DOM here.

import { Marked } from "../vendor/marked.js";

const INLINE_MATH = /^\$(?!\s|\d+(?:[.,]\d+)?\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|^\\\((.+?)\\\)/;
const BLOCK_MATH = /^(?:\$\$\s*([\s\S]+?)\s*\$\$|\\\[\s*([\s\S]+?)\s*\\\])(?:[ \t]*(?:\n|$))/;
const CITATION = /^\[citation:([^\]\n]{1,200})\]\((https?:\/\/[^\s)]+)\)/;

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

const marked = new Marked({ gfm: true });
marked.use({
  extensions: [
    {
      name: "mathBlock",
      level: "block",
      start: (/** @type {string} */ text) => text.match(/\$\$|\\\[/)?.index,
      tokenizer(/** @type {string} */ text) {
        const match = BLOCK_MATH.exec(text);
        return match ? { type: "mathBlock", raw: match[0], text: match[1] ?? match[2] } : undefined;
      },
      renderer: (/** @type {any} */ token) => `<div class="math-block">${escaped(token.text)}</div>`,
    },
    {
      name: "math",
      level: "inline",
      start: (/** @type {string} */ text) => text.match(/\$|\\\(/)?.index,
      tokenizer(/** @type {string} */ text) {
        const match = INLINE_MATH.exec(text);
        return match ? { type: "math", raw: match[0], text: match[1] ?? match[2] } : undefined;
      },
      renderer: (/** @type {any} */ token) => `<span class="math">${escaped(token.text)}</span>`,
    },
    {
      name: "citation",
      level: "inline",
      start: (/** @type {string} */ text) => text.indexOf("[citation:"),
      tokenizer(/** @type {string} */ text) {
        const match = CITATION.exec(text);
        return match ? { type: "citation", raw: match[0], text: match[1], href: match[2] } : undefined;
      },
      renderer: (/** @type {any} */ token) => `<a class="cite" href="${escaped(token.href)}">${escaped(token.text)}</a>`,
    },
  ],
});

/**
 * @typedef {{raw: string, token: any, links: any}} Block
 * @typedef {{text: string, blocks: Block[], upto: number}} Read a text that was read: `upto` is where its last block begins
 */

/**
 * Reads a text. One that begins with the text that was read before is only read from the last block on.
 * @param {string} text @param {Read} [before] @returns {Read}
 */
export function read(text, before) {
  if (before?.text === text) return before;
  const goesOn = before && before.upto > 0 && text.startsWith(before.text) ? before : null;
  const done = goesOn ? goesOn.blocks.slice(0, -1) : [];
  const tail = goesOn ? text.slice(goesOn.upto) : text;
  const tokens = marked.lexer(tail);
  const blocks = tokens.filter((token) => token.type !== "space").map((token) => ({ raw: token.raw, token, links: tokens.links }));
  const last = tokens.findLast((token) => token.type !== "space");
  const length = tokens.reduce((sum, token) => sum + token.raw.length, 0);
  const after = last ? tokens.slice(tokens.indexOf(last)).reduce((sum, token) => sum + token.raw.length, 0) : 0;
  const exact = length === tail.length;
  return { text, blocks: [...done, ...blocks], upto: exact ? text.length - after : 0 };
}

/** The HTML of a block, not yet safe. @param {Block} block */
export function htmlOf({ token, links }) {
  return String(marked.parser(Object.assign([token], { links })));
}
