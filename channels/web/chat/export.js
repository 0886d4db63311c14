// A conversation as a Markdown text.

import { messageOf, resultOf } from "../state/message.js";

/** @param {string} title @param {any[]} dumps messages, oldest first */
export function markdownOf(title, dumps) {
  return `# ${title}\n\n${dumps.flatMap(partsOf).join("\n\n")}\n`;
}

/** @param {any} dump @returns {string[]} */
function partsOf(dump) {
  if (dump.type === "tool") return [`**${dump.name ?? "tool"}** →\n\n${fenced(resultOf(dump, 0, 0, null).text)}`];
  const message = messageOf(dump, 0, "", "");
  if (!message) return [];
  if (message.type === "human") return [`## You\n\n${message.text}`, ...message.files.map((file) => `- ${file.path}`)];
  const calls = message.calls.map((call) => `**${call.name}**\n\n${fenced(JSON.stringify(call.args, null, 2), "json")}`);
  return [...(message.text ? [`## Sika\n\n${message.text}`] : []), ...calls];
}

/** @param {string} text @param {string} [language] */
function fenced(text, language = "") {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((match) => match[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}
