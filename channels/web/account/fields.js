// Fields of the forms about accounts, and what is wrong with them in words.

import { html, useId } from "../vendor/preact.js";
import { wordsOf } from "../words/words.js";

/** @param {{name: string, type: string, autocomplete: string, value: string, onInput: (value: string) => void}} props */
export function Field({ name, type, autocomplete, value, onInput }) {
  const id = useId();
  return html`<p class="labelled"><label for=${id}>${name}</label>
    <input id=${id} class="field" type=${type} autocomplete=${autocomplete} required dir="ltr" value=${value} onInput=${(/** @type {any} */ e) => onInput(e.target.value)} /></p>`;
}

/** @param {import("../api/client.js").Failure} failure @param {string} wrong what a wrong password is called */
export function problemOf(failure, wrong) {
  if (failure.code === "invalid_credentials") return wrong;
  return failure.status === 401 && failure.detail ? failure.detail : wordsOf(failure);
}
