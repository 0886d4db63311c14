// Accounts of people: made, given a role, disabled, and given another password.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { moment, t } from "../words/words.js";
import { FileOnly, Form, Loaded, Once, linesOf, useAnswer } from "./parts.js";

/** @typedef {{id: string, email: string, system_role: "admin"|"user", created_at: string, disabled: boolean, needs_setup: boolean, has_password: boolean, keys: number}} User */


/** @param {{me: {id: string}}} props */
export function Users({ me }) {
  const users = useAnswer("users");
  const [password, setPassword] = useState({ of: "", text: "" });
  if (users.problem.includes("auth.enabled")) return html`<p>${t("settings.users.none")}</p><${FileOnly} lines=${linesOf("auth.enabled", "true")} />`;
  const create = async (/** @type {Record<string, any>} */ values) => {
    const made = await call("POST", "users", { body: values });
    setPassword({ of: made.email, text: made.password });
    await users.reload();
  };
  return html`<p>${t("settings.users.text")}</p>
    ${password.text && html`<p role="status">${t("settings.users.password.of", { email: password.of })}</p><${Once} name=${t("account.password")} text=${password.text} />`}
    <${Loaded} of=${users}><ul class="rows">${users.value?.users.map((/** @type {User} */ user) => html`<${Row} key=${user.id} user=${user} own=${user.id === me.id} onChange=${users.reload} onPassword=${setPassword} />`)}</ul><//>
    <h3>${t("settings.users.add")}</h3>
    <${Form} clears=${true} action=${t("settings.users.make")} onSend=${create} fields=${[
      { name: "email", label: t("account.email"), kind: "email" },
      { name: "role", label: t("settings.users.role"), kind: "select", value: "user", options: roles() },
    ]} />`;
}

/** @returns {[string, string][]} */
const roles = () => [["user", t("settings.users.role.user")], ["admin", t("settings.users.role.admin")]];

/** @param {{user: User, own: boolean, onChange: () => Promise<void>, onPassword: (password: {of: string, text: string}) => void}} props */
function Row({ user, own, onChange, onPassword }) {
  const change = (/** @type {Record<string, unknown>} */ body) => call("PATCH", `users/${encodeURIComponent(user.id)}`, { body }).then(onChange);
  const reset = async () => {
    const { password } = await call("POST", `users/${encodeURIComponent(user.id)}/reset-password`);
    onPassword({ of: user.email, text: password });
    await onChange();
  };
  const admin = user.system_role === "admin";
  return html`<li class=${user.disabled ? "off" : ""}>
    <span><bdi>${user.email}</bdi><small>${[t(`settings.users.role.${user.system_role}`), user.disabled && t("settings.users.disabled"), user.needs_setup && t("settings.users.temporary"), t("settings.users.keys", { n: user.keys }), moment(user.created_at)].filter(Boolean).join(" · ")}</small></span>
    <span class="acts">
      <${Act} onAct=${() => change({ role: admin ? "user" : "admin" })} ask=${t("settings.sure")}>${t(admin ? "settings.users.demote" : "settings.users.promote")}<//>
      ${!own && html`<${Act} onAct=${() => change({ disabled: !user.disabled })} kind=${user.disabled ? undefined : "danger"} ask=${user.disabled ? undefined : t("settings.sure")}>${t(user.disabled ? "settings.users.enable" : "settings.users.disable")}<//>`}
      ${!own && html`<${Act} onAct=${reset} ask=${t("settings.sure")}>${t("settings.users.reset")}<//>`}
    </span>
  </li>`;
}
