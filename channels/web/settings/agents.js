// Agents of the person: made by a form or in a conversation, edited, and made again what they were.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { chosen, contextOf, loadAgents, models } from "../chat/choices.js";
import { go } from "../state/route.js";
import { remember } from "../state/stored.js";
import { moment, t } from "../words/words.js";
import { FileOnly, Form, Loaded, linesOf, useAnswer } from "./parts.js";

/** @typedef {{name: string, description: string, model: string|null, skills: string[]|null, soul: string|null}} Agent */

const pathOf = (/** @type {string} */ name) => `agents/${encodeURIComponent(name)}`;

export function Agents() {
  const answer = useAnswer("agents");
  const [edited, setEdited] = useState("");
  const [history, setHistory] = useState("");
  if (answer.problem.includes("agents_api")) return html`<p>${t("settings.agents.off")}</p><${FileOnly} lines=${linesOf("agents_api.enabled", "true")} />`;
  const changed = async () => {
    setEdited("");
    await answer.reload();
    await loadAgents();
  };
  const create = (/** @type {Record<string, any>} */ values) => call("POST", "agents", { body: bodyOf(values) }).then(changed);
  return html`<p>${t("settings.agents.text")}</p>
    <${Loaded} of=${answer}>
      ${answer.value?.agents.length === 0 && html`<p class="quiet">${t("settings.agents.none")}</p>`}
      <ul class="rows">${answer.value?.agents.map((/** @type {Agent} */ agent) => html`<li key=${agent.name}>
        <span><bdi>${agent.name}</bdi><small dir="auto">${agent.description}</small></span>
        <span class="acts"><${Act} onAct=${async () => talk(agent.name)}>${t("settings.agents.talk")}<//><${Act} onAct=${async () => setEdited(edited === agent.name ? "" : agent.name)}>${t("edit")}<//>
          <${Act} onAct=${async () => setHistory(history === agent.name ? "" : agent.name)}>${t("settings.history")}<//>
          <${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => call("DELETE", pathOf(agent.name)).then(changed)}>${t("delete")}<//></span>
        ${edited === agent.name && html`<${Form} action=${t("save")} fields=${fieldsOf(agent)} onSend=${(/** @type {Record<string, any>} */ values) => call("PUT", pathOf(agent.name), { body: bodyOf(values) }).then(changed)} />`}
        ${history === agent.name && html`<${History} name=${agent.name} onChange=${changed} />`}
      </li>`)}</ul>
    <//>
    <h3>${t("settings.agents.chat")}</h3><p>${t("settings.agents.chat.text")}</p>
    <${Form} action=${t("settings.agents.begin")} onSend=${begin} fields=${[{ name: "name", label: t("settings.models.name") }, { name: "wish", label: t("settings.agents.wish"), kind: "text area" }]} />
    <h3>${t("settings.agents.add")}</h3>
    <${Form} clears=${true} action=${t("settings.agents.make")} onSend=${create} fields=${[{ name: "name", label: t("settings.models.name"), hint: t("settings.agents.name.hint") }, ...fieldsOf(null)]} />`;
}

/** @param {Agent | null} agent */
const fieldsOf = (agent) => [
  { name: "description", label: t("settings.agents.description"), value: agent?.description, optional: true },
  { name: "model", label: t("settings.models.model"), kind: "select", value: agent?.model ?? "", options: [["", t("settings.models.default")], ...models.value.map((model) => [model.name, model.display_name || model.name])] },
  { name: "soul", label: t("settings.agents.soul"), kind: "text area", rows: 8, value: agent?.soul ?? "", optional: true, hint: t("settings.agents.soul.hint") },
  { name: "skills", label: t("skills"), value: agent?.skills?.join(", ") ?? "", optional: true, hint: t("settings.agents.skills.hint") },
];

/** @param {Record<string, any>} values */
function bodyOf({ model, skills, ...values }) {
  const names = skills.split(/[\s,]+/).filter(Boolean);
  return { ...values, model: model || null, skills: names.length ? names : null };
}

/** Begins a conversation with an agent. @param {string} name */
function talk(name) {
  chosen.value = { ...chosen.value, agent: name };
  remember("choices", chosen.value);
  go("");
}

/** Begins the conversation in which an agent is made. @param {Record<string, any>} values */
async function begin({ name, wish }) {
  await call("GET", "agents/check", { query: { name } });
  const thread = crypto.randomUUID();
  const making = { is_bootstrap: true, agent_name: name };
  const message = { type: "human", id: crypto.randomUUID(), content: wish };
  await call("POST", `threads/${thread}/runs`, { body: { assistant_id: "lead_agent", context: { ...contextOf(), ...making }, input: { messages: [message] }, on_disconnect: "continue", if_not_exists: "create" } });
  remember(`making.${thread}`, making);
  go(`t/${thread}`);
}

/** @param {{name: string, onChange: () => Promise<void>}} props */
function History({ name, onChange }) {
  const answer = useAnswer(`${pathOf(name)}/history`);
  const back = (/** @type {number} */ version) => call("POST", `${pathOf(name)}/rollback`, { body: { version } }).then(answer.reload).then(onChange);
  return html`<${Loaded} of=${answer}><ol class="history">${answer.value?.versions.map((/** @type {any} */ one, /** @type {number} */ index) => html`<li key=${one.version}>
    ${moment(one.at)} · ${one.changed.join(", ") || t("settings.agents.made")} <small>${one.by}</small>
    ${index > 0 && one.agent && html` <${Act} ask=${t("settings.sure")} onAct=${() => back(one.version)}>${t("settings.back")}<//>`}</li>`)}</ol><//>`;
}
