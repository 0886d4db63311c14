// Settings: a list of sections, and the one that the address names. A member sees those that are about their own things.

import { html } from "../vendor/preact.js";
import { Sections } from "../kit/sections.js";
import { addSheet } from "../kit/sheet.js";
import { learn, t } from "../words/words.js";
import { Agents } from "./agents.js";
import { Channels } from "./channels.js";
import { Configuration } from "./configuration.js";
import { Keys } from "./keys.js";
import { Limits, Webhooks } from "./limits.js";
import { Looks } from "./looks.js";
import { Mcp } from "./mcp.js";
import { Memory } from "./memory.js";
import { Models } from "./models.js";
import { Schedules } from "./schedules.js";
import { Skills } from "./skills.js";
import { Users } from "./users.js";
import { en } from "./words/en.js";
import { zh } from "./words/zh.js";

learn({ en, zh });
const styled = addSheet(new URL("./settings.css", import.meta.url));

/** The sections, in their order. @type {Record<string, import("../kit/sections.js").Section>} */
const SECTIONS = {
  memory: { draw: Memory },
  skills: { draw: Skills },
  mcp: { draw: Mcp },
  agents: { draw: Agents },
  schedules: { draw: Schedules },
  channels: { draw: Channels },
  models: { draw: Models, admin: true },
  users: { draw: Users, admin: true },
  keys: { draw: Keys, admin: true },
  limits: { draw: Limits, admin: true },
  webhooks: { draw: Webhooks, admin: true },
  configuration: { draw: Configuration, admin: true },
  looks: { draw: Looks },
};

/** @param {string} section */
const named = (section) => t(`settings.${section}`);

/** @param {{path: string[]}} props */
export const View = ({ path }) => html`<${Sections} room="settings" named=${named} sections=${SECTIONS} path=${path} sheet=${styled} />`;
