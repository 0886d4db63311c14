// A question of the agent: a form, options with room for another answer, or free text.

import { html, useState } from "../vendor/preact.js";
import { Button } from "../kit/button.js";
import { Icon } from "../kit/icon.js";
import { t } from "../words/words.js";
import { fieldsOfCard, linesOf } from "./fields.js";
import { Form } from "./form.js";

/**
 * @typedef {{text: string, context: string, options: any[], fields: any[], request: string, source: string}} Asked
 * @param {{question: Asked, answered?: boolean, onAnswer: (text: string, response: any) => Promise<boolean>}} props
 */
export function Question({ question, answered = false, onAnswer }) {
  const { text, context, options, fields, request, source } = question;
  const [sent, setSent] = useState(false);
  const answer = async (/** @type {string} */ value, /** @type {any} */ how = { response_kind: "text" }) => {
    setSent(true);
    const response = request ? { version: 1, kind: "human_input_response", source, request_id: request, value, ...how } : undefined;
    if (!(await onAnswer(value, response))) setSent(false);
  };
  const known = fieldsOfCard(fields);
  const shown = answered
    ? html`<p class="quiet"><${Icon} name="check" size=${16} /> ${t("question.answered")}</p>`
    : known.length
      ? html`<${Form} fields=${known} name=${t("send")} sent=${sent} onSend=${(/** @type {any} */ values) => answer(linesOf(known, values))} />`
      : html`${options.length > 0 && html`<div class="card-actions">${options.map((option) => html`<${Button} key=${option.label} disabled=${sent} onClick=${() => answer(String(option.value ?? option.label), option.id ? { response_kind: "option", option_id: option.id } : undefined)}>${option.label}<//>`)}</div>`}
          <${Free} other=${options.length > 0} sent=${sent} onSend=${answer} />`;
  return html`<section class="card waiting" role="group" aria-label=${t("question")}>
    ${context && html`<p class="quiet" dir="auto">${context}</p>`}<p class="card-title" dir="auto">${text}</p>${shown}
  </section>`;
}

/** @param {{other: boolean, sent: boolean, onSend: (text: string) => void}} props */
function Free({ other, sent, onSend }) {
  const [text, setText] = useState("");
  const name = other ? t("question.other") : t("question.answer");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (text.trim()) onSend(text.trim());
  };
  return html`<form class="question-free" onSubmit=${submit}>
    <input class="field" dir="auto" maxlength="10000" aria-label=${name} placeholder=${name} disabled=${sent} value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
    <${Button} kind=${other ? undefined : "first"} type="submit" disabled=${sent || !text.trim()} onClick=${() => {}}>${t("send")}<//>
  </form>`;
}
