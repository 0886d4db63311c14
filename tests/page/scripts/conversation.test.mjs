// The fold of a conversation, fed with recorded logs: cut anywhere, doubled, with and without a page of history.
import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, empty, endedSince, isBusy, settled, withPage } from "../../../channels/web/state/conversation.js";
import { itemsOf, waitingOf } from "../../../channels/web/state/items.js";
import { PLACES } from "../../../channels/web/state/message.js";
import { STORIES, chance, cut, framesOf, stateOf } from "./logs.mjs";

const shown = (c) => ({ messages: c.messages, results: c.results, todos: c.todos, runs: c.runs, items: itemsOf(c) });
const fact = (seq, type, data) => ({ event: type, id: String(seq), data: JSON.stringify({ type, at: "2026-11-27T00:00:00Z", ...data }) });
const ai = (id, content, more) => ({ type: "ai", id, content, ...more });

for (const story of STORIES) {
  test(`${story}: shows the messages and results that the server's own fold has`, () => {
    const c = apply(empty(), framesOf(story));
    const visible = stateOf(story).values.messages.filter((one) => !one.additional_kwargs?.hide_from_ui);
    const there = new Map(c.messages.map((one) => [one.id, one.text]));
    for (const message of visible.filter((one) => one.type !== "tool")) assert.ok(there.has(message.id), message.id);
    for (const message of visible.filter((one) => one.type === "ai")) assert.equal(there.get(message.id), message.content);
    for (const message of visible.filter((one) => one.type === "tool")) assert.equal(c.results[message.tool_call_id].text, message.content);
    assert.equal(isBusy(c), false);
  });

  test(`${story}: is the same, however the stream is cut and doubled`, () => {
    const frames = framesOf(story);
    const whole = shown(apply(empty(), frames));
    for (let seed = 0; seed < 20; seed++) {
      const random = chance(seed);
      let c = empty();
      for (const piece of cut(frames, random)) {
        c = apply(c, piece);
        if (random() < 0.5) c = apply(c, frames.slice(0, Math.floor(random() * c.seq)));
      }
      assert.deepEqual(shown(c), whole);
    }
  });

  test(`${story}: leaves alone what a fact does not change`, () => {
    let c = empty();
    let items = [];
    for (const frame of framesOf(story)) {
      const next = apply(c, [frame]);
      const list = itemsOf(next, items);
      const kept = items.filter((item) => item.kind === "person").filter((item) => list.some((one) => one.key === item.key));
      for (const item of kept) assert.ok(list.includes(item), `${frame.event} drew ${item.key} again`);
      assert.equal(new Set(list.map((item) => item.key)).size, list.length, "a key comes twice");
      [c, items] = [next, list];
      assert.equal(itemsOf(c, items), items);
    }
  });
}

test("a conversation with the id of a deleted one begins empty", () => {
  const old = apply(empty(), [...framesOf(STORIES[0]), fact(1e6, "thread.erased", { by: "ada" })]);
  assert.ok(old.erased);
  const again = apply(old, [fact(1e6 + 1, "thread.created", { user: "ada", metadata: {} })]);
  assert.deepEqual(again, { ...empty(), loaded: old.loaded, seq: 1e6 + 1 });
});

/** A page of history as the server makes it of a log. */
function pageOf(frames) {
  const rows = [];
  const asked = new Map();
  for (const { data, id } of frames) {
    const event = JSON.parse(data);
    const row = (content, place = 0, metadata = {}) => rows.push({ seq: Number(id) * PLACES + place, run_id: event.run, content, created_at: event.at, metadata });
    if (event.type === "run.requested") asked.set(event.run, event.input?.messages ?? []);
    if (event.type === "run.started" && event.attempt === 1) asked.get(event.run)?.forEach((one, index) => row(one, index + 1));
    if (event.type === "model.completed") row(event.message);
    if (event.type === "tool.completed") row(event.message, 0, { latency_ms: event.duration_ms, exit_code: event.exit_code ?? null });
  }
  return { data: rows, next_before_seq: null };
}

test("a page of history and the stream come in any order, and overlap", () => {
  for (const story of ["commands", "research", "delegates"]) {
    const frames = framesOf(story);
    const texts = (c) => c.messages.map((one) => [one.id, one.text]);
    const whole = texts(apply(empty(), frames));
    for (let at = 0; at <= frames.length; at++) {
      const turn = frames.findLastIndex((frame, index) => index <= at && frame.event === "run.requested");
      const page = pageOf(frames.slice(0, at));
      const streamed = frames.slice(Math.max(0, turn));
      const first = apply(withPage(empty(), page, { asOf: 0 }), streamed);
      assert.deepEqual(texts(first), whole, `${story}, page first, cut at ${at}`);
      for (const early of [0, 3]) {
        const some = apply(empty(), streamed.slice(0, early));
        assert.deepEqual(texts(apply(withPage(some, page, { asOf: 0 }), streamed)), whole, `${story}, stream first, cut at ${at}`);
      }
    }
  }
});

