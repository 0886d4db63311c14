// A conversation: the fold of a thread's events. Everything that is shown of it follows from the pages of history that were
// loaded and the frames that came since, in whatever pieces and however often they came. Nothing here knows a browser.
//
// Theory of operation
// -------------------
// `apply(conversation, frames)` is pure; what did not change is the same object afterwards, so that a view knows by `===`
// what it need not draw again. Facts carry the log's sequence: one that was seen is left out, so a stream may begin before
// the page of history does. Text in the making is apart (`growing`), as it changes many times a second and nothing else
// does then. What cannot be told from a fact alone (the thread went back to an earlier point) makes the conversation
// `stale`: the page of history is read again, and `withPage` puts it in the place of what was there.

import { grown } from "./growing.js";
import { PLACES, messageOf, resultOf, usageOf } from "./message.js";

/**
 * @typedef {import("./message.js").Message} Message
 * @typedef {import("./message.js").Result} Result
 * @typedef {{id: string, status: "pending"|"running"|"success"|"error"|"interrupted"|"paused"|"rolled_back", requestedAt: string,
 *   startedAt: string, endedAt: string, model: string, attempt: number, error: string, errorKind: string, input: any[],
 *   base: number|null, context: any, suspended: string, retry: Retry|null, stopping: boolean, summary: Summary|null}} Run
 * @typedef {{attempt: number, most: number, waitMs: number, reason: string, text: string, at: string}} Retry
 * @typedef {{status: string, duration_ms: number|null, error: string|null, changes: {files: number, additions: number,
 *   deletions: number}|null, usage?: any, model?: string|null}} Summary
 * @typedef {{name: string, args: any, at: string}} Request a tool call at work
 * @typedef {{call: string, id: string, name: string, description: string, status: string, steps: number, latest: string,
 *   error: string, usage: any, at: string, endedAt: string}} Subagent
 * @typedef {{id: string, call: string, tool: string, args: any, text: string, allowed: string[], deadline: string|null,
 *   form: any, decision: string, by: string, message: string, run: string}} Approval
 * @typedef {{seq: number, staleSeq: number, loaded: boolean, erased: boolean, first: number|null, title: string,
 *   messages: Message[], results: Record<string, Result>, requests: Record<string, Request>, progress: Record<string, string>,
 *   runs: Record<string, Run>, growing: Record<string, import("./growing.js").Growing>, todos: Todo[], goal: Goal|null|undefined,
 *   approvals: Record<string, Approval>, subagents: Record<string, Subagent>, suggestions: string[], presented: string[],
 *   feedback: Record<string, Feedback>, notes: Note[], tokens: number}} Conversation
 *   `feedback`: the newest opinion on a message, or on a run as a whole, by the id of what it is about; `goal`: undefined until
 *   it is known
 * @typedef {{id: string, rating: number}} Feedback
 * @typedef {{content: string, status: string}} Todo
 * @typedef {{objective: string, paused: string, reason: string}} Goal
 * @typedef {{seq: number, kind: "compacted"|"goal", before?: number, after?: number, reason?: string}} Note
 * @typedef {{event: string, data: any, seq: number}} Fact
 */

/** @returns {Conversation} */
export function empty() {
  return {
    seq: 0, staleSeq: 0, loaded: false, erased: false, first: null, title: "", messages: [], results: {}, requests: {}, progress: {},
    runs: {}, growing: {}, todos: [], goal: undefined, approvals: {}, subagents: {}, suggestions: [], presented: [], feedback: {}, notes: [], tokens: 0,
  };
}

/** Applies frames in order. @param {Conversation} conversation @param {import("../api/sse.js").Frame[]} frames */
export function apply(conversation, frames) {
  return frames.reduce(applied, conversation);
}

/**
 * The conversation as of its last change that was more than text in the making: views of anything else need no newer one.
 * @param {Conversation} before @param {Conversation} c @returns {Conversation} `before` if only text has grown since
 */
