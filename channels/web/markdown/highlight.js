// Colours of code, found by a worker, so that a long file stops nothing.

import { scriptUrl } from "./safe.js";

const LONGEST = 100_000;
/** @type {Worker | null} */
let worker = null;
/** @type {Map<number, (pieces: [string, string][]) => void>} */
const waiting = new Map();
let newest = 0;

/** Colours the code of an element when the worker has read it. @param {HTMLElement} code @param {string} language */
export async function highlight(code, language) {
  const text = code.textContent ?? "";
  if (text.length > LONGEST) return;
  const pieces = await piecesOf(text, language);
  if (!pieces.length || code.textContent !== text) return;
  code.replaceChildren(...pieces.map(([piece, kind]) => (kind ? marked(piece, kind) : piece)));
}

/** @param {string} text @param {string} language @returns {Promise<[string, string][]>} texts, each with its kind */
export function piecesOf(text, language) {
  worker ??= begin();
  const id = (newest += 1);
  return new Promise((resolve) => {
    waiting.set(id, resolve);
    worker?.postMessage({ id, text, language });
  });
}

function begin() {
  const made = new Worker(scriptUrl(new URL("./highlight-worker.js", import.meta.url)), { type: "module" });
  made.onmessage = ({ data }) => {
    waiting.get(data.id)?.(data.pieces);
    waiting.delete(data.id);
  };
  return made;
}

/** @param {string} text @param {string} kind */
function marked(text, kind) {
  const span = document.createElement("span");
  span.className = `h-${kind}`;
  span.textContent = text;
  return span;
}
