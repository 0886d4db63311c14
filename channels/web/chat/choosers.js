// The choosers below the composer: model, mode, agent.

import { html } from "../vendor/preact.js";
import { Menu } from "../kit/menu.js";
import { moment, short, t } from "../words/words.js";
import { MODES, agents, choose, chosen, loadModels, model, models } from "./choices.js";

export function Choosers() {
  return html`<${Models} /><${Modes} /><${Agents} />`;
}

function Models() {
  const now = model.value;
  if (!now) return null;
  const entries = models.value.map((one) => ({ label: nameOf(one), hint: hintOf(one), checked: one.name === now.name, run: () => choose({ model: one.name }) }));
  return html`<${Menu} name=${t("model.now", { name: nameOf(now) })} entries=${entries} up=${true} onOpen=${refresh}><span class="chooser-text">${nameOf(now)}</span><//>`;
}

function Modes() {
  const { mode } = chosen.value;
  const entries = MODES.map((one) => ({ label: t(`mode.${one}`), hint: t(`mode.${one}.hint`), checked: one === mode, run: () => choose({ mode: one }) }));
  return html`<${Menu} name=${t("mode.now", { name: t(`mode.${mode}`) })} entries=${entries} up=${true}><span class="chooser-text">${t(`mode.${mode}`)}</span><//>`;
}

function Agents() {
  if (!agents.value.length) return null;
  const { agent } = chosen.value;
  const all = [{ name: "", description: t("agent.lead.hint") }, ...agents.value];
  const entries = all.map((one) => ({ label: one.name || t("agent.lead"), hint: one.description, checked: one.name === agent, run: () => choose({ agent: one.name }) }));
  return html`<${Menu} name=${t("agent.now", { name: agent || t("agent.lead") })} entries=${entries} up=${true}><span class="chooser-text">${agent || t("agent.lead")}</span><//>`;
}

/** Reads the models again: one may have failed, or answered, since. Without an answer the list stays as it is. */
const refresh = () => void loadModels().catch(() => {});

/** @param {import("./choices.js").Model} one */
const nameOf = (one) => one.display_name || one.name;

/** @param {import("./choices.js").Model} one */
function hintOf(one) {
  const failed = one.last_failure && t("model.failed", { why: t(`model.failed.${one.last_failure.reason}`), time: moment(one.last_failure.at) });
  const parts = [failed, one.description ?? "", one.context_window ? t("model.window", { tokens: short(one.context_window) }) : "", one.supports_vision ? t("model.vision") : ""];
  return parts.filter(Boolean).join(" · ");
}
