// The client: every call of it that reaches the server.
import { randomUUID } from "node:crypto";
import http from "node:http";
import net from "node:net";
import { AGENT, ANSWER, all, assert, main, status, test, until } from "./lab.mjs";

const unknown = () => randomUUID();
const named = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data);
const chunks = (parts) => {
  const found = {};
  for (const [message] of named(parts, "messages")) found[message.id] = (found[message.id] ?? "") + message.content;
  return found;
};

// ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────

test("threads.create", async ({ client, mark }) => {
  const thread = await client.threads.create({ metadata: { mark }, graphId: AGENT });
  assert.deepEqual(thread.metadata, { mark, graph_id: AGENT });
  assert.equal(thread.status, "idle");
  assert.deepEqual(await client.threads.get(thread.thread_id), thread);
  const threadId = thread.thread_id;
  assert.deepEqual(await client.threads.create({ threadId, ifExists: "do_nothing" }), thread);
  assert.equal(await status(client.threads.create({ threadId, ifExists: "raise" })), 409);
  assert.equal(await status(client.threads.get(unknown())), 404);
});

test("threads.supersteps", async ({ client }) => {
  const human = { messages: [{ type: "human", content: "q", id: "h" }] };
  const ai = { messages: [{ type: "ai", content: "a", id: "i" }] };
  const supersteps = [
    { updates: [{ values: human, asNode: "__start__" }] },
    { updates: [{ values: ai, asNode: "model" }] },
  ];
  const { thread_id } = await client.threads.create({ supersteps });
  const { values } = await client.threads.getState(thread_id);
  assert.deepEqual(values.messages.map((message) => message.content), ["q", "a"]);
});

test("threads.update", async ({ client }) => {
  const { thread_id } = await client.threads.create({ metadata: { a: 1 } });
  const updated = await client.threads.update(thread_id, { metadata: { b: 2 } });
  assert.deepEqual(updated.metadata, { a: 1, b: 2 });
  await client.threads.update(thread_id, { metadata: { c: 3 }, returnMinimal: true });
  assert.equal((await client.threads.get(thread_id)).metadata.c, 3);
});

test("threads.delete", async ({ client }) => {
  const { thread_id } = await client.threads.create();
  await client.threads.delete(thread_id);
  assert.equal(await status(client.threads.get(thread_id)), 404);
  assert.equal(await status(client.threads.delete(unknown())), 404);
});

test("threads.search", async (lab) => {
  const { client, mark } = lab;
  const made = [];
  for (const n of [1, 2, 3]) made.push(await lab.thread({ metadata: { mark, n } }));
  const ids = (found) => found.map((thread) => thread.thread_id);
  assert.deepEqual(ids(await client.threads.search({ metadata: { mark } })), made.toReversed());
  const up = await client.threads.search({ metadata: { mark }, sortBy: "created_at", sortOrder: "asc", limit: 2 });
  assert.deepEqual(ids(up), made.slice(0, 2));
  const [one] = await client.threads.search({ metadata: { mark, n: 2 }, select: ["thread_id", "metadata"] });
  assert.deepEqual(one, { thread_id: made[1], metadata: { mark, n: 2 } });
  assert.deepEqual(ids(await client.threads.search({ ids: [made[0]] })), [made[0]]);
  assert.equal((await client.threads.search({ metadata: { mark }, status: "idle" })).length, 3);
  assert.equal(await client.threads.count({ metadata: { mark } }), 3);
});

test("threads.search by values", async (lab) => {
  const thread = await lab.thread();
  await lab.client.threads.updateState(thread, { values: { title: lab.mark } });
  const [found] = await until(async () => {
    const hits = await lab.client.threads.search({ values: { title: lab.mark } });
    return hits.length && hits;
  });
  assert.equal(found.thread_id, thread);
});

