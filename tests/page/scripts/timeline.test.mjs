// Events as items and spans: of recorded logs, and of each way to go wrong.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PHRASES } from "../../../channels/web/timeline/catalogue.js";
import { Items, LANES, ROWS, laneOf } from "../../../channels/web/timeline/items.js";
import { STORIES, framesOf } from "./logs.mjs";

PHRASES.set("run.requested", { en: ["Asked for", "{input.messages:last}"], zh: ["已请求", "{input.messages:last}"] });
PHRASES.set("tool.requested", { en: ["Tool called", "{name}: {args:subject}"], zh: ["工具已调用", "{name}：{args:subject}"] });
PHRASES.set("tool.completed", { en: ["Tool ended", "{message.name} {duration_ms:seconds}"], zh: ["工具已结束", "{message.name}"] });
const at = (ms) => new Date(1_700_000_000_000 + ms).toISOString();
const itemsOf = (events) => {
  const items = new Items();
  events.forEach((event, index) => items.add(index + 1, { id: `e${index}`, at: at(index * 10), run: "r", ...event }));
  return items;
};

for (const story of STORIES)
  test(`${story}: every event has a lane and a place, in order, and every span ends`, () => {
    const frames = framesOf(story);
    const items = new Items();
    for (const { id, data } of frames) items.add(Number(id), JSON.parse(data));
    assert.equal(items.items.length, frames.length);
    for (const item of items.items) assert.ok(LANES.includes(item.lane), item.type);
    for (const [index, item] of items.items.entries()) assert.ok(index === 0 || item.x >= items.items[index - 1].x);
    assert.ok(items.spans.length > 0);
    for (const span of items.spans) assert.ok(span.end === null || span.end >= span.begin, span.item.type);
    for (const item of items.items) assert.equal(items.items[items.indexOf(item.seq)], item);
    assert.equal(items.add(1, JSON.parse(frames[0].data)), false);
  });

const message = { type: "tool", content: "no" };
const FAULTS = [
  [{ type: "run.failed", text: "no" }, "bad"],
  [{ type: "run.suspended", reason: "no" }, "warn"],
  [{ type: "run.started", attempt: 1 }, ""],
  [{ type: "run.started", attempt: 2 }, "warn"],
  [{ type: "model.failed", attempt: 1, max_attempts: 3, wait_ms: 10 }, "warn"],
  [{ type: "model.failed", attempt: 3, max_attempts: 3 }, "bad"],
  [{ type: "model.completed", message, decisions: [{ policy: "loops", action: "warned" }] }, "warn"],
  [{ type: "model.completed", message, decisions: [{ policy: "loops", action: "stopped" }] }, "bad"],
  [{ type: "tool.completed", message: { ...message, status: "error" } }, "bad"],
  [{ type: "tool.completed", message, exit_code: 3 }, "bad"],
  [{ type: "tool.completed", message, unknown: true }, "bad"],
  [{ type: "tool.completed", message, exit_code: 0 }, ""],
  [{ type: "subagent.completed", status: "failed", error: "no" }, "bad"],
  [{ type: "subagent.completed", status: "completed", result: "yes" }, ""],
  [{ type: "approval.resolved", decision: "expire" }, "bad"],
  [{ type: "approval.resolved", decision: "approve" }, ""],
  [{ type: "webhook.failed", reason: "no" }, "bad"],
  [{ type: "file.rejected", name: "a", reason: "no" }, "bad"],
  [{ type: "an.extension", text: "yes" }, ""],
];
for (const [event, fault] of FAULTS)
  test(`${JSON.stringify(event)} is ${fault || "in order"}`, () => assert.equal(itemsOf([event]).items[0].fault, fault));

test("an approval that nobody answers is a problem until somebody does", () => {
  const asked = { type: "approval.requested", approval: "a", call_id: "c", tool: "bash", args: {} };
  assert.equal(itemsOf([asked]).problems().length, 1);
  assert.equal(itemsOf([asked, { type: "approval.resolved", approval: "a", call_id: "c", decision: "approve" }]).problems().length, 0);
});

