// `client.threads.stream()`: the thread-centric protocol as the SDK speaks it.
import WebSocket from "ws";
import { AGENT, ANSWER, assert, main, test, until } from "./lab.mjs";

// A stream on a new thread, by the transport under test. `fetch`: instead of the real one.
function open(lab, thread, more = {}) {
  const { Client, transport } = lab.sdk;
  const client = new Client({ apiUrl: lab.url, apiKey: null });
  const options = { assistantId: AGENT, transport, webSocketFactory: (url) => new WebSocket(url), ...more };
  return thread ? client.threads.stream(thread, options) : client.threads.stream(options);
}

function asked(lab, model = "hello", text = "Hi") {
  return { input: lab.input(text), config: { configurable: { model_name: model } } };
}

async function collected(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}

// A fetch whose event streams break off after so many bytes, the first `times` of them.
function breaking(bytes, times) {
  let left = times;
  return async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith("/stream/events") || left <= 0) return response;
    left -= 1;
    let sent = 0;
    const cut = new TransformStream({
      transform(chunk, controller) {
        const part = chunk.slice(0, Math.max(0, bytes - sent));
        sent += chunk.length;
        if (part.length) controller.enqueue(part);
        if (sent >= bytes) controller.error(new TypeError("cut"));
      },
    });
    return new Response(response.body.pipeThrough(cut), { status: response.status, headers: response.headers });
  };
}

test("a run", async (lab) => {
  const stream = open(lab);
  const messages = collected(stream.messages);
  const output = stream.output; // subscribes: a subscription that is new when a run ends may hear nothing
  const { run_id } = await stream.run.start(asked(lab));
  assert.ok(run_id);
  const values = await output;
  assert.deepEqual(values.messages.map(({ content }) => content).slice(1), [ANSWER]);
  const [message] = await messages;
  assert.equal(await message.text, ANSWER);
  const final = await message.output;
  assert.equal(final.id, values.messages[1].id);
  await stream.close();
});

test("tools and reasoning", async (lab) => {
  const stream = open(lab);
  const messages = collected(stream.messages);
  const calls = collected(stream.toolCalls);
  await stream.run.start(asked(lab, "works"));
  assert.deepEqual(await Promise.all((await messages).filter(({ namespace }) => !namespace.length).map((one) => one.text)), [
    "I take two notes.",
    "Both are taken.",
  ]);
  const done = [...new Map((await calls).map((one) => [one.callId, one])).values()]; // told at its start and its end
  assert.deepEqual(done.map(({ name, input }) => [name, input]), [["note", { text: "a" }], ["note", { text: "b" }]]);
  assert.equal((await Promise.all(done.map(({ output }) => output))).length, 2);
  await stream.close();
  const thinking = open(lab);
  const thoughts = collected(thinking.messages);
  await thinking.run.start(asked(lab, "thinks"));
  assert.equal(await (await thoughts)[0].reasoning, "I wonder about it.");
  await thinking.close();
});

test("subagents", async (lab) => {
  const stream = open(lab);
  const subagents = [];
  const listen = async (texts, messages) => {
    for await (const { text } of messages) texts.push(await text);
  };
  (async () => {
    for await (const { name, messages } of stream.subagents) {
      const texts = [];
      subagents.push({ name, texts });
      listen(texts, messages);
    }
  })();
  const configurable = { model_name: "delegates-gated", subagent_enabled: true };
  await stream.run.start({ input: lab.input("Go"), config: { configurable } });
  await until(() => subagents.length === 2 && subagents.every(({ texts }) => texts.length === 3), "all was heard");
  await lab.release(); // a subscription that is new when a run ends is paused before it has heard anything
  await stream.output;
  for (const { name, texts } of subagents) {
    assert.deepEqual([name, ...texts], ["general-purpose", "I take a note.", "noted a", "All is well."]);
  }
  await stream.close();
});

test("runs one after another on one stream", async (lab) => {
  const stream = open(lab);
  await stream.run.start(asked(lab, "gated"));
  const subscription = await stream.subscribe(["messages"]);
  await lab.release(); // a subscription that is new when a run ends is paused before it has heard anything
  for (const number of [1, 2, 3]) {
    if (number > 1) await stream.run.start(asked(lab, "gated"));
    const events = await collected(subscription);
    const deltas = events.map(({ params }) => params.data.delta?.text ?? "");
    assert.equal(deltas.join(""), "one two three four");
    assert.equal(events.filter(({ params }) => params.data.event === "message-finish").length, 1);
  }
  await stream.close();
});

test("a question", async (lab) => {
  const stream = open(lab);
  await stream.run.start(asked(lab, "asks"));
  await until(() => stream.interrupted && stream.interrupts.length, "the question");
  const [{ interruptId, payload, namespace }] = stream.interrupts;
  assert.deepEqual(payload, { question: "proceed?" });
  await assert.rejects(stream.input.respond({ interrupt_id: "x", namespace, response: "yes" }), { code: "no_such_interrupt" });
  await stream.input.respond({ interrupt_id: interruptId, namespace, response: "yes" });
  const state = await until(async () => {
    const now = await lab.client.threads.getState(stream.threadId);
    return now.next.length === 0 && now.values.messages.at(-1).type === "ai" && now;
  });
  assert.equal(state.values.messages.at(-1).content, "Understood.");
  await stream.close();
});

test("a failure", async (lab) => {
  const stream = open(lab);
  await stream.run.start(asked(lab, "breaks"));
  const events = await collected(await stream.subscribe(["lifecycle"]));
  assert.equal(events.at(-1).params.data.event, "failed");
  assert.match(events.at(-1).params.data.error, /the script breaks/);
  await stream.close();
});

test("the tree", async (lab) => {
  const stream = open(lab);
  const { run_id } = await stream.run.start(asked(lab));
  await stream.output;
  const { tree } = await stream.agent.getTree({ run_id });
  assert.deepEqual(tree, { namespace: [], status: "completed", graph_name: AGENT, children: [] });
  await stream.close();
});

test("connections that break off", async (lab) => {
  if (lab.sdk.transport === "websocket") return "the transport has no fetch";
  for (const bytes of [100, 700, 1500, 2300, 3100]) {
    const more = { fetch: breaking(bytes, 4), reconnectDelayMs: () => 1 };
    const stream = open(lab, undefined, more);
    const messages = collected(stream.messages);
    await stream.run.start(asked(lab, "thinks"));
    const [message] = await messages;
    assert.equal(await message.reasoning, "I wonder about it.");
    assert.equal(await message.text, "It is so.");
    await stream.close();
  }
});

test("a stream that is opened in the middle", async (lab) => {
  const first = open(lab);
  await first.run.start(asked(lab, "gated"));
  await lab.reached();
  const late = open(lab, first.threadId);
  const messages = await late.subscribe(["messages"]);
  const events = [];
  const iterator = messages[Symbol.asyncIterator]();
  while (!events.some(({ params }) => params.data.delta)) events.push((await iterator.next()).value);
  await lab.release();
  for (let next = await iterator.next(); !next.done; next = await iterator.next()) {
    events.push(next.value);
    if (next.value.params.data.event === "message-finish") break;
  }
  assert.equal(events.map(({ params }) => params.data.delta?.text ?? "").join(""), "one two three four");
  await first.close();
  await late.close();
});

await main(async (name) => {
  const [release, transport] = name.split("/");
  return { ...(await import(release)), transport };
});
