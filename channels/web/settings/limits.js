// Matters that only the configuration file decides: their keys, as they are in force, and the lines to write.

import { html } from "../vendor/preact.js";
import { t } from "../words/words.js";
import { KeysOf } from "./configuration.js";

export const Limits = () => html`<${KeysOf} text=${t("settings.limits.text")} paths=${["limits", "budgets", "token_budget", "runs", "loop_detection", "circuit_breaker", "uploads"]} />`;
export const Webhooks = () => html`<${KeysOf} text=${t("settings.webhooks.text")} paths=${["webhooks"]} />`;
