// Dialogs over the page: the browser keeps the focus inside, Escape closes them, and the focus goes back to where it was.

import { html, useEffect, useId, useRef } from "../vendor/preact.js";
import { t } from "../words/words.js";
import { IconButton } from "./button.js";
import { classes } from "./view.js";

/** @param {{title: string, onClose?: () => void, children: any, kind?: string, firm?: boolean}} props `firm`: nobody closes it */
export function Dialog({ title, onClose = () => {}, children, kind, firm = false }) {
  const id = useId();
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const before = document.activeElement;
    const own = dialog.current;
    own?.showModal();
    return () => {
      const now = document.activeElement;
      const lost = !now || now === document.body || own?.contains(now); // else somebody has gone on meanwhile
      if (lost && before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const outside = (/** @type {MouseEvent} */ event) => !firm && event.target === dialog.current && onClose();
  const closed = () => (firm ? dialog.current?.showModal() : onClose());
  return html`<dialog ref=${dialog} class=${classes("dialog", kind)} aria-labelledby=${id} onClose=${closed} onClick=${outside}>
    <div class="dialog-frame">
      <header><h2 id=${id}>${title}</h2>${!firm && html`<${IconButton} icon="cross" name=${t("close")} onClick=${onClose} />`}</header>
      <div class="dialog-body">${children}</div>
    </div>
  </dialog>`;
}