export function settled(before, c) {
  const same = (/** @type {keyof Conversation} */ name) => (name === "growing" ? sameMessages(before.growing, c.growing) : before[name] === c[name]);
  return /** @type {(keyof Conversation)[]} */ (Object.keys(c)).every(same) ? before : c;
}

/** @param {Conversation["growing"]} before @param {Conversation["growing"]} now */
function sameMessages(before, now) {
  const runs = Object.keys(now);
  return runs.length === Object.keys(before).length && runs.every((run) => before[run]?.message === now[run].message);
}

/** @param {Conversation} c @param {import("../api/sse.js").Frame} frame @returns {Conversation} */
function applied(c, frame) {
  const data = JSON.parse(frame.data);
  if (frame.event === "preview") return previewed(c, data);
  if (frame.event === "progress") return progressed(c, data);
  const seq = Number(frame.id);
  if (seq <= c.seq) return c;
  const fold = FACTS[frame.event];
  return { ...(fold ? { ...c, ...fold(c, data, seq) } : c), seq };
}

/** @param {Conversation} c @param {any} piece @returns {Conversation} */
function previewed(c, piece) {
  const run = c.runs[piece.run];
  if (!run) return overheard(c, piece);
  if (run?.status !== "running" || piece.after < turnOf(c, piece.run) || c.messages.some((one) => one.id === piece.message)) return c;
  const growing = grown(c.growing[piece.run], piece);
  return growing === c.growing[piece.run] ? c : { ...c, growing: { ...c.growing, [piece.run]: growing } };
}

/** Text of a subagent at work: until its answer is reported. @param {Conversation} c @param {any} piece @returns {Conversation} */
function overheard(c, piece) {
  const agent = Object.values(c.subagents).find((one) => one.id === piece.run && one.status === "running");
  const before = c.growing[piece.run];
  if (!agent || (before && piece.after < before.after)) return c;
  const growing = grown(before, piece);
  return growing === before ? c : { ...c, growing: { ...c.growing, [piece.run]: growing } };
}

/** @param {Conversation} c @param {any} piece @returns {Conversation} */
function progressed(c, { call_id: call, text }) {
  if (c.results[call] || c.progress[call] === text) return c;
  return { ...c, progress: { ...c.progress, [call]: text } };
}

/** The newest start, answer or failure of a run: text of answers that were begun before is void. */
const TURN = Symbol("turn");
/** @param {Conversation} c @param {string} run */
const turnOf = (c, run) => /** @type {any} */ (c.runs[run])?.[TURN] ?? 0;

