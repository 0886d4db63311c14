// Models: those of the file and those that were added here, tried by a real call, and chosen for roles.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { loadModels } from "../chat/choices.js";
import { t } from "../words/words.js";
import { FileOnly, Form, Loaded, useAnswer } from "./parts.js";

/**
 * @typedef {{name: string, model: string, source: "file"|"event", line: number|null, provider: string|null, base_url: string|null,
 *   display_name: string|null, supports_vision: boolean, supports_thinking: boolean, key: boolean}} Model
 * @typedef {{role: string, models: string[], source: "file"|"event"|"default"}} Role
 * @typedef {{name: string, base_url: string|null, own_address: boolean, needs_key: boolean, example: string}} Provider
 * @typedef {{models: Model[], roles: Role[], providers: Provider[], default: string|null}} Settings
 */

const PATH = "model-settings";
const pathOf = (/** @type {string} */ name) => `${PATH}/models/${encodeURIComponent(name)}`;

export function Models() {
  const answer = useAnswer(PATH);
  const [edited, setEdited] = useState(/** @type {Model | null} */ (null));
  const [tried, setTried] = useState(/** @type {Record<string, string>} */ ({}));
  /** @type {Settings | null} */ const settings = answer.value;
  const changed = async () => {
    await answer.reload();
    await loadModels();
  };
  const test = async (/** @type {string} */ name) => {
    setTried((all) => ({ ...all, [name]: "…" }));
    const said = wordsOfTrial(await call("POST", `${pathOf(name)}/try`));
    setTried((all) => ({ ...all, [name]: said }));
  };
  const choose = (/** @type {string} */ role, /** @type {string[]} */ models) => call("PUT", `${PATH}/roles/${role}`, { body: { models } }).then(changed);
  return html`<p>${t("settings.models.text")}</p>
    <${Loaded} of=${answer}>
      ${settings?.models.length === 0 && html`<p class="quiet">${t("settings.models.demo")}</p>`}
      <ul class="rows">${settings?.models.map((model) => html`<li key=${model.name}>
        <span><bdi>${model.display_name ?? model.name}</bdi>${model.name === settings.default && html` <strong class="tag">${t("settings.models.default")}</strong>`}
          <small><bdi>${[model.name, model.model, model.base_url].filter(Boolean).join(" · ")}</bdi> · ${model.source === "file" ? `${t("settings.source.file")}${model.line ? `, ${t("settings.source.line", { line: model.line })}` : ""}` : t("settings.source.event")}</small>
          ${tried[model.name] && html`<small role="status">${tried[model.name]}</small>`}</span>
        <span class="acts">
          <${Act} onAct=${() => test(model.name)}>${t("settings.try")}<//>
          ${model.name !== settings.default && roleOf(settings, "lead").source !== "file" && html`<${Act} onAct=${() => choose("lead", [model.name])}>${t("settings.models.makeDefault")}<//>`}
          ${model.source === "event" && html`<${Act} onAct=${async () => setEdited(model)}>${t("edit")}<//><${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => call("DELETE", pathOf(model.name)).then(changed)}>${t("delete")}<//>`}
        </span></li>`)}</ul>
      ${settings && html`<${Editor} key=${edited?.name ?? ""} model=${edited} providers=${settings.providers} onDone=${async () => (setEdited(null), await changed())} />
        <h3>${t("settings.models.roles")}</h3><p>${t("settings.models.roles.text")}</p>
        ${settings.roles.map((role) => html`<${RoleChoice} key=${role.role} role=${role} models=${settings.models} onChoose=${choose} />`)}`}
    <//>`;
}

/** @param {Settings} settings @param {string} role */
const roleOf = (settings, role) => /** @type {Role} */ (settings.roles.find((one) => one.role === role));

/** @param {{ok: boolean, problem: string, seconds: number}} trial */
const wordsOfTrial = ({ ok, problem, seconds }) => (ok ? t("settings.models.answered", { seconds: seconds.toFixed(1) }) : t("settings.models.failed", { text: problem }));

/** @param {{model: Model | null, providers: Provider[], onDone: () => Promise<void>}} props `model`: one that is changed; else one is added */
function Editor({ model, providers, onDone }) {
  const bodyOf = (/** @type {Record<string, any>} */ values) => /** @type {Record<string, any>} */ ({ ...values, base_url: values.base_url.trim() || null, api_key: values.api_key || null, display_name: values.display_name.trim() || null });
  const save = async (/** @type {Record<string, any>} */ values) => {
    const { name, attempt, ...body } = bodyOf(values);
    if (attempt) return wordsOfTrial(await call("POST", `${PATH}/try`, { body: { name, ...body } }));
    await call("PUT", pathOf(name), { body });
    return onDone();
  };
  return html`<h3>${model ? t("settings.models.change", { name: model.name }) : t("settings.models.add")}</h3>
    <${Form} clears=${!model} action=${t("save")} second=${t("settings.try")} onSend=${save} fields=${[
      { name: "name", label: t("settings.models.name"), value: model?.name, fixed: model !== null, hint: t("settings.models.name.hint") },
      { name: "provider", label: t("settings.models.provider"), kind: "select", value: model?.provider ?? providers[0].name, options: providers.map(({ name }) => [name, name]) },
      { name: "model", label: t("settings.models.model"), value: model?.model, hint: t("settings.models.model.hint", { example: providers[0].example }) },
      { name: "base_url", label: t("settings.models.address"), value: model?.base_url ?? "", optional: true, hint: t("settings.models.address.hint") },
      { name: "api_key", label: t("account.keys.one"), kind: "password", optional: true, hint: model?.key ? t("settings.models.key.kept") : t("settings.models.key.hint") },
      { name: "display_name", label: t("settings.models.shown"), value: model?.display_name ?? "", optional: true },
      { name: "supports_vision", label: t("settings.models.vision"), kind: "check", value: model?.supports_vision },
      { name: "supports_thinking", label: t("settings.models.thinking"), kind: "check", value: model?.supports_thinking },
    ]} />`;
}

/** @param {{role: Role, models: Model[], onChoose: (role: string, models: string[]) => Promise<unknown>}} props */
function RoleChoice({ role, models, onChoose }) {
  const name = t(`settings.role.${role.role}`);
  if (role.source === "file") return html`<p><strong>${name}</strong>: <bdi>${role.models.join(", ")}</bdi></p><${FileOnly} lines=${`model_roles:\n  ${role.role}: [${role.models.join(", ")}]`} />`;
  const [first = "", second = ""] = role.models;
  const options = [["", t("settings.models.none")], ...models.map((model) => [model.name, model.display_name ?? model.name])];
  return html`<fieldset class="role"><legend>${name}</legend>
    <${Form} action=${t("save")} onSend=${(/** @type {Record<string, any>} */ values) => onChoose(role.role, [values.first, values.second].filter(Boolean))} fields=${[
      { name: "first", label: t("settings.models.first"), kind: "select", value: first, options },
      { name: "second", label: t("settings.models.second"), kind: "select", value: second, options },
    ]} /></fieldset>`;
}
