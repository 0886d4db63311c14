// Choosing another password.

import { html, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { Dialog } from "../kit/dialog.js";
import { notify } from "../kit/toast.js";
import { t } from "../words/words.js";
import { Field, problemOf } from "./fields.js";
import { enter } from "./session.js";

/** @param {{onClose: () => void}} props */
export function Password({ onClose }) {
  const [before, setBefore] = useState("");
  const [next, setNext] = useState("");
  const [problem, setProblem] = useState("");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await call("POST", "v1/auth/change-password", { body: { current_password: before, new_password: next } });
      enter(await call("GET", "v1/auth/me"));
      notify(t("account.password.changed"));
      onClose();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(problemOf(error, t("account.password.wrong")));
    }
  };
  return html`<${Dialog} title=${t("account.password.change")} onClose=${onClose}><form class="fields" onSubmit=${submit}>
    <p class="quiet">${t("account.password.text")}</p>
    <${Field} name=${t("account.password.now")} type="password" autocomplete="current-password" value=${before} onInput=${setBefore} />
    <${Field} name=${t("account.password.next")} type="password" autocomplete="new-password" value=${next} onInput=${setNext} />
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="card-actions"><${Button} kind="first" type="submit" onClick=${() => {}}>${t("save")}<//></div>
  </form><//>`;
}
