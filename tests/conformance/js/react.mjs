// `useStream` in jsdom with React: what a page sees.
import { JSDOM } from "jsdom";
import { AGENT, ANSWER, assert, main, test, until } from "./lab.mjs";

const dom = new JSDOM("<!doctype html><body></body>", { url: "http://localhost/" });
globalThis.window = dom.window;
globalThis.document = dom.window.document;
globalThis.navigator ??= dom.window.navigator;
// The hook leaves failed fetches of a history to the console, as a browser does; `onError` hears of them as well.
process.on("unhandledRejection", () => {});
const { createElement, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");

// A page with the hook. `now` is what it gives; `seen` is what was shown at each render.
class Page {
  constructor(lab, options) {
    this.lab = lab;
    this.seen = [];
    this.finished = 0;
    this.errors = [];
    this.created = [];
    this.threadId = options.threadId ?? null;
    const given = {
      client: lab.connect(),
      assistantId: AGENT,
      onThreadId: (id) => (this.threadId = id),
      onError: (error) => this.errors.push(error),
      onCreated: (run) => this.created.push(run),
      ...options,
    };
    const Probe = () => {
      const before = this.now;
      this.now = lab.sdk.useStream(given);
      if (before?.isLoading && !this.now.isLoading) this.finished += 1;
      this.seen.push(this.now.messages.map(({ id, content, type }) => ({ id, content, type })));
      useEffect(() => void (this.mounted = true), []); // after those of the hook
      return null;
    };
    this.root = createRoot(document.createElement("div"));
    this.root.render(createElement(Probe));
  }

  unmount() {
    this.root.unmount();
  }

  get texts() {
    return this.lab.texts({ messages: this.now.messages });
  }

  async ready() {
    await until(() => this.mounted && !this.now.isThreadLoading, "the page is ready");
    return this;
  }

  async submit(text, model = "hello", more = {}) {
    const values = typeof text === "string" ? this.lab.input(text) : text;
    await this.over(() => this.now.submit(values, { context: { model_name: model }, ...more }));
  }

  // Return when the page has shown that something loads, and that it does no more: the hook's own promises end early.
  async over(work) {
    const before = this.finished;
    await work();
    await this.until(() => this.finished > before, "the run is over");
  }

  // Return when half of a gated answer is shown.
  async half() {
    await this.until(() => this.now.messages.at(-1)?.content === "one two ", "half of the answer is shown");
  }

  // The first true answer; what the page knows, if there is none.
  async until(probe, what) {
    try {
      return await until(probe, what);
    } catch (error) {
      const runs = this.threadId ? await this.lab.client.runs.list(this.threadId) : [];
      const { texts, created, threadId, finished } = this;
      const known = { texts, created, threadId, finished, loading: this.now.isLoading, renders: this.seen.length };
      const asked = this.lab.requests.map(({ method, path }) => `${method} ${path}`);
      const more = { runs: runs.map((run) => run.status), errors: this.errors.map(String), asked };
      throw new Error(`${error.message}: ${JSON.stringify({ ...known, ...more })}`, { cause: error });
    }
  }

  // No message was ever shown twice, and text only grew.
  check() {
    const longest = {};
    for (const messages of this.seen) {
      const ids = messages.map(({ id }) => id).filter((id) => id);
      assert.equal(new Set(ids).size, ids.length, `a message twice: ${JSON.stringify(messages)}`);
      for (const { id, type, content } of messages.filter(({ type }) => type === "ai")) {
        const before = longest[id] ?? "";
        assert.ok(content.startsWith(before) || before.startsWith(content), `${type} ${before} -> ${content}`);
        longest[id] = content.length > before.length ? content : before;
      }
    }
  }
}

const page = (lab, options = {}) => new Page(lab, options).ready();
const sum = (text) => [text, ANSWER];
const fetched = { none: {}, one: { fetchStateHistory: { limit: 1 } }, all: { fetchStateHistory: true }, off: { fetchStateHistory: false } };

const submitting = (mode) => async (lab) => {
  const shown = await page(lab, mode);
  await shown.submit("One");
  assert.deepEqual(shown.texts, sum("One"));
  assert.equal(shown.created.length, 1);
  assert.equal(shown.created[0].thread_id, shown.threadId);
  const { values } = await lab.client.threads.getState(shown.threadId);
  assert.deepEqual(shown.now.messages.map(({ id }) => id), values.messages.map(({ id }) => id));
  await shown.submit("Two");
  assert.deepEqual(shown.texts, [...sum("One"), ...sum("Two")]);
  await shown.submit("Three");
  assert.equal(shown.texts.length, 6);
  assert.deepEqual(shown.errors, []);
  shown.check();
  shown.unmount();
  const reloaded = await page(lab, { ...mode, threadId: shown.threadId });
  await until(() => reloaded.texts.length === 6, "the reloaded page shows all");
  reloaded.unmount();
};

test("submit [history none]", submitting(fetched.none));
test("submit [history one]", submitting(fetched.one));
test("submit [history all]", submitting(fetched.all));
test("submit [history off]", submitting(fetched.off));

test("the answer grows", async (lab) => {
  const shown = await page(lab);
  const asking = shown.submit("Count", "gated");
  await shown.half();
  assert.ok(shown.now.isLoading);
  await lab.release();
  await asking;
  assert.deepEqual(shown.texts, ["Count", "one two three four"]);
  shown.check();
  shown.unmount();
});

test("tools", async (lab) => {
  const shown = await page(lab);
  await shown.submit("Work", "works");
  assert.deepEqual(shown.now.messages.map(({ type }) => type), ["human", "ai", "tool", "tool", "ai"]);
  shown.check();
  shown.unmount();
});

test("subagents, also after a reload", async (lab) => {
  const options = { filterSubagentMessages: true, fetchStateHistory: true };
  const shown = await page(lab, options);
  if (!shown.now.subagents) return "this release knows no subagents";
  const context = { model_name: "delegates-held", subagent_enabled: true };
  const submitted = shown.submit("Go", "delegates-held", { context, streamSubgraphs: true });
  const running = (one) => one.status === "running" && one.messages.length > 0;
  await shown.until(() => [...shown.now.subagents.values()].some(running), "a subagent is shown at work");
  await lab.release();
  await submitted;
  const texts = (one) => one.messages.filter(({ type }) => type === "ai").map(({ content }) => content);
  const check = (now) => {
    const cards = [...now.subagents.values()];
    assert.deepEqual(cards.map(({ toolCall }) => toolCall.args.prompt), [`Look here! @${lab.mark}`, `Look there! @${lab.mark}`]);
    for (const card of cards) {
      assert.equal(card.status, "complete");
      assert.equal(card.result, "Task Succeeded. Result: All is well.");
      assert.deepEqual(texts(card), ["I take a note.", "All is well."]);
      assert.deepEqual(card.toolCalls.map(({ call, state }) => [call.name, state]), [["note", "completed"]]);
    }
  };
  check(shown.now);
  assert.deepEqual(shown.now.messages.map(({ type }) => type), ["human", "ai", "tool", "tool", "ai"]);
  shown.check();
  shown.unmount();
  const reloaded = await page(lab, { ...options, threadId: shown.threadId });
  await reloaded.until(() => reloaded.now.subagents.size === 2, "the cards are there again");
  if (!lab.client.threads.stream) return reloaded.unmount(); // the old release reads no histories of subagents
  const whole = () => reloaded.now.subagents.size === 2 && [...reloaded.now.subagents.values()].every((one) => one.messages.length);
  await reloaded.until(whole, "their messages are there again");
  check(reloaded.now);
  reloaded.unmount();
});

test("optimistic values", async (lab) => {
  const shown = await page(lab, fetched.one);
  const mine = { type: "human", content: "Mine", id: `h-${lab.mark}` };
  const optimisticValues = (before) => ({ ...before, messages: [...(before.messages ?? []), mine] });
  const options = { context: { model_name: "hello" }, optimisticValues };
  await shown.over(() => shown.now.submit({ messages: [mine] }, options));
  assert.deepEqual(shown.texts, sum("Mine"));
  assert.equal(shown.now.messages[0].id, mine.id);
  shown.check();
  shown.unmount();
});

const stopping = (mode) => async (lab) => {
  const shown = await page(lab, mode);
  const asking = shown.submit("Count", "gated");
  await shown.half();
  await shown.now.stop();
  await asking;
  assert.equal(shown.now.isLoading, false);
  assert.equal(await lab.ended(shown.threadId, shown.created[0].run_id), "interrupted");
  await shown.submit("On");
  assert.deepEqual(shown.texts.slice(-2), sum("On"));
  assert.equal(shown.texts[0], "Count");
  assert.deepEqual(shown.errors, []);
  shown.unmount();
};

test("stop [history one]", stopping(fetched.one));
test("stop [history off]", stopping(fetched.off));

test("stop what would be rejoined", async (lab) => {
  const shown = await page(lab, { reconnectOnMount: true });
  const asking = shown.submit("Count", "gated");
  await shown.half();
  await shown.now.stop();
  await asking;
  assert.equal(await lab.ended(shown.threadId, shown.created[0].run_id), "interrupted");
  shown.unmount();
});

const resuming = (mode) => async (lab) => {
  const shown = await page(lab, mode);
  await shown.submit("Please", "asks");
  await until(() => shown.now.interrupt, "the question is shown");
  assert.deepEqual(shown.now.interrupt.value, { question: "proceed?" });
  // With `onFinish` the older release reads the state again after a run, also where it keeps no history.
  const reloaded = await page(lab, { ...mode, threadId: shown.threadId, onFinish: () => {} });
  await until(() => reloaded.now.interrupt, "the question is shown after a reload");
  assert.deepEqual(reloaded.now.interrupt.value, { question: "proceed?" });
  await reloaded.submit(undefined, "asks", { command: { resume: "go" } });
  await until(() => reloaded.texts.at(-1) === "Understood.");
  assert.deepEqual(reloaded.texts, ["Please", "May I?", "They said: go", "Understood."]);
  assert.equal(reloaded.now.interrupt, undefined);
  assert.deepEqual(reloaded.errors, []);
  reloaded.unmount();
  shown.unmount();
};

test("interrupt and resume [history one]", resuming(fetched.one));
test("interrupt and resume [history off]", resuming(fetched.off));

test("breakpoint", async (lab) => {
  const shown = await page(lab, fetched.one);
  await shown.submit("Work", "works", { interruptBefore: ["tools"] });
  await until(() => shown.now.interrupt);
  assert.equal(shown.now.interrupt.when, "breakpoint");
  await shown.submit(null, "works");
  assert.equal(shown.texts.at(-1), "Both are taken.");
  assert.equal(shown.now.interrupt, undefined);
  shown.unmount();
});

test("rejoined after a reload", async (lab) => {
  const first = await page(lab, { reconnectOnMount: true });
  first.now.submit(lab.input("Count"), { context: { model_name: "gated" } }).catch(() => {});
  await first.half();
  first.unmount();
  const second = await page(lab, { reconnectOnMount: true, threadId: first.threadId });
  await second.half();
  await lab.release();
  await until(() => !second.now.isLoading && second.texts.at(-1) === "one two three four");
  assert.deepEqual(second.texts, ["Count", "one two three four"]);
  assert.equal(await lab.ended(first.threadId, first.created[0].run_id), "success");
  second.check();
  second.unmount();
  assert.equal(window.sessionStorage.getItem(`lg:stream:${first.threadId}`), null);
});

test("rejoined after the end", async (lab) => {
  const [thread] = await lab.said();
  const [run] = await lab.client.runs.list(thread);
  window.sessionStorage.setItem(`lg:stream:${thread}`, run.run_id);
  const shown = await page(lab, { reconnectOnMount: true, threadId: thread });
  await until(() => window.sessionStorage.getItem(`lg:stream:${thread}`) === null);
  await until(() => !shown.now.isLoading);
  assert.deepEqual(shown.texts, sum("Hi"));
  assert.deepEqual(shown.errors, []);
  shown.unmount();
});

test("joinStream", async (lab) => {
  const thread = await lab.thread();
  const { run_id } = await lab.client.runs.create(thread, AGENT, lab.asked("works", "Work"));
  await lab.ended(thread, run_id);
  for (const mode of [fetched.one, fetched.off]) {
    const shown = await page(lab, { ...mode, threadId: thread });
    await shown.over(() => shown.now.joinStream(run_id, "-1"));
    assert.equal(shown.texts.length, 5);
    assert.equal(shown.texts.at(-1), "Both are taken.");
    shown.check();
    shown.unmount();
  }
});

test("queued while busy", async (lab) => {
  const shown = await page(lab);
  const asking = shown.submit("Count", "gated");
  await shown.half();
  const payload = lab.asked("hello", "Queued", { multitaskStrategy: "enqueue", streamResumable: true });
  const queued = await lab.client.runs.create(shown.threadId, AGENT, payload);
  await lab.release();
  await asking;
  await shown.over(() => shown.now.joinStream(queued.run_id, "-1"));
  assert.deepEqual(shown.texts, ["Count", "one two three four", ...sum("Queued")]);
  shown.check();
  shown.unmount();
});

test("under the other prefix", async (lab) => {
  const client = lab.connect({ apiUrl: `${lab.url}/langgraph` });
  const shown = await page(lab, { client, ...fetched.one });
  await shown.submit("One");
  await shown.submit("Two");
  assert.deepEqual(shown.texts, [...sum("One"), ...sum("Two")]);
  assert.equal(shown.created.length, 2);
  shown.unmount();
});

const last = (shown) => shown.now.messages.at(-1);
const metadata = (shown, message) => shown.now.getMessagesMetadata(message);

test("regenerate and switch branches", async (lab) => {
  const shown = await page(lab, fetched.all);
  await shown.submit("One");
  await shown.submit("Two");
  const { firstSeenState } = metadata(shown, last(shown));
  await shown.submit(undefined, "thinks", { checkpoint: firstSeenState.parent_checkpoint });
  await until(() => shown.texts.at(-1) === "It is so.");
  assert.deepEqual(shown.texts, [...sum("One"), "Two", "It is so."]);
  const branched = await until(() => metadata(shown, last(shown))?.branchOptions && metadata(shown, last(shown)), "two branches");
  assert.equal(branched.branchOptions.length, 2);
  const other = branched.branchOptions.find((branch) => branch !== branched.branch);
  shown.now.setBranch(other);
  await until(() => shown.texts.at(-1) === ANSWER, "the old branch is shown");
  // Without a checkpoint the hook goes on from what it shows, and then shows the branch that was made last.
  await shown.submit("Three", "hello", { checkpoint: shown.now.history.at(-1).checkpoint });
  assert.deepEqual(shown.texts, [...sum("One"), ...sum("Two"), ...sum("Three")]);
  assert.deepEqual(shown.errors, []);
  shown.unmount();
});

test("edit and run again", async (lab) => {
  const shown = await page(lab, fetched.all);
  await shown.submit("One");
  await shown.submit("Two");
  const question = shown.now.messages.at(-2);
  const { firstSeenState } = metadata(shown, question);
  await shown.submit("Edited", "hello", { checkpoint: firstSeenState.parent_checkpoint });
  await until(() => shown.texts.at(-2) === "Edited");
  assert.deepEqual(shown.texts, [...sum("One"), ...sum("Edited")]);
  await shown.submit("More", "hello", { checkpoint: null });
  assert.equal(shown.texts.length, 6);
  const first = metadata(shown, shown.now.messages[0]).firstSeenState;
  await shown.submit("Afresh", "hello", { checkpoint: first.parent_checkpoint });
  await until(() => shown.texts.at(-2) === "Afresh");
  assert.deepEqual(shown.texts, sum("Afresh"));
  shown.unmount();
});

test("the head that is sent with a submit", async (lab) => {
  const shown = await page(lab, fetched.one);
  await shown.submit("One");
  await lab.client.threads.updateState(shown.threadId, { values: { title: "Elsewhere" } });
  await shown.submit("Two");
  const sent = lab.requests.filter(({ path }) => path.endsWith("/runs/stream")).map(({ init }) => JSON.parse(init.body));
  assert.deepEqual(shown.texts, [...sum("One"), ...sum("Two")]);
  const state = await lab.client.threads.getState(shown.threadId);
  assert.equal(state.values.title ?? null, sent[1].checkpoint ? null : "Elsewhere");
  shown.unmount();
});

test("errors are shown", async (lab) => {
  const shown = await page(lab, fetched.one);
  await shown.submit("Hi", "breaks").catch(() => {});
  await until(() => shown.now.error);
  assert.match(String(shown.now.error.message ?? shown.now.error), /the script breaks/);
  assert.equal(shown.now.isLoading, false);
  assert.equal(shown.errors.length, 1);
  assert.equal(shown.texts[0], "Hi");
  const reloaded = await page(lab, { ...fetched.one, threadId: shown.threadId });
  await until(() => reloaded.now.error, "the error is shown after a reload");
  assert.match(String(reloaded.now.error.message ?? reloaded.now.error), /the script breaks/);
  await reloaded.submit("Again");
  assert.deepEqual(reloaded.texts.slice(-2), sum("Again"));
  await until(() => !reloaded.now.error, "the error is gone");
  reloaded.unmount();
  shown.unmount();
});

test("an unknown thread", async (lab) => {
  const shown = new Page(lab, { ...fetched.one, threadId: crypto.randomUUID() });
  await until(() => shown.errors.length, "an error");
  assert.match(String(shown.errors[0]), /404/);
  shown.unmount();
});

test("callbacks", async (lab) => {
  const heard = { update: [], metadata: [], langchain: [], debug: [], checkpoint: [], task: [], finish: [], custom: [] };
  const shown = await page(lab, {
    ...fetched.one,
    onUpdateEvent: (data) => heard.update.push(data),
    onMetadataEvent: (data) => heard.metadata.push(data),
    onLangChainEvent: (data) => heard.langchain.push(data),
    onDebugEvent: (data) => heard.debug.push(data),
    onCheckpointEvent: (data) => heard.checkpoint.push(data),
    onTaskEvent: (data) => heard.task.push(data),
    onFinish: (state) => heard.finish.push(state),
    onCustomEvent: (data) => heard.custom.push(data),
  });
  await shown.submit("Hi", "stumbles");
  await until(() => heard.finish.length);
  for (const [name, events] of Object.entries(heard)) assert.ok(events.length, name);
  assert.equal(heard.metadata.length, 1);
  assert.equal(heard.custom[0].type, "llm_retry");
  assert.deepEqual(lab.texts(heard.finish[0].values), ["Hi", "Here I am."]);
  shown.check();
  shown.unmount();
});

await main(async (name) => ({ ...(await import(name)), ...(await import(`${name}/react`)) }));
