// Dialogs about the open conversation: the keys, renaming, the goal, export.

import { html, useState } from "../vendor/preact.js";
import { call, send as request } from "../api/client.js";
import { Button } from "../kit/button.js";
import { Dialog } from "../kit/dialog.js";
import { Room } from "../kit/room.js";
import { saveAs } from "../kit/save.js";
import { entryOf } from "../state/threads.js";
import { t } from "../words/words.js";
import { complain, rename } from "./actions.js";
import { markdownOf } from "./export.js";
import { open } from "./open.js";
import { showing } from "./showing.js";

export function Dialogs() {
  const name = showing.value;
  const View = VIEWS[name];
  /** The browser tells it late: another may be open by then. */
  const close = () => showing.value === name && (showing.value = "");
  return View ? html`<${View} thread=${open.value} onClose=${close} />` : null;
}

const KEYS = [
  ["?", "key.help"], ["Ctrl K", "key.search"], ["Ctrl Shift O", "key.new"], ["/", "key.focus"], ["Enter", "key.send"], ["Shift Enter", "key.line"],
  ["Ctrl Enter", "key.steer"], ["Esc Esc", "key.stop"], ["Ctrl B", "key.sidebar"], ["Alt ↑ ↓", "key.threads"], ["/ @", "key.complete"],
];

/** @param {{onClose: () => void}} props */
function Keys({ onClose }) {
  return html`<${Dialog} title=${t("keys")} onClose=${onClose}>
    <dl class="keys">${KEYS.map(([keys, words]) => html`<div key=${words}><dt>${keys.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${t(words)}</dd></div>`)}</dl>
  <//>`;
}

/** @param {{thread: import("../state/thread.js").Thread, onClose: () => void}} props */
function Rename({ thread, onClose }) {
  const [title, setTitle] = useState(thread.state.value.title || entryOf(thread.id)?.title || "");
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
    if (title.trim()) void rename(thread.id, title.trim());
  };
  return html`<${Dialog} title=${t("rename")} onClose=${onClose}><form onSubmit=${save}>
    <input class="field" aria-label=${t("rename")} dir="auto" maxlength="200" value=${title} onInput=${(/** @type {any} */ e) => setTitle(e.target.value)} />
    <div class="card-actions"><${Button} onClick=${onClose}>${t("cancel")}<//><${Button} kind="first" type="submit" onClick=${() => {}}>${t("save")}<//></div>
  </form><//>`;
}

/** @param {{thread: import("../state/thread.js").Thread, onClose: () => void}} props */
function Goal({ thread, onClose }) {
  const goal = thread.state.value.goal;
  const [text, setText] = useState(goal?.objective ?? "");
  const put = async (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
    await call("PUT", `threads/${thread.id}/goal`, { body: { objective: text.trim() } }).catch(complain);
  };
  const clear = async () => {
    onClose();
    await call("DELETE", `threads/${thread.id}/goal`).catch(complain);
  };
  return html`<${Dialog} title=${t("goal")} onClose=${onClose}><form onSubmit=${put}>
    <p>${t("goal.text")}</p>
    <textarea class="field" rows="4" dir="auto" required maxlength="4000" aria-label=${t("goal")} value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)}></textarea>
    <div class="card-actions">${goal && html`<${Button} kind="danger" onClick=${clear}>${t("goal.clear")}<//>`}<${Button} kind="first" type="submit" onClick=${() => {}}>${t("save")}<//></div>
  </form><//>`;
}

/** @param {{thread: import("../state/thread.js").Thread, onClose: () => void}} props */
function Export({ thread, onClose }) {
  const title = thread.state.value.title || "conversation";
  const save = async (/** @type {"md"|"json"} */ kind) => {
    onClose();
    try {
      const messages = await allMessages(thread.id);
      const text = kind === "md" ? markdownOf(title, messages) : JSON.stringify({ thread_id: thread.id, title, messages }, null, 2);
      saveAs(`${title.replace(/[^\p{L}\p{N} _-]/gu, "").slice(0, 80) || "conversation"}.${kind}`, new Blob([text], { type: kind === "md" ? "text/markdown" : "application/json" }));
    } catch (error) {
      complain(error);
    }
  };
  return html`<${Dialog} title=${t("export")} onClose=${onClose}>
    <p>${t("export.text")}</p>
    <div class="card-actions"><${Button} kind="first" onClick=${() => save("md")}>Markdown<//><${Button} onClick=${() => save("json")}>JSON<//></div>
  <//>`;
}

/** @param {{thread: import("../state/thread.js").Thread, onClose: () => void}} props */
const Share = (props) => html`<${Room} load=${() => import("../share/dialog.js").then((room) => room.ShareDialog)} ...${props} />`;

/** @param {{onClose: () => void}} props */
const Skills = (props) => html`<${Room} load=${() => import("../skills/dialog.js").then((room) => room.SkillsDialog)} ...${props} />`;

/** All messages of the conversation as it stands, page by page. @param {string} thread */
async function allMessages(thread) {
  /** @type {any[]} */ let messages = [];
  /** @type {number|null} */ let before = null;
  do {
    const response = await request("GET", `threads/${thread}/messages/page`, { query: { limit: 200, before_seq: before } });
    const page = await response.json();
    messages = [...page.data.map((/** @type {any} */ row) => row.content), ...messages];
    before = page.next_before_seq;
  } while (before !== null);
  return messages.filter((message) => !message.additional_kwargs?.hide_from_ui);
}

/** @type {Record<string, any>} */
const VIEWS = { keys: Keys, rename: Rename, goal: Goal, export: Export, share: Share, skills: Skills };
