// A button that opens a menu: arrows, Home and End move, letters find, Escape and Tab close, the focus returns to the button.

import { html, useEffect, useId, useRef, useState } from "../vendor/preact.js";
import { Icon } from "./icon.js";
import { classes, useListener } from "./view.js";

const WORD_MS = 1000; // letters that follow each other so quickly are one word

/**
 * @typedef {{label: string, hint?: string, icon?: any, checked?: boolean, danger?: boolean, disabled?: boolean, run: () => void}} Entry
 * @param {{name: string, entries: Entry[], children?: any, icon?: any, kind?: string, align?: "start"|"end", up?: boolean, onOpen?: () => void}} props
 *   `name`: of the menu; `children`: what the button shows in place of an icon
 */
export function Menu({ name, entries, children, icon = "more", kind, align = "start", up = false, onOpen }) {
  const id = useId();
  const [open, setOpen] = useState(false);
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const word = useRef({ text: "", at: 0 });
  const items = () => /** @type {HTMLElement[]} */ ([...(list.current?.querySelectorAll("[role^=menuitem]:not([aria-disabled])") ?? [])]);
  const close = (back = true) => {
    setOpen(false);
    if (back) button.current?.focus();
  };
  useEffect(() => {
    word.current.text = "";
    if (open) onOpen?.();
    if (open) (items().find((item) => item.ariaChecked === "true") ?? items()[0])?.focus();
  }, [open]);
  useListener(document, "pointerdown", (event) => open && !list.current?.parentElement?.contains(event.target) && close(false));
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" || event.key === "Tab") return void (event.key === "Escape" && event.preventDefault(), event.stopPropagation(), close());
    const led = moved(items(), event.key);
    if (led) word.current.text = "";
    const target = led ?? found(items(), event, word.current);
    if (target) {
      event.preventDefault();
      target.focus();
    }
  };
  const choose = (/** @type {Entry} */ entry) => {
    if (entry.disabled) return;
    close();
    entry.run();
  };
  return html`<div class="menu">
    <button ref=${button} type="button" class=${classes(children ? "chooser" : "icon-button", kind)} aria-haspopup="menu" aria-expanded=${String(open)}
      aria-controls=${open ? id : undefined} aria-label=${name} title=${name} onClick=${() => setOpen(!open)}
      onKeyDown=${(/** @type {KeyboardEvent} */ e) => (e.key === "ArrowDown" || e.key === "ArrowUp") && (e.preventDefault(), setOpen(true))}>
      ${children ?? html`<${Icon} name=${icon} />`}
    </button>
    ${open &&
    html`<div ref=${list} id=${id} role="menu" aria-label=${name} class=${classes("menu-list", align, up && "up")} onKeyDown=${onKey}>
      ${entries.map(
        (entry) => html`<button type="button" key=${entry.label} role=${entry.checked === undefined ? "menuitem" : "menuitemradio"} tabindex="-1"
          aria-checked=${entry.checked === undefined ? undefined : String(entry.checked)} aria-disabled=${entry.disabled ? "true" : undefined}
          class=${classes("menu-entry", entry.danger && "danger")} onClick=${() => choose(entry)}>
          ${entry.icon ? html`<${Icon} name=${entry.icon} />` : entry.checked !== undefined && html`<span class="menu-mark">${entry.checked && html`<${Icon} name="check" />`}</span>`}
          <span class="menu-label">${entry.label}${entry.hint && html`<small>${entry.hint}</small>`}</span>
        </button>`,
      )}
    </div>`}
  </div>`;
}

/** The item that a key leads to. @param {HTMLElement[]} items @param {string} key */
function moved(items, key) {
  const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  if (key === "ArrowDown") return items[(at + 1) % items.length];
  if (key === "ArrowUp") return items[(at - 1 + items.length) % items.length];
  if (key === "Home") return items[0];
  if (key === "End") return items.at(-1);
  return undefined;
}

/**
 * The item that the letters of a word lead to. A letter that continues no item's beginning is the first of another word.
 * @param {HTMLElement[]} items @param {KeyboardEvent} event @param {{text: string, at: number}} word
 */
function found(items, { key, timeStamp, ctrlKey, metaKey, altKey }, word) {
  if (key.length !== 1 || key === " " || ctrlKey || metaKey || altKey) return undefined;
  const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const letter = key.toLowerCase();
  const before = timeStamp - word.at < WORD_MS ? word.text : "";
  word.at = timeStamp;
  for (const text of before ? [before + letter, letter] : [letter]) {
    const from = text === letter ? at + 1 : Math.max(at, 0);
    const target = [...items.slice(from), ...items.slice(0, from)].find((item) => item.textContent?.trim().toLowerCase().startsWith(text));
    word.text = text;
    if (target) return target;
  }
  return undefined;
}
