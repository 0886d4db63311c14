// What a tool call did, in people's words: a verb by its state, what it was about, and the outcome on one line.

import { t } from "../words/words.js";

/** @typedef {import("../state/items.js").Step} Step */

/** @type {Record<string, {icon: string, about: (args: any) => string}>} */
const TOOLS = {
  bash: { icon: "terminal", about: (args) => args.command },
  bash_output: { icon: "terminal", about: (args) => args.id ?? args.shell_id },
  bash_kill: { icon: "terminal", about: (args) => args.id ?? args.shell_id },
  read_file: { icon: "file", about: (args) => path(args.path) },
  write_file: { icon: "pencil", about: (args) => path(args.path) },
  str_replace: { icon: "pencil", about: (args) => path(args.path) },
  edit_files: { icon: "pencil", about: (args) => (args.edits ?? []).map((/** @type {any} */ edit) => path(edit?.path)).join(", ") },
  view_image: { icon: "file", about: (args) => path(args.path ?? args.image_path) },
  present_files: { icon: "file", about: (args) => (args.filepaths ?? args.paths ?? []).map(path).join(", ") },
  ls: { icon: "file", about: (args) => path(args.path) },
  glob: { icon: "search", about: (args) => args.pattern },
  grep: { icon: "search", about: (args) => args.pattern },
  web_search: { icon: "globe", about: (args) => args.query },
  image_search: { icon: "globe", about: (args) => args.query },
  web_fetch: { icon: "globe", about: (args) => args.url },
  write_todos: { icon: "list", about: (args) => t("todos.count", { n: (args.todos ?? []).length }) },
  task: { icon: "people", about: (args) => args.description },
  tasks: { icon: "people", about: (args) => args.description ?? t("tasks.count", { n: (args.prompts ?? []).length }) },
  skill_search: { icon: "search", about: (args) => args.query },
  recall: { icon: "clock", about: (args) => args.query },
  remember: { icon: "clock", about: (args) => args.fact ?? args.content },
  ask_clarification: { icon: "flag", about: (args) => args.question },
};

/** @param {unknown} value */
function path(value) {
  return String(value ?? "").replace(/^\/mnt\/user-data\/(?:workspace\/)?/, "");
}

/** @param {Step} step */
export const iconOf = (step) => TOOLS[step.call.name]?.icon ?? "spark";

/** The verb of a call, and what it is about. @param {Step} step @returns {{verb: string, about: string}} */
export function wordsOfStep({ call, args, result }) {
  const known = TOOLS[call.name];
  const state = !result ? "now" : result.failed ? "failed" : "done";
  const verb = known ? t(`tool.${call.name}.${state}`) : t(`tool.other.${state}`, { name: call.name.replaceAll("_", " ") });
  return { verb, about: oneLine(known ? known.about(args) : (args.description ?? args.query ?? "")) };
}

/** @param {unknown} text */
const oneLine = (text) => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 300);

/** The last line of an output that says something. @param {string} text */
export const lastLine = (text) => text.trimEnd().split("\n").at(-1)?.trim().slice(0, 300) ?? "";

/** The lines that a call adds to a file and takes from it. @param {Step} step @returns {{added: number, removed: number} | null} */
export function linesOf({ call, args }) {
  const count = (/** @type {unknown} */ text) => (text ? String(text).replace(/\n$/, "").split("\n").length : 0);
  if (call.name === "write_file") return { added: count(args.content), removed: 0 };
  if (call.name === "str_replace") return { added: count(args.new_str), removed: count(args.old_str) };
  return null;
}

/** What a call wrote, before and after, if it edits a file. @param {Step} step @returns {{path: string, before: string, after: string}[]} */
export function editsOf({ call, args }) {
  if (call.name === "write_file") return [{ path: path(args.path), before: "", after: String(args.content ?? "") }];
  if (call.name === "str_replace") return [{ path: path(args.path), before: String(args.old_str ?? ""), after: String(args.new_str ?? "") }];
  if (call.name !== "edit_files" || !Array.isArray(args.edits)) return [];
  return args.edits.map((/** @type {any} */ edit) => ({ path: path(edit?.path), before: String(edit?.old_str ?? ""), after: String(edit?.new_str ?? edit?.content ?? "") }));
}
