// API keys of everybody: made for somebody and shown once, and revoked.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { moment, t } from "../words/words.js";
import { FileOnly, Form, Loaded, Once, linesOf, useAnswer } from "./parts.js";

/** @typedef {{id: string, user: string, email: string, scopes: string[] | null, created_at: string, expires_at: string | null, own: boolean}} Key */

/** @param {{me: {email: string}}} props */
export function Keys({ me }) {
  const keys = useAnswer("keys");
  const [made, setMade] = useState("");
  if (keys.problem.includes("auth.enabled")) return html`<p>${t("settings.users.none")}</p><${FileOnly} lines=${linesOf("auth.enabled", "true")} />`;
  const make = async (/** @type {Record<string, any>} */ values) => {
    const scopes = values.scopes.split(/[\s,]+/).filter(Boolean);
    const body = { user: values.user, scopes: scopes.length ? scopes : null, expires_in_days: Number(values.expires_in_days) || null };
    setMade((await call("POST", "keys", { body })).key);
    await keys.reload();
  };
  const revoke = (/** @type {Key} */ key) => call("DELETE", `keys/${encodeURIComponent(key.id)}`).then(() => setMade("")).then(keys.reload);
  return html`<p>${t("settings.keys.text")}</p>
    ${made && html`<${Once} name=${t("account.keys.one")} text=${made} />`}
    <${Loaded} of=${keys}>
      ${keys.value?.keys.length === 0 && html`<p class="quiet">${t("settings.keys.none")}</p>`}
      <ul class="rows">${keys.value?.keys.map((/** @type {Key} */ key) => html`<li key=${key.id}>
        <span><code>${key.id}</code> <bdi>${key.email || key.user}</bdi><small>${aboutOf(key)}</small></span>
        <${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => revoke(key)}>${t("share.revoke")}<//>
      </li>`)}</ul>
    <//>
    <h3>${t("account.keys.make")}</h3>
    <${Form} action=${t("account.keys.make")} onSend=${make} fields=${[
      { name: "user", label: t("settings.keys.for"), value: me.email },
      { name: "scopes", label: t("settings.keys.scopes"), optional: true, hint: t("settings.keys.scopes.hint") },
      { name: "expires_in_days", label: t("share.ends"), kind: "select", value: "90", options: ["30", "90", "365", ""].map((one) => [one, one ? t("share.days", { n: Number(one) }) : t("share.never")]) },
    ]} />`;
}

/** @param {Key} key */
const aboutOf = ({ scopes, created_at: begin, expires_at: end, own }) =>
  [scopes === null ? t("account.keys.everything") : scopes.join(", "), moment(begin), end ? t("share.until", { time: moment(end) }) : t("share.never"), own ? t("settings.keys.own") : ""].filter(Boolean).join(" · ");
