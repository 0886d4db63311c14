// Skills: installed by upload or address after a check, whose verdict is shown; on and off; edited, with what they were before.

import { html, useState } from "../vendor/preact.js";
import { call, upload } from "../api/client.js";
import { Act } from "../kit/act.js";
import { forgetSkills } from "../chat/completions.js";
import { moment, t } from "../words/words.js";
import { Form, Loaded, useAnswer } from "./parts.js";

/** @typedef {{name: string, description: string, category: string, enabled: boolean, editable: boolean}} Skill */

const pathOf = (/** @type {string} */ name) => `skills/custom/${encodeURIComponent(name)}`;

/** @param {{me: {system_role: string}}} props */
export function Skills({ me }) {
  const answer = useAnswer("skills");
  const [open, setOpen] = useState({ name: "", what: "" });
  const [said, setSaid] = useState("");
  const changed = async () => {
    forgetSkills();
    await answer.reload();
  };
  const show = (/** @type {string} */ name, /** @type {string} */ what) => setOpen(open.name === name && open.what === what ? { name: "", what: "" } : { name, what });
  const turn = (/** @type {Skill} */ skill) => call("PUT", `skills/${encodeURIComponent(skill.name)}`, { body: { enabled: !skill.enabled } }).then(changed);
  return html`<p>${t("settings.skills.text")}</p>
    <${Install} onDone=${async (/** @type {string} */ text) => (setSaid(text), await changed())} />
    ${said && html`<p role="status">${said}</p>`}
    <${Loaded} of=${answer}>
      ${answer.value?.skipped.map((/** @type {any} */ { path, reason }) => html`<p class="error" key=${path}><bdi>${path}</bdi>: ${reason}</p>`)}
      <ul class="rows">${answer.value?.skills.map((/** @type {Skill} */ skill) => html`<li key=${skill.name} class=${skill.enabled ? "" : "off"}>
        <span><bdi>/${skill.name}</bdi>${!skill.enabled && ` · ${t("skills.off")}`} <small dir="auto">${t(skill.editable ? "skills.own" : "skills.all")} · ${skill.description}</small></span>
        <span class="acts">${(skill.editable || me.system_role === "admin") && html`<${Act} onAct=${() => turn(skill)}>${t(skill.enabled ? "settings.skills.turnOff" : "settings.skills.turnOn")}<//>`}
          ${skill.editable && html`<${Act} onAct=${async () => show(skill.name, "edit")}>${t("edit")}<//><${Act} onAct=${async () => show(skill.name, "history")}>${t("settings.history")}<//>
            <${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => call("DELETE", pathOf(skill.name)).then(changed)}>${t("delete")}<//>`}</span>
        ${open.name === skill.name && open.what === "edit" && html`<${Editor} name=${skill.name} onDone=${async () => (await changed(), setOpen({ name: "", what: "" }))} />`}
        ${open.name === skill.name && open.what === "history" && html`<${History} name=${skill.name} onDone=${changed} />`}
      </li>`)}</ul>
    <//>`;
}

/** @param {{onDone: (said: string) => Promise<void>}} props */
function Install({ onDone }) {
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const send = async () => {
    if (!file) return;
    const form = new FormData();
    form.append("file", file, file.name);
    const { skill_name: name, verdict } = await upload("skills/upload", form, () => {}, new AbortController().signal);
    setFile(null);
    await onDone([t("skills.taken", { name }), verdictOf(verdict)].filter(Boolean).join(" "));
  };
  const fetched = async (/** @type {Record<string, any>} */ values) => {
    const { skill_name: name, verdict } = await call("POST", "skills/install/url", { body: values });
    await onDone("");
    return [t("settings.skills.fetched", { name }), verdictOf(verdict)].filter(Boolean).join(" ");
  };
  return html`<div class="acts"><label class="button">${file?.name ?? t("settings.skills.choose")}<input type="file" class="visually-hidden" accept=".skill,.zip" onChange=${(/** @type {any} */ e) => setFile(e.target.files[0] ?? null)} /></label>
    ${file && html`<${Act} key=${file.name} kind="first" onAct=${send}>${t("skills.upload")}<//>`}</div>
    <${Form} clears=${true} action=${t("settings.skills.fetch")} onSend=${fetched} fields=${[{ name: "url", label: t("settings.skills.url"), hint: t("settings.skills.url.hint") }]} />`;
}

/** What the check said. @param {Record<string, any>} verdict */
const verdictOf = (verdict) => (verdict?.decision ? t("settings.skills.verdict", { text: [verdict.decision, verdict.reason].filter(Boolean).join(": ") }) : "");

/** @param {{name: string, onDone: () => Promise<void>}} props */
function Editor({ name, onDone }) {
  const answer = useAnswer(pathOf(name));
  return html`<${Loaded} of=${answer}><${Form} action=${t("save")} fields=${[{ name: "content", label: "SKILL.md", kind: "text area", rows: 14, value: answer.value?.content }]}
    onSend=${(/** @type {Record<string, any>} */ values) => call("PUT", pathOf(name), { body: values }).then(onDone)} /><//>`;
}

/** @param {{name: string, onDone: () => Promise<void>}} props */
function History({ name, onDone }) {
  const answer = useAnswer(`${pathOf(name)}/history`);
  const back = (/** @type {number} */ index) => call("POST", `${pathOf(name)}/rollback`, { body: { history_index: index } }).then(answer.reload).then(onDone);
  return html`<${Loaded} of=${answer}><ol class="history">${answer.value?.history.map((/** @type {any} */ entry, /** @type {number} */ index) => html`<li key=${entry.ts}>
    ${moment(entry.ts)} · ${entry.action} <code>${entry.file_path}</code> <small>${entry.author} ${verdictOf(entry.scanner)}</small>
    ${entry.prev_content !== null && html`<details><summary>${t("settings.skills.before")}</summary><pre dir="auto" tabindex="0">${entry.prev_content}</pre><${Act} ask=${t("settings.sure")} onAct=${() => back(index)}>${t("settings.back")}<//></details>`}</li>`)}</ol><//>`;
}
