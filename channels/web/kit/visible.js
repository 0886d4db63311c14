// Characters that nobody sees, and that change what is read: overrides of direction, controls, fillers, tags. They stand in
// the page by their number, so that a command, a name or a link reads as what it is. Joiners, marks of direction and soft
// hyphens stay where a script may need them: beside a character that is not ASCII.

import { options } from "../vendor/preact.js";

const NEVER = "\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u206f\\u3164\\uffa0\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}";
const BESIDE_ASCII = "\\u00ad\\u034f\\u061c\\u200b-\\u200f\\u2060-\\u2064\\ufeff";
/** Flags of regions are made of tags: a black flag, letters, and an end. */
const FLAG = "\\u{1f3f4}[\\u{e0020}-\\u{e007e}]{2,6}\\u{e007f}";
const HIDDEN = new RegExp(`${FLAG}|[${NEVER}]|(?<![^\\x00-\\x7f${NEVER}])[${BESIDE_ASCII}]+(?![^\\x00-\\x7f${NEVER}])|\\r(?!\\n)`, "gu");
const ANY = new RegExp(`[${NEVER}${BESIDE_ASCII}\\r]`, "u");

/** True if a text may have such characters. @param {string} text */
export const hides = (text) => ANY.test(text);

/** The text with such characters by their numbers, as `[U+202E]`. @param {string} text */
export const visible = (text) => (hides(text) ? text.replace(HIDDEN, (run) => (run.startsWith("\u{1f3f4}") ? run : [...run].map(named).join(""))) : text);

/** The text without such characters. @param {string} text */
export const withoutHidden = (text) => text.replace(HIDDEN, (run) => (run.startsWith("\u{1f3f4}") ? run : ""));

/** @param {string} character */
const named = (character) => `[U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}]`;

/** Attributes that people read, or that are read to them. */
const READ = ["aria-label", "title", "alt", "placeholder"];

/** Makes the texts of all elements visible. Inputs keep what was typed. */
export function showHidden() {
  const before = options.vnode;
  options.vnode = (vnode) => {
    if (typeof vnode.type === "string") {
      const props = /** @type {any} */ (vnode.props);
      if (props.children != null) props.children = shown(props.children);
      for (const name of READ) if (typeof props[name] === "string") props[name] = visible(props[name]);
    }
    before?.(vnode);
  };
}

/** @param {any} children @returns {any} */
function shown(children) {
  if (typeof children === "string") return visible(children);
  return Array.isArray(children) ? children.map(shown) : children;
}

/** Makes the texts below a node visible. @param {Node} node */
export function reveal(node) {
  if (!hides(node.textContent ?? "")) return;
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) walker.currentNode.nodeValue = visible(walker.currentNode.nodeValue ?? "");
}
