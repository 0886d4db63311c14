// What sections are made of: things that are loaded, forms whose errors stand at their fields, secrets that are shown once,
// and the lines of the configuration file.

import { html, useEffect, useId, useRef, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { sentenceOf } from "../kit/act.js";
import { Button } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { saveAs } from "../kit/save.js";
import { whenLookedAt } from "../kit/view.js";
import { t } from "../words/words.js";

/**
 * What a route answers: asked again by `reload`, and whenever the page is looked at again. `problem` is why it did not answer.
 * @param {string} path @returns {{value: any, problem: string, reload: () => Promise<void>}}
 */
export function useAnswer(path) {
  const [value, setValue] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const asked = useRef(0);
  const reload = async () => {
    const turn = (asked.current += 1);
    try {
      const answer = await call("GET", path);
      if (turn !== asked.current) return;
      setValue(answer);
      setProblem("");
    } catch (error) {
      if (turn === asked.current) setProblem(sentenceOf(error));
    }
  };
  useEffect(() => (void reload(), whenLookedAt(() => void reload())), [path]);
  return { value, problem, reload };
}

/** Something that is shown once it has come; it stays while it cannot be asked for. @param {{of: {value: any, problem: string}, children: any}} props */
export function Loaded({ of, children }) {
  if (!of.value && !of.problem) return html`<p class="quiet">${t("loading")}</p>`;
  return html`${of.problem && html`<p class="error" role="alert">${of.problem}</p>`}${of.value && children}`;
}

/**
 * @typedef {{name: string, label: string, kind?: "text"|"email"|"password"|"number"|"select"|"check"|"text area", value?: any, hint?: string,
 *   options?: [string, string][], optional?: boolean, rows?: number, fixed?: boolean}} FieldOf
 */

/**
 * A form. An error of the server that begins with the name of a field stands below it. Where nobody has typed, it has the values that
 * its fields have now.
 * @param {{fields: FieldOf[], action: string, onSend: (values: Record<string, any>) => Promise<unknown>, second?: string, clears?: boolean}} props
 *   `second`: another button, which sends the values with `attempt`; `clears`: the fields are as at the beginning once it was sent.
 *   What came of it stands above the buttons: the text that `onSend` returns, or that it is done.
 */
export function Form({ fields, action, onSend, second, clears = false }) {
  const first = () => Object.fromEntries(fields.map(({ name, kind, value }) => [name, value ?? (kind === "check" ? false : "")]));
  const [values, setValues] = useState(first);
  const [problem, setProblem] = useState({ at: "", text: "" });
  const [busy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState("");
  const [from, setFrom] = useState(() => JSON.stringify(first()));
  const now = JSON.stringify(first());
  if (now !== from) {
    setFrom(now);
    if (JSON.stringify(values) === from) setValues(first());
  }
  const send = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const attempt = event.submitter?.hasAttribute("data-attempt") ?? false;
    setBusy(true);
    setProblem({ at: "", text: "" });
    setOutcome("");
    try {
      const text = await onSend(attempt ? { ...values, attempt } : values);
      setOutcome(typeof text === "string" ? text : t("settings.done"));
      if (clears && !attempt) setValues(first());
    } catch (error) {
      const text = sentenceOf(error);
      setProblem({ at: fieldOf(text, fields), text });
    }
    setBusy(false);
  };
  return html`<form class="fields settings-form" onSubmit=${send}>
    ${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]} problem=${problem.at === field.name ? problem.text : ""}
      onInput=${(/** @type {any} */ value) => (setOutcome(""), setValues((all) => ({ ...all, [field.name]: value })))} />`)}
    ${problem.text && !problem.at && html`<p class="error" role="alert">${problem.text}</p>`}
    ${outcome && html`<p role="status">${outcome}</p>`}
    <div class="card-actions"><${Button} kind="first" type="submit" disabled=${busy} onClick=${() => {}}>${action}<//>${second && html`<button type="submit" class="button" data-attempt disabled=${busy}>${second}</button>`}</div>
  </form>`;
}

/** The field that a sentence is about: it begins with its name, perhaps with a place before it. @param {string} text @param {FieldOf[]} fields */
function fieldOf(text, fields) {
  const place = text.split(/:\s/, 1)[0];
  const names = new Set(place.split(/[.[\]]/));
  return fields.find(({ name }) => names.has(name) && text !== place)?.name ?? "";
}

/** @param {{field: FieldOf, value: any, problem: string, onInput: (value: any) => void}} props */
function Field({ field, value, problem, onInput }) {
  const id = useId();
  const about = [field.hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined;
  const common = { id, name: field.name, disabled: field.fixed, "aria-describedby": about, "aria-invalid": problem ? "true" : undefined };
  const below = html`${field.hint && html`<small id="${id}-hint">${field.hint}</small>`}${problem && html`<span class="error" role="alert" id="${id}-problem">${problem}</span>`}`;
  const typed = (/** @type {any} */ event) => onInput(event.target.value);
  if (field.kind === "check")
    return html`<div class="labelled"><label class="check"><input type="checkbox" ...${common} checked=${value} onChange=${(/** @type {any} */ e) => onInput(e.target.checked)} /> ${field.label}</label>${below}</div>`;
  return html`<div class="labelled"><label for=${id}>${field.label}${field.optional && html` <span class="quiet">${t("field.optional")}</span>`}</label>
    ${field.kind === "select"
      ? html`<select class="field" ...${common} value=${value} onChange=${typed}>${(field.options ?? []).map(([key, label]) => html`<option key=${key} value=${key}>${label}</option>`)}</select>`
      : field.kind === "text area"
        ? html`<textarea class="field" dir="auto" ...${common} rows=${field.rows ?? 4} required=${!field.optional} value=${value} onInput=${typed}></textarea>`
        : html`<input class="field" dir="auto" ...${common} type=${field.kind ?? "text"} autocomplete=${field.kind === "password" ? "new-password" : "off"} required=${!field.optional} value=${value} onInput=${typed} />`}
    ${below}</div>`;
}

/** A secret that is shown this once. @param {{name: string, text: string}} props */
export function Once({ name, text }) {
  return html`<div class="made" role="status"><input class="field" readonly dir="ltr" aria-label=${name} value=${text} onFocus=${(/** @type {any} */ e) => e.target.select()} />
    <${Button} kind="first" onClick=${() => copyText(text)}>${t("copy")}<//><small>${t("share.once")}</small></div>`;
}

/** What only the configuration file decides, and the lines to write. @param {{lines: string}} props */
export function FileOnly({ lines }) {
  return html`<div class="file-only"><p>${t("settings.fileOnly")}</p><pre dir="ltr" tabindex="0">${lines}</pre><${Button} onClick=${() => copyText(lines)}>${t("copy")}<//></div>`;
}

/** The lines of a key in the file. @param {string} path as `limits.requests_per_minute` @param {string} value as YAML */
export function linesOf(path, value) {
  const parts = path.split(".");
  return parts.map((part, depth) => `${"  ".repeat(depth)}${part}:${depth === parts.length - 1 ? ` ${value}` : ""}`).join("\n");
}

/** The JSON of a text. Raises `Failure` with the field that it is from. @param {string} text @param {string} field */
export function parsed(text, field) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Failure(422, "json", `${field}: ${error instanceof Error ? error.message : ""}`);
  }
}

/** Saves a text as a file. @param {string} name @param {string} text */
export function save(name, text) {
  saveAs(name, new Blob([text], { type: "application/json" }));
}
