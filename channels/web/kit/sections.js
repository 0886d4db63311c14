// A room of sections: the list of them beside the one that the address names, above it on a narrow screen.

import { html, useEffect, useState } from "../vendor/preact.js";
import { administers, asking, look } from "../account/session.js";
import { Failure, call } from "../api/client.js";
import { t, wordsOf } from "../words/words.js";
import { addSheet } from "./sheet.js";
import { whenLookedAt } from "./view.js";

const styled = addSheet(new URL("./sections.css", import.meta.url));

/**
 * @typedef {{draw: any, admin?: boolean}} Section `draw`: takes `me` and the rest of the `path`; `admin`: for administrators only
 * @param {{room: string, named: (section: string) => string, sections: Record<string, Section>, path: string[], sheet: Promise<void>, none?: string}} props
 *   `room`: its address; `named`: the title of a section; `sheet`: its own style; `none`: what is shown to whom no section is
 */
export function Sections({ room, named, sections, path, sheet, none = "" }) {
  const [me, setMe] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => whenLookedAt(() => void look()), []);
  useEffect(() => {
    void Promise.all([call("GET", "v1/auth/me"), styled, sheet]).then(([person]) => setMe(person), (error) => {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) void look();
      else setProblem(wordsOf(error));
    });
  }, [asking.value, administers.value]);
  if (problem) return html`<p class="error center" role="alert">${problem}</p>`;
  if (!me) return html`<p class="quiet center">${t("loading")}</p>`;
  const names = Object.keys(sections).filter((name) => !sections[name]?.admin || me.system_role === "admin");
  const name = path[0] && names.includes(path[0]) ? path[0] : names[0];
  if (!name) return html`<p class="${room} gone sections-none center">${none}</p>`;
  const { draw: Section } = /** @type {Section} */ (sections[name]);
  return html`<div class="sections ${room}">
    <nav aria-label=${t(room)}><h1>${t(room)}</h1>
      <ul>${names.map((one) => html`<li key=${one}><a href="#/${room}/${one}" aria-current=${one === name ? "page" : undefined}>${named(one)}</a></li>`)}</ul>
    </nav>
    <section class="sections-open ${room}-section" aria-labelledby="${room}-title" key=${name}>
      <h2 id="${room}-title">${named(name)}</h2>
      <${Section} me=${me} path=${path.slice(1)} />
    </section>
  </div>`;
}
