// Schedules: prompts at times that the person sets, in their own time zone.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { agents } from "../chat/choices.js";
import { moment, t } from "../words/words.js";
import { Form, Loaded, useAnswer } from "./parts.js";

/**
 * @typedef {{id: string, title: string, prompt: string, schedule_type: "cron"|"once", schedule_spec: any, timezone: string, status: string,
 *   next_run_at: string|null, last_run_at: string|null, last_thread_id: string|null, last_error: string|null, run_count: number}} Task
 */

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const PATH = "scheduled-tasks";

export function Schedules() {
  const answer = useAnswer(PATH);
  const [open, setOpen] = useState("");
  const create = async (/** @type {Record<string, any>} */ { title, prompt, kind, schedule_spec: when, assistant_id }) => {
    const spec = kind === "cron" ? { cron: when } : { run_at: when };
    await call("POST", PATH, { body: { title, prompt, schedule_type: kind, schedule_spec: spec, timezone: ZONE, ...(assistant_id ? { assistant_id } : {}) } });
    await answer.reload();
  };
  return html`<p>${t("settings.schedules.text", { zone: ZONE })}</p>
    <${Loaded} of=${answer}>
      ${answer.value?.length === 0 && html`<p class="quiet">${t("settings.schedules.none")}</p>`}
      <ul class="rows">${answer.value?.map((/** @type {Task} */ task) => html`<${Row} key=${task.id} task=${task} open=${open === task.id} onOpen=${() => setOpen(open === task.id ? "" : task.id)} onChange=${answer.reload} />`)}</ul>
    <//>
    <h3>${t("settings.schedules.add")}</h3>
    <${Form} clears=${true} action=${t("settings.schedules.make")} onSend=${create} fields=${[
      { name: "title", label: t("settings.schedules.title") },
      { name: "prompt", label: t("settings.schedules.prompt"), kind: "text area", rows: 3 },
      { name: "kind", label: t("settings.schedules.kind"), kind: "select", value: "cron", options: [["cron", t("settings.schedules.cron")], ["once", t("settings.schedules.once")]] },
      { name: "schedule_spec", label: t("settings.schedules.when"), value: "0 9 * * 1-5", hint: t("settings.schedules.when.hint") },
      { name: "assistant_id", label: t("settings.schedules.agent"), kind: "select", value: "", options: [["", t("agent.lead")], ...agents.value.map(({ name }) => [name, name])] },
    ]} />`;
}

/** @param {{task: Task, open: boolean, onOpen: () => void, onChange: () => Promise<void>}} props */
function Row({ task, open, onOpen, onChange }) {
  const act = (/** @type {string} */ what) => call("POST", `${PATH}/${task.id}/${what}`).then(onChange);
  const paused = task.status === "paused";
  const when = task.schedule_spec.cron ?? task.schedule_spec.run_at;
  return html`<li class=${paused ? "off" : ""}><span><bdi>${task.title}</bdi>
      <small><code>${when}</code> · ${task.timezone} · ${paused ? t("settings.schedules.paused") : task.next_run_at ? t("settings.schedules.next", { time: moment(task.next_run_at) }) : t("settings.schedules.noNext")}</small>
      ${task.last_error && html`<small class="error">${task.last_error}</small>`}</span>
    <span class="acts"><${Act} onAct=${() => act("trigger")}>${t("settings.schedules.now")}<//>
      <${Act} onAct=${() => act(paused ? "resume" : "pause")}>${t(paused ? "settings.schedules.resume" : "settings.schedules.pause")}<//>
      <${Act} onAct=${async () => onOpen()}>${t("settings.history")}<//>
      <${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => call("DELETE", `${PATH}/${task.id}`).then(onChange)}>${t("delete")}<//></span>
    ${open && html`<${Runs} key=${task.run_count} id=${task.id} />`}</li>`;
}

/** @param {{id: string}} props */
function Runs({ id }) {
  const answer = useAnswer(`${PATH}/${id}/runs`);
  return html`<${Loaded} of=${answer}>${answer.value?.length === 0 && html`<p class="quiet">${t("settings.schedules.never")}</p>`}
    <ol class="history">${answer.value?.map((/** @type {any} */ run) => html`<li key=${run.id}>${run.thread_id ? html`<a href="#/t/${run.thread_id}">${moment(run.scheduled_for)}</a>` : moment(run.scheduled_for)} · ${t(`settings.firing.${run.status}`)} ${run.error && html`<span class="error">${run.error}</span>`}</li>`)}</ol><//>`;
}
