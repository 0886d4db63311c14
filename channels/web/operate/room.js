// The overview for operators: what runs, failed, waits and was configured on the whole installation. For administrators.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { addSheet } from "../kit/sheet.js";
import { learn, t, wordsOf } from "../words/words.js";
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

/** The sections by their part of the address, in their order. @type {Record<string, any>} */
const SECTIONS = { now: Now, failures: Failures, letters: Letters, processes: Processes, speed: Speed, usage: Usage, health: Health, changes: Changes };

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
  if (me.system_role !== "admin") return html`<p class="operate gone center">${t("operate.members")}</p>`;
  const name = path[0] && Object.hasOwn(SECTIONS, path[0]) ? path[0] : "now";
  const Section = SECTIONS[name];
  return html`<div class="operate">
    <nav aria-label=${t("operate")}><h1>${t("operate")}</h1>
      <ul>${Object.keys(SECTIONS).map((one) => html`<li key=${one}><a href="#/operate/${one}" aria-current=${one === name ? "page" : undefined}>${t(`operate.${one}`)}</a></li>`)}</ul>
    </nav>
    <section class="operate-section" aria-labelledby="operate-title" key=${name}>
      <h2 id="operate-title">${t(`operate.${name}`)}</h2>
      <${Section} />
    </section>
  </div>`;
}
