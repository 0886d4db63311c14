// Buttons: with words, or an icon that has a name.

import { html } from "../vendor/preact.js";
import { Icon } from "./icon.js";
import { classes } from "./view.js";

/**
 * @param {{icon: any, name: string, onClick: (event: MouseEvent) => void, pressed?: boolean, disabled?: boolean, kind?: string,
 *   size?: number, shortcut?: string}} props `name`: what it does
 */
export function IconButton({ icon, name, onClick, pressed, disabled, kind, size, shortcut }) {
  return html`<button type="button" class=${classes("icon-button", kind)} aria-label=${name} title=${shortcut ? `${name} (${shortcut})` : name}
    aria-pressed=${pressed === undefined ? undefined : String(pressed)} disabled=${disabled} onClick=${onClick}>
    <${Icon} name=${icon} size=${size} />
  </button>`;
}

/** @param {{children: any, onClick: (event: MouseEvent) => void, kind?: "first"|"danger"|"quiet", disabled?: boolean, type?: string}} props */
export function Button({ children, onClick, kind, disabled, type = "button" }) {
  return html`<button type=${type} class=${classes("button", kind)} disabled=${disabled} onClick=${onClick}>${children}</button>`;
}
