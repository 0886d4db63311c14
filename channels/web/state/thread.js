// An open conversation: its history and its stream, kept together as one signal. Frames are applied once per painted frame.

import { batch, computed, signal } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Follower } from "../api/follower.js";
import { apply, empty, endedSince, settled, withPage, withSummaries, withVersions } from "./conversation.js";
import { itemsOf } from "./items.js";

/** Messages of a page. The first one is small: what is above the screen can come later. */
export const PAGE = 40;
const MOST_PAGE = 200;
/** How often frames are applied while nobody looks. */
const HIDDEN_MS = 250;

/** @typedef {import("./conversation.js").Conversation} Conversation */

export class Thread {
  /** @type {Follower | null} */ #follower = null;
  /** @type {import("../api/sse.js").Frame[]} */ #waiting = [];
  #planned = false;
  #closed = false;
  #staleSeq = 0;
  /** @type {import("../vendor/preact.js").Signal<Conversation>} */ #newest = signal(empty());
  /** @type {import("./items.js").Item[]} */ #items = [];

  /** @param {string} id */
  constructor(id) {
    this.id = id;
    /** Where a run goes on from if another branch is shown; empty for the conversation as it stands. */
    this.tip = "";
    /** The run that was begun here last. */
    this.begun = signal("");
    let before = empty();
    /** What most views show: it changes with facts, not with each piece of text. */
    this.state = computed(() => (before = settled(before, this.#newest.value)));
    /** Text in the making, by its run. */
    this.growing = computed(() => this.#newest.value.growing);
    /** @type {import("../vendor/preact.js").Signal<import("../api/follower.js").Condition>} */
    this.condition = signal({ kind: "opening", attempt: 0 });
    /** @type {import("../vendor/preact.js").Signal<Failure | null>} */
    this.failure = signal(null);
    this.items = computed(() => (this.#items = itemsOf(this.state.value, this.#items)));
  }

  /** Loads and follows a conversation that is on the server. */
  open() {
    if (this.#follower || this.#closed) return;
    this.failure.value = null;
    this.#follower = new Follower({
      path: `threads/${this.id}/log`,
      query: { follow: 1, previews: 1, since: "turn" },
      take: (frames) => this.#take(frames),
      tell: (condition) => this.#told(condition),
    });
    void this.#load();
  }

  close() {
    this.#closed = true;
    this.#follower?.close();
  }

  /** Loads the page of history before the first message that is shown. */
  async older() {
    const { first } = this.#newest.value;
    if (first == null) return;
    const page = await call("GET", `threads/${this.id}/messages/page`, { query: { limit: MOST_PAGE / 2, before_seq: first } });
    if (this.#newest.value.first === first) this.#newest.value = withPage(this.#newest.value, page, { older: true });
  }

  /** Reads the newest page again, in the place of what is shown. @param {string} [checkpoint] a moment of another branch */
  async reload(checkpoint) {
    const asOf = this.#newest.value.seq;
    const limit = Math.min(MOST_PAGE, Math.max(PAGE, this.#newest.value.messages.length));
    const query = { limit, checkpoint_id: checkpoint };
    const page = await call("GET", `threads/${this.id}/messages/page`, { query });
    this.#apply();
    this.tip = checkpoint ? (page.checkpoint_id ?? "") : "";
    this.#newest.value = withPage(this.#newest.value, page, { asOf });
  }

  async #load() {
    try {
      const page = await call("GET", `threads/${this.id}/messages/page`, { query: { limit: PAGE } });
      this.#apply();
      this.#newest.value = withPage(this.#newest.value, page, { asOf: 0 });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.passing && !this.#closed) setTimeout(() => this.#load(), 1000);
      else this.failure.value = error;
    }
  }

  /** Reads what the newest run cost and changed, and which version its answer is: facts do not tell. */
  async #sum() {
    const page = await call("GET", `threads/${this.id}/messages/page`, { query: { limit: 1 } });
    const { runs, messages } = this.#newest.value;
    this.#newest.value = { ...this.#newest.value, runs: withSummaries(runs, page.runs), messages: withVersions(messages, page.data) };
  }

  /** @param {import("../api/follower.js").Condition} condition */
  #told(condition) {
    batch(() => {
      this.condition.value = condition;
      if (!condition.failure) return;
      this.failure.value = condition.failure;
      this.#follower = null;
    });
  }

  /** @param {import("../api/sse.js").Frame[]} frames */
  #take(frames) {
    this.#waiting.push(...frames);
    if (this.#planned) return;
    this.#planned = true;
    if (document.hidden) setTimeout(() => this.#apply(), HIDDEN_MS);
    else requestAnimationFrame(() => this.#apply());
  }

  #apply() {
    this.#planned = false;
    const frames = this.#waiting.splice(0);
    if (!frames.length || this.#closed) return;
    const before = this.#newest.value;
    const now = apply(before, frames);
    this.#newest.value = now;
    if (endedSince(before, now)) void this.#sum().catch(() => {});
    const { staleSeq } = now;
    if (staleSeq === this.#staleSeq) return;
    this.#staleSeq = staleSeq;
    void this.reload().catch(() => {});
  }
}
