// The overview for operators: what runs, failed, waits and was configured on the whole installation. For administrators.

import { html } from "../vendor/preact.js";
import { Sections } from "../kit/sections.js";
import { addSheet } from "../kit/sheet.js";
import { learn, t } from "../words/words.js";
import { Changes } from "./changes.js";
import { Failures } from "./failures.js";
import { Health } from "./health.js";
import { Letters } from "./letters.js";
import { Now } from "./now.js";
import { Processes } from "./processes.js";
import { Speed } from "./speed.js";
import { Usage } from "./usage.js";
import { en } from "./words/en.js";
import { zh } from "./words/zh.js";

learn({ en, zh });
const styled = addSheet(new URL("./operate.css", import.meta.url));

/** The sections by their part of the address, in their order. */
const DRAWN = { now: Now, failures: Failures, letters: Letters, processes: Processes, speed: Speed, usage: Usage, health: Health, changes: Changes };
const SECTIONS = Object.fromEntries(Object.entries(DRAWN).map(([name, draw]) => [name, { draw, admin: true }]));

/** @param {string} section */
const named = (section) => t(`operate.${section}`);

/** @param {{path: string[]}} props */
export const View = ({ path }) => html`<${Sections} room="operate" named=${named} sections=${SECTIONS} path=${path} sheet=${styled} none=${t("operate.members")} />`;