test("threads.copy", async (lab) => {
  const [thread, values] = await lab.said();
  const copied = await lab.client.threads.copy(thread);
  assert.notEqual(copied.thread_id, thread);
  const messages = (await lab.client.threads.getState(copied.thread_id)).values.messages;
  for (const message of [...messages, ...values.messages]) delete message.additional_kwargs.seq; // of each thread its own
  assert.deepEqual(messages, values.messages);
});

test("threads.prune", async (lab) => {
  if (!lab.client.threads.prune) return "this release has no threads.prune";
  const thread = await lab.thread();
  assert.deepEqual(await lab.client.threads.prune([thread]), { pruned_count: 1 });
  assert.equal(await status(lab.client.threads.get(thread)), 404);
});

test("threads.joinStream", async (lab) => {
  const thread = await lab.thread();
  const leaving = new AbortController();
  const parts = [];
  const listening = (async () => {
    for await (const part of lab.client.threads.joinStream(thread, { lastEventId: "-1", signal: leaving.signal })) parts.push(part);
  })().catch(() => {});
  await lab.said("hello", "One", thread);
  await lab.said("hello", "Two", thread);
  await until(() => named(parts, "values").at(-1)?.messages.length === 4);
  assert.equal(named(parts, "metadata").filter((data) => data.attempt).length, 2);
  leaving.abort();
  await listening;
});

test("threads.stream", async (lab) => {
  if (!lab.client.threads.stream) return "this release has no threads.stream";
  const thread = await lab.thread();
  const stream = lab.client.threads.stream(thread, { assistantId: AGENT });
  await stream.run.start({ input: lab.input(), config: { configurable: { model_name: "hello" } } });
  const output = await stream.output;
  assert.deepEqual(lab.texts(output), ["Hi", ANSWER]);
  await stream.close();
});

// ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────

test("state.empty", async (lab) => {
  const thread = await lab.thread();
  const state = await lab.client.threads.getState(thread);
  assert.deepEqual([state.values, state.next, state.checkpoint], [{}, [], null]);
  assert.deepEqual(await lab.client.threads.getHistory(thread), []);
});

test("state.history", async (lab) => {
  const { client } = lab;
  const [thread] = await lab.said("hello", "One");
  await lab.said("hello", "Two", thread);
  const history = await client.threads.getHistory(thread, { limit: 100 });
  assert.deepEqual(history.map((state) => state.values.messages.length), [4, 3, 2, 1, 0]);
  assert.deepEqual(history[0], await client.threads.getState(thread));
  assert.deepEqual(history[2], await client.threads.getState(thread, history[2].checkpoint));
  assert.deepEqual(history[2], await client.threads.getState(thread, history[2].checkpoint.checkpoint_id));
  assert.deepEqual(history[0], await client.threads.getState(thread, undefined, { subgraphs: true }));
  const before = { configurable: { checkpoint_id: history[1].checkpoint.checkpoint_id } };
  assert.deepEqual(await client.threads.getHistory(thread, { before, limit: 1 }), [history[2]]);
  assert.deepEqual(await client.threads.getHistory(thread, { metadata: { source: "input" } }), [history[1], history[3], history[4]]);
  assert.equal(await status(client.threads.getHistory(unknown())), 404);
});

test("state.update", async (lab) => {
  const { client } = lab;
  const [thread] = await lab.said();
  const [head, question] = await client.threads.getHistory(thread);
  const answer = await client.threads.updateState(thread, { values: { title: "T" } });
  assert.equal((await client.threads.getState(thread)).values.title, "T");
  assert.ok(answer.checkpoint ?? answer.configurable);
  await client.threads.updateState(thread, {
    values: { messages: [{ type: "human", content: "other" }] },
    checkpoint: question.checkpoint,
    asNode: "__start__",
  });
  const forked = await client.threads.getState(thread);
  assert.deepEqual(forked.parent_checkpoint, question.checkpoint);
  assert.deepEqual(lab.texts(forked.values), ["Hi", "other"]);
  assert.equal((await client.threads.getHistory(thread)).length, 5);
  assert.notDeepEqual(head.checkpoint, forked.checkpoint);
});

// ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

test("runs.create", async (lab) => {
  const { client } = lab;
  const thread = await lab.thread();
  const told = [];
  const onRunCreated = (run) => told.push(run);
  const run = await client.runs.create(thread, AGENT, lab.asked("hello", "Hi", { metadata: { a: 1 }, onRunCreated }));
  assert.equal(run.metadata.a, 1);
  assert.equal(await lab.ended(thread, run.run_id), "success");
  assert.deepEqual(told, [{ run_id: run.run_id, thread_id: thread }]);
  assert.deepEqual(lab.texts(await client.runs.join(thread, run.run_id)), ["Hi", ANSWER]);
  assert.equal(await status(client.runs.get(thread, unknown())), 404);
  await client.runs.delete(thread, run.run_id);
  assert.equal(await status(client.runs.get(thread, run.run_id)), 404);
});

test("runs.wait", async (lab) => {
  const [, values] = await lab.said("works");
  assert.equal(values.messages.length, 5);
  const thread = await lab.thread();
  await assert.rejects(lab.client.runs.wait(thread, AGENT, lab.asked("breaks")), /the script breaks/);
  const quiet = await lab.client.runs.wait(thread, AGENT, lab.asked("breaks", "Hi", { raiseError: false }));
  assert.ok(quiet.__error__.message);
});

test("runs.list", async (lab) => {
  const { client } = lab;
  const [thread] = await lab.said();
  await lab.said("hello", "Again", thread);
  const every = await client.runs.list(thread);
  assert.equal(every.length, 2);
  assert.deepEqual(await client.runs.list(thread, { limit: 1, offset: 1 }), [every[1]]);
  assert.deepEqual(await client.runs.list(thread, { status: "error" }), []);
  const [{ run_id, status: state }] = every;
  assert.deepEqual(await client.runs.list(thread, { limit: 1, select: ["run_id", "status"] }), [{ run_id, status: state }]);
});

test("runs.stream", async (lab) => {
  const thread = await lab.thread();
  const told = [];
  const payload = lab.asked("works", "Hi", {
    streamMode: ["values", "messages-tuple", "updates"],
    onRunCreated: (run) => told.push(run),
  });
  const parts = await all(lab.client.runs.stream(thread, AGENT, payload));
  assert.equal(parts[0].event, "metadata");
  assert.equal(parts[0].data.run_id, told[0].run_id);
  const final = named(parts, "values").at(-1).messages;
  const expected = Object.fromEntries(final.slice(1).map((message) => [message.id, message.content]));
  assert.deepEqual(chunks(parts), expected);
  assert.equal((await lab.client.runs.get(thread, told[0].run_id)).status, "success");
});

// Only what was asked for, between `metadata` and the end.
const inMode = (mode, shown = [mode]) => async (lab) => {
  const thread = await lab.thread();
  const parts = await all(lab.client.runs.stream(thread, AGENT, lab.asked("works", "Hi", { streamMode: mode })));
  const events = new Set(parts.map((part) => part.event.split("/")[0]).filter((event) => event));
  assert.deepEqual([...events].toSorted(), ["metadata", ...shown, "end"].toSorted());
};

test("runs.stream values", inMode("values"));
test("runs.stream updates", inMode("updates"));
test("runs.stream messages", inMode("messages"));
test("runs.stream messages-tuple", inMode("messages-tuple", ["messages"]));
test("runs.stream custom", inMode("custom", []));
test("runs.stream tasks", inMode("tasks"));
test("runs.stream checkpoints", inMode("checkpoints"));
test("runs.stream debug", inMode("debug"));
test("runs.stream events", inMode("events"));

test("runs.stream subgraphs", async (lab) => {
  const thread = await lab.thread();
  const payload = lab.asked("works", "Hi", { streamMode: ["values", "updates"], streamSubgraphs: true });
  const parts = await all(lab.client.runs.stream(thread, AGENT, payload));
  assert.ok(named(parts, "values").length > 1);
});

