// node build.mjs TARGET: bundles each library into one file of TARGET, and writes manifest.json, and LICENCES.txt with the
// terms of every package that is in one of them. Run by `make vendor`.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const LIBRARIES = {
  preact: { of: ["preact", "@preact/signals", "htm"] },
  marked: { of: ["marked"] },
  dompurify: { of: ["dompurify"] },
  diff: { of: ["diff"] },
  highlight: { of: ["highlight.js"] },
  katex: { of: ["katex"] },
  mermaid: { of: ["mermaid"], format: "iife" },
  pdf: { of: ["pdfjs-dist"] },
  "pdf-worker": { of: ["pdfjs-dist"] },
};
const target = process.argv[2];
const manifest = {};
const bundled = new Set();

const described = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));

/** The text of a package's licence; its name where the package has no such file. */
function terms(name) {
  const file = readdirSync(`node_modules/${name}`).find((one) => /^licen[cs]e/i.test(one));
  return file ? readFileSync(`node_modules/${name}/${file}`, "utf8").trim() : `Licence: ${described(name).license}`;
}

for (const [name, { of, format }] of Object.entries(LIBRARIES)) {
  const file = `${target}/${name}.js`;
  const { metafile } = await build({
    metafile: true,
    entryPoints: [`${name}.js`],
    outfile: file,
    bundle: true,
    minify: true,
    format: format ?? "esm",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "error",
  });
  for (const input of Object.keys(metafile.inputs)) {
    const name = input.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1];
    if (name) bundled.add(name);
  }
  const packages = of.map(described);
  const credits = packages.map((one) => `${one.name} ${one.version} (${one.license})`).join(", ");
  const text = `/*! ${credits} */\n${readFileSync(file, "utf8").trimEnd()}\n`;
  writeFileSync(file, text);
  manifest[`${name}.js`] = {
    packages: packages.map((one) => ({ name: one.name, version: one.version, licence: one.license })),
    sha256: createHash("sha256").update(text).digest("hex"),
  };
}
writeFileSync(`${target}/manifest.json`, `${JSON.stringify(manifest, null, 2)}\n`);
const licences = [...bundled].sort().map((name) => `${name} ${described(name).version}\n\n${terms(name)}\n`);
writeFileSync(`${target}/LICENCES.txt`, licences.join(`\n${"-".repeat(80)}\n\n`));
