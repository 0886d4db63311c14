// A list of choices under a text field: the field keeps the focus, arrows move, Enter and Tab choose, Escape closes.

import { html, useEffect, useRef } from "../vendor/preact.js";
import { classes } from "./view.js";

/** @typedef {{id: string, label: string, hint?: string, value: any}} Choice */

/**
 * @param {{id: string, name: string, choices: Choice[], at: number, onChoose: (choice: Choice) => void}} props `at`: the one
 *   that Enter chooses
 */
export function Choices({ id, name, choices, at, onChoose }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" }), [at]);
  return html`<div ref=${list} id=${id} role="listbox" tabindex="0" aria-label=${name} class="choices">
    ${choices.map(
      (choice, index) => html`<div key=${choice.id} id="${id}-${index}" role="option" aria-selected=${String(index === at)} class=${classes("choice", index === at && "at")}
        onPointerDown=${(/** @type {Event} */ e) => (e.preventDefault(), onChoose(choice))}>
        <span>${choice.label}</span>${choice.hint && html`<small>${choice.hint}</small>`}
      </div>`,
    )}
  </div>`;
}

/** The place that a key leads to, or -1 if it leads nowhere. @param {string} key @param {number} at @param {number} count */
export function movedTo(key, at, count) {
  if (key === "ArrowDown") return (at + 1) % count;
  if (key === "ArrowUp") return (at - 1 + count) % count;
  return -1;
}