test("runs.stream subagents", async (lab) => {
  const thread = await lab.thread();
  const context = { model_name: "delegates", subagent_enabled: true };
  const payload = lab.asked("delegates", "Go", { context, streamMode: ["values", "messages-tuple", "custom"], streamSubgraphs: true });
  const parts = await all(lab.client.runs.stream(thread, AGENT, payload));
  const calls = named(parts, "values").at(-1).messages[1].tool_calls.map(({ id }) => id);
  for (const id of calls) {
    const [prompt, ...rest] = named(parts, `values|tools:${id}`).at(-1).messages;
    assert.ok(prompt.content.startsWith("Look "));
    assert.deepEqual(rest.map(({ type }) => type), ["ai", "tool", "ai"]);
    const said = {};
    for (const [chunk] of named(parts, `messages|tools:${id}`)) said[chunk.id] = (said[chunk.id] ?? "") + chunk.content;
    assert.deepEqual(said, Object.fromEntries(rest.map((message) => [message.id, message.content])));
    const events = named(parts, "custom").filter((event) => event.task_id === id);
    assert.deepEqual(events.map(({ type }) => type), ["task_started", "task_running", "task_running", "task_completed"]);
  }
  assert.equal(calls.length, 2);
});

test("runs.stream failing", async (lab) => {
  const thread = await lab.thread();
  const parts = await all(lab.client.runs.stream(thread, AGENT, lab.asked("breaks")));
  const [error] = named(parts, "error");
  assert.match(error.message, /the script breaks/);
  assert.equal(typeof error.error, "string");
});

test("runs.joinStream", async (lab) => {
  const { client } = lab;
  const thread = await lab.thread();
  const { run_id } = await client.runs.create(thread, AGENT, lab.asked("gated", "Hi", { streamMode: ["values", "updates"] }));
  await lab.reached();
  const joining = all(client.runs.joinStream(thread, run_id, { lastEventId: "-1", streamMode: ["values", "messages-tuple"] }));
  await lab.release();
  const parts = await joining;
  assert.deepEqual(Object.values(chunks(parts)), ["one two three four"]);
  assert.deepEqual(named(parts, "updates"), []);
  const again = await all(client.runs.joinStream(thread, run_id, { lastEventId: "-1", streamMode: "values" }));
  assert.deepEqual(named(again, "values"), named(parts, "values"));
  const middle = parts.find((part) => part.event === "values").id;
  const rest = await all(client.runs.joinStream(thread, run_id, { lastEventId: middle, streamMode: ["values"] }));
  assert.deepEqual(named(rest, "values"), named(parts, "values").slice(1));
  assert.deepEqual(named(await all(client.runs.joinStream(thread, run_id)), "values"), []);
  const headers = { "Last-Event-ID": parts.at(-1).id, Accept: "text/event-stream" };
  assert.equal((await fetch(`${lab.url}/threads/${thread}/runs/${run_id}/stream`, { headers })).status, 204);
  assert.deepEqual(await all(client.runs.joinStream(thread, run_id, { lastEventId: parts.at(-1).id })), []);
});

test("runs.cancel", async (lab) => {
  const { client } = lab;
  const thread = await lab.thread();
  const { run_id } = await client.runs.create(thread, AGENT, lab.asked("gated"));
  await lab.reached();
  await client.runs.cancel(thread, run_id, true);
  assert.equal((await client.runs.get(thread, run_id)).status, "interrupted");
  const second = await client.runs.create(thread, AGENT, lab.asked("hello", "On", { multitaskStrategy: "reject" }));
  assert.equal(await lab.ended(thread, second.run_id), "success");
});

