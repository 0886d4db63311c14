// The conversations: found by words, pinned ones first, the others by day, with what each does now.

import { html, useCallback, useEffect, useState } from "../vendor/preact.js";
import { Button, IconButton } from "../kit/button.js";
import { Menu } from "../kit/menu.js";
import { classes, still } from "../kit/view.js";
import { go, route } from "../state/route.js";
import { listMore, listed, more, search, threads, waits } from "../state/threads.js";
import { dayOf, t } from "../words/words.js";
import { pin, remove, rename } from "./actions.js";

const PAUSE_MS = 150;

/** @param {{onPick: () => void, foot: any}} props `onPick`: somewhere was gone */
export function Sidebar({ onPick, foot }) {
  const [words, setWords] = useState("");
  const hits = useHits(words);
  const shown = words.trim() ? (hits ?? []) : threads.value;
  const current = ["t", "files"].includes(route.value.view) ? route.value.path[0] : "";
  const pick = useCallback((/** @type {string} */ id) => (go(`t/${id}`), onPick()), [onPick]);
  return html`<nav class="sidebar" aria-label=${t("threads")}>
    <div class="sidebar-head">
      <a class="brand" href="#/" onClick=${(/** @type {Event} */ e) => (e.preventDefault(), go(""), onPick())}>Sika</a>
      <${IconButton} icon="plus" name=${t("thread.new")} shortcut="Ctrl Shift O" onClick=${() => (go(""), onPick())} />
    </div>
    <input class="search" type="search" id="search" placeholder=${t("search")} aria-label=${t("search")} value=${words} onInput=${(/** @type {any} */ e) => setWords(e.target.value)}
      onKeyDown=${(/** @type {KeyboardEvent} */ e) => e.key === "Escape" && setWords("")} />
    <div class="thread-list">
      ${groupsOf(shown, Boolean(words.trim())).map(([name, entries]) => html`<section key=${name}><h2>${name}</h2><ul>${entries.map((entry) => html`<${Row} key=${entry.id} entry=${entry} current=${entry.id === current} words=${words.trim()} waits=${waits.value.has(entry.id)} onPick=${pick} />`)}</ul></section>`)}
      ${!shown.length && (words.trim() ? hits : listed.value) && html`<p class="quiet">${words ? t("search.none") : t("threads.none")}</p>`}
      ${!words && more.value && html`<${Button} kind="quiet" onClick=${listMore}>${t("older")}<//>`}
    </div>
    ${foot}
  </nav>`;
}

/** What a search finds; null while it looks. @param {string} words */
function useHits(words) {
  const [hits, setHits] = useState(/** @type {import("../state/threads.js").Entry[] | null} */ (null));
  useEffect(() => {
    if (!words.trim()) return setHits(null);
    const stop = new AbortController();
    const timer = setTimeout(() => search(words, stop.signal).then(setHits).catch(() => {}), PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [words]);
  return hits;
}

/** @param {import("../state/threads.js").Entry[]} entries @param {boolean} found @returns {[string, import("../state/threads.js").Entry[]][]} */
function groupsOf(entries, found) {
  /** @type {Map<string, import("../state/threads.js").Entry[]>} */
  const groups = new Map();
  for (const entry of entries) {
    const name = found ? t("search.found") : entry.pinned ? t("threads.pinned") : dayOf(entry.updatedAt);
    groups.set(name, [...(groups.get(name) ?? []), entry]);
  }
  return [...groups];
}

/** @param {{entry: import("../state/threads.js").Entry, current: boolean, words: string, waits: boolean, onPick: (id: string) => void}} props */
const Row = still(function Row({ entry, current, words, waits: asks, onPick }) {
  const [renaming, setRenaming] = useState(false);
  const title = entry.title || t("thread.untitled");
  if (renaming) return html`<li><${Rename} entry=${entry} onClose=${() => setRenaming(false)} /></li>`;
  const entries = [
    { label: t("rename"), icon: "pencil", run: () => setRenaming(true) },
    { label: entry.pinned ? t("unpin") : t("pin"), icon: "pin", run: () => pin(entry.id, !entry.pinned) },
    { label: t("delete"), icon: "trash", danger: true, run: () => remove(entry.id, current) },
  ];
  return html`<li class=${classes("thread", current && "current")}>
    <a href="#/t/${entry.id}" aria-current=${current ? "page" : undefined} onClick=${(/** @type {MouseEvent} */ e) => e.metaKey || e.ctrlKey || (e.preventDefault(), onPick(entry.id))}>
      <${State} entry=${entry} asks=${asks} /><span class="thread-title" dir="auto">${marks(title, words)}</span>
      ${entry.excerpt && html`<small dir="auto">${marks(entry.excerpt, words)}</small>`}
    </a>
    <${Menu} name=${t("thread.menuOf", { title })} entries=${entries} align="end" />
  </li>`;
});

/** @param {{entry: import("../state/threads.js").Entry, asks: boolean}} props */
function State({ entry, asks }) {
  const kind = asks ? "waiting" : entry.status === "busy" ? "busy" : entry.status === "error" ? "error" : "";
  return kind && html`<span class="mark ${kind}" title=${t(`state.${kind}`)}><span class="visually-hidden">${t(`state.${kind}`)}</span></span>`;
}

/** @param {{entry: import("../state/threads.js").Entry, onClose: () => void}} props */
function Rename({ entry, onClose }) {
  const [title, setTitle] = useState(entry.title);
  const save = () => {
    onClose();
    if (title.trim() && title !== entry.title) void rename(entry.id, title.trim());
  };
  return html`<form class="rename" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), save())}>
    <input aria-label=${t("rename")} value=${title} dir="auto" maxlength="200" onInput=${(/** @type {any} */ e) => setTitle(e.target.value)} onBlur=${save}
      onKeyDown=${(/** @type {KeyboardEvent} */ e) => e.key === "Escape" && onClose()} ref=${(/** @type {any} */ element) => element && document.activeElement !== element && element.focus()} />
  </form>`;
}

/** An excerpt with the words set apart that were looked for. @param {string} text @param {string} words */
function marks(text, words) {
  const any = words.split(/\s+/).filter(Boolean).map((word) => word.replace(/[^\p{L}\p{N}_]/gu, "\\$&")).join("|");
  return any ? text.split(new RegExp(`(${any})`, "iu")).map((part, index) => (index % 2 ? html`<mark>${part}</mark>` : part)) : text;
}