test("a run that another process goes on with is two spans, the first of which is broken", () => {
  const items = itemsOf([{ type: "run.requested" }, { type: "run.started", attempt: 1, worker: "a" }, { type: "run.started", attempt: 2, worker: "b" }, { type: "run.completed" }]);
  const runs = items.spans.filter((span) => span.lane === "run");
  assert.deepEqual(runs.map(({ fault, end }) => [fault, end !== null]), [["bad", true], ["warn", true]]);
});

test("hours in which nothing works are short; a tool that works is as long as it is", () => {
  const hour = 3_600_000;
  const idle = itemsOf([{ type: "run.completed", at: at(0) }, { type: "run.requested", at: at(hour) }]);
  assert.ok(idle.end < hour / 100);
  assert.equal(idle.clockAt(idle.end), 1_700_000_000_000 + hour);
  const busy = itemsOf([{ type: "tool.requested", call_id: "c", name: "bash", at: at(0) }, { type: "tool.completed", call_id: "c", message, at: at(hour) }]);
  assert.equal(busy.end, hour);
});

test("calls at once have rows of their own, up to a bound", () => {
  const calls = Array.from({ length: 40 }, (_, index) => ({ type: "tool.requested", call_id: `c${index}`, name: "bash" }));
  const items = itemsOf(calls);
  assert.equal(items.rowsOf("tool"), ROWS);
  assert.deepEqual([...new Set(items.spans.map((span) => span.row))], [...Array(ROWS).keys()]);
});

test("texts are cut, and of one line", () => {
  const [item] = itemsOf([{ type: "run.requested", input: { messages: [{ content: [{ type: "text", text: `a\n\n${"b".repeat(100_000)}` }] }] } }]).items;
  assert.ok(item.about.en.startsWith("“a b") && item.about.en.length <= 210);
});

test("a subagent's end knows which one it was, and a call what it is about", () => {
  const items = itemsOf([
    { type: "model.completed", message: { content: "", tool_calls: [{ id: "c", name: "bash", args: { description: "x", command: "ls" } }] } },
    { type: "tool.requested", call_id: "c", name: "bash" },
    { type: "subagent.started", call_id: "d", subagent: "s", name: "general" },
    { type: "subagent.completed", call_id: "d", status: "failed", error: "no" },
  ]);
  assert.deepEqual(items.items[1].about, { en: "bash: x", zh: "bash：x" });
  assert.equal(items.items[3].subagent, "s");
});

test("the same failure is alike, however long it took; another one is not", () => {
  const failure = (name, duration_ms) => ({ type: "tool.completed", duration_ms, message: { ...message, name, status: "error" } });
  const [one, same, other] = itemsOf([failure("bash", 10), failure("bash", 2000), failure("grep", 10)]).items;
  assert.equal(one.alike, same.alike);
  assert.notEqual(one.alike, other.alike);
});

test("kinds of extensions have a lane", () => assert.equal(laneOf("acme.weather"), "other"));

test("of a log that is followed for long, the newest events and their spans are remembered", () => {
  const items = new Items();
  let seq = 0;
  const add = (event) => items.add((seq += 1), { id: `e${seq}`, at: at(seq * 10), run: "r", ...event });
  add({ type: "run.requested", input: { messages: [] } });
  add({ type: "run.started", attempt: 1 });
  for (let call = 0; call < 5000; call += 1) {
    add({ type: "tool.requested", call_id: `c${call}`, name: "bash", args: {} });
    if (call % 2) add({ type: "tool.completed", call_id: `c${call}`, message: { ...message, name: "bash" } });
    if (items.items.length > 1000) items.drop(800);
  }
  add({ type: "run.completed" });
  items.drop(800);
  assert.equal(items.items.length, 800);
  assert.ok(items.spans.length < 2000, `${items.spans.length} spans`);
  assert.equal(items.items.at(-1).seq, seq);
  const run = items.spans.find((span) => span.lane === "run");
  assert.deepEqual([run.begin < items.begin, run.end, run.item.seq], [true, items.end, seq], "an open span is remembered to its end");
  for (const span of items.spans) assert.ok(span.end === null || span.end >= items.begin);
});