test("runs.cancel without waiting", async (lab) => {
  const { client } = lab;
  const thread = await lab.thread();
  const { run_id } = await client.runs.create(thread, AGENT, lab.asked("gated"));
  await lab.reached();
  assert.equal(await client.runs.cancel(thread, run_id), undefined);
  assert.equal(await lab.ended(thread, run_id), "interrupted");
});

test("runs.cancel by rollback", async (lab) => {
  const { client } = lab;
  const [thread, values] = await lab.said();
  const { run_id } = await client.runs.create(thread, AGENT, lab.asked("gated"));
  await lab.reached();
  await client.runs.cancel(thread, run_id, true, "rollback");
  assert.equal(await status(client.runs.get(thread, run_id)), 404);
  assert.deepEqual((await client.threads.getState(thread)).values.messages, values.messages);
});

test("runs.cancelMany", async (lab) => {
  const { client } = lab;
  if (!client.runs.cancelMany) return "this release has no runs.cancelMany";
  const thread = await lab.thread();
  const { run_id } = await client.runs.create(thread, AGENT, lab.asked("gated"));
  await lab.reached();
  await client.runs.cancelMany({ threadId: thread, runIds: [run_id] });
  assert.equal(await lab.ended(thread, run_id), "interrupted");
});

test("runs.multitask", async (lab) => {
  const { client } = lab;
  const thread = await lab.thread();
  const first = await client.runs.create(thread, AGENT, lab.asked("gated", "First"));
  await lab.reached();
  const asked = (multitaskStrategy) => lab.asked("hello", multitaskStrategy, { multitaskStrategy });
  assert.equal(await status(client.runs.wait(thread, AGENT, asked("reject"))), 409);
  assert.equal(await status(all(client.runs.stream(thread, AGENT, asked("reject")))), 409);
  const queued = await client.runs.create(thread, AGENT, asked("enqueue"));
  assert.equal(queued.status, "pending");
  await client.runs.wait(thread, AGENT, asked("interrupt"));
  assert.equal(await lab.ended(thread, first.run_id), "interrupted");
  assert.notEqual(await lab.ended(thread, queued.run_id), "error");
  assert.equal(lab.texts((await client.threads.getState(thread)).values).at(-2), "interrupt");
});

test("runs.leaving a stream", async (lab) => {
  const { client } = lab;
  for (const [onDisconnect, last] of [["cancel", "interrupted"], ["continue", "success"]]) {
    const thread = await lab.thread();
    const leaving = new AbortController();
    const payload = lab.asked("gated", "Hi", { onDisconnect, signal: leaving.signal });
    const reading = all(client.runs.stream(thread, AGENT, payload)).catch(() => {});
    await lab.reached();
    leaving.abort();
    await reading;
    const [run] = await client.runs.list(thread);
    if (onDisconnect === "continue") await lab.release();
    assert.equal(await lab.ended(thread, run.run_id), last);
  }
});

test("runs.without a thread", async (lab) => {
  const { client } = lab;
  assert.deepEqual(lab.texts(await client.runs.wait(null, AGENT, lab.asked())), ["Hi", ANSWER]);
  const parts = await all(client.runs.stream(null, AGENT, lab.asked()));
  assert.deepEqual(lab.texts(named(parts, "values").at(-1)), ["Hi", ANSWER]);
  const kept = await client.runs.create(null, AGENT, lab.asked("hello", "Hi", { onCompletion: "keep" }));
  assert.equal(await lab.ended(kept.thread_id, kept.run_id), "success");
  const batch = await client.runs.createBatch([1, 2].map(() => ({ assistantId: AGENT, onCompletion: "keep", ...lab.asked() })));
  for (const run of batch) assert.equal(await lab.ended(run.thread_id, run.run_id), "success");
  assert.equal(batch.length, 2);
});

test("runs.if_not_exists", async (lab) => {
  const thread = unknown();
  assert.equal(await status(lab.client.runs.wait(thread, AGENT, lab.asked())), 404);
  await lab.client.runs.wait(thread, AGENT, lab.asked("hello", "Hi", { ifNotExists: "create" }));
  assert.equal((await lab.client.runs.list(thread)).length, 1);
});

