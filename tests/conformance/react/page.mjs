// `useStream` of `@langchain/react` in jsdom: what a page sees.
import { JSDOM } from "jsdom";
import WebSocket from "ws";
import { AGENT, ANSWER, assert, main, test, until } from "./lab.mjs";

const dom = new JSDOM("<!doctype html><body></body>", { url: "http://localhost/" });
globalThis.window = dom.window;
globalThis.document = dom.window.document;
globalThis.navigator ??= dom.window.navigator;
const { createElement } = await import("react");
const { createRoot } = await import("react-dom/client");

// A page with the hook. `now` is what it gives; `seen` is what was shown at each render.
class Page {
  constructor(lab, options = {}) {
    this.lab = lab;
    this.seen = [];
    const { useStream, transport } = lab.sdk;
    const given = {
      apiUrl: lab.url,
      assistantId: AGENT,
      transport,
      webSocketFactory: (url) => new WebSocket(url),
      onThreadId: (id) => (this.threadId = id),
      ...options,
    };
    const Probe = () => {
      this.now = useStream(given);
      this.seen.push(this.now.messages.map((one) => ({ id: one.id, text: one.text })));
      return null;
    };
    this.threadId = options.threadId;
    this.root = createRoot(document.createElement("div"));
    this.root.render(createElement(Probe));
  }

  // The end of a run and what it said come on two connections.
  async shows(...texts) {
    const told = () => this.now && JSON.stringify(this.texts) === JSON.stringify(texts);
    await until(told, `${JSON.stringify(texts)} is shown`).catch((error) => {
      throw new Error(`${error.message}, but ${JSON.stringify(this.texts)}`);
    });
  }

  get texts() {
    return this.now.messages.map(({ text }) => text.replace(` @${this.lab.mark}`, ""));
  }

  async ready() {
    await until(() => this.now && !this.now.isThreadLoading, "the page is ready");
    return this;
  }

  async submit(text, model = "hello", more = {}) {
    const config = { configurable: { model_name: model } };
    await this.now.submit(typeof text === "string" ? this.lab.input(text) : text, { config, ...more });
    await until(() => !this.now.isLoading, "the run is over");
  }

  // No message was ever shown twice, and text only grew. `reloaded`: this release of the hook reads messages that it
  // has loaded once more, from the first letter on.
  check({ reloaded = false } = {}) {
    const longest = {};
    for (const shown of this.seen) {
      assert.equal(new Set(shown.map(({ id }) => id)).size, shown.length, "a message was shown twice");
      for (const { id, text } of shown) {
        assert.ok(reloaded || text.startsWith(longest[id] ?? ""), `text was taken back: ${longest[id]} -> ${text}`);
        longest[id] = text;
      }
    }
    this.root.unmount();
  }
}

test("a turn and another", async (lab) => {
  const page = await new Page(lab).ready();
  await page.submit("Hi");
  await page.shows("Hi", ANSWER);
  assert.equal(page.now.error, undefined);
  await page.submit("Again");
  await page.shows("Hi", ANSWER, "Again", ANSWER);
  assert.equal(page.now.values.messages.length, 4);
  page.check();
});

test("text while it is made", async (lab) => {
  const page = await new Page(lab).ready();
  const done = page.submit("Hi", "gated");
  await lab.reached();
  await until(() => page.texts[1]?.startsWith("one"), "the first words");
  assert.ok(page.now.isLoading);
  await lab.release();
  await done;
  await page.shows("Hi", "one two three four");
  page.check();
});

test("tools", async (lab) => {
  const page = await new Page(lab).ready();
  await page.submit("Hi", "works");
  await page.shows("Hi", "I take two notes.", "noted a", "noted b", "Both are taken.");
  assert.deepEqual(page.now.messages.map((one) => one.getType()), ["human", "ai", "tool", "tool", "ai"]);
  assert.deepEqual(page.now.toolCalls.map(({ name, input }) => [name, input.text]), [["note", "a"], ["note", "b"]]);
  await until(() => page.now.toolCalls.every(({ status }) => status === "finished"), "the calls are over");
  page.check();
});

test("subagents", async (lab) => {
  const page = await new Page(lab).ready();
  const config = { configurable: { model_name: "delegates", subagent_enabled: true } };
  await page.submit("Go", "delegates", { config });
  const done = "Task Succeeded. Result: All is well.";
  await page.shows("Go", "I delegate.", done, done, "Both are back.");
  const cards = () => [...page.now.subagents.values()];
  await until(() => cards().length === 2 && cards().every(({ status }) => status === "complete"), "the cards");
  assert.deepEqual(cards().map(({ name }) => name), ["general-purpose", "general-purpose"]);
  assert.deepEqual(cards().map(({ id, namespace }) => namespace[0] === `tools:${id}`), [true, true]);
  page.check();
});

