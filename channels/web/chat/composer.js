// Where people type. Enter sends, Shift-Enter begins a line; while the agent works, Enter offers to queue or to steer.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { IconButton, Button } from "../kit/button.js";
import { Choices, movedTo } from "../kit/list.js";
import { classes, useListener } from "../kit/view.js";
import { activeRun } from "../state/conversation.js";
import { go } from "../state/route.js";
import { t } from "../words/words.js";
import { send, stop } from "./actions.js";
import { Attachments, Uploads } from "./attachments.js";
import { Choosers } from "./choosers.js";
import { commands } from "./commands.js";
import { completed, completionsOf } from "./completions.js";
import { acknowledge, draftOf, keepDraft, sentOf } from "./drafts.js";

const TALLEST = 320;

/** @param {{thread: import("../state/thread.js").Thread, fresh: boolean}} props `fresh`: nothing was said yet */
export function Composer({ thread, fresh }) {
  const [text, setText] = useState(() => draftOf(fresh ? "new" : thread.id));
  const [sending, setSending] = useState(false);
  const [choosing, setChoosing] = useState(false);
  const uploads = useMemo(() => new Uploads(thread.id), [thread.id]);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const place = fresh ? "new" : thread.id;
  const c = thread.state.value;
  const run = activeRun(c);
  const ready = (text.trim() || uploads.list.value.length > 0) && !sending && !uploads.busy;
  const type = (/** @type {string} */ next) => {
    setText(next);
    keepDraft(place, next);
    if (!next) setChoosing(false);
  };
  const list = useCompletions(text, field, thread, type);
  useEffect(() => field.current?.focus({ preventScroll: true }), [thread.id]);
  useEffect(() => grow(field.current), [text]);
  useEffect(() => restore(thread, c, type), [c.loaded]);

  const submit = async (/** @type {"queue"|"steer"} */ how = "queue") => {
    if (!ready) return;
    const command = commands(thread).find(({ name }) => text.trim() === `/${name}`);
    if (command) return void (type(""), command.run());
    setSending(true);
    setChoosing(false);
    const taken = await send(thread, text, { files: uploads.done, how, run: run?.id ?? "" });
    setSending(false);
    if (!taken) return;
    type("");
    uploads.clear();
    if (fresh) go(`t/${thread.id}`, { replace: true });
    field.current?.focus({ preventScroll: true });
  };
  const enter = () => (run && ready && !choosing && !isCommand(text) ? setChoosing(true) : void submit());
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (list.onKey(event)) return;
    if (event.key === "Escape" && choosing) return setChoosing(false);
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (run && (event.metaKey || event.ctrlKey)) void submit("steer");
    else enter();
  };
  const drop = useDrop(uploads);
  return html`<form class=${classes("composer", drop && "dropping")} onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), enter())}>
    ${list.open && html`<${Choices} id="completions" name=${t("completions")} choices=${list.choices} at=${list.at} onChoose=${list.choose} />`}
    ${choosing && run && html`<${HowToSend} onQueue=${() => submit("queue")} onSteer=${() => submit("steer")} onCancel=${() => (setChoosing(false), field.current?.focus())} />`}
    <${Attachments} uploads=${uploads} />
    <textarea ref=${field} id="composer" dir="auto" rows="1" placeholder=${run ? t("composer.busy") : t("composer.placeholder")} aria-label=${t("composer")}
      aria-describedby="composer-hint" aria-autocomplete="list" aria-controls=${list.open ? "completions" : undefined} aria-activedescendant=${list.open ? `completions-${list.at}` : undefined}
      readonly=${sending} value=${text} onInput=${(/** @type {any} */ e) => type(e.target.value)} onKeyDown=${onKey} onPaste=${(/** @type {any} */ e) => pasted(e, uploads)}></textarea>
    <div class="composer-row">
      <${Attach} uploads=${uploads} />
      <${Choosers} />
      <span class="spacer"></span>
      ${run && html`<${IconButton} icon="stop" kind="stop" name=${run.stopping ? t("stopping") : t("stop")} disabled=${run.stopping} onClick=${() => stop(thread, run.id)} shortcut="Esc Esc" />`}
      ${(!run || ready) && html`<button class="icon-button send" aria-label=${t("send")} title=${t("send")} disabled=${!ready}><${SendIcon} /></button>`}
    </div>
    <p id="composer-hint" class="visually-hidden">${t("composer.hint")}</p>
  </form>`;
}

/** @param {string} text */
const isCommand = (text) => /^\/\w+\s*$/.test(text);