test("runs.after a while", async (lab) => {
  const thread = await lab.thread();
  const run = await lab.client.runs.create(thread, AGENT, lab.asked("hello", "Hi", { afterSeconds: 1 }));
  assert.equal(run.status, "pending");
  assert.equal(await lab.ended(thread, run.run_id), "success");
});

test("runs.forked", async (lab) => {
  const { client } = lab;
  const [thread] = await lab.said("hello", "One");
  const [answer, question] = await client.threads.getHistory(thread);
  const checkpoint = { checkpoint_id: question.checkpoint.checkpoint_id, checkpoint_ns: "" };
  const again = await client.runs.wait(thread, AGENT, { input: null, checkpoint, context: { model_name: "thinks" } });
  assert.deepEqual(lab.texts(again), ["One", "It is so."]);
  const payload = lab.asked("hello", "Two", { checkpointId: answer.checkpoint.checkpoint_id });
  assert.deepEqual(lab.texts(await client.runs.wait(thread, AGENT, payload)), ["One", ANSWER, "Two", ANSWER]);
});

test("runs.interrupted", async (lab) => {
  const { client } = lab;
  const [thread, values] = await lab.said("asks");
  assert.deepEqual(values.__interrupt__[0].value, { question: "proceed?" });
  const context = { model_name: "asks" };
  const parts = await all(client.runs.stream(thread, AGENT, { command: { resume: "go" }, context, streamMode: "values" }));
  assert.equal(named(parts, "values").at(-1).messages.at(-1).content, "Understood.");
  const breakpoint = await client.runs.wait(thread, AGENT, lab.asked("works", "Hi", { interruptBefore: ["tools"] }));
  assert.equal(breakpoint.messages.at(-1).type, "ai");
  assert.equal((await client.threads.get(thread)).status, "interrupted");
  await client.runs.wait(thread, AGENT, { input: null, context: { model_name: "works" } });
  assert.equal((await client.threads.get(thread)).status, "idle");
});

test("runs.webhook", async (lab) => {
  const got = [];
  const server = http.createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data)).on("end", () => {
      got.push(JSON.parse(body));
      response.end();
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const thread = await lab.thread();
  const webhook = `http://127.0.0.1:${server.address().port}/`;
  await lab.client.runs.wait(thread, AGENT, lab.asked("hello", "Hi", { webhook }));
  await until(() => got.length);
  server.close();
  assert.equal(got[0].status, "success");
});