// ── facts ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** @type {Record<string, (c: Conversation, data: any, seq: number) => Partial<Conversation>>} */
const FACTS = {
  "thread.titled": (c, { title }) => (c.title ? {} : { title }),
  "thread.created": (c) => (c.erased ? { ...empty(), loaded: c.loaded } : {}),
  "thread.erased": () => ({ erased: true, messages: [], growing: {} }),
  "thread.pruned": (_, __, seq) => ({ staleSeq: seq }),
  "thread.forked": (_, __, seq) => ({ staleSeq: seq }),
  "state.patched": patched,
  "run.requested": (c, data, seq) => runs(c, data.run, requestedRun(data), seq),
  "run.started": started,
  "run.suspended": (c, { run, reason }) => ({ ...runs(c, run, { suspended: reason }), ...withoutGrowing(c, run) }),
  "run.cancel_requested": (c, { run }) => runs(c, run, { stopping: true }),
  "run.completed": (c, data) => ended(c, data, "success"),
  "run.cancelled": (c, data) => ended(c, data, "interrupted"),
  "run.failed": failed,
  "run.paused": (c, data) => ended(c, data, "paused"),
  "run.rolled_back": (c, data, seq) => ({ ...ended(c, data, "rolled_back"), staleSeq: seq }),
  "message.added": (c, { messages, run, at }, seq) => ({ messages: withMessages(c.messages, messages, seq, run, at) }),
  "run.steered": (c, { message, run }) => runs(c, run, { input: [...(c.runs[run]?.input ?? []), { ...message, steering: true }] }),
  "model.completed": answered,
  "model.failed": retried,
  "tool.requested": (c, { call_id: call, name, args, at }) => ({ requests: { ...c.requests, [call]: { name, args, at } } }),
  "tool.completed": completed,
  "subagent.started": (c, data) => subagents(c, data.call_id, startedSubagent(data)),
  "subagent.progressed": (c, { call_id: call, index, message }) =>
    ({ ...subagents(c, call, { steps: index, latest: latestOf(message), status: "running" }), ...withoutGrowing(c, c.subagents[call]?.id ?? "") }),
  "subagent.completed": (c, { call_id: call, status, error, result, usage, at }) =>
    ({ ...subagents(c, call, { status, error: error ?? "", latest: result ?? "", usage, endedAt: at }), ...withoutGrowing(c, c.subagents[call]?.id ?? "") }),
  "context.compacted": (c, { tokens_before: before, tokens_after: after }, seq) => ({
    notes: [...c.notes, { seq: seq * PLACES, kind: "compacted", before: before ?? 0, after: after ?? 0 }],
  }),
  "goal.set": (_, { objective }) => ({ goal: { objective, paused: "", reason: "" } }),
  "goal.evaluated": (c, { reason }) => ({ goal: c.goal && { ...c.goal, paused: "", reason } }),
  "goal.paused": (c, { reason, blocker }) => ({ goal: c.goal && { ...c.goal, paused: blocker ?? "none", reason } }),
  "goal.reached": (c, { reason }, seq) => ({ goal: null, notes: [...c.notes, { seq: seq * PLACES, kind: "goal", reason: reason ?? "" }] }),
  "goal.cleared": () => ({ goal: null }),
  "questions.suggested": (_, { suggestions }) => ({ suggestions }),
  "approval.requested": (c, data) => approvals(c, data.approval, requestedApproval(data)),
  "approval.resolved": (c, { approval, decision, by, message, args }) =>
    approvals(c, approval, { decision, by: by ?? "", message: message ?? "", ...(args ? { args } : {}) }),
  "feedback.given": rated,
  "feedback.removed": (c, { feedback_id: id }) => ({ feedback: Object.fromEntries(Object.entries(c.feedback).filter(([, one]) => one.id !== id)) }),
};

/** @param {Conversation} c @param {string} id @param {Partial<Run>} change @param {number} [turn] */
function runs(c, id, change, turn) {
  const before = c.runs[id] ?? newRun(id);
  const run = { ...before, ...change, ...(turn ? { [TURN]: turn } : {}) };
  return { runs: { ...c.runs, [id]: run } };
}

/** @param {string} id @returns {Run} */
export function newRun(id) {
  return {
    id, status: "pending", requestedAt: "", startedAt: "", endedAt: "", model: "", attempt: 0, error: "", errorKind: "", input: [],
    base: null, context: {}, suspended: "", retry: null, stopping: false, summary: null,
  };
}

/** @param {any} data @returns {Partial<Run>} */
function requestedRun({ at, input, base, context, resume }) {
  const messages = resume ? [] : input?.messages;
  return { requestedAt: at, input: Array.isArray(messages) ? messages : [], base: base ?? null, context: context ?? {} };
}

/** @param {Conversation} c @param {any} data @param {number} seq @returns {Partial<Conversation>} */
function started(c, { run, at, attempt, model }, seq) {
  const before = c.runs[run];
  const first = attempt <= 1;
  const change = { status: /** @type {const} */ ("running"), attempt, model: model ?? "", suspended: "", retry: null, startedAt: before?.startedAt || at };
  const begun = first && before ? { messages: withMessages(without(c.messages, before.input), before.input, seq, run, at, 1) } : {};
  const back = first && before?.base != null ? { staleSeq: seq } : {};
  return { ...runs(c, run, change, seq), ...withoutGrowing(c, run), ...begun, ...back, suggestions: [], todos: first ? [] : c.todos };
}