const SendIcon = () => html`<svg class="icon" width="18" height="18" viewBox="0 0 24 24" aria-hidden="true"><path d="M12 19V5M6 11l6-6 6 6" /></svg>`;

/** @param {{onQueue: () => void, onSteer: () => void, onCancel: () => void}} props */
function HowToSend({ onQueue, onSteer, onCancel }) {
  const first = useRef(/** @type {any} */ (null));
  useEffect(() => first.current?.querySelector("button")?.focus(), []);
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const buttons = [...first.current.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") (event.preventDefault(), onCancel());
    if (event.key === "ArrowRight" || event.key === "ArrowDown") buttons[(at + 1) % buttons.length].focus();
    if (event.key === "ArrowLeft" || event.key === "ArrowUp") buttons[(at - 1 + buttons.length) % buttons.length].focus();
  };
  return html`<div class="how" role="group" aria-label=${t("how")} ref=${first} onKeyDown=${onKey}>
    <span>${t("how")}</span>
    <${Button} kind="first" onClick=${onQueue}>${t("how.queue")}<//>
    <${Button} onClick=${onSteer}>${t("how.steer")}<//>
    <${Button} kind="quiet" onClick=${onCancel}>${t("cancel")}<//>
  </div>`;
}

/** @param {{uploads: Uploads}} props */
function Attach({ uploads }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const taken = (/** @type {any} */ event) => {
    uploads.add([...event.target.files]);
    event.target.value = "";
  };
  return html`<input ref=${input} type="file" multiple hidden aria-hidden="true" tabindex="-1" onChange=${taken} data-attach />
    <${IconButton} icon="clip" name=${t("attach")} onClick=${() => input.current?.click()} />`;
}

/** Takes files that are dropped anywhere on the page. @param {Uploads} uploads */
function useDrop(uploads) {
  const [over, setOver] = useState(false);
  const has = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  useListener(window, "dragover", (event) => has(event) && (event.preventDefault(), setOver(true)));
  useListener(window, "dragleave", (event) => event.relatedTarget === null && setOver(false));
  useListener(window, "drop", (event) => {
    if (!has(event)) return;
    event.preventDefault();
    setOver(false);
    uploads.add([...event.dataTransfer.files]);
  });
  return over;
}

/** @param {ClipboardEvent} event @param {Uploads} uploads */
function pasted(event, uploads) {
  const files = [...(event.clipboardData?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  uploads.add(files);
}

/** @param {HTMLTextAreaElement | null} field */
function grow(field) {
  if (!field) return;
  field.style.blockSize = "auto";
  field.style.blockSize = `${Math.min(TALLEST, field.scrollHeight)}px`;
}

/** Gives a message back that was on its way when the page was left, unless the server has it. @param {import("../state/thread.js").Thread} thread
 * @param {import("../state/conversation.js").Conversation} c @param {(text: string) => void} type */
function restore(thread, c, type) {
  const sent = sentOf(thread.id);
  if (!c.loaded || !sent) return;
  acknowledge(thread.id, sent.id);
  const known = c.messages.some((one) => one.id === sent.id) || Object.values(c.runs).some((run) => run.input.some((one) => one.id === sent.id));
  if (!known && !draftOf(thread.id)) type(sent.text);
}

/**
 * The list of commands and files that the word at the cursor may mean.
 * @param {string} text @param {{current: HTMLTextAreaElement | null}} field @param {import("../state/thread.js").Thread} thread
 * @param {(text: string) => void} type
 */
function useCompletions(text, field, thread, type) {
  const [choices, setChoices] = useState(/** @type {import("../kit/list.js").Choice[]} */ ([]));
  const [at, setAt] = useState(0);
  // Before the next key: Enter must not choose from the list of the letters before.
  useLayoutEffect(() => {
    let current = true;
    setAt(0);
    void completionsOf(text, field.current?.selectionStart ?? text.length, thread, (found) => current && setChoices(found));
    return () => {
      current = false;
    };
  }, [text]);
  const choose = (/** @type {import("../kit/list.js").Choice} */ choice) => {
    const next = completed(text, field.current?.selectionStart ?? text.length, choice);
    setChoices([]);
    if (next === null) type("");
    else type(next);
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (!choices.length) return false;
    const next = movedTo(event.key, at, choices.length);
    if (next >= 0) setAt(next);
    else if (event.key === "Escape") setChoices([]);
    else if ((event.key === "Enter" && !event.shiftKey) || event.key === "Tab") choose(choices[at]);
    else return false;
    event.preventDefault();
    return true;
  };
  return { open: choices.length > 0, choices, at, choose, onKey };
}