// A line to the server that breaks once, in the middle of the answer.
async function breaking(lab, url, whenBroken) {
  const target = new URL(url);
  let broken = false;
  const server = net.createServer((near) => {
    const far = net.connect(Number(target.port), target.hostname);
    for (const socket of [near, far]) socket.on("error", () => {});
    near.pipe(far);
    far.on("data", (data) => {
      near.write(data);
      if (!broken && data.includes("two")) {
        broken = true;
        setTimeout(() => {
          near.resetAndDestroy();
          far.destroy();
          whenBroken();
        }, 50);
      }
    });
    far.on("end", () => near.end());
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return [`http://127.0.0.1:${server.address().port}/api`, () => server.close(), () => broken];
}

test("runs.stream over a broken line", async (lab) => {
  const [apiUrl, close, broken] = await breaking(lab, lab.url, () => lab.release());
  const client = lab.connect({ apiUrl });
  const thread = await lab.thread();
  const payload = lab.asked("gated", "Hi", { streamMode: ["values", "messages-tuple"], streamResumable: true });
  const parts = (await all(client.runs.stream(thread, AGENT, payload))).filter((part) => part.event);
  close();
  assert.ok(broken());
  assert.deepEqual(Object.values(chunks(parts)), ["one two three four"]);
  const facts = parts.map((part) => part.event).filter((event) => event !== "messages");
  assert.deepEqual(facts, ["metadata", "values", "values", "end"]);
  assert.equal((await lab.client.runs.list(thread)).length, 1);
});

// ── assistants, store, crons ─────────────────────────────────────────────────────────────────────────────────────

test("assistants", async ({ client, mark }) => {
  const found = (await client.assistants.search({ graphId: AGENT })).find((one) => one.name === AGENT);
  const id = found.assistant_id;
  assert.deepEqual(await client.assistants.get(id), found);
  assert.equal((await client.assistants.getSchemas(id)).graph_id, AGENT);
  assert.ok((await client.assistants.getGraph(id)).nodes.length > 2);
  assert.deepEqual(await client.assistants.getSubgraphs(id, { recurse: true }), {});
  assert.ok((await client.assistants.count({ graphId: AGENT })) >= 1);
  const paged = await client.assistants.search({ graphId: AGENT, limit: 1, includePagination: true });
  assert.equal(paged.assistants.length, 1);
  assert.equal(await status(client.assistants.get(unknown())), 404);
  const made = await client.assistants.create({ graphId: AGENT, name: mark, metadata: { mark } });
  const updated = await client.assistants.update(made.assistant_id, { name: `${mark} two` });
  assert.equal(updated.version, 2);
  assert.equal((await client.assistants.getVersions(made.assistant_id)).length, 2);
  assert.equal((await client.assistants.setLatest(made.assistant_id, 1)).name, mark);
  await client.assistants.delete(made.assistant_id);
  assert.equal(await status(client.assistants.get(made.assistant_id)), 404);
});

test("store", async ({ client, mark }) => {
  await client.store.putItem([mark, "a"], "k", { n: 1 });
  const item = await client.store.getItem([mark, "a"], "k");
  assert.deepEqual([item.namespace, item.key, item.value], [[mark, "a"], "k", { n: 1 }]);
  assert.equal(await client.store.getItem([mark, "a"], "none"), null);
  const { items } = await client.store.searchItems([mark], { filter: { n: 1 } });
  assert.deepEqual(items.map(({ key }) => key), ["k"]);
  assert.deepEqual((await client.store.listNamespaces({ prefix: [mark] })).namespaces, [[mark, "a"]]);
  await client.store.deleteItem([mark, "a"], "k");
  assert.equal(await client.store.getItem([mark, "a"], "k"), null);
});

test("crons", async (lab) => {
  const { client } = lab;
  const thread = await lab.thread();
  const made = await client.crons.createForThread(thread, AGENT, { schedule: "0 0 1 1 *", input: lab.input() });
  assert.deepEqual((await client.crons.search({ threadId: thread })).map((cron) => cron.cron_id), [made.cron_id]);
  if (client.crons.update) {
    const updated = await client.crons.update(made.cron_id, { schedule: "5 5 5 5 *" });
    assert.equal(updated.schedule, "5 5 5 5 *");
  }
  assert.equal(await client.crons.count({ threadId: thread }), 1);
  await client.crons.delete(made.cron_id);
  assert.equal(await client.crons.count({ threadId: thread }), 0);
  const alone = await client.crons.create(AGENT, { schedule: "0 0 1 1 *", input: lab.input() });
  await client.crons.delete(alone.cron_id);
});

test("errors", async (lab) => {
  const thread = await lab.thread();
  assert.equal(await status(lab.client.runs.create(thread, "nobody", lab.asked())), 422);
  assert.equal(await status(lab.client.runs.create(thread, AGENT, lab.asked("hello", "Hi", { streamMode: "sometimes" }))), 422);
  assert.equal(await status(lab.client.runs.create(unknown(), AGENT, lab.asked())), 404);
  await assert.rejects(lab.client.threads.get(unknown()), /HTTP 404: \{"detail"/);
  assert.deepEqual(await lab.client.runs.list(thread), []);
});

await main((name) => import(name));
