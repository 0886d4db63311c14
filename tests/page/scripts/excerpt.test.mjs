// Excerpts of messages: the words that people read, without the marks of Markdown.

import assert from "node:assert/strict";
import { test } from "node:test";
import { withoutMarkdown } from "../../../channels/web/state/excerpt.js";

const CASES = [
  ["![Diameters of the planets](/mnt/user-data/outputs/planets.svg) Jupiter", "Diameters of the planets Jupiter"],
  ["See [the report](https://a.example/b), **now**", "See the report, now"],
  ["[the report](https://a.exa", "the report"],
  ["-data/outputs/planets.svg) is the chart of `area.py`", "is the chart of area.py"],
  ["tputs/planets](/mnt/a.svg) the end", "the end"],
  ["## Result\n> it is ~~gone~~ here", "Result it is gone here"],
  ["```py\nx = 1\n```", "x = 1"],
  ["| planet | km |\n|---|---:|\n| Earth | 12,756 |", "planet · km Earth · 12,756"],
  ["plain words (in brackets) and 3 * 4 * 5", "plain words (in brackets) and 3 * 4 * 5"],
  ["snake_case and __init__ stay in sense", "snake_case and init stay in sense"],
  ["", ""],
];

for (const [text, words] of CASES) test(JSON.stringify(text), () => assert.equal(withoutMarkdown(text), words));
