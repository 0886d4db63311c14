// Settings: a list of sections, and the one that the address names. A member sees those that are about their own things.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { addSheet } from "../kit/sheet.js";
import { learn, t, wordsOf } from "../words/words.js";
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

/** The sections, in their order. `admin`: for administrators only. @type {Record<string, {draw: any, admin?: boolean}>} */
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

/** @param {{path: string[]}} props */
export function View({ path }) {
  const [me, setMe] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    void Promise.all([call("GET", "v1/auth/me"), styled]).then(([person]) => setMe(person), (error) => {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    });
  }, []);
  if (problem) return html`<p class="error center" role="alert">${problem}</p>`;
  if (!me) return html`<p class="quiet center">${t("loading")}</p>`;
  const names = Object.keys(SECTIONS).filter((name) => !SECTIONS[name].admin || me.system_role === "admin");
  const name = path[0] && names.includes(path[0]) ? path[0] : (names[0] ?? "");
  const { draw: Section } = SECTIONS[name];
  return html`<div class="settings">
    <nav aria-label=${t("settings")}><h1>${t("settings")}</h1>
      <ul>${names.map((one) => html`<li key=${one}><a href="#/settings/${one}" aria-current=${one === name ? "page" : undefined}>${t(`settings.${one}`)}</a></li>`)}</ul>
    </nav>
    <section class="settings-section" aria-labelledby="settings-title" key=${name}>
      <h2 id="settings-title">${t(`settings.${name}`)}</h2>
      <${Section} me=${me} path=${path.slice(1)} />
    </section>
  </div>`;
}
