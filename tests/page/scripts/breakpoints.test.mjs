// Breakpoints of files, by the table that those of the server pass, too (tests/core/replay/test_breakpoints.py).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { breakpointOf } from "../../../channels/web/timeline/breakpoints.js";

for (const [text, step, outcome] of JSON.parse(readFileSync(new URL("./breakpoints.json", import.meta.url), "utf8")))
  test(`${JSON.stringify(text)} at ${JSON.stringify(step)}: ${outcome}`, () => {
    if (typeof outcome === "boolean") assert.equal(breakpointOf(text)(step), outcome);
    else assert.throws(() => breakpointOf(text), (error) => error.detail.startsWith("breakpoint") && error.detail.includes(outcome));
  });
