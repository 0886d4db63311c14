// A form by its fields, each with its label, what it is for, and what is wrong with it.

import { html, useId, useRef, useState } from "../vendor/preact.js";
import { Button } from "../kit/button.js";
import { t } from "../words/words.js";
import { firstValues, problemsOf } from "./fields.js";

/** @typedef {import("./fields.js").Field} Field */

/**
 * @param {{fields: Field[], name: string, sent: boolean, onSend: (values: import("./fields.js").Values) => void, children?: any}} props
 *   `name`: of the button that sends it; `children`: other buttons
 */
export function Form({ fields, name, sent, onSend, children }) {
  const [values, setValues] = useState(() => firstValues(fields));
  const [tried, setTried] = useState(false);
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const problems = tried ? problemsOf(fields, values) : {};
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    setTried(true);
    const [first] = Object.keys(problemsOf(fields, values));
    if (!first) return onSend(values);
    requestAnimationFrame(() => /** @type {HTMLElement | null} */ (form.current?.querySelector("[aria-invalid='true']"))?.focus());
  };
  return html`<form ref=${form} class="fields" noValidate onSubmit=${submit}>
    ${fields.map((field) => html`<${OneField} key=${field.name} field=${field} value=${values[field.name]} problem=${problems[field.name]} sent=${sent} onInput=${(/** @type {any} */ value) => setValues({ ...values, [field.name]: value })} />`)}
    <div class="card-actions"><${Button} kind="first" type="submit" disabled=${sent} onClick=${() => {}}>${name}<//>${children}</div>
  </form>`;
}

/** @param {{field: Field, value: any, problem?: string, sent: boolean, onInput: (value: any) => void}} props */
function OneField({ field, value, problem, sent, onInput }) {
  const id = useId();
  const { kind, label, hint, required, options } = field;
  const about = [hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined;
  const common = { id, disabled: sent, "aria-describedby": about, "aria-invalid": problem ? "true" : undefined, "aria-required": required ? "true" : undefined };
  const notes = html`${hint && html`<small id="${id}-hint" dir="auto">${hint}</small>`}${problem && html`<small id="${id}-problem" class="error" role="alert">${problem}</small>`}`;
  if (kind === "boolean") {
    return html`<div class="labelled"><label class="check"><input ...${common} type="checkbox" checked=${value} onChange=${(/** @type {any} */ e) => onInput(e.target.checked)} /><span dir="auto">${label}</span></label>${notes}</div>`;
  }
  if (kind === "choices" || (kind === "choice" && options.length <= 5)) {
    const many = kind === "choices";
    const toggled = (/** @type {string} */ one, /** @type {boolean} */ on) => options.map((option) => option.value).filter((each) => (each === one ? on : value.includes(each)));
    return html`<fieldset class="labelled" aria-describedby=${about}>
      <legend><span dir="auto">${label}</span><${Optional} required=${required} /></legend>
      ${options.map((option, index) => html`<label class="check" key=${option.value}><input type=${many ? "checkbox" : "radio"} name=${id} disabled=${sent} aria-invalid=${problem && index === 0 ? "true" : undefined}
        checked=${many ? value.includes(option.value) : value === option.value} onChange=${(/** @type {any} */ e) => onInput(many ? toggled(option.value, e.target.checked) : option.value)} /><span dir="auto">${option.label}</span></label>`)}
      ${notes}</fieldset>`;
  }
  return html`<div class="labelled"><label for=${id}><span dir="auto">${label}</span><${Optional} required=${required} /></label>${inputOf(field, common, value, onInput)}${notes}</div>`;
}

/** @param {{required: boolean}} props */
const Optional = ({ required }) => !required && html`<small class="quiet"> ${t("field.optional")}</small>`;

const TYPES = /** @type {Record<string, string>} */ ({ email: "email", uri: "url", date: "date", "date-time": "datetime-local" });

/** @param {Field} field @param {any} common @param {any} value @param {(value: any) => void} onInput */
function inputOf({ kind, options, placeholder }, common, value, onInput) {
  const typed = (/** @type {any} */ event) => onInput(event.target.value);
  if (kind === "choice") {
    return html`<select class="field" ...${common} value=${value} onChange=${typed}><option value="">${t("field.choose")}</option>${options.map((one) => html`<option key=${one.value} value=${one.value}>${one.label}</option>`)}</select>`;
  }
  if (kind === "long") return html`<textarea class="field" rows="4" dir="auto" ...${common} placeholder=${placeholder} value=${value} onInput=${typed}></textarea>`;
  const number = kind === "integer" || kind === "number";
  return html`<input class="field" dir=${number ? "ltr" : "auto"} ...${common} type=${TYPES[kind] ?? "text"} inputmode=${number ? "decimal" : undefined} placeholder=${placeholder} value=${value} onInput=${typed} />`;
}
