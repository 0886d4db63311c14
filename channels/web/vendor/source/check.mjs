// node check.mjs PAGE: checks the page's own scripts, with the tools that package.json pins: types, then style.
import { writeFileSync } from "node:fs";
import { spawnSync } from "node:child_process";
import { resolve } from "node:path";

const page = resolve(process.argv[2]);
const modules = resolve("node_modules");
const config = {
  compilerOptions: {
    allowJs: true, checkJs: true, strict: true, noEmit: true, noUnusedLocals: true, noUnusedParameters: true, noFallthroughCasesInSwitch: true,
    target: "es2024", lib: ["es2024", "dom", "dom.iterable", "webworker.importscripts"], module: "esnext", moduleResolution: "bundler",
    skipLibCheck: true, types: [], rootDir: "/",
    paths: { "*": [`${modules}/*`, `${modules}/@types/*`] },
  },
  include: [`${page}/**/*.js`],
  exclude: [`${page}/vendor/*.js`, `${page}/vendor/source`],
};
writeFileSync("tsconfig.json", JSON.stringify(config));
const run = (place, ...words) => spawnSync(process.execPath, words, { stdio: "inherit", cwd: place }).status ?? 1;
const types = run(".", "node_modules/typescript/bin/tsc", "--project", "tsconfig.json");
const style = run(page, `${modules}/eslint/bin/eslint.js`, "--config", resolve("eslint.config.mjs"), "--max-warnings", "0", ".");
process.exit(types || style);
