// Chat platforms: the bots' state and last failure, their credentials and tests, and the person's connections to them.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { moment, t } from "../words/words.js";
import { Form, Loaded, useAnswer } from "./parts.js";

/**
 * @typedef {{enabled: boolean, running: boolean, state: string, reason: string, connected_since: string|null, last_in: string|null, last_out: string|null, failures: number, last_failure: string}} Status
 * @typedef {{provider: string, display_name: string, enabled: boolean, configured: boolean, connectable: boolean, unavailable_reason?: string, credential_fields: {name: string, label: string, type: "password"|"text"}[]}} Provider
 */

/** @param {{me: {system_role: string}}} props */
export function Channels({ me }) {
  const status = useAnswer("channels/");
  const providers = useAnswer("channels/providers");
  const connections = useAnswer("channels/connections");
  const [edited, setEdited] = useState("");
  const [begun, setBegun] = useState(/** @type {any} */ (null));
  const admin = me.system_role === "admin";
  const all = async () => void (await Promise.all([status.reload(), providers.reload(), connections.reload()]));
  const enter = (/** @type {string} */ name, /** @type {Record<string, any>} */ values) => call("POST", `channels/${name}/runtime-config`, { body: { values } }).then(() => setEdited("")).then(all);
  return html`<p>${t("settings.channels.text")}</p>
    <${Loaded} of=${status}><ul class="rows">${Object.entries(status.value?.channels ?? {}).map(([name, one]) => html`<${Account} key=${name} name=${name} status=${one} admin=${admin} onChange=${all} />`)}</ul><//>
    <h3>${t("settings.channels.platforms")}</h3>
    ${begun && html`<p role="status">${begun.instruction} <code>${begun.code}</code> ${begun.url && html`<a href=${begun.url} target="_blank" rel="noopener noreferrer">${begun.provider}</a>`}</p>`}
    <${Loaded} of=${providers}><ul class="rows">${providers.value?.providers.map((/** @type {Provider} */ one) => html`<li key=${one.provider}>
      <span><bdi>${one.display_name}</bdi><small>${t(one.configured ? "settings.channels.configured" : "settings.channels.notConfigured")} ${one.unavailable_reason ?? ""}</small></span>
      <span class="acts">${one.connectable && html`<${Act} onAct=${async () => setBegun(await call("POST", `channels/${one.provider}/connect`))}>${t("settings.channels.connect")}<//>`}
        ${admin && html`<${Act} onAct=${async () => setEdited(edited === one.provider ? "" : one.provider)}>${t("settings.channels.enter")}<//>
          ${one.configured && html`<${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => call("DELETE", `channels/${one.provider}/runtime-config`).then(all)}>${t("settings.channels.reset")}<//>`}`}</span>
      ${edited === one.provider && html`<${Form} action=${t("save")} onSend=${(/** @type {Record<string, any>} */ values) => enter(one.provider, values)}
        fields=${one.credential_fields.map(({ name, label, type }) => ({ name, label, kind: type, optional: true, hint: t("settings.channels.kept") }))} />`}
    </li>`)}</ul><//>
    ${connections.value?.connections.length > 0 && html`<h3>${t("settings.channels.connections")}</h3><ul class="rows">${connections.value.connections.map((/** @type {any} */ one) => html`<li key=${one.id}>
      <span><bdi>${one.external_account_name || one.external_account_id}</bdi><small>${one.provider} · ${moment(one.created_at)}</small></span>
      <${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => call("DELETE", `channels/connections/${one.id}`).then(all)}>${t("delete")}<//></li>`)}</ul>`}`;
}

/** @param {{name: string, status: Status, admin: boolean, onChange: () => Promise<void>}} props */
function Account({ name, status, admin, onChange }) {
  const [findings, setFindings] = useState(/** @type {{ok: boolean, what: string, advice: string}[]} */ ([]));
  const times = [["settings.channels.since", status.connected_since], ["settings.channels.in", status.last_in], ["settings.channels.out", status.last_out]];
  return html`<li><span><bdi>${name}</bdi> <strong class="tag">${status.state}</strong>
      <small>${times.filter(([, at]) => at).map(([key, at]) => t(String(key), { time: moment(String(at)) })).join(" · ")}</small>
      ${status.reason && html`<small><bdi>${status.reason}</bdi></small>`}
      ${status.last_failure && html`<small class="error">${t("settings.channels.failure")} <bdi>${status.last_failure}</bdi></small>`}</span>
    ${admin && html`<span class="acts"><${Act} onAct=${async () => setFindings((await call("POST", `channels/${name}/test`)).findings)}>${t("settings.channels.test")}<//>
      <${Act} onAct=${() => call("POST", `channels/${name}/restart`).then(onChange)}>${t("settings.channels.restart")}<//></span>`}
    ${findings.length > 0 && html`<div class="findings" role="status">${findings.map((one) => html`<p key=${one.what} class=${one.ok ? "" : "error"}>${one.ok ? "✓" : "✗"} <bdi>${one.what}</bdi> <small>${one.advice}</small></p>`)}</div>`}
  </li>`;
}
