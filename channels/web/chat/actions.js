// What people do in a conversation. Each returns when the server has it, and says in words why it did not work.

import { Failure, call } from "../api/client.js";
import { later, notify } from "../kit/toast.js";
import { go } from "../state/route.js";
import { begun, recall } from "../state/stored.js";
import { drop, leaving, touch } from "../state/threads.js";
import { t, wordsOf } from "../words/words.js";
import { contextOf, model } from "./choices.js";
import { acknowledge, keepSent, sentOf } from "./drafts.js";

/** @typedef {import("../state/thread.js").Thread} Thread */
/** @typedef {import("../state/message.js").Attachment} Attachment */

/** What suggestions are made of: so many of the newest messages, and characters of each. */
const SUGGESTED_FROM = 6;
const SUGGESTED_CHARACTERS = 2000;

/** @param {unknown} error */
export function complain(error) {
  if (error instanceof Failure) notify(wordsOf(error), { kind: "error" });
  else throw error;
}

/**
 * Sends a message. While a run is at work it waits for its turn (`queue`) or is told to the agent now (`steer`).
 * @param {Thread} thread @param {string} text @param {{files?: Attachment[], how?: "queue"|"steer", id?: string, run?: string, response?: any}} [about]
 *   `id`: the message's, also if it is sent again: the server takes it once; `response`: what it answers
 * @returns {Promise<boolean>} whether the server has it
 */
export async function send(thread, text, { files = [], how = "queue", id = crypto.randomUUID(), run = "", response } = {}) {
  const before = sentOf(thread.id);
  if (before && before.text === text) id = before.id;
  const extra = { ...(files.length ? { files: files.map(claimOf) } : {}), ...(response ? { human_input_response: response } : {}) };
  const message = { type: "human", id, content: text, additional_kwargs: extra };
  keepSent(thread.id, { id, text, files });
  try {
    if (how === "steer" && run) await call("POST", `threads/${thread.id}/runs/${run}/steer`, { body: { message } });
    else thread.begun.value = await begin(thread, { ...runBody(thread), input: { messages: [message] }, multitask_strategy: "enqueue", if_not_exists: "create", ...(thread.tip ? { checkpoint_id: thread.tip } : {}) }, id);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    notify(wordsOf(error), { kind: "error" });
    return false;
  }
  acknowledge(thread.id, id);
  begun("new");
  thread.open();
  return true;
}

/** Begins a run, once for each key. Returns its id. @param {Thread} thread @param {Record<string, unknown>} body @param {string} key */
const begin = async (thread, body, key) => (await call("POST", `threads/${thread.id}/runs`, { body, headers: { "idempotency-key": key } })).run_id;

/** @param {Attachment} file */
const claimOf = ({ name, size, path }) => ({ filename: name, size, path, status: "uploaded" });

/** The body of a run. A conversation in which an agent is made says so in each of its runs. @param {Thread} thread */
const runBody = (thread) => ({ assistant_id: "lead_agent", context: { ...contextOf(), ...recall(`making.${thread.id}`) }, on_disconnect: "continue", stream_mode: ["messages-tuple", "updates", "custom"] });

/** Has an answer made again; the old one stays as another branch. @param {Thread} thread @param {string} message */
export const regenerate = (thread, message) => rerun(thread, { regenerate: { message_id: message } });

/** Says something else in place of a message; the old conversation stays as another branch. @param {Thread} thread @param {string} message @param {string} text */
export const edit = (thread, message, text) => rerun(thread, { edit: { message_id: message, text } });

/** @param {Thread} thread @param {Record<string, unknown>} change */
async function rerun(thread, change) {
  try {
    thread.begun.value = (await call("POST", `threads/${thread.id}/runs`, { body: { ...runBody(thread), ...change, multitask_strategy: "enqueue" } })).run_id;
  } catch (error) {
    complain(error);
  }
}

/** Shows another branch of a conversation. @param {Thread} thread @param {string} checkpoint */
export async function showBranch(thread, checkpoint) {
  try {
    await thread.reload(checkpoint);
  } catch (error) {
    complain(error);
  }
}

/** @param {Thread} thread @param {string} run */
export async function stop(thread, run) {
  try {
    await call("POST", `threads/${thread.id}/runs/${run}/cancel`, { query: { action: "interrupt" } });
  } catch (error) {
    if (!(error instanceof Failure) || error.status !== 409) complain(error);
  }
}

/** Has the server suggest what may be asked next; it is told by the thread's stream. @param {Thread} thread */
export async function suggest(thread) {
  const said = thread.state.value.messages.filter((message) => message.text).slice(-SUGGESTED_FROM);
  const messages = said.map(({ type, text }) => ({ role: type === "human" ? "user" : "assistant", content: text.slice(0, SUGGESTED_CHARACTERS) }));
  await call("POST", `threads/${thread.id}/suggestions`, { body: { messages, model_name: model.value?.name } }).catch(() => {});
}

/**
 * Rates an answer. One has one opinion of it: another takes the place of the earlier one, and the same again takes it back.
 * @param {Thread} thread @param {string} run @param {string} message @param {1|-1} rating @param {import("../state/conversation.js").Feedback|undefined} before
 */
export async function rate(thread, run, message, rating, before) {
  const path = `threads/${thread.id}/runs/${run}/feedback`;
  try {
    if (before) await call("DELETE", `${path}/${before.id}`);
    if (before?.rating !== rating) await call("POST", path, { body: { rating, message_id: message } });
  } catch (error) {
    complain(error);
  }
}

// ── whole conversations ──────────────────────────────────────────────────────────────────────────────────────────────

/** @param {string} id @param {string} title */
export async function rename(id, title) {
  try {
    await call("POST", `threads/${id}/state`, { body: { values: { title } } });
    touch(id, { title });
  } catch (error) {
    complain(error);
  }
}

/** @param {string} id @param {boolean} pinned */
export async function pin(id, pinned) {
  touch(id, { pinned });
  try {
    await call("PATCH", `threads/${id}`, { body: { metadata: { pinned: pinned || null } } });
  } catch (error) {
    touch(id, { pinned: !pinned });
    complain(error);
  }
}

/** Deletes a conversation when it was not undone for a while. @param {string} id @param {boolean} open */
export function remove(id, open) {
  leaving.value = new Set(leaving.value).add(id);
  if (open) go("");
  const back = () => {
    const next = new Set(leaving.value);
    next.delete(id);
    leaving.value = next;
  };
  const act = async () => {
    try {
      await call("DELETE", `threads/${id}`, { keepalive: true });
      drop(id);
    } catch (error) {
      complain(error);
    }
    back();
  };
  later(t("thread.deleted"), act, () => {
    back();
    if (open) go(`t/${id}`);
  });
}
