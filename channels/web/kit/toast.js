// Short notices at the edge of the page, spoken to screen readers. Something that can be undone waits until its time is up.

import { html, signal } from "../vendor/preact.js";
import { t } from "../words/words.js";
import { Button, IconButton } from "./button.js";

/** How long something can be undone, and a notice is read. */
const UNDO_MS = 10_000;
const READ_MS = 6_000;

/** @typedef {{id: number, text: string, kind: "notice"|"error", undo?: (() => void)|undefined}} Toast */

/** @type {import("../vendor/preact.js").Signal<Toast[]>} */
const toasts = signal([]);
let newest = 0;

/** @param {number} id */
const remove = (id) => (toasts.value = toasts.value.filter((toast) => toast.id !== id));

/** @param {string} text @param {{kind?: "notice"|"error", undo?: () => void, ms?: number}} [how] */
export function notify(text, { kind = "notice", undo, ms = kind === "error" ? 2 * READ_MS : READ_MS } = {}) {
  const id = (newest += 1);
  toasts.value = [...toasts.value.slice(-3), { id, text, kind, undo }];
  setTimeout(() => remove(id), ms);
  return id;
}

/**
 * Does something when it was not undone for a while; at once when the page is left.
 * @param {string} text @param {() => void} act @param {() => void} undone
 */
export function later(text, act, undone) {
  let open = true;
  const finish = () => {
    if (!open) return;
    open = false;
    removeEventListener("pagehide", finish);
    act();
  };
  const timer = setTimeout(finish, UNDO_MS);
  addEventListener("pagehide", finish);
  const undo = () => {
    open = false;
    clearTimeout(timer);
    removeEventListener("pagehide", finish);
    undone();
  };
  notify(text, { undo, ms: UNDO_MS });
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite" aria-label=${t("notices")}>
    ${toasts.value.map(
      ({ id, text, kind, undo }) => html`<div class="toast ${kind}" key=${id}>
        <span>${text}</span>
        ${undo && html`<${Button} kind="quiet" onClick=${() => (remove(id), undo())}>${t("undo")}<//>`}
        <${IconButton} icon="cross" name=${t("close")} size=${14} onClick=${() => remove(id)} />
      </div>`,
    )}
  </div>`;
}