test("an older page goes before what is there, and draws nothing again", () => {
  const frames = framesOf("commands");
  const { data } = pageOf(frames);
  const newest = withPage(empty(), { data: data.slice(4), next_before_seq: data[4].seq }, { asOf: 0 });
  const items = itemsOf(newest);
  const all = withPage(newest, { data: data.slice(0, 4), next_before_seq: null }, { older: true });
  assert.deepEqual(all.messages.map((one) => one.seq), [...all.messages.map((one) => one.seq)].sort((a, b) => a - b));
  for (const item of items.slice(1)) assert.ok(itemsOf(all, items).includes(item));
});

test("going back to an earlier point makes it stale, and a new page replaces what was there", () => {
  const input = { messages: [{ type: "human", id: "h1", content: "one" }] };
  let c = apply(empty(), [
    fact(1, "run.requested", { run: "a", input }), fact(2, "run.started", { run: "a", attempt: 1 }),
    fact(3, "model.completed", { run: "a", message: ai("m1", "first") }), fact(4, "run.completed", { run: "a" }),
    fact(5, "run.requested", { run: "b", input: { messages: [{ type: "human", id: "h2", content: "two" }] }, base: 0 }),
    fact(6, "run.started", { run: "b", attempt: 1 }),
  ]);
  assert.equal(c.staleSeq, 6);
  const asOf = c.seq;
  c = apply(c, [fact(7, "model.completed", { run: "b", message: ai("m2", "second") })]);
  const rows = [{ seq: 6 * PLACES + 1, run_id: "b", content: { type: "human", id: "h2", content: "two" }, created_at: "", branches: { index: 1, count: 2, checkpoint_ids: ["x", "y"] } }];
  c = withPage(c, { data: rows, next_before_seq: null }, { asOf });
  assert.deepEqual(c.messages.map((one) => one.id), ["h2", "m2"]);
  assert.equal(c.messages[0].branches.count, 2);
});

test("a failed run says why, a stopped one is stopped, queued ones wait and can go", () => {
  const c = apply(empty(), [
    fact(1, "run.requested", { run: "a", input: { messages: [{ type: "human", id: "h1", content: "one" }] } }),
    fact(2, "run.started", { run: "a", attempt: 1, model: "m" }),
    fact(3, "run.requested", { run: "b", input: { messages: [{ type: "human", id: "h2", content: "two" }] } }),
  ]);
  assert.deepEqual(waitingOf(c).map((one) => one.text), ["two"]);
  const steered = apply(c, [fact(4, "run.steered", { run: "a", message: { type: "human", id: "h3", content: "left" } })]);
  assert.deepEqual(waitingOf(steered).map((one) => [one.text, one.steering]), [["left", true], ["two", false]]);
  const read = apply(steered, [fact(5, "message.added", { run: "a", messages: [{ type: "human", id: "h3", content: "left" }] })]);
  assert.deepEqual(waitingOf(read).map((one) => one.text), ["two"]);
  const over = apply(read, [fact(6, "run.cancelled", { run: "b" }), fact(7, "run.failed", { run: "a", error: "Auth", text: "The key is wrong.", message: ai("e", "Sorry.", { additional_kwargs: { error_reason: "auth" } }) })]);
  assert.deepEqual(waitingOf(over), []);
  const end = itemsOf(over).find((item) => item.kind === "end");
  assert.deepEqual([end.run.status, end.run.error], ["error", "The key is wrong."]);
});

test("a run that was steered ends once", () => {
  const c = apply(empty(), [
    fact(1, "run.requested", { run: "a", input: { messages: [{ type: "human", id: "h1", content: "one" }] } }), fact(2, "run.started", { run: "a", attempt: 1 }),
    fact(3, "model.completed", { run: "a", message: ai("m1", "first", { usage_metadata: { total_tokens: 3 } }) }),
    fact(4, "message.added", { run: "a", messages: [{ type: "human", id: "h2", content: "left" }] }),
    fact(5, "model.completed", { run: "a", message: ai("m2", "second", { usage_metadata: { total_tokens: 4 } }) }), fact(6, "run.completed", { run: "a" }),
  ]);
  const items = itemsOf(c);
  assert.deepEqual(items.map((item) => item.kind), ["person", "answer", "person", "answer", "end"]);
  assert.equal(items.at(-1).tokens, 7);
});