/** @param {Conversation} c @param {any} data @param {Run["status"]} status @returns {Partial<Conversation>} */
function ended(c, { run, at }, status) {
  const requests = Object.fromEntries(Object.entries(c.requests).filter(([call]) => c.results[call]));
  return { ...runs(c, run, { status, endedAt: at, retry: null, suspended: "", stopping: false }), ...withoutGrowing(c, run), requests };
}

/** @param {Conversation} c @param {any} data @param {number} seq @returns {Partial<Conversation>} */
function failed(c, data, seq) {
  const change = ended(c, data, "error");
  const runsAfter = { .../** @type {any} */ (change.runs) };
  runsAfter[data.run] = { ...runsAfter[data.run], error: data.text, errorKind: data.error };
  const messages = data.message ? withMessages(c.messages, [data.message], seq, data.run, data.at, 1) : c.messages;
  return { ...change, runs: runsAfter, messages };
}

/** @param {Conversation} c @param {any} data @param {number} seq @returns {Partial<Conversation>} */
function answered(c, { message, run, at }, seq) {
  return {
    ...runs(c, run, { retry: null }, seq),
    ...withoutGrowing(c, run),
    messages: withMessages(c.messages, [message], seq, run, at),
    tokens: usageOf(message.usage_metadata)?.total ?? c.tokens,
  };
}

/** @param {Conversation} c @param {any} data @param {number} seq @returns {Partial<Conversation>} */
function retried(c, { run, at, attempt, max_attempts: most, wait_ms: waitMs, reason, text }, seq) {
  const retry = waitMs == null ? null : { attempt, most, waitMs, reason, text, at };
  return { ...runs(c, run, { retry }, seq), ...withoutGrowing(c, run) };
}

/** @param {Conversation} c @param {any} data @param {number} seq @returns {Partial<Conversation>} */
function completed(c, { call_id: call, message, update, duration_ms: ms, exit_code: exitCode }, seq) {
  const { [call]: _, ...progress } = c.progress;
  return {
    progress,
    results: { ...c.results, [call]: resultOf(message, seq * PLACES, ms ?? 0, exitCode ?? null) },
    ...(update?.todos ? { todos: update.todos } : {}),
    ...(update?.artifacts ? { presented: [...new Set([...c.presented, ...update.artifacts])] } : {}),
  };
}

/** Values that were written from outside. @param {Conversation} _ @param {any} data @param {number} seq @returns {Partial<Conversation>} */
function patched(_, { values, base }, seq) {
  return {
    ...(typeof values?.title === "string" ? { title: values.title } : {}),
    ...(values?.todos ? { todos: values.todos } : {}),
    ...(values?.messages || base != null ? { staleSeq: seq } : {}),
  };
}

/** @param {Conversation} c @param {any} data @returns {Partial<Conversation>} */
function rated(c, { feedback_id: id, run, rating, message_id: message }) {
  return { feedback: { ...c.feedback, [message ?? run]: { id, rating } } };
}

/** @param {Conversation} c @param {string} call @param {Partial<Subagent>} change */
function subagents(c, call, change) {
  return { subagents: { ...c.subagents, [call]: { .../** @type {any} */ (c.subagents[call] ?? { call, steps: 0 }), ...change } } };
}

/** @param {any} data @returns {Partial<Subagent>} */
function startedSubagent({ call_id: call, subagent, name, description, at }) {
  return { call, id: subagent, name, description: description ?? "", status: "running", steps: 0, latest: "", error: "", usage: null, at, endedAt: "" };
}

