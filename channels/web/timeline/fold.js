// The state of a conversation after each event of its log, as the server folds it (`core/thread/fold.py`): for a file,
// which has no server. Only what the page shows of a moment.

import { PHRASES } from "./catalogue.js";
import { isObject } from "./phrases.js";

/** The statuses in which runs end. @type {Record<string, string>} */
const ENDS = { "run.completed": "success", "run.paused": "success", "run.failed": "error", "run.cancelled": "interrupted", "run.rolled_back": "rolled_back" };
/** The events that change a run, by its status. @type {Record<string, Set<string>>} */
const FOLLOWS = {
  pending: new Set(["run.started", "run.failed", "run.cancelled", "run.rolled_back"]),
  running: new Set(["run.started", "message.added", "model.completed", "model.failed", "tool.completed", ...Object.keys(ENDS)]),
};
/** The id of a `remove` message that clears the conversation. */
const REMOVE_ALL = "__remove_all__";

/** @typedef {Record<string, any>} Values */
/** @typedef {{parent: number, patch: Values, seq: number}} Commit */
/** @typedef {{request: any, status: string, attempt: number, before: number, paused: any, notes: any[], start: any, called: number}} Run
 *   `before`: the commit, `paused`: where the conversation waited, when it first started; `called`: the sequence of its last call of a model */

/** @param {any} value @returns {any[]} */
const listOf = (value) => (Array.isArray(value) ? value : []);
/** @param {any} message */
const idOf = (message) => String(message.id ?? "None");

export class Fold {
  seq = 0;
  /** @type {Values} */ values = {};
  /** @type {Map<string, Run>} oldest first */ runs = new Map();
  /** Events whose changes are not known: without their bodies, of other versions, or of packages, which say in their code what changes. @type {{seq: number, type: string}[]} */
  missing = [];
  #title = "";
  #erased = false;
  #head = -1;
  #paused = /** @type {any} */ (null);
  /** @type {Commit[]} */ #commits = [];
  /** Index of each message by its id. @type {Map<string, number>} */ #places = new Map();

  /** @param {number} seq @param {any} event the next one of the log */
  apply(seq, event) {
    this.seq = seq;
    if (this.#erased && event.type !== "thread.created") return;
    try {
      if (!this.#take(seq, event)) this.missing.push({ seq, type: event.type });
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // a file may say anything
      this.missing.push({ seq, type: event.type });
    }
  }

  /** @param {number} seq @param {any} event @returns {boolean} false: what it changes is not known */
  #take(seq, event) {
    if (event.v > 1) return false;
    const run = this.runs.get(event.run);
    const change = OF_THREAD[event.type];
    if (change) change(this, seq, event);
    else if (event.type === "run.requested" && event.run && !run) this.runs.set(event.run, { request: event, status: "pending", attempt: 0, before: -1, paused: null, notes: [], start: null, called: 0 });
    else if (run && FOLLOWS[run.status]?.has(event.type)) this.#applyToRun(run, seq, event);
    else return PHRASES.has(event.type) && !PHRASES.get(event.type)?.patches;
    return !event.blob;
  }

  /** `idle`, `busy`, `interrupted` or `error`. */
  get status() {
    const runs = [...this.runs.values()];
    if (runs.some(({ status }) => status in FOLLOWS)) return "busy";
    if (this.#paused) return "interrupted";
    const last = runs.at(-1)?.status ?? "";
    return ["error", "interrupted"].includes(last) ? last : "idle";
  }

  /** The sequence of the commit on which the next step is made. */
  get checkpoint() {
    return this.#commits[this.#head]?.seq ?? null;
  }

  /** @returns {any[]} */
  get messages() {
    return this.values["messages"] ?? [];
  }

  /** @param {Run} run @param {number} seq @param {any} event */
  #applyToRun(run, seq, event) {
    run.status = ENDS[event.type] ?? run.status;
    const notes = listOf(event.decisions).map(({ note }) => note).filter((note) => note != null);
    switch (event.type) {
      case "run.started":
        run.start = event;
        if (run.attempt === 0) this.#begin(run, seq, event);
        run.status = "running";
        run.attempt = event.attempt;
        break;
      case "message.added":
        this.#commit(seq, { messages: event.messages }, this.#head);
        break;
      case "model.completed":
        run.notes = notes;
        run.called = seq;
        this.#commit(seq, { messages: [event.message] }, this.#head);
        break;
      case "model.failed":
        run.called = seq;
        break;
      case "tool.completed":
        run.notes = [...run.notes, ...notes];
        this.#commit(seq, { ...event.update, messages: [event.message] }, this.#head);
        break;
      case "run.failed":
        if (event.message) this.#commit(seq, { messages: [event.message] }, this.#head);
        break;
      case "run.paused":
        this.#paused = event;
        break;
      case "run.rolled_back":
        if (!run.attempt) break;
        this.#checkout(run.before);
        this.#paused = run.paused;
    }
  }

  /** The first start of a run: it goes on from its base, and its input is written. @param {Run} run @param {number} seq @param {any} event */
  #begin(run, seq, event) {
    run.before = this.#head;
    run.paused = this.#paused;
    this.#paused = null;
    const { input, base } = run.request;
    this.#checkout(this.#commitAt(base));
    if (input && Object.keys(input).length) this.#commit(seq, withPrepared(input, event.prepared ?? {}), this.#head);
  }

