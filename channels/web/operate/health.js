// Health as `sika doctor` says it, each finding with its remedy.

import { html } from "../vendor/preact.js";
import { Button } from "../kit/button.js";
import { moment, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";

export function Health() {
  const answer = useLive("doctor", 0);
  const checks = answer.value?.checks ?? [];
  return html`<p>${t("operate.health.text")}</p>
    <${Shown} of=${answer}>
      <p><${Button} onClick=${() => void answer.reload()}>${t("operate.health.again")}<//> <small class="quiet">${answer.at && moment(answer.at)}</small></p>
      <ul class="checks">${["fail", "warn", "ok"].flatMap((status) =>
        checks.filter((/** @type {any} */ check) => check.status === status).map(
          (/** @type {any} */ check, /** @type {number} */ place) => html`<li key=${`${status} ${place}`} class="check-${status}">
            <span class="verdict">${t(`operate.health.${status}`)}</span>
            <div><strong>${check.name}</strong> <span dir="auto">${check.text}</span>${check.advice && html`<p class="remedy" dir="auto">${check.advice}</p>`}</div>
          </li>`,
        ),
      )}</ul>
    <//>`;
}
