// The chat: one conversation, or the beginning of one.

import { html, useEffect, useMemo } from "../vendor/preact.js";
import { Icon } from "../kit/icon.js";
import { Menu } from "../kit/menu.js";
import { visible } from "../kit/visible.js";
import { placeOf } from "../files/place.js";
import { isBusy } from "../state/conversation.js";
import { go, route } from "../state/route.js";
import { nameInTab } from "../state/stored.js";
import { Thread } from "../state/thread.js";
import { entryOf, touch } from "../state/threads.js";
import { short, t } from "../words/words.js";
import { pin, remove } from "./actions.js";
import { model } from "./choices.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { showing } from "./showing.js";
import { Strip } from "./strip.js";
import { Begin } from "./begin.js";
import { open } from "./open.js";

/** @param {{path: string[]}} props the thread's id, unless one begins */
export function Chat({ path: [id] }) {
  const thread = useMemo(() => threadFor(id), [id]);
  useEffect(() => {
    open.value = thread;
  }, [thread]);
  useTold(thread);
  const c = thread.state.value;
  const failure = thread.failure.value;
  if (id && (failure?.status === 404 || c.erased)) return html`<${Gone} erased=${c.erased} />`;
  const fresh = !id;
  return html`<section class="chat" aria-label=${t("chat")}>
    <${Header} thread=${thread} fresh=${fresh} />
    ${fresh ? html`<${Begin} thread=${thread} />` : html`<${Conversation} thread=${thread} key=${thread.id} />`}
    <div class="dock"><div class="column">
      ${!fresh && html`<${Strip} thread=${thread} key=${thread.id} />`}
      <${Composer} thread=${thread} fresh=${fresh} key=${thread.id} />
    </div></div>
  </section>`;
}

/** The thread of an address: the one that was begun here, or one that is opened. @param {string|undefined} id */
function threadFor(id) {
  const now = open.peek();
  if (id && now?.id === id) return now;
  now?.close();
  const thread = new Thread(id ?? nameInTab("new"));
  if (id) thread.open();
  return thread;
}

/** Lets the sidebar and the title of the window know what the conversation's own stream says. @param {Thread} thread */
function useTold(thread) {
  const c = thread.state.value;
  const title = c.title || entryOf(thread.id)?.title || "";
  const busy = isBusy(c);
  useEffect(() => {
    document.title = title ? `${visible(title)} · Sika` : "Sika";
    if (c.title && entryOf(thread.id)?.title !== c.title) touch(thread.id, { title: c.title });
  }, [title, c.title]);
  useEffect(() => {
    const entry = entryOf(thread.id);
    if (entry && c.loaded && (entry.status === "busy") !== busy) touch(thread.id, { status: busy ? "busy" : "idle" });
  }, [busy, c.loaded]);
}

/** @param {{thread: Thread, fresh: boolean}} props */
function Header({ thread, fresh }) {
  const c = thread.state.value;
  const entry = entryOf(thread.id);
  const title = c.title || entry?.title || (fresh ? "" : t("thread.untitled"));
  const entries = [
    { label: t("rename"), icon: "pencil", run: () => (showing.value = "rename") },
    { label: entry?.pinned ? t("unpin") : t("pin"), icon: "pin", run: () => pin(thread.id, !entry?.pinned) },
    { label: t("share"), icon: "share", run: () => (showing.value = "share") },
    { label: t("timeline"), icon: "clock", run: () => go(`timeline/${thread.id}`) },
    { label: t("export"), icon: "file", run: () => (showing.value = "export") },
    { label: t("delete"), icon: "trash", danger: true, run: () => remove(thread.id, true) },
  ];
  return html`<header class="chat-header">
    ${!fresh && html`<h1 dir="auto">${title}</h1>`}
    <span class="spacer"></span>
    ${!fresh && html`<${Context} tokens=${c.tokens} />`}
    ${!fresh && html`<${FilesLink} thread=${thread.id} />`}
    ${!fresh && html`<${Menu} name=${t("thread.menu")} entries=${entries} align="end" />`}
  </header>`;
}

/** The way to the files, and back. @param {{thread: string}} props */
function FilesLink({ thread }) {
  const on = route.value.view === "files";
  return html`<a class="icon-button" href=${on ? `#/t/${thread}` : placeOf(thread)} aria-label=${t("files")} title=${t("files")} aria-current=${on ? "true" : undefined}><${Icon} name="folder" /></a>`;
}

/** How much of the model's context is used. @param {{tokens: number}} props */
function Context({ tokens }) {
  const window = model.value?.context_window;
  if (!tokens) return null;
  const text = window ? t("context.of", { share: Math.min(100, Math.round((100 * tokens) / window)), tokens: short(tokens), window: short(window) }) : t("context", { tokens: short(tokens) });
  return html`<span class="context" title=${text} aria-label=${text}>${window ? html`<meter min="0" max=${window} value=${tokens} aria-hidden="true"></meter>${Math.min(100, Math.round((100 * tokens) / window))} %` : t("tokens", { tokens: short(tokens) })}</span>`;
}

/** @param {{erased: boolean}} props */
function Gone({ erased }) {
  return html`<section class="chat gone"><div class="card"><h1>${erased ? t("thread.erased") : t("thread.missing")}</h1><p>${t("thread.missing.hint")}</p>
    <button type="button" class="button first" onClick=${() => go("")}>${t("thread.new")}</button></div></section>`;
}