test("text in the making appears once, whatever comes of it, and is void when its answer is given up", () => {
  const begun = apply(empty(), [
    fact(1, "run.requested", { run: "a", input: { messages: [] } }), fact(2, "run.started", { run: "a", attempt: 1 }),
  ]);
  const text = "It costs 5 € — 日本語 👩‍🚀, and so on.";
  const characters = Array.from(text);
  for (let seed = 0; seed < 50; seed++) {
    const random = chance(seed);
    let c = begun;
    const pieces = [];
    for (let at = 0; at < characters.length; at += 1 + Math.floor(random() * 5)) {
      const end = Math.min(characters.length, at + 1 + Math.floor(random() * 12));
      pieces.push({ run: "a", message: "m", after: 2, offset: at, text: characters.slice(at, end).join("") });
    }
    pieces.push({ run: "a", message: "m", after: 2, offset: 0, text });
    if (seed % 2) pieces.sort(() => random() - 0.5);
    for (const piece of pieces) c = apply(c, [{ event: "preview", id: "", data: JSON.stringify(piece) }]);
    assert.equal(c.growing.a.parts[0].text, text);
    const again = apply(c, [fact(3, "run.started", { run: "a", attempt: 2 })]);
    assert.deepEqual(again.growing, {});
    const late = apply(again, [{ event: "preview", id: "", data: JSON.stringify(pieces[0]) }]);
    assert.deepEqual(late.growing, {}, "a piece of the answer that was given up came late");
    const done = apply(c, [fact(3, "model.completed", { run: "a", message: ai("m", text) })]);
    assert.deepEqual([done.growing, done.messages.map((one) => one.text)], [{}, [text]]);
  }
});

test("a question that another run brings again is of that run: the conversation has one end", () => {
  const question = { type: "human", id: "q", content: "Two" };
  const turn = (seq, run, answer) => [
    fact(seq, "run.requested", { run, input: { messages: [question] } }),
    fact(seq + 1, "run.started", { run, attempt: 1 }),
    fact(seq + 2, "model.completed", { run, message: ai(answer, `${answer} says so`) }),
    fact(seq + 3, "run.completed", { run }),
  ];
  const rows = (seq, run, answer) => [question, ai(answer, `${answer} says so`)].map((content, at) => ({ seq: (seq + at) * PLACES, run_id: run, created_at: "", content }));
  const first = apply(empty(), turn(1, "a", "one"));
  const again = withPage(apply(first, turn(5, "b", "two")), { data: rows(6, "b", "two"), next_before_seq: null });
  const ends = (c) => itemsOf(c).filter((item) => item.kind === "end").map((item) => item.run.id);
  assert.deepEqual([ends(first), ends(again)], [["a"], ["b"]]);
});

test("text that grows is news for nobody but the one who draws it", () => {
  const preview = (offset, text) => ({ event: "preview", id: "", data: JSON.stringify({ run: "r", message: "a", after: 2, offset, text }) });
  const running = apply(empty(), [fact(1, "run.requested", { run: "r", input: { messages: [] } }), fact(2, "run.started", { run: "r", attempt: 1 })]);
  const begun = settled(running, apply(running, [preview(0, "One ")]));
  assert.notEqual(begun, running, "views learn that an answer has begun");
  const grown = apply(begun, [preview(4, "two ")]);
  assert.notEqual(grown, begun);
  assert.equal(settled(begun, grown), begun);
  const titled = apply(grown, [fact(3, "thread.titled", { title: "T" })]);
  assert.equal(settled(begun, titled), titled);
});

test("the end of a run is noticed once, and only where it is seen to end", () => {
  const requested = [fact(1, "run.requested", { run: "r", input: { messages: [] } }), fact(2, "run.started", { run: "r", attempt: 1 })];
  const before = { ...apply(empty(), requested), loaded: true };
  const after = apply(before, [fact(3, "run.completed", { run: "r" })]);
  assert.ok(endedSince(before, after));
  assert.ok(!endedSince(after, apply(after, [fact(4, "thread.titled", { title: "T" })])));
  assert.ok(!endedSince(empty(), apply(empty(), [...requested, fact(3, "run.completed", { run: "r" })])));
});

test("a goal that is reached leaves a note, and a rating that is withdrawn goes", () => {
  const c = apply(empty(), [
    fact(1, "goal.set", { objective: "All is said" }),
    fact(2, "feedback.given", { feedback_id: "f1", run: "r", rating: 1, message_id: "m" }),
    fact(3, "feedback.given", { feedback_id: "f2", run: "r", rating: -1 }),
  ]);
  assert.deepEqual([c.goal.objective, c.feedback], ["All is said", { m: { id: "f1", rating: 1 }, r: { id: "f2", rating: -1 } }]);
  const after = apply(c, [fact(4, "goal.reached", { reason: "It was said." }), fact(5, "feedback.removed", { feedback_id: "f1" })]);
  assert.deepEqual([after.goal, after.feedback], [null, { r: { id: "f2", rating: -1 } }]);
  assert.deepEqual(itemsOf(after).filter((item) => item.kind === "note").map((item) => item.note.reason), ["It was said."]);
});