test("a question", async (lab) => {
  const page = await new Page(lab).ready();
  await page.submit("Hi", "asks");
  await until(() => page.now.interrupt, "the question");
  assert.deepEqual(page.now.interrupt.value, { question: "proceed?" });
  await page.now.respond("yes");
  await until(() => page.texts.at(-1) === "Understood.", "the answer");
  await until(() => !page.now.isLoading && !page.now.interrupt, "the run is over");
  assert.ok(page.texts.includes("They said: yes"));
  page.check();
});

test("two questions", async (lab) => {
  const page = await new Page(lab).ready();
  await page.submit("Hi", "asks-two");
  await until(() => page.now.interrupts.length === 2, "the questions");
  await page.now.respondAll(Object.fromEntries(page.now.interrupts.map(({ id, value }) => [id, `to ${value.question}`])));
  await until(() => page.texts.at(-1) === "Both understood.", "the answer");
  assert.deepEqual(page.texts.slice(-3, -1).sort(), ["They said: to first?", "They said: to second?"]);
  page.check();
});

const APOLOGY = "The model's provider refused the request. The run's error says why.";

test("a failure, then a turn", async (lab) => {
  const page = await new Page(lab).ready();
  await page.submit("Hi", "breaks");
  assert.match(String(page.now.error), /the script breaks/);
  // The end of the run is told on two connections, and this release takes the second for that of the next run.
  await new Promise((resolve) => setTimeout(resolve, 500));
  await page.submit("Again");
  assert.equal(page.now.error, undefined);
  await page.shows("Hi", APOLOGY, "Again", ANSWER);
  page.check();
});

test("stop", async (lab) => {
  const page = await new Page(lab).ready();
  const done = page.submit("Hi", "gated");
  await lab.reached();
  await until(() => page.texts[1]?.startsWith("one"), "the first words");
  await page.now.stop();
  await done;
  const [run] = await lab.client.runs.list(page.threadId);
  assert.equal(await lab.ended(page.threadId, run.run_id), "interrupted");
  await page.submit("Again");
  await until(() => page.texts.at(-1) === ANSWER, "the answer");
  page.check();
});

test("a reload in the middle", async (lab) => {
  const first = await new Page(lab).ready();
  await first.submit("Hi");
  first.submit("More", "gated").catch(() => {});
  await lab.reached();
  const page = await new Page(lab, { threadId: first.threadId }).ready();
  await until(() => page.texts[3]?.startsWith("one"), "the first words");
  assert.ok(page.now.isLoading);
  await lab.release();
  await until(() => !page.now.isLoading && !first.now.isLoading, "the run is over");
  for (const one of [page, first]) await one.shows("Hi", ANSWER, "More", "one two three four");
  page.check({ reloaded: true });
  first.check();
});

test("a reload when all is over, then a turn", async (lab) => {
  const first = await new Page(lab).ready();
  await first.submit("Hi", "works");
  const page = await new Page(lab, { threadId: first.threadId }).ready();
  const past = ["Hi", "I take two notes.", "noted a", "noted b", "Both are taken."];
  await page.shows(...past);
  await page.submit("Again");
  await page.shows(...past, "Again", ANSWER);
  page.check({ reloaded: true });
  first.check();
});

test("a question after a reload", async (lab) => {
  const first = await new Page(lab).ready();
  await first.submit("Hi", "asks");
  await until(() => first.now.interrupt, "the question");
  const page = await new Page(lab, { threadId: first.threadId }).ready();
  await until(() => page.now.interrupt && page.now.getThread()?.interrupts.length, "the question");
  await page.now.respond("later");
  await until(() => page.texts.at(-1) === "Understood." && first.texts.at(-1) === "Understood.", "the answer");
  assert.ok(page.texts.includes("They said: later"));
  page.check({ reloaded: true });
  first.check();
});

test("an edit of a message that was sent", async (lab) => {
  const page = await new Page(lab).ready();
  await page.submit("One");
  await page.submit("Two");
  const history = await lab.client.threads.getHistory(page.threadId);
  const before = history.find(({ values }) => values.messages.length === 2);
  await page.submit("Three", "hello", { forkFrom: before.checkpoint.checkpoint_id });
  await page.shows("One", ANSWER, "Three", ANSWER);
});

test("two pages", async (lab) => {
  const first = await new Page(lab).ready();
  await first.submit("Hi");
  const second = await new Page(lab, { threadId: first.threadId }).ready();
  await second.submit("There");
  for (const one of [first, second]) await one.shows("Hi", ANSWER, "There", ANSWER);
  first.check();
  second.check({ reloaded: true });
});

await main(async (transport) => ({ ...(await import("@langchain/react")), ...(await import("sdk-1.11")), transport }));
