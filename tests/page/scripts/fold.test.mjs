// A file tells of every moment what the server tells of it: the state, what a model got in a call, and the files.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { PHRASES } from "../../../channels/web/timeline/catalogue.js";
import { FileLog } from "../../../channels/web/timeline/log.js";

const { catalogue } = JSON.parse(readFileSync(process.env.SIKA_PHRASES, "utf8"));
for (const [type, phrase] of catalogue) PHRASES.set(type, phrase);
const logs = JSON.parse(readFileSync(process.env.SIKA_MOMENTS, "utf8"));
assert.ok(logs.length > 100);

const opened = async (text) => {
  const log = new FileLog(new File([text], "thread.jsonl"));
  await log.read();
  assert.equal(log.failure.value, null);
  return log;
};
/** Both ways: as somebody goes on, and as somebody goes back. */
const bothWays = (table) => [...Object.entries(table), ...Object.entries(table).reverse()];
/** @param {{path: string}[]} values */
const inOrder = (values) => [...values].sort((one, other) => (one.path < other.path ? -1 : 1));
/** The reasons are in the words of each. */
const withoutReasons = ({ request: { missing, ...request }, ...sent }) => ({ ...sent, request, missing: Object.keys(missing) });
const seen = { states: 0, prompts: 0, changes: 0, contents: 0, files: 0, differences: 0 };

for (const { name, file, states, compared, prompts, files } of logs)
  test(`${name}: every moment is as the server has it`, async () => {
    const log = await opened(file);
    assert.equal(log.cut, false);
    for (const [seq, state] of bothWays(states)) {
      const { missing, ...own } = await log.state(Number(seq));
      assert.deepEqual(own, state, `after ${seq}`);
      if (!name.startsWith("odd")) assert.deepEqual(missing, []);
      seen.states += 1;
    }
    for (const { left, right, values } of compared) {
      assert.deepEqual(inOrder(await log.compared(left, right)), inOrder(values), `${left} and ${right}`);
      seen.differences += values.length;
    }
    for (const [seq, sent] of bothWays(prompts)) {
      const { missing, ...own } = await log.prompt(Number(seq));
      assert.deepEqual(withoutReasons(own), withoutReasons(sent), `the call that ended with ${seq}`);
      assert.deepEqual(missing, []);
      seen.prompts += 1;
      seen.changes += sent.changes.length;
      seen.contents += sent.request.prompt ? 1 : 0;
    }
    for (const [seq, known] of bothWays(files)) {
      const own = await log.files(Number(seq));
      assert.deepEqual(own, { files: known.files.map(({ path, size }) => ({ path, size })), truncated: known.truncated }, `files at ${seq}`);
      seen.files += known.files.length;
    }
  });

test("there was something of each to compare", () => {
  for (const [what, count] of Object.entries(seen)) assert.ok(count > 10, `${count} ${what}`);
});

const story = logs.find(({ name }) => name === "story");
const lines = story.file.trimEnd().split("\n");
const changed = (change) => lines.map((line) => JSON.stringify(change(JSON.parse(line)) ?? JSON.parse(line))).join("\n");
const calls = Object.keys(story.prompts).map(Number);

test("a subagent of a file tells what it was told, and did", async () => {
  const told = { type: "human", id: "h", content: "Look around" };
  const found = { type: "ai", id: "a", content: "There it is." };
  const events = [{ type: "run.requested", input: { messages: [told] } }, { type: "run.started", attempt: 1 }, { type: "model.completed", message: found }, { type: "run.completed" }];
  const added = events.map((event, index) => JSON.stringify({ line: "event", seq: 20_000 + index, event: { id: `sub${index}`, kind: "subagent", aggregate: "s1", run: "r1", at: "2026-11-28T10:00:00Z", ...event } }));
  const log = await opened([...lines.slice(0, -1), ...added, lines.at(-1)].join("\n"));
  assert.deepEqual(["s1", "s2", ""].map((id) => log.tellsOf(id)), [true, false, false]);
  const { status, messages } = await log.subagent("s1");
  assert.deepEqual([status, messages], ["success", [told, found]]);
});

