// What was typed and is not with the server yet: a draft for each conversation, kept until it is acknowledged, over reloads,
// lost sessions and servers that are down.

import { recall, remember } from "../state/stored.js";

/** @typedef {{id: string, text: string, files: import("../state/message.js").Attachment[]}} Sent */

/** @param {string} thread */
export const draftOf = (thread) => String(recall(`draft.${thread}`) ?? "");

/** @param {string} thread @param {string} text */
export const keepDraft = (thread, text) => remember(`draft.${thread}`, text || null);

/** Keeps a message that is on its way. @param {string} thread @param {Sent} sent */
export const keepSent = (thread, sent) => remember(`sent.${thread}`, sent);

/** The message that was on its way when the page was left. @param {string} thread @returns {Sent|null} */
export const sentOf = (thread) => recall(`sent.${thread}`);

/** The server has a message. @param {string} thread @param {string} id */
export function acknowledge(thread, id) {
  if (sentOf(thread)?.id === id) remember(`sent.${thread}`, null);
}
