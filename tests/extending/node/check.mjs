// Checks an AsyncAPI document with the public parser: node check.mjs FILE
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const { document, diagnostics } = await new Parser().parse(readFileSync(process.argv[2], "utf8"));
const problems = diagnostics.filter(({ severity }) => severity === 0);
for (const { path, message } of problems) console.error(`${path.join("/")}: ${message}`);
console.log(JSON.stringify({ channels: document?.channels().length ?? 0, problems: problems.length }));