  /** @param {number | undefined} seq none: that of the head */
  #commitAt(seq) {
    return seq == null ? this.#head : this.#commits.findLastIndex((commit) => commit.seq === seq);
  }

  /** @param {number} seq @param {Values} patch @param {number} parent */
  #commit(seq, patch, parent) {
    this.#checkout(parent);
    this.#reduce(patch);
    this.#entitle();
    this.#head = this.#commits.push({ parent, patch, seq }) - 1;
  }

  /** The values are those at a commit, from the root on. @param {number} index */
  #checkout(index) {
    if (index === this.#head) return;
    const chain = [];
    for (let at = index; at >= 0; at = /** @type {Commit} */ (this.#commits[at]).parent) chain.push(at);
    this.values = {};
    this.#places = new Map();
    for (const at of chain.reverse()) this.#reduce(/** @type {Commit} */ (this.#commits[at]).patch);
    this.#entitle();
    this.#head = index;
  }

  #entitle() {
    if (this.#title && !this.values["title"]) this.values["title"] = this.#title;
  }

  /** @param {Values} patch */
  #reduce(patch) {
    const { values } = this;
    for (const [name, value] of Object.entries(patch)) {
      if (name === "messages") this.#addMessages((values[name] ??= []), listOf(value));
      else if (name === "artifacts") values[name] = [...new Set([...(values[name] ?? []), ...listOf(value).filter((path) => typeof path === "string")])];
      else if (name === "viewed_images") values[name] = isObject(value) && Object.keys(value).length ? { ...values[name], ...value } : {};
      else if (name === "promoted") values[name] = promoted(values[name], value);
      else if (name !== "todos" || value !== null) values[name] = value;
    }
  }

  /** The same id replaces in place, `remove` deletes, everything else is appended. @param {any[]} messages @param {any[]} added */
  #addMessages(messages, added) {
    for (const message of added) {
      if (!isObject(message) || typeof message.type !== "string") continue;
      const place = this.#places.get(idOf(message));
      if (message.type !== "remove") {
        if (place === undefined) this.#places.set(idOf(message), messages.push(message) - 1);
        else messages[place] = message;
        continue;
      }
      if (message.id === REMOVE_ALL) messages.length = 0;
      else if (place !== undefined) messages.splice(place, 1);
      this.#places = new Map(messages.map((kept, index) => [idOf(kept), index]));
    }
  }

  /** The conversation as a summary, what is kept of it, and what was added meanwhile. @param {number} seq @param {any} event */
  compact(seq, event) {
    const changed = new Map(listOf(event.messages).map((message) => [idOf(message), message]));
    const ids = event.kept.filter((/** @type {string} */ id) => this.#places.has(id));
    const places = ids.map((/** @type {string} */ id) => this.#places.get(id));
    const kept = ids.map((/** @type {string} */ id, /** @type {number} */ index) => changed.get(id) ?? this.messages[places[index]]);
    const after = ids.length ? Math.max(...places) + 1 : this.messages.length;
    this.#commit(seq, { messages: [{ type: "remove", id: REMOVE_ALL }, event.summary, ...kept, ...this.messages.slice(after)] }, this.#head);
  }

  /** @param {number} seq @param {Values[]} patches */
  copy(seq, patches) {
    for (const patch of patches) this.#commit(seq, patch, this.#head);
  }

  /** A change from outside. @param {number} seq @param {any} event */
  patch(seq, event) {
    const base = this.#commitAt(event.base);
    if (base !== this.#head) this.#paused = null;
    this.#commit(seq, event.values, base);
  }

  /** @param {string} title */
  entitle(title) {
    this.#title ||= title;
    this.#entitle();
  }

  /** @param {boolean} erased */
  forget(erased) {
    this.#erased = erased;
    this.values = {};
    this.#title = "";
    this.#head = -1;
    this.#paused = null;
    this.#commits = [];
    this.#places = new Map();
    this.runs = new Map();
    this.missing = [];
  }

  created() {
    this.#erased = false;
  }
}

/** What events do to a conversation. @type {Record<string, (fold: Fold, seq: number, event: any) => void>} */
const OF_THREAD = {
  "thread.created": (fold) => fold.created(),
  "thread.titled": (fold, _seq, { title }) => fold.entitle(title),
  "thread.forked": (fold, seq, { patches }) => fold.copy(seq, patches),
  "thread.pruned": (fold, seq, { values }) => (fold.forget(false), fold.copy(seq, [values])),
  "thread.erased": (fold) => fold.forget(true),
  "state.patched": (fold, seq, event) => fold.patch(seq, event),
  "context.compacted": (fold, seq, event) => fold.compact(seq, event),
};

/** A run's input with what the server adds to it, or says differently. @param {Values} input @param {Values} prepared @returns {Values} */
function withPrepared(input, prepared) {
  if (Object.keys(prepared).length === 0) return input;
  const objects = (/** @type {any} */ list) => listOf(list).filter(isObject);
  const changes = new Map(objects(prepared["messages"]).map((message) => [idOf(message), message]));
  const messages = objects(input["messages"]).map((message) => (message.type === "remove" ? message : { ...message, ...changes.get(idOf(message)) }));
  return { ...input, ...prepared, messages };
}

/** Names of one catalogue of tools add up; another catalogue begins anew. @param {any} old @param {any} added */
function promoted(old, added) {
  if (!isObject(old) || !isObject(added) || old.catalog_hash !== added.catalog_hash) return added;
  const names = [...listOf(old.names), ...listOf(added.names)].filter((name) => typeof name === "string");
  return { ...added, names: [...new Set(names)].sort() };
}

/** Files that are listed. */
const MOST = 5000;

/** The files as known at an event: by the last scan before it, and what people did after that.
 * @param {{seq: number, event: any}[]} scans @param {{seq: number, event: any}[]} events of the conversation @param {number} seq */
export function filesAt(scans, events, seq) {
  /** @type {Map<string, number | null>} */
  let sizes = new Map();
  let scanned = 0;
  let truncated = false;
  const known = (/** @type {any} */ size) => (size === -1 ? null : size);
  for (const { seq: at, event } of scans) {
    if (event.type === "workspace.forgotten" && at <= seq) sizes = new Map();
    if (event.type !== "workspace.scanned" || event.upto > seq) continue;
    scanned = event.upto;
    truncated = Boolean(event.truncated);
    for (const [path, { size }] of Object.entries(event.seen ?? {})) sizes.set(path, known(size));
    for (const path of event.gone ?? []) sizes.delete(path);
  }
  const upload = (/** @type {string} */ name) => `/mnt/user-data/uploads/${name}`;
  for (const { seq: at, event } of events) {
    if (at <= scanned || at > seq) continue;
    if (event.type === "file.uploaded") sizes.set(upload(event.name), event.size);
    if (event.type === "file.converted") sizes.set(upload(event.markdown), null);
    if (event.type === "file.removed") sizes.delete(upload(event.name));
    if (event.type === "artifact.replaced") sizes.set(event.path, event.size);
  }
  const files = [...sizes].map(([path, size]) => ({ path, size })).sort((one, other) => (one.path < other.path ? -1 : 1));
  return { files: files.slice(0, MOST), truncated: truncated || files.length > MOST };
}
