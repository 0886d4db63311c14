// Who answers, and how: the model, the mode and the agent of the next runs, remembered by the browser.

import { computed, signal } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { recall, remember } from "../state/stored.js";

/**
 * @typedef {{name: string, display_name: string|null, description: string|null, supports_thinking: boolean, supports_vision?: boolean,
 *   context_window?: number|null, price?: any, last_failure?: {at: string, reason: string}|null}} Model
 * @typedef {{name: string, description: string}} Agent
 */

export const MODES = /** @type {const} */ (["flash", "thinking", "pro", "ultra"]);
/** @type {import("../vendor/preact.js").Signal<Model[]>} */
export const models = signal([]);
/** @type {import("../vendor/preact.js").Signal<Agent[]>} */
export const agents = signal([]);
/** @type {import("../vendor/preact.js").Signal<{model: string, mode: string, agent: string}>} */
export const chosen = signal({ model: "", mode: "pro", agent: "", ...recall("choices") });

/** The model that answers: the chosen one if it is still there, else the first. */
export const model = computed(() => models.value.find((one) => one.name === chosen.value.model) ?? models.value[0]);

/** @param {Partial<{model: string, mode: string, agent: string}>} change */
export function choose(change) {
  chosen.value = { ...chosen.value, ...change };
  remember("choices", chosen.value);
}

/** The context of a run. */
export function contextOf() {
  const { mode, agent } = chosen.value;
  const name = model.value?.name ?? chosen.value.model;
  return { mode, ...(name ? { model_name: name } : {}), ...(agent ? { agent_name: agent } : {}) };
}

/** Why the configuration is not in force, for administrators. */
export const problem = signal(/** @type {string|null} */ (null));

export async function loadModels() {
  const answer = await call("GET", "models");
  models.value = answer.models;
  problem.value = answer.problem ?? null;
}

/** Reads the agents that people made; in most installations there are none to choose from. */
export async function loadAgents() {
  const all = await call("POST", "assistants/search", { body: { metadata: { created_by: "user" }, limit: 100 } });
  agents.value = all.map((/** @type {any} */ one) => ({ name: one.name, description: one.description ?? "" }));
}
