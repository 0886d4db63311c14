// MCP servers: added, changed, tried; their tools and what is wrong with them; logins of the person.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { moment, t } from "../words/words.js";
import { Form, Loaded, parsed, useAnswer } from "./parts.js";

/**
 * @typedef {{name: string, enabled: boolean, type: string, description: string, listed: boolean, error: string|null, state: string, changed: string[],
 *   tools: {name: string, tool: string, description: string}[], problems: {tool: string, reason: string, left_out: boolean}[]}} Server
 * @typedef {{server: string, state: string, reason: string, expires_at: string|null, personal: boolean}} Access
 */

const NEW = '{\n  "type": "http",\n  "url": "https://example.org/mcp"\n}';

/** @param {{me: {system_role: string}}} props */
export function Mcp({ me }) {
  const servers = useAnswer("mcp/servers");
  const config = useAnswer("mcp/config");
  const access = useAnswer("mcp/oauth");
  const [edited, setEdited] = useState("");
  const admin = me.system_role === "admin";
  const all = async () => void (await Promise.all([servers.reload(), config.reload(), access.reload()]));
  const set = async (/** @type {string} */ name, /** @type {Record<string, unknown> | null} */ settings) => {
    const { [name]: _, ...others } = (await call("GET", "mcp/config")).mcp_servers;
    return call("PUT", "mcp/config", { body: { mcp_servers: settings ? { ...others, [name]: settings } : others } }).then(all);
  };
  const add = async (/** @type {Record<string, any>} */ { name, mcp_servers: settings }) => {
    await set(name, parsed(settings, "mcp_servers"));
    setEdited("");
  };
  return html`<p>${t("settings.mcp.text")}</p>
    ${config.value?.remarks?.map((/** @type {string} */ remark) => html`<p class="warning" key=${remark}><bdi>${remark}</bdi></p>`)}
    <${Loaded} of=${servers}>
      ${servers.value?.servers.length === 0 && html`<p class="quiet">${t("settings.mcp.none")}</p>`}
      <ul class="rows">${servers.value?.servers.map((/** @type {Server} */ server) => html`<li key=${server.name} class=${server.enabled ? "" : "off"}>
        <span><bdi>${server.name}</bdi> <strong class="tag">${t(`settings.mcp.state.${server.state}`)}</strong>
          <small dir="auto">${[server.type, server.description].filter(Boolean).join(" · ")}</small>
          ${server.error && html`<small class="error"><bdi>${server.error}</bdi></small>`}</span>
        <span class="acts"><${Login} silent=${["failed", "untried"].includes(server.state)} access=${access.value?.servers.find((/** @type {Access} */ one) => one.server === server.name)} onChange=${access.reload} />
          ${admin && html`${server.enabled && html`<${Act} onAct=${() => call("POST", `mcp/servers/${encodeURIComponent(server.name)}/test`).then(all)}>${t("settings.try")}<//>`}
            <${Act} onAct=${() => call("PATCH", "mcp/config", { body: { mcp_servers: { [server.name]: { enabled: !server.enabled } } } }).then(all)}>${t(server.enabled ? "settings.skills.turnOff" : "settings.skills.turnOn")}<//>
            <${Act} onAct=${async () => setEdited(edited === server.name ? "" : server.name)}>${t("edit")}<//>
            <${Act} kind="danger" ask=${t("settings.sure")} onAct=${() => set(server.name, null)}>${t("delete")}<//>`}</span>
        <${Offers} server=${server} admin=${admin} onChange=${all} />
        ${edited === server.name && config.value && html`<${Form} action=${t("save")} onSend=${(/** @type {Record<string, any>} */ values) => add({ ...values, name: server.name })}
          fields=${[{ name: "mcp_servers", label: t("settings.mcp.settings"), kind: "text area", rows: 10, value: JSON.stringify(config.value.mcp_servers[server.name], null, 2), hint: t("settings.mcp.masked") }]} />`}
      </li>`)}</ul>
    <//>
    ${admin && config.value && html`<h3>${t("settings.mcp.add")}</h3>
      <${Form} clears=${true} action=${t("settings.mcp.addIt")} onSend=${add} fields=${[{ name: "name", label: t("settings.models.name") }, { name: "mcp_servers", label: t("settings.mcp.settings"), kind: "text area", rows: 5, value: NEW, hint: t("settings.mcp.hint") }]} />`}`;
}

/** @param {{server: Server, admin: boolean, onChange: () => Promise<void>}} props */
function Offers({ server, admin, onChange }) {
  const path = `mcp/servers/${encodeURIComponent(server.name)}/accept`;
  return html`<div class="offers">
    ${server.problems.map((one) => html`<p class=${one.left_out ? "error" : "warning"} key=${`${one.tool} ${one.reason}`}><bdi>${one.tool}</bdi> ${one.left_out && `(${t("settings.mcp.leftOut")})`}: ${one.reason}</p>`)}
    ${server.changed.length > 0 && html`<p class="warning">${t("settings.mcp.changed", { names: server.changed.join(", ") })} ${admin && html`<${Act} ask=${t("settings.sure")} onAct=${() => call("POST", path).then(onChange)}>${t("settings.mcp.accept")}<//>`}</p>`}
    ${server.tools.length > 0 && html`<details><summary>${t("settings.mcp.tools", { n: server.tools.length })}</summary><ul>${server.tools.map((tool) => html`<li key=${tool.name}><code>${tool.name}</code> <span dir="auto">${tool.description}</span></li>`)}</ul></details>`}
  </div>`;
}

/** The person's login at a server: also a first one, where nobody knows its tools. @param {{silent: boolean, access?: Access, onChange: () => Promise<void>}} props */
function Login({ silent, access, onChange }) {
  if (!access || (access.state === "none" && !(silent && access.personal))) return null;
  const path = `mcp/oauth/${encodeURIComponent(access.server)}`;
  const begin = async () => {
    const { authorization_url: url } = await call("POST", `${path}/login`, { body: { register: true } });
    open(url, "_blank", "noopener");
  };
  return html`<small>${t(`settings.mcp.access.${access.state}`)}${access.expires_at && ` · ${moment(access.expires_at)}`} ${access.reason}</small>
    ${access.state === "connected" ? html`<${Act} ask=${t("settings.sure")} onAct=${() => call("DELETE", path).then(onChange)}>${t("settings.mcp.logout")}<//>` : html`<${Act} onAct=${begin}>${t("settings.mcp.login")}<//>`}`;
}