test("a file that is cut off is shown as far as it goes, and says so", async () => {
  const log = await opened(`${lines.slice(0, 5).join("\n")}\n${lines[5].slice(0, 40)}`);
  assert.equal(log.cut, true);
  assert.ok(log.items.items.length > 0);
});

test("an event without its body is named where its change is missing, and from there on", async () => {
  const at = lines.map((line) => JSON.parse(line)).find(({ event }) => event?.type === "model.completed" && event.kind === "thread").seq;
  const after = calls.find((seq) => seq > at);
  const log = await opened(changed((line) => {
    if (line.seq !== at) return null;
    const { id, kind, aggregate, actor, at: time, run, type } = line.event;
    return { ...line, event: { id, kind, aggregate, actor, at: time, run, type, blob: { sha256: "0".repeat(64), size: 9 } } };
  }));
  assert.deepEqual((await log.state(at - 1)).missing, []);
  assert.deepEqual((await log.state(at)).missing, [{ seq: at, type: "model.completed" }]);
  assert.deepEqual((await log.prompt(after)).missing, [{ seq: at, type: "model.completed" }]);
});

test("an event of another version, of a package that changes the state, or odd, is named; others are not", async () => {
  PHRASES.set("rocket.launched", { en: ["", ""], zh: ["", ""], patches: true });
  PHRASES.set("rocket.seen", { en: ["", ""], zh: ["", ""] });
  const at = calls.at(-1) + 1;
  const events = [
    [{ type: "rocket.launched" }, true],
    [{ type: "rocket.seen" }, false],
    [{ type: "nobody.knows" }, true],
    [{ type: "state.patched", v: 2, values: {} }, true],
    [{ type: "state.patched", values: null }, true],
    [{ type: "context.compacted", kept: 7 }, true],
    [{ type: "state.patched", values: {} }, false],
  ];
  for (const [event, named] of events) {
    const added = JSON.stringify({ line: "event", seq: 10_000, event: { id: "x", kind: "thread", aggregate: "story", at: "2026-11-28T10:00:00Z", ...event } });
    const log = await opened([...lines.slice(0, -1), added, lines.at(-1)].join("\n"));
    assert.deepEqual((await log.state(at)).missing, []);
    assert.deepEqual((await log.state(10_000)).missing, named ? [{ seq: 10_000, type: event.type }] : []);
  }
});

test("what a model got is named as missing with the reason", async () => {
  const reasons = async (text, seq) => Object.values((await (await opened(text)).prompt(seq)).request.missing);
  const [at] = calls;
  const without = (change = (line) => line) => lines.map((line) => JSON.parse(line)).filter(({ event }) => !["setup", "thread_setup"].includes(event?.kind)).map(change).map((line) => JSON.stringify(line)).join("\n");
  assert.deepEqual(await reasons(story.file, at), []);
  assert.deepEqual([...new Set(await reasons(without(), at))], ["timeline.prompt.absent"]);
  assert.deepEqual([...new Set(await reasons(without((line) => (line.line === "header" ? { ...line, redacted: true } : line)), at))], ["timeline.prompt.redacted"]);
  const unrecorded = changed((line) => (line.event?.type === "run.started" ? { ...line, event: { ...line.event, setup: {} } } : null));
  assert.deepEqual([...new Set(await reasons(unrecorded, at))], ["timeline.prompt.unrecorded"]);
});

test("a content with something of the user is told from others by its hash", async () => {
  const sha256 = [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode("You are Ada's."))) ].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const moved = changed((line) => (line.event?.type === "run.started" ? { ...line, event: { ...line.event, setup: { prompt: sha256 }, setup_thread: "story" } } : null));
  const stored = (type, content) => JSON.stringify({ line: "event", seq: 9, event: { id: `c${content}`, kind: "thread_setup", aggregate: "story", type, part: "prompt", content } });
  const sent = async (...more) => (await (await opened([moved, ...more].join("\n"))).prompt(calls[0])).request;
  const { prompt, missing } = await sent(stored("setup.recorded", "You are Bob's."), stored("setup.recorded", "You are Ada's."));
  assert.equal(prompt, "You are Ada's.");
  assert.deepEqual(Object.keys(missing), ["tools", "model"]);
  assert.equal((await sent(stored("setup.erased"))).missing.prompt, "timeline.prompt.erased");
});
