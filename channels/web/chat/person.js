// A message of the person, with its files, its other versions, and what can be done with it.

import { html, useState } from "../vendor/preact.js";
import { placeOf } from "../files/place.js";
import { Button, IconButton } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { Icon } from "../kit/icon.js";
import { still } from "../kit/view.js";
import { size, t } from "../words/words.js";
import { edit } from "./actions.js";
import { Branches } from "./branches.js";
import { ToTimeline } from "./moment.js";

/** @param {{item: import("../state/items.js").PersonItem, thread: import("../state/thread.js").Thread}} props */
export const Person = still(function Person({ item: { message }, thread }) {
  const [editing, setEditing] = useState(false);
  if (editing) return html`<${Editor} message=${message} thread=${thread} onClose=${() => setEditing(false)} />`;
  return html`<article class="person" data-at=${message.seq} aria-label=${t("you")}>
    ${message.files.length > 0 && html`<div class="files">${message.files.map((/** @type {any} */ file) => html`<a class="file" key=${file.path} href=${placeOf(thread.id, file.path)}><${Icon} name="file" size=${16} /><bdi>${file.name}</bdi>${file.size > 0 && html`<small>${size(file.size)}</small>`}</a>`)}</div>`}
    ${message.images.map((/** @type {string} */ url) => url.startsWith("data:image/") && html`<img class="picture" src=${url} alt=${t("picture")} />`)}
    ${message.text && html`<div class="bubble" dir="auto">${message.text}</div>`}
    <div class="actions">
      <${Branches} message=${message} thread=${thread} />
      <${IconButton} icon="copy" size=${16} name=${t("copy.message")} onClick=${() => copyText(message.text)} />
      <${ToTimeline} thread=${thread.id} at=${message.seq} />
      <${IconButton} icon="pencil" kind="edit" size=${16} name=${t("edit")} onClick=${() => setEditing(true)} />
    </div>
  </article>`;
});

/** @param {{message: import("../state/message.js").Message, thread: import("../state/thread.js").Thread, onClose: () => void}} props */
function Editor({ message, thread, onClose }) {
  const [text, setText] = useState(message.text);
  const save = () => {
    onClose();
    if (text.trim() && text !== message.text) void edit(thread, message.id, text);
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") onClose();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), save());
  };
  return html`<form class="person editing" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), save())}>
    <textarea class="bubble" dir="auto" aria-label=${t("edit")} value=${text} rows=${Math.min(12, text.split("\n").length + 1)}
      onInput=${(/** @type {any} */ e) => setText(e.target.value)} onKeyDown=${onKey} ref=${(/** @type {any} */ element) => element && document.activeElement !== element && element.focus()}></textarea>
    <div class="actions shown"><${Button} onClick=${onClose}>${t("cancel")}<//><${Button} kind="first" type="submit" onClick=${() => {}}>${t("send")}<//></div>
  </form>`;
}
