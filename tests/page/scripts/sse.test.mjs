// Server-sent events, cut anywhere.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Parser } from "../../../channels/web/api/sse.js";

const TEXT = ": heartbeat\n\nid: 1\nevent: thread.created\ndata: {\"a\": 1}\n\nevent: preview\ndata: {\"text\": \"a: b\"}\n\n";

test("frames are the same wherever the stream is cut", () => {
  const whole = new Parser().feed(TEXT);
  assert.deepEqual(whole, [
    { event: "", data: "", id: "" }, { event: "thread.created", data: '{"a": 1}', id: "1" }, { event: "preview", data: '{"text": "a: b"}', id: "" },
  ]);
  for (let at = 0; at <= TEXT.length; at++) {
    const parser = new Parser();
    assert.deepEqual([...parser.feed(TEXT.slice(0, at)), ...parser.feed(TEXT.slice(at))], whole);
  }
});
