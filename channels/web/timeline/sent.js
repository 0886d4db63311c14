// What a call of a model got, and what of it is other than at the call before, as the server tells it
// (`core/replay/moments/requests.py`): for a file, which has no server.

/** @typedef {import("./prompt.js").Change} Change */
/** @typedef {{prompt: string | null, tools: any[] | null, model: any, messages: any[], notes: any[], missing: Record<string, string>}} Request */
/** @typedef {import("./fold.js").Fold} Fold */
/** @typedef {{event: any}} Stored */

/** Runs that are looked at for the call before one. */
const EARLIER = 20;

/**
 * @param {any} event an answer or a failure of a model
 * @param {(seq: number) => Fold} foldAt up to a sequence: good until it is called again
 * @param {(kind: string, aggregate: string) => Stored[]} logOf the events of another log
 * @param {number} seq of the event
 * @param {string} absent why a content is not in the file
 */
export async function sentAt(event, seq, foldAt, logOf, absent) {
  const request = await requestOf(foldAt(seq - 1), event.run, logOf, absent);
  const begun = [...foldAt(seq - 1).runs].reverse().filter(([, run]) => run.start).slice(0, EARLIER);
  const [run = "", { called: before = 0 } = {}] = begun.find(([, one]) => one.called) ?? [];
  if (!before) return { seq, request, before: null, changes: [] };
  const earlier = await requestOf(foldAt(before - 1), run, logOf, absent);
  return { seq, request, before, changes: changed(earlier, request) };
}

/** @param {Fold} fold that before the call @param {string} id of its run @param {(kind: string, aggregate: string) => Stored[]} logOf @param {string} absent @returns {Promise<Request>} */
async function requestOf(fold, id, logOf, absent) {
  const { start = null, notes = [] } = fold.runs.get(id) ?? {};
  const request = { messages: [...fold.messages], notes };
  /** @type {Record<string, string>} */ const missing = {};
  /** @type {Record<string, string | null>} */ const parts = {};
  for (const part of ["prompt", "tools", "model"]) {
    const sha256 = start?.setup?.[part];
    const { content = null, why = "" } = sha256 ? await contentOf(sha256, start.setup_thread, logOf, absent) : { why: "timeline.prompt.unrecorded" };
    parts[part] = content;
    if (content === null) missing[part] = why;
  }
  const { prompt = null, tools = null, model = null } = parts;
  return { prompt, tools: tools && JSON.parse(tools), model: model && JSON.parse(model), ...request, missing };
}

/** @param {string} sha256 @param {string | undefined} thread of the contents with something of its user @param {(kind: string, aggregate: string) => Stored[]} logOf @param {string} absent @returns {Promise<{content?: string, why?: string}>} */
async function contentOf(sha256, thread, logOf, absent) {
  const stored = [...(thread ? logOf("thread_setup", thread) : []), ...logOf("setup", sha256)];
  for (const { event } of stored) {
    if (event.type === "setup.recorded" && (event.aggregate === sha256 || (await hashOf(event.content)) === sha256)) return { content: event.content };
  }
  if (stored.some(({ event }) => event.type === "setup.erased")) return { why: "timeline.prompt.erased" };
  return { why: thread && !crypto.subtle ? "timeline.prompt.unhashed" : absent };
}

/** Empty where the browser has no hashes: on pages that came without TLS from another machine. @param {string} text */
async function hashOf(text) {
  if (!crypto.subtle || typeof text !== "string") return "";
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** In the order of the newer one; what was removed comes last. @param {Request} before @param {Request} now @returns {Change[]} */
function changed(before, now) {
  const missing = new Set(Object.keys({ ...before.missing, ...now.missing }));
  const old = new Map(partsOf(before, missing).map((one) => [`${one.part} ${one.name}`, one]));
  /** @type {Change[]} */
  const changes = [];
  for (const { part, name, value } of partsOf(now, missing)) {
    const was = old.get(`${part} ${name}`);
    old.delete(`${part} ${name}`);
    if (!was) changes.push({ part, name, change: "added" });
    else if (!same(was.value, value)) changes.push({ part, name, change: "changed", before: was.value });
  }
  for (const { part, name, value } of old.values()) changes.push({ part, name, change: "removed", before: value });
  return changes;
}

/** The parts of a request, the last one of a name. @param {Request} request @param {Set<string>} missing @returns {{part: Change["part"], name: string, value: any}[]} */
function partsOf({ prompt, tools, model, messages, notes }, missing) {
  /** @type {Map<string, {part: Change["part"], name: string, value: any}>} */
  const parts = new Map();
  const add = (/** @type {Change["part"]} */ part, /** @type {unknown} */ name, /** @type {any} */ value) => parts.set(`${part} ${name}`, { part, name: String(name), value });
  if (!missing.has("prompt")) add("prompt", "", prompt);
  if (!missing.has("tools")) for (const tool of tools ?? []) add("tool", tool.name, tool);
  if (!missing.has("model")) (Array.isArray(model) ? model : [model]).forEach((one, number) => add("model", number, one));
  for (const message of messages) add("message", message.id ?? "None", message);
  notes.forEach((note, number) => add("note", number, note));
  return [...parts.values()];
}

/** Two values of JSON, whatever the order of their fields. @param {any} left @param {any} right @returns {boolean} */
function same(left, right) {
  if (typeof left !== "object" || typeof right !== "object" || !left || !right) return left === right;
  const keys = Object.keys(left);
  return Array.isArray(left) === Array.isArray(right) && keys.length === Object.keys(right).length && keys.every((key) => Object.hasOwn(right, key) && same(left[key], right[key]));
}
