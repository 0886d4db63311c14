// A stream that is followed for ever: what counts as lost, and what does not. By a clock of the test's own.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

const nowhere = { addEventListener() {}, removeEventListener() {} };
Object.assign(globalThis, nowhere, { document: { ...nowhere, hidden: false } });
const { Follower } = await import("../../../channels/web/api/follower.js");
const BEAT_MS = 5000;
const settle = () => new Promise((resolve) => setImmediate(resolve));

/**
 * Follows a stream for some seconds, in which its heart beats at these. Returns what was told.
 * @param {number[]} beats @param {number} seconds @param {Record<string, string>} headers
 */
async function followed(beats, seconds, headers = { "x-heartbeat-seconds": String(BEAT_MS / 1000) }) {
  mock.timers.enable({ apis: ["setTimeout"] });
  /** @type {ReadableStreamDefaultController<Uint8Array> | undefined} */
  let stream;
  const beat = () => stream?.enqueue(new TextEncoder().encode(": heartbeat\n\n"));
  globalThis.fetch = async (_, options) => {
    const body = new ReadableStream({ start: (controller) => { stream = controller; } });
    options?.signal?.addEventListener("abort", () => stream?.error(new Error("aborted")));
    return new Response(body, { headers });
  };
  /** @type {string[]} */ const told = [];
  const follower = new Follower({ path: "events", take: () => {}, tell: ({ kind }) => told.push(kind) });
  await settle();
  beat();
  for (let at = 0; at < 10 * seconds; at++) {
    await settle();
    if (told.includes("lost")) break;
    if (beats.includes(at / 10)) beat();
    await settle();
    mock.timers.tick(100);
  }
  follower.close();
  mock.timers.reset();
  return told;
}

test("a heart that beats is no loss, wherever in its rhythm the stream began", async () => {
  for (const phase of [0.1, 0.6, 1, 2, 4.9]) {
    const beats = [0, 5, 10, 15, 20, 25].map((later) => Math.round(10 * (phase + later)) / 10);
    assert.deepEqual(await followed(beats, 28), ["opening", "open"], `${phase}`);
  }
});

test("a silence of some heartbeats is a loss, of one is none", async () => {
  assert.deepEqual(await followed([], 11), ["opening", "open"]);
  assert.deepEqual(await followed([], 14), ["opening", "open", "lost"]);
});

test("a server that does not say how often its heart beats has half a minute", async () => {
  assert.deepEqual(await followed([1], 35, {}), ["opening", "open"]);
  assert.deepEqual(await followed([1], 38, {}), ["opening", "open", "lost"]);
});