/** What a subagent's answer says of its work. @param {any} message */
function latestOf(message) {
  const called = message?.tool_calls?.[0];
  const text = typeof message?.content === "string" ? message.content : "";
  return text || (called ? String(called.args?.description ?? called.name) : "");
}

/** @param {Conversation} c @param {string} id @param {Partial<Approval>} change */
function approvals(c, id, change) {
  return { approvals: { ...c.approvals, [id]: { .../** @type {any} */ (c.approvals[id] ?? { id }), ...change } } };
}

/** @param {any} data @returns {Partial<Approval>} */
function requestedApproval({ approval: id, call_id: call, tool, args, text, allowed, deadline, form, run }) {
  return { id, call, tool, args, text: text ?? "", allowed: allowed ?? [], deadline: deadline ?? null, form: form ?? null, decision: "", by: "", message: "", run };
}

/** @param {Conversation} c @param {string} run @returns {Partial<Conversation>} */
function withoutGrowing(c, run) {
  if (!c.growing[run]) return {};
  const { [run]: _, ...growing } = c.growing;
  return { growing };
}

// ── messages, and pages of history ───────────────────────────────────────────────────────────────────────────────────

/**
 * Adds the messages of a fact; one that is there is replaced where it is.
 * @param {Message[]} messages @param {any[]} dumps @param {number} seq of the fact @param {string} run @param {string} at
 * @param {number} [begin] place of the first in the fact
 */
function withMessages(messages, dumps, seq, run, at, begin = 0) {
  const added = dumps.map((dump, index) => messageOf(dump, seq * PLACES + begin + index, run, at));
  return added.reduce((all, message) => (message ? withMessage(all, message) : all), messages);
}

/** Leaves out the messages that an input takes away. @param {Message[]} messages @param {any[]} input */
function without(messages, input) {
  const gone = new Set(input.filter((dump) => dump.type === "remove").map((dump) => dump.id));
  return gone.size ? messages.filter((message) => !gone.has(message.id)) : messages;
}

/** @param {Message[]} messages @param {Message} message @returns {Message[]} */
function withMessage(messages, message) {
  const place = messages.findLastIndex((one) => one.id === message.id);
  if (place < 0) return [...messages, message];
  return same(messages[place], message) ? messages : messages.with(place, { ...message, branches: messages[place].branches });
}

/** Tells if two messages look the same, and are of one run: a question may be brought again. @param {Message} one @param {Message} other */
function same(one, other) {
  const shown = (/** @type {Message} */ m) => JSON.stringify([m.run, m.text, m.reasoning, m.calls, m.images, m.files, m.usage, m.error]);
  return shown(one) === shown(other);
}

/**
 * Puts a page of history into a conversation: an older page before it, the newest page in the place of what it covers.
 * @param {Conversation} c @param {any} page of `messages/page` @param {{older?: boolean, asOf?: number}} [how]
 *   `asOf`: the sequence after which facts are newer than the page for sure
 * @returns {Conversation}
 */
export function withPage(c, page, { older = false, asOf = c.seq } = {}) {
  const rows = page.data ?? [];
  const known = new Map(c.messages.map((message) => [message.id, message]));
  const results = { ...c.results };
  const feedback = { ...c.feedback };
  /** @type {Message[]} */ const loaded = [];
  for (const row of rows) {
    if (row.content?.type === "tool") {
      const result = resultOf(row.content, row.seq, row.metadata?.latency_ms ?? 0, row.metadata?.exit_code ?? null, row.metadata?.edited_args ?? null);
      const seen = results[result.call];
      results[result.call] = seen && Boolean(seen.edited) === Boolean(result.edited) ? seen : result;
      continue;
    }
    const message = messageOf(row.content, row.seq, row.run_id ?? "", row.created_at);
    if (!message) continue;
    if (row.feedback) feedback[message.id] = opinionOf(feedback[message.id], row.feedback);
    message.branches = row.branches ?? null;
    loaded.push(reused(known.get(message.id), message));
  }
  const ids = new Set(loaded.map((message) => message.id));
  const others = c.messages.filter((message) => !ids.has(message.id) && (older || message.seq > asOf * PLACES + PLACES - 1));
  const first = page.next_before_seq ?? null;
  const tokens = c.tokens || (older ? 0 : (loaded.findLast((message) => message.usage)?.usage?.total ?? 0));
  const messages = [...loaded, ...others];
  const shown = older ? c.runs : runsOfBranch(c, messages);
  const title = c.title || (page.title ?? "");
  const goal = c.goal === undefined ? goalFrom(page.goal) : c.goal;
  return { ...c, loaded: true, first, title, goal, results, feedback, tokens, runs: withSummaries(shown, page.runs), messages };
}

