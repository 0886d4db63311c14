// What the page makes of the golden streams stays as it is. `RECORD=1 node --test …` writes it anew.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { Parser } from "../../../channels/web/api/sse.js";
import { apply, empty } from "../../../channels/web/state/conversation.js";
import { itemsOf } from "../../../channels/web/state/items.js";

const FOLDER = new URL("../../golden/streams/", import.meta.url);
const threads = readdirSync(FOLDER, { withFileTypes: true }).filter((entry) => entry.isDirectory() && !entry.name.startsWith("_"));
assert.ok(threads.length);

/** What people see of a conversation. @param {any} c */
const shown = ({ title, messages, results, progress, growing, runs, approvals, subagents, todos, notes }) =>
  JSON.stringify({ title, messages, results, progress, growing, runs, approvals, subagents, todos, notes });
const kinds = (/** @type {any} */ c) => itemsOf(c).map(({ kind, key }) => `${kind}:${key}`).join(" ");

for (const { name } of threads) {
  test(`${name}: what is shown after each frame`, () => {
    let c = empty();
    const lines = [];
    for (const frame of new Parser().feed(readFileSync(new URL(`${name}/log.txt`, FOLDER), "utf8"))) {
      c = apply(c, [frame]);
      lines.push(`${frame.id || "-"} ${frame.event} ${createHash("sha256").update(shown(c)).digest("hex").slice(0, 16)} ${kinds(c)}`);
    }
    const text = [...lines, shown(c), ""].join("\n");
    const file = new URL(`${name}/page.txt`, FOLDER);
    if (process.env.RECORD) writeFileSync(file, text);
    assert.equal(text, readFileSync(file, "utf8"));
  });
}
