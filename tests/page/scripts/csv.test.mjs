// Tables in text, read back as they were written, whatever their values, separators and ends of lines are.

import assert from "node:assert/strict";
import { test } from "node:test";
import { tableOf } from "../../../channels/web/files/csv.js";

const CASES = [
  ["a,b\n1,2\n", [["a", "b"], ["1", "2"]]],
  ["\ufeffid;name\r\n007;Ada\r\n", [["id", "name"], ["007", "Ada"]]],
  ["a\tb\n1,5\t2\n", [["a", "b"], ["1,5", "2"]]],
  ['name,says\nAda,"said ""yes"", and\nleft"\n', [["name", "says"], ["Ada", 'said "yes", and\nleft']]],
  ["a,b\n1,", [["a", "b"], ["1", ""]]],
  ["a,b\n,\n\n3,4", [["a", "b"], ["", ""], ["3", "4"]]],
  ['a,b\n"open, for ever\n1,2', [["a", "b"], ["open, for ever\n1,2"]]],
  ["one\ntwo\n", [["one"], ["two"]]],
  ["", []],
];

for (const [text, rows] of CASES) test(JSON.stringify(text), () => assert.deepEqual(tableOf(text, 100).rows, rows));

test("what was written is read", () => {
  let seed = 7;
  const random = (count) => (seed = (seed * 48271) % 2147483647) % count;
  const pieces = ["0", "12", "Ä", '"', ",", ";", "\t", "|", "\n", "\r\n", " ", "x"];
  const value = () => Array.from({ length: random(5) }, () => pieces[random(pieces.length)]).join("");
  for (let round = 0; round < 2000; round++) {
    const [separator, end, width] = [",;\t|"[random(4)], ["\n", "\r\n"][random(2)], 2 + random(4)];
    const rows = Array.from({ length: 1 + random(6) }, () => Array.from({ length: width }, value));
    const written = rows.map((row) => row.map((one) => `"${one.replaceAll('"', '""')}"`).join(separator)).join(end);
    assert.deepEqual(tableOf(written, 100, separator).rows, rows, JSON.stringify(written));
  }
});

test("only so many rows are read", () => {
  const { rows, more } = tableOf("a,b\n".repeat(1000), 10);
  assert.equal(rows.length, 10);
  assert.equal(more, true);
});
