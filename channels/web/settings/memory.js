// What is remembered of the person: read, corrected, forgotten, exported; and what an agent was told in which run.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { copyText } from "../kit/copy.js";
import { Button } from "../kit/button.js";
import { entryOf, threads } from "../state/threads.js";
import { moment, t } from "../words/words.js";
import { Form, Loaded, parsed, save, useAnswer } from "./parts.js";

/** @typedef {{id: string, content: string, category: string, confidence: number, createdAt?: string, source: string}} Fact */

export function Memory() {
  const memory = useAnswer("memory");
  const config = useAnswer("memory/config");
  const [edited, setEdited] = useState("");
  const facts = /** @type {Fact[]} */ (memory.value?.facts ?? []);
  const summaries = ["user", "history"].flatMap((group) => Object.entries(memory.value?.[group] ?? {}).filter(([, section]) => section.summary));
  const add = (/** @type {Record<string, any>} */ values) => call("POST", "memory/facts", { body: values }).then(memory.reload);
  const forget = (/** @type {Fact} */ fact) => call("DELETE", pathOf(fact)).then(memory.reload);
  return html`<p>${t("settings.memory.text")}</p>
    ${config.value?.enabled === false && html`<p class="quiet">${t("settings.memory.off")}</p>`}
    <${Loaded} of=${memory}>
      ${facts.length === 0 && html`<p class="quiet">${t("settings.memory.none")}</p>`}
      <ul class="rows">${facts.map((fact) => html`<li key=${fact.id}>${edited === fact.id
        ? html`<${Form} action=${t("save")} onSend=${async (/** @type {Record<string, any>} */ values) => (await call("PATCH", pathOf(fact), { body: values }), setEdited(""), await memory.reload())}
            fields=${[{ name: "content", label: t("settings.memory.fact"), kind: "text area", rows: 2, value: fact.content }]} />`
        : html`<span><bdi>${fact.content}</bdi><small>${fact.category} · <${Source} fact=${fact} /></small></span>
          <span class="acts"><${Act} onAct=${async () => setEdited(fact.id)}>${t("settings.memory.correct")}<//><${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => forget(fact)}>${t("settings.memory.forget")}<//></span>`}</li>`)}</ul>
      ${summaries.map(([name, section]) => html`<h3 key=${name}>${name}</h3><p key=${`${name} text`} dir="auto">${section.summary}</p>`)}
    <//>
    <h3>${t("settings.memory.add")}</h3>
    <${Form} clears=${true} action=${t("settings.memory.remember")} onSend=${add} fields=${[{ name: "content", label: t("settings.memory.fact"), kind: "text area", rows: 2 }]} />
    <h3>${t("settings.memory.groups")}</h3><${Groups} />
    <h3>${t("settings.memory.told")}</h3><${Told} />
    <h3>${t("settings.memory.all")}</h3>
    <div class="acts"><${Act} onAct=${async () => save("memory.json", JSON.stringify(await call("GET", "memory/export"), null, 2))}>${t("export")}<//>
      <${Import} onDone=${memory.reload} />
      <${Act} kind="danger" ask=${t("settings.memory.sure")} onAct=${() => call("DELETE", "memory").then(memory.reload)}>${t("settings.memory.forgetAll")}<//></div>`;
}

/** Whether it goes into the person's own turns in groups of chat platforms. */
function Groups() {
  const settings = useAnswer("memory/settings");
  const on = settings.value?.in_groups === true;
  const set = () => call("PUT", "memory/settings", { body: { in_groups: !on } }).then(settings.reload);
  return html`<${Loaded} of=${settings}><p>${t(on ? "settings.memory.groups.on" : "settings.memory.groups.off")}</p>
    <div class="acts"><${Act} onAct=${set}>${t(on ? "settings.memory.groups.end" : "settings.memory.groups.begin")}<//></div><//>`;
}

/** @param {Fact} fact */
const pathOf = (fact) => `memory/facts/${encodeURIComponent(fact.id)}`;

/** Where a fact is from. @param {{fact: Fact}} props */
function Source({ fact }) {
  const thread = entryOf(fact.source);
  if (thread) return html`<a href="#/t/${fact.source}">${thread.title || t("approvals.untitled")}</a>`;
  return fact.source === "manual" ? t("settings.memory.own") : t("settings.memory.conversation");
}

/** @param {{onDone: () => Promise<void>}} props */
function Import({ onDone }) {
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const send = async () => file && call("POST", "memory/import", { body: parsed(await file.text(), file.name) }).then(onDone);
  return html`<label class="button">${file?.name ?? t("settings.memory.choose")}<input type="file" class="visually-hidden" accept=".json" onChange=${(/** @type {any} */ e) => setFile(e.target.files[0] ?? null)} /></label>
    ${file && html`<${Act} ask=${t("settings.sure")} onAct=${send}>${t("settings.memory.import")}<//>`}`;
}

/** What an agent was told in the runs of a conversation. */
function Told() {
  const [thread, setThread] = useState("");
  const options = threads.value.slice(0, 50);
  return html`<p class="labelled"><label for="told-thread">${t("conversation")}</label>
    <select id="told-thread" class="field" value=${thread} onChange=${(/** @type {any} */ e) => setThread(e.target.value)}><option value="">${t("field.choose")}</option>
      ${options.map((one) => html`<option key=${one.id} value=${one.id}>${one.title || t("approvals.untitled")} · ${moment(one.updatedAt)}</option>`)}</select></p>
    ${thread && html`<${ToldIn} key=${thread} thread=${thread} />`}`;
}

/** @param {{thread: string}} props */
function ToldIn({ thread }) {
  const told = useAnswer(`threads/${thread}/memory`);
  return html`<${Loaded} of=${told}>
    ${told.value?.runs.length === 0 && html`<p class="quiet">${t("settings.memory.toldNothing")}</p>`}
    <ul class="told">${told.value?.runs.map((/** @type {any} */ run) => html`<li key=${run.message_id}><a href="#/t/${thread}">${t("changes.run")}</a> <${Button} kind="quiet" onClick=${() => copyText(run.run_id ?? "")}><code>${run.run_id}</code><//>
      <ul>${run.facts.map((/** @type {any} */ fact) => html`<li key=${fact.ref}>${fact.text === null ? html`<em>${t("settings.memory.forgotten")}</em>` : html`<bdi>${fact.text}</bdi>`}</li>`)}</ul></li>`)}</ul>
  <//>`;
}
