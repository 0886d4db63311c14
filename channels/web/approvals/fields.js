// Fields of forms that people fill in: of programs (a flat JSON schema, as the Model Context Protocol has it) and of the
// agent's own questions. What is wrong with a value is said in words, at its field, before the server says so.

import { t } from "../words/words.js";

/**
 * @typedef {{value: string, label: string}} Option
 * @typedef {{name: string, kind: "text"|"long"|"integer"|"number"|"boolean"|"choice"|"choices"|"email"|"uri"|"date"|"date-time",
 *   label: string, hint: string, placeholder: string, required: boolean, options: Option[], schema: any}} Field
 * @typedef {Record<string, any>} Values raw: texts, booleans, lists of options
 */

const LONG = 200;
const MOST_CHARACTERS = 10_000;
const EMAIL = /^[^@\s]{1,64}@[^@\s]{1,255}$/;
const KINDS = /** @type {Record<string, Field["kind"]>} */ ({ text: "text", textarea: "long", number: "number", select: "choice", multi_select: "choices", checkbox: "boolean", date: "date" });

/** The fields of a JSON schema. @param {any} form @returns {Field[]} */
export function fieldsOfSchema(form) {
  const required = new Set(form?.required ?? []);
  return Object.entries(form?.properties ?? {}).map(([name, schema]) => ({
    name, schema, kind: kindOf(schema), label: String(schema.title ?? name), hint: String(schema.description ?? ""), placeholder: "",
    required: required.has(name), options: optionsOf(schema.type === "array" ? schema.items : schema),
  }));
}

/** The fields of a question's card. @param {any[]} fields @returns {Field[]} */
export function fieldsOfCard(fields) {
  return fields.map(({ name, label, type, required, options = [], placeholder = "" }) => ({
    name, label, placeholder, hint: "", required: Boolean(required), kind: KINDS[type] ?? "text", schema: {},
    options: options.map((/** @type {any} */ one) => ({ value: String(one.value), label: String(one.label) })),
  }));
}

/** @param {any} schema @returns {Field["kind"]} */
function kindOf(schema) {
  if (schema.type === "array") return "choices";
  if (schema.type === "integer" || schema.type === "number" || schema.type === "boolean") return schema.type;
  if (optionsOf(schema).length) return "choice";
  if (["email", "uri", "date", "date-time"].includes(schema.format)) return schema.format;
  return schema.maxLength > LONG ? "long" : "text";
}

/** @param {any} schema @returns {Option[]} */
function optionsOf(schema) {
  const titled = schema?.oneOf ?? schema?.anyOf;
  if (Array.isArray(titled)) return titled.map((one) => ({ value: String(one.const), label: String(one.title ?? one.const) }));
  return (schema?.enum ?? []).map((/** @type {any} */ value, /** @type {number} */ at) => ({ value: String(value), label: String(schema.enumNames?.[at] ?? value) }));
}

/** What fields hold at first. @param {Field[]} fields @returns {Values} */
export const firstValues = (fields) => Object.fromEntries(fields.map((field) => [field.name, firstOf(field)]));

/** @param {Field} field */
function firstOf({ kind, schema }) {
  if (kind === "boolean") return schema.default === true;
  if (kind === "choices") return (schema.default ?? []).map(String);
  return schema.default == null ? "" : String(schema.default);
}

/** The content of a form: without what was left empty. @param {Field[]} fields @param {Values} values */
export function contentOf(fields, values) {
  const filled = fields.map((field) => [field.name, contentOfField(field, values[field.name])]);
  return Object.fromEntries(filled.filter(([, value]) => value !== undefined));
}

/** @param {Field} field @param {any} value */
function contentOfField({ kind, required }, value) {
  if (kind === "boolean") return value;
  if (kind === "choices") return value.length || required ? value : undefined;
  if (!String(value).trim()) return undefined;
  if (kind === "date-time") return new Date(value).toISOString();
  return kind === "integer" || kind === "number" ? Number(value) : value;
}

/** The content as lines that a person reads. @param {Field[]} fields @param {Values} values */
export function linesOf(fields, values) {
  const shown = (/** @type {Field} */ field) => {
    const value = values[field.name];
    const label = (/** @type {string} */ one) => field.options.find((option) => option.value === one)?.label ?? one;
    return field.kind === "boolean" ? t(value ? "yes" : "no") : Array.isArray(value) ? value.map(label).join(", ") : label(String(value));
  };
  return fields.map((field) => [field.label, shown(field)]).filter(([, text]) => text).map((pair) => pair.join(": ")).join("\n");
}

/** What is wrong with each field, by name. @param {Field[]} fields @param {Values} values @returns {Record<string, string>} */
export function problemsOf(fields, values) {
  const problems = fields.map((field) => [field.name, problemOf(field, values[field.name])]);
  return Object.fromEntries(problems.filter(([, problem]) => problem));
}

/** @param {Field} field @param {any} value */
function problemOf({ kind, required, schema }, value) {
  if (kind === "boolean") return "";
  if (kind === "choices") return counted(value.length, schema.minItems ?? (required && schema.minItems === undefined ? 1 : undefined), schema.maxItems, "field.items");
  const text = String(value).trim();
  if (!text) return required ? t("field.required") : "";
  if (kind === "integer" || kind === "number") return numberProblem(kind, Number(text), schema);
  if (kind === "email" && !EMAIL.test(text)) return t("field.email");
  if (kind === "uri" && !URL.canParse(text)) return t("field.uri");
  if ((kind === "date" || kind === "date-time") && Number.isNaN(new Date(text).getTime())) return t("field.date");
  return counted([...value].length, schema.minLength, schema.maxLength ?? MOST_CHARACTERS, "field.length") || patternProblem(schema.pattern, value);
}

/** @param {string} kind @param {number} value @param {any} schema */
function numberProblem(kind, value, { minimum, maximum }) {
  if (Number.isNaN(value) || (kind === "integer" && !Number.isInteger(value))) return t(`field.${kind}`);
  return between(value, minimum, maximum, "field.number");
}

/** @param {number} count @param {number|undefined} least @param {number|undefined} most @param {string} key */
const counted = (count, least, most, key) => between(count, least, most, key);

/** @param {number} value @param {number|undefined} least @param {number|undefined} most @param {string} key */
function between(value, least, most, key) {
  if (least != null && value < least) return t(`${key}.least`, { least });
  return most != null && value > most ? t(`${key}.most`, { most }) : "";
}

/** @param {unknown} pattern @param {string} value */
function patternProblem(pattern, value) {
  if (typeof pattern !== "string" || value.length > 500) return "";
  try {
    return new RegExp(pattern, "u").test(value) ? "" : t("field.pattern", { pattern });
  } catch {
    return ""; // the server knows
  }
}
