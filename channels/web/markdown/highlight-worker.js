// The worker that reads code: a text and its language in, pieces with their kinds out.

import { hljs } from "../vendor/highlight.js";

/** @type {Record<string, string>} */
const OTHER_NAMES = { sh: "bash", shell: "bash", console: "bash", zsh: "bash", py: "python", js: "javascript", jsx: "javascript", ts: "typescript", tsx: "typescript", html: "xml", svg: "xml", yml: "yaml", toml: "ini", rs: "rust", rb: "ruby", "c++": "cpp", "c#": "csharp", kt: "kotlin", md: "markdown", docker: "dockerfile", make: "makefile", patch: "diff" };

onmessage = ({ data: { id, text, language } }) => {
  const name = OTHER_NAMES[language.toLowerCase()] ?? language.toLowerCase();
  postMessage({ id, pieces: hljs.getLanguage(name) ? piecesOf(text, name) : [] });
};

/** @param {string} text @param {string} language @returns {[string, string][]} */
function piecesOf(text, language) {
  const result = hljs.highlight(text, { language, ignoreIllegals: true });
  /** @type {[string, string][]} */
  const pieces = [];
  flatten(/** @type {any} */ (result)._emitter.rootNode, "", pieces);
  return pieces;
}

/** @param {any} node @param {string} kind @param {[string, string][]} pieces */
function flatten(node, kind, pieces) {
  for (const child of node.children) {
    if (typeof child === "string") pieces.push([child, kind]);
    else flatten(child, String(child.scope ?? kind).split(".")[0].replace(/[^\w-]/g, ""), pieces);
  }
}
