// Buttons whose failure stands beside them.

import { html, useState } from "../vendor/preact.js";
import { Failure } from "../api/client.js";
import { t, wordsOf } from "../words/words.js";
import { Button } from "./button.js";

/** What the server says of a failure. @param {unknown} error */
export function sentenceOf(error) {
  if (!(error instanceof Failure)) throw error;
  return error.status > 0 && error.status < 500 && error.detail ? error.detail : wordsOf(error);
}

/** A button whose failure stands beside it. @param {{onAct: () => Promise<unknown>, children: any, kind?: "first"|"danger"|"quiet", ask?: string, disabled?: boolean}} props
 *   `ask`: what a second press confirms */
export function Act({ onAct, children, kind, ask, disabled = false }) {
  const [problem, setProblem] = useState("");
  const [state, setState] = useState(/** @type {"" | "asking" | "busy"} */ (""));
  const act = async () => {
    if (ask && state === "") return setState("asking");
    setState("busy");
    setProblem("");
    try {
      await onAct();
    } catch (error) {
      setProblem(sentenceOf(error));
    }
    return setState("");
  };
  return html`<span class="act">
    <${Button} kind=${state === "asking" ? "danger" : kind} disabled=${disabled || state === "busy"} onClick=${act}>${state === "asking" ? ask : children}<//>
    ${state === "asking" && html`<${Button} kind="quiet" onClick=${() => setState("")}>${t("cancel")}<//>`}
    ${problem && html`<span class="error" role="alert">${problem}</span>`}
  </span>`;
}
