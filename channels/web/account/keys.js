// API keys of one's own, for programs: made and shown once, listed, revoked.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { complain } from "../chat/actions.js";
import { Button } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { Dialog } from "../kit/dialog.js";
import { moment, t } from "../words/words.js";
import { Field, problemOf } from "./fields.js";
import { person } from "./session.js";

/** @typedef {{id: string, scopes: string[] | null, created_at: string, expires_at: string | null, own: boolean}} Key */

/** Days after which a key ends; 0: it does not. */
const DAYS = [30, 90, 365, 0];
/** What a key may do that only reads. */
const READING = ["threads:read", "runs:read", "files:read", "assistants:read", "skills:read", "crons:read", "store:read", "memory:read"];
const PATH = "v1/auth/keys";

/** @param {{onClose: () => void}} props */
export function Keys({ onClose }) {
  const [keys, setKeys] = useState(/** @type {Key[]} */ ([]));
  const [made, setMade] = useState("");
  const read = async () => setKeys((await call("GET", PATH)).keys);
  useEffect(() => void read().catch(complain), []);
  const revoke = (/** @type {string} */ id) => void call("DELETE", `${PATH}/${id}`).then(() => setMade("")).then(read).catch(complain);
  return html`<${Dialog} title=${t("account.keys")} onClose=${onClose}>
    <p>${t("account.keys.text")}</p>
    ${made
      ? html`<div class="made" role="status"><input class="field" readonly dir="ltr" aria-label=${t("account.keys.one")} value=${made} onFocus=${(/** @type {any} */ e) => e.target.select()} />
          <${Button} kind="first" onClick=${() => copyText(made)}>${t("copy")}<//><small>${t("share.once")}</small></div>`
      : html`<${NewKey} onMade=${(/** @type {string} */ key) => (setMade(key), read().catch(complain))} />`}
    ${keys.length > 0 && html`<h3>${t("account.keys.list")}</h3>
      <ul class="rows">${keys.map((key) => html`<li key=${key.id}><span>${moment(key.created_at)}<small>${aboutOf(key)}</small></span>
        <${Button} kind="danger" onClick=${() => revoke(key.id)}>${t("share.revoke")}<//></li>`)}</ul>`}
  <//>`;
}

/** @param {{onMade: (key: string) => void}} props */
function NewKey({ onMade }) {
  const [password, setPassword] = useState("");
  const [reads, setReads] = useState(false);
  const [days, setDays] = useState(DAYS[0]);
  const [problem, setProblem] = useState("");
  const make = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setProblem("");
    const body = { current_password: password, scopes: reads ? READING : null, expires_in_days: days || null };
    try {
      onMade((await call("POST", PATH, { body })).key);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(problemOf(error, t("account.password.wrong")));
    }
  };
  return html`<form class="fields" onSubmit=${make}>
    <p class="labelled"><label for="key-days">${t("share.ends")}</label>
      <select id="key-days" class="field" value=${String(days)} onChange=${(/** @type {any} */ e) => setDays(Number(e.target.value))}>${DAYS.map((one) => html`<option key=${one} value=${String(one)}>${one ? t("share.days", { n: one }) : t("share.never")}</option>`)}</select></p>
    <label class="check"><input type="checkbox" checked=${reads} onChange=${(/** @type {any} */ e) => setReads(e.target.checked)} /> ${t("account.keys.reads")}</label>
    ${person.value?.has_password && html`<${Field} name=${t("account.password.now")} type="password" autocomplete="current-password" value=${password} onInput=${setPassword} />`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="card-actions"><${Button} kind="first" type="submit" onClick=${() => {}}>${t("account.keys.make")}<//></div>
  </form>`;
}

/** @param {Key} key */
const aboutOf = ({ scopes, expires_at: end, own }) =>
  [scopes === null ? t("account.keys.everything") : scopes.join(", "), end ? t("share.until", { time: moment(end) }) : t("share.never"), own ? "" : t("account.keys.operator")].filter(Boolean).join(" · ");
