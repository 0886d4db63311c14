// What `/` and `@` offer in the composer: commands of the page, skills of the agent, files of the conversation.

import { call } from "../api/client.js";
import { t } from "../words/words.js";
import { commands } from "./commands.js";

/** @typedef {import("../kit/list.js").Choice} Choice */

const MOST = 12;
const WORD = /(^|\s)([/@])([^\s]*)$/;
/** @type {Promise<Choice[]> | null} */
let skills = null;

/** @param {string} text @param {number} cursor @param {import("../state/thread.js").Thread} thread
 * @param {(choices: Choice[]) => void} show called with what is known at once, and again with what the server says */
export async function completionsOf(text, cursor, thread, show) {
  const match = WORD.exec(text.slice(0, cursor));
  if (!match) return show([]);
  const [whole, , sign, word] = match;
  const fit = (/** @type {Choice[]} */ all) => show(all.filter((choice) => choice.label.toLowerCase().includes(word.toLowerCase())).slice(0, MOST));
  if (sign === "@") return fit(await fileChoices(thread.id));
  if (whole.length !== cursor) return show([]);
  const own = commandChoices(thread);
  fit(own);
  return fit([...own, ...(await (skills ??= skillChoices()))]);
}

/** The text after a choice; null if the choice did something by itself. @param {string} text @param {number} cursor @param {Choice} choice @returns {string | null} */
export function completed(text, cursor, choice) {
  if (choice.value.run) {
    choice.value.run();
    return choice.value.keep ? `${choice.label} ` : null;
  }
  const start = text.slice(0, cursor).replace(WORD, (_, before) => before);
  return `${start}${choice.value.text} ${text.slice(cursor)}`;
}

/** @param {import("../state/thread.js").Thread} thread @returns {Choice[]} */
const commandChoices = (thread) => commands(thread).map(({ name, run }) => ({ id: name, label: `/${name}`, hint: t(`command.${name}`), value: { run } }));

/** Has the skills read again: one has come or gone. */
export const forgetSkills = () => void (skills = null);

/** @returns {Promise<Choice[]>} */
async function skillChoices() {
  const { skills: all = [] } = await call("GET", "skills").catch(() => ({}));
  return all
    .filter((/** @type {any} */ skill) => skill.enabled !== false)
    .map((/** @type {any} */ skill) => ({ id: `skill-${skill.name}`, label: `/${skill.name}`, hint: skill.description, value: { text: `/${skill.name}` } }));
}

/** @param {string} thread @returns {Promise<Choice[]>} */
async function fileChoices(thread) {
  const { files = [] } = await call("GET", `threads/${thread}/files`, { query: { limit: 200 } }).catch(() => ({}));
  return files
    .filter((/** @type {any} */ file) => file.kind === "file")
    .map((/** @type {any} */ file) => ({ id: file.path, label: file.path.replace("/mnt/user-data/", ""), value: { text: file.path } }));
}
