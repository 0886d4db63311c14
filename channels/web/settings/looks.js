// Appearance and language of this browser.

import { html, useState } from "../vendor/preact.js";
import { recall, remember } from "../state/stored.js";
import { LANGUAGES, language, speak, t } from "../words/words.js";

export function Looks() {
  const [theme, setTheme] = useState(String(recall("theme") ?? "system"));
  const paint = (/** @type {string} */ next) => {
    setTheme(next);
    remember("theme", next === "system" ? null : next);
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
  };
  return html`<p>${t("settings.looks.text")}</p>
    <fieldset><legend>${t("theme")}</legend>${["system", "light", "dark"].map((one) => html`<label class="check" key=${one}><input type="radio" name="theme" checked=${one === theme} onChange=${() => paint(one)} /> ${t(`theme.${one}`)}</label>`)}</fieldset>
    <fieldset><legend>${t("language")}</legend>${Object.entries(LANGUAGES).map(([key, label]) => html`<label class="check" key=${key}><input type="radio" name="language" checked=${key === language.value} onChange=${() => void speak(/** @type {any} */ (key))} /> ${label}</label>`)}</fieldset>`;
}
