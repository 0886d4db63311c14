// Signing in, over the page: what was typed stays below. As the server is configured: its first administrator, an address
// and a password, an account for oneself, identity providers.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, address, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { Dialog } from "../kit/dialog.js";
import { t } from "../words/words.js";
import { Field, problemOf } from "./fields.js";
import { enter } from "./session.js";

/** @typedef {{setup: boolean, registration: boolean, providers: {id: string, display_name: string}[]}} Ways */

export function SignIn() {
  const [ways, setWays] = useState(/** @type {Ways | null} */ (null));
  const [registering, setRegistering] = useState(false);
  useEffect(() => void waysIn().then(setWays), []);
  if (!ways) return null;
  const title = ways.setup ? t("account.first") : registering ? t("account.register") : t("account.signIn");
  return html`<${Dialog} title=${title} firm=${true} kind="sign-in">
    ${ways.setup && html`<p>${t("account.first.text")}</p>`}
    <${Credentials} key=${title} title=${title} path=${ways.setup ? "v1/auth/initialize" : registering ? "v1/auth/register" : ""} />
    ${!ways.setup && ways.providers.map(({ id, display_name: name }) => html`<a class="button provider" key=${id} href=${address(`v1/auth/oauth/${id}`, { next: location.pathname + location.hash })}>${t("account.with", { name })}</a>`)}
    ${!ways.setup && ways.registration && html`<p><${Button} kind="quiet" onClick=${() => setRegistering(!registering)}>${registering ? t("account.signIn") : t("account.register")}<//></p>`}
  <//>`;
}

/** How one may come in. What cannot be learned now is tried when the form is sent. @returns {Promise<Ways>} */
async function waysIn() {
  const [status, others] = await Promise.all([call("GET", "v1/auth/setup-status").catch(() => ({})), call("GET", "v1/auth/providers").catch(() => ({}))]);
  return { setup: Boolean(status.needs_setup), registration: Boolean(status.registration), providers: others.providers ?? [] };
}

/** @param {{title: string, path: string}} props `path`: of the route that makes an account; without one signs in */
function Credentials({ title, path }) {
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const [remember, setRemember] = useState(true);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      const form = new URLSearchParams({ username: email, password, remember_me: String(remember) });
      await call("POST", path || "v1/auth/login/local", { body: path ? { email, password, remember_me: remember } : form });
      enter(await call("GET", "v1/auth/me"));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(problemOf(error, t("account.wrong")));
    }
    setBusy(false);
  };
  return html`<form class="fields" onSubmit=${submit}>
    <${Field} name=${t("account.email")} type="email" autocomplete="username" value=${email} onInput=${setEmail} />
    <${Field} name=${t("account.password")} type="password" autocomplete=${path ? "new-password" : "current-password"} value=${password} onInput=${setPassword} />
    <label class="check"><input type="checkbox" checked=${remember} onChange=${(/** @type {any} */ e) => setRemember(e.target.checked)} /> ${t("account.remember")}</label>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="card-actions"><${Button} kind="first" type="submit" disabled=${busy} onClick=${() => {}}>${title}<//></div>
  </form>`;
}