/** @param {any} goal of a page @returns {Goal|null|undefined} */
function goalFrom(goal) {
  if (!goal) return goal;
  return { objective: goal.objective, paused: goal.status === "paused" ? (goal.last_evaluation?.blocker ?? "none") : "", reason: goal.last_evaluation?.reason ?? "" };
}

/** The runs without those that are over and whose messages are all gone: another branch has them. @param {Conversation} c @param {Message[]} messages */
function runsOfBranch(c, messages) {
  const gone = new Set(c.messages.map(({ run }) => run));
  for (const { run } of messages) gone.delete(run);
  const stays = (/** @type {Run} */ { id, status }) => !gone.has(id) || status === "running" || status === "pending";
  return gone.size ? Object.fromEntries(Object.entries(c.runs).filter(([, run]) => stays(run))) : c.runs;
}

/** @param {Feedback|undefined} before @param {any} feedback of a row @returns {Feedback} `before` if it is the same */
const opinionOf = (before, { feedback_id: id, rating }) => (before && before.id === id && before.rating === rating ? before : { id, rating });

/** @param {Message|undefined} old @param {Message} message @returns {Message} */
function reused(old, message) {
  if (!old || !same(old, message)) return message;
  return JSON.stringify(old.branches) === JSON.stringify(message.branches) ? old : { ...old, branches: message.branches };
}

/** Messages with the versions that rows of the history name. @param {Message[]} messages @param {any[]} rows @returns {Message[]} */
export function withVersions(messages, rows) {
  const versions = new Map(rows.filter((row) => row.branches).map((row) => [row.content?.id, row.branches]));
  return versions.size ? messages.map((message) => (versions.has(message.id) ? reused(message, { ...message, branches: versions.get(message.id) }) : message)) : messages;
}

/** @param {Record<string, Run>} runsBefore @param {Record<string, Summary>|undefined} summaries */
export function withSummaries(runsBefore, summaries) {
  if (!summaries) return runsBefore;
  const after = { ...runsBefore };
  for (const [id, summary] of Object.entries(summaries)) {
    const run = after[id] ?? { ...newRun(id), .../** @type {any} */ ({ status: summary.status }), error: summary.error ?? "", model: summary.model ?? "" };
    after[id] = { ...run, summary };
  }
  return after;
}

// ── questions about a conversation ───────────────────────────────────────────────────────────────────────────────────

/** The run at work. @param {Conversation} c */
export const activeRun = (c) => Object.values(c.runs).find((run) => run.status === "running");

/** Runs that wait for their turn, oldest first. @param {Conversation} c */
export const queuedRuns = (c) => Object.values(c.runs).filter((run) => run.status === "pending");

/** True if a run has ended since. @param {Conversation} before @param {Conversation} c */
export const endedSince = (before, c) => before.loaded && before.runs !== c.runs && Object.values(c.runs).some((run) => run.endedAt && !before.runs[run.id]?.endedAt);

/** True while something works or waits to. @param {Conversation} c */
export const isBusy = (c) => Object.values(c.runs).some((run) => run.status === "running" || run.status === "pending");
