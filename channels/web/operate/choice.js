// One of a few values, as buttons.

import { html } from "../vendor/preact.js";

/** @param {{name: string, values: number[], value: number, onChange: (value: number) => void, say: (value: number) => string}} props */
export function Choice({ name, values, value, onChange, say }) {
  return html`<div class="choice-row" role="group" aria-label=${name}>
    ${values.map((one) => html`<button type="button" key=${one} class="button" aria-pressed=${String(one === value)} onClick=${() => onChange(one)}>${say(one)}</button>`)}
  </div>`;
}
