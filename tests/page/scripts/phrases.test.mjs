// The words of events as the server has them: its table of examples, and an event of every type in both languages.
// The examples come from tests/page/test_scripts.py, in a file that SIKA_PHRASES names.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ENVELOPE, PHRASES } from "../../../channels/web/timeline/catalogue.js";
import { aboutOf, detail, phraseOf } from "../../../channels/web/timeline/phrases.js";
import { language } from "../../../channels/web/words/words.js";

const file = process.env.SIKA_PHRASES;
const { cases, catalogue, envelope, events } = file ? JSON.parse(readFileSync(file, "utf8")) : { cases: [], catalogue: [], envelope: [], events: [] };
for (const [type, phrase] of catalogue) PHRASES.set(type, phrase);
ENVELOPE.push(...envelope);

test("the examples are those of the server", { skip: !file && "run by pytest" }, () => assert.ok(cases.length > 40 && events.length > 300));

for (const { template, event, text } of cases) test(`${template} of ${JSON.stringify(event).slice(0, 80)}`, () => assert.equal(detail(template, event), text));

for (const [index, { event, en, zh }] of events.entries())
  test(`${event.type} ${index}`, () => {
    assert.deepEqual(aboutOf(event), { en: en[1], zh: zh[1] });
    for (const [shown, name] of [["en", en[0]], ["zh", zh[0]]]) {
      language.value = shown;
      assert.equal(phraseOf(event.type), name);
    }
  });

test("names of fields that every object has are those of no type and no field", () => {
  assert.equal(phraseOf("constructor"), "constructor");
  assert.equal(detail("{a.constructor}{a.__proto__}{toString}", { a: {} }), "");
});
