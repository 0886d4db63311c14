// Markdown read while it grows is the Markdown read as a whole, and finished blocks are not read again.
import assert from "node:assert/strict";
import { test } from "node:test";
import { htmlOf, read } from "../../../channels/web/markdown/blocks.js";
import { chance } from "./logs.mjs";

const TEXT = `# Title

A paragraph with **bold**, \`code\`, $a^2$ and a [citation:Source](https://example.org/a).

| a | b |
|---|---|
| 1 | 2 |

- one
- two

  still two

\`\`\`python
def f():

    return 1
\`\`\`

$$
x = \\frac{1}{2}
$$

1. first
2. second

> quoted

The end costs $5 and $6.`;

test("growing and whole are the same, and blocks that are finished stay the same objects", () => {
  const whole = read(TEXT).blocks.map(htmlOf);
  for (let seed = 0; seed < 30; seed++) {
    const random = chance(seed);
    let now;
    for (let end = 0; end < TEXT.length; ) {
      end = Math.min(TEXT.length, end + 1 + Math.floor(random() * 30));
      const next = read(TEXT.slice(0, end), now);
      for (const [index, block] of (now?.blocks ?? []).slice(0, -1).entries()) assert.equal(next.blocks[index], block);
      now = next;
    }
    assert.deepEqual(now.blocks.map(htmlOf), whole);
  }
});

test("formulas are found, prices are not", () => {
  const html = read(TEXT).blocks.map(htmlOf).join("");
  assert.match(html, /<span class="math">a\^2<\/span>/);
  assert.match(html, /<div class="math-block">x = \\frac\{1\}\{2\}<\/div>/);
  assert.match(html, /costs \$5 and \$6/);
  assert.match(html, /<a class="cite" href="https:\/\/example.org\/a">Source<\/a>/);
});

test("markup in a formula or a citation stays text", () => {
  const html = read("$a<img src=x onerror=1>b$ [citation:<b>](https://e.org/\"x)").blocks.map(htmlOf).join("");
  assert.doesNotMatch(html, /<img|<b>|"x/);
});
