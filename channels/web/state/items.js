// What a conversation is on the screen: a list of items, each the same object as before while nothing in it changed.

import { newRun, queuedRuns } from "./conversation.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./message.js").Message} Message
 * @typedef {import("./message.js").ToolCall} ToolCall
 * @typedef {{call: ToolCall, result: import("./message.js").Result|undefined, at: string, args: any, edited: boolean, live: boolean, progress: string,
 *   subagent: import("./conversation.js").Subagent|undefined, approval: import("./conversation.js").Approval|undefined}} Step
 * @typedef {{kind: "person", key: string, message: Message}} PersonItem
 * @typedef {{kind: "answer", key: string, message: Message|null, run: string, steps: Step[], feedback: import("./conversation.js").Feedback|undefined, last: boolean}} AnswerItem
 * @typedef {{kind: "end", key: string, run: import("./conversation.js").Run, tokens: number, answer: string, problem: string}} EndItem
 * @typedef {{kind: "note", key: string, note: import("./conversation.js").Note}} NoteItem
 * @typedef {PersonItem | AnswerItem | EndItem | NoteItem} Item
 */

/**
 * @param {Conversation} c @param {Item[]} before the list of an earlier state; its objects are used again
 * @returns {Item[]} `before` itself if nothing changed
 */
export function itemsOf(c, before = []) {
  const old = new Map(before.map((item) => [item.key, item]));
  const items = [...listed(c)].map((item) => reused(old.get(item.key), item));
  return items.length === before.length && items.every((item, index) => item === before[index]) ? before : items;
}

/** @param {Conversation} c @returns {Generator<Item>} */
function* listed(c) {
  const approvals = new Map(Object.values(c.approvals).map((one) => [one.call, one]));
  const notes = [...c.notes];
  let run = "";
  let input = 0;
  let answer = "";
  let problem = "";
  for (const message of c.messages) {
    while (notes.length && notes[0].seq < message.seq) yield noteItem(notes);
    if (run && message.run !== run) yield* endOf(c, run, input, answer, problem);
    if (message.run !== run) [input, answer, problem] = [0, "", ""];
    run = message.run;
    input += message.usage?.total ?? 0;
    if (message.type === "human") yield { kind: "person", key: message.id, message };
    else {
      answer = message.id;
      if (message.error) problem = message.text;
      yield answerItem(c, message, approvals);
    }
  }
  while (notes.length) yield noteItem(notes);
  for (const [id, growing] of Object.entries(c.growing)) {
    if (!c.runs[id]) continue; // of a subagent: its card shows it
    yield { kind: "answer", key: growing.message, message: null, run: id, steps: [], feedback: undefined, last: true };
    if (id === run) return;
  }
  if (run) yield* endOf(c, run, input, answer, problem);
  for (const other of Object.values(c.runs)) {
    if (other.id !== run && other.status === "error" && !c.messages.some((message) => message.run === other.id)) yield* endOf(c, other.id, 0, "", "");
  }
}

/** @param {import("./conversation.js").Note[]} notes @returns {NoteItem} */
function noteItem(notes) {
  const note = /** @type {import("./conversation.js").Note} */ (notes.shift());
  return { kind: "note", key: `note-${note.seq}`, note };
}

/** @param {Conversation} c @param {Message} message @param {Map<string, any>} approvals @returns {AnswerItem} */
function answerItem(c, message, approvals) {
  const run = c.runs[message.run];
  const steps = message.calls.map((call) => {
    const request = c.requests[call.id];
    const result = c.results[call.id];
    const edited = result?.edited ?? editedIn(approvals.get(call.id));
    return {
      call, result, at: request?.at ?? message.at, args: edited ?? request?.args ?? call.args, edited: edited !== null, progress: c.progress[call.id] ?? "",
      live: !result && run?.status === "running", subagent: c.subagents[call.id], approval: approvals.get(call.id),
    };
  });
  return { kind: "answer", key: message.id, message, run: message.run, steps, feedback: c.feedback[message.id], last: false };
}

/** The arguments of a call that a person changed before it was made. @param {import("./conversation.js").Approval|undefined} approval */
const editedIn = (approval) => (approval?.decision === "edit" && approval.tool && !approval.form ? approval.args : null);

/** @param {Conversation} c @param {string} id @param {number} tokens @param {string} answer the last one
 * @param {string} problem what the run said when it failed @returns {Generator<EndItem>} */
function* endOf(c, id, tokens, answer, problem) {
  const run = c.runs[id] ?? (problem && { ...newRun(id), status: "error" });
  if (run && run.status !== "running" && run.status !== "pending") yield { kind: "end", key: `end-${id}-${answer}`, run, tokens, answer, problem };
}

/** @param {Item|undefined} old @param {Item} item @returns {Item} */
function reused(old, item) {
  if (old?.kind !== item.kind) return item;
  return Object.entries(item).every(([name, value]) => alike(/** @type {any} */ (old)[name], value)) ? old : item;
}

/** @param {any} one @param {any} other */
function alike(one, other) {
  if (one === other) return true;
  return Array.isArray(one) && Array.isArray(other) && one.length === other.length && one.every((step, index) => shallow(step, other[index]));
}

/** @param {any} one @param {any} other */
function shallow(one, other) {
  return Object.keys(other).every((name) => one[name] === other[name]);
}

/** Messages that wait for their turn, and those that the agent will read at its next step. @param {Conversation} c */
export function waitingOf(c) {
  const shown = new Set(c.messages.map((message) => message.id));
  const queued = queuedRuns(c).map((run) => ({ run: run.id, id: run.id, text: textsOf(run.input), steering: false }));
  const steering = Object.values(c.runs)
    .filter((run) => run.status === "running")
    .flatMap((run) => run.input.filter((one) => one.steering && !shown.has(one.id)))
    .map((one) => ({ run: "", id: one.id, text: textsOf([one]), steering: true }));
  return [...steering, ...queued];
}

/** @param {any[]} dumps */
function textsOf(dumps) {
  const text = (/** @type {any} */ content) =>
    typeof content === "string" ? content : (content ?? []).map((/** @type {any} */ block) => block?.text ?? "").join("");
  return dumps.map((dump) => text(dump.content)).join("\n");
}
