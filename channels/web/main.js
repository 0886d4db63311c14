// The page: a sidebar, and the view that the address names.

import { html, render, signal, useEffect, useState } from "./vendor/preact.js";
import { IconButton } from "./kit/button.js";
import { Room } from "./kit/room.js";
import { Toasts } from "./kit/toast.js";
import { Menu } from "./kit/menu.js";
import { classes, useListener } from "./kit/view.js";
import { showHidden } from "./kit/visible.js";
import { go, route } from "./state/route.js";
import { recall, remember } from "./state/stored.js";
import { threads, waiting, watch, working } from "./state/threads.js";
import { activeRun } from "./state/conversation.js";
import { LANGUAGES, language, learn, speak, t } from "./words/words.js";
import { loadMarkdown } from "./markdown/text.js";
import { stop } from "./chat/actions.js";
import { loadAgents, loadModels } from "./chat/choices.js";
import { Dialogs } from "./chat/dialogs.js";
import { open } from "./chat/open.js";
import { keepWaiting } from "./approvals/badge.js";
import { added, wordsOf } from "./added/list.js";
import { Account, AccountDialogs } from "./account/menu.js";
import { administers, meet } from "./account/session.js";
import { showing } from "./chat/showing.js";
import { Sidebar } from "./chat/sidebar.js";
import { Chat } from "./chat/view.js";

/** A view for each beginning of an address. A room is loaded when it is entered. @type {Record<string, () => any>} */
const VIEWS = {
  "": () => Chat,
  t: () => Chat,
  approvals: () => import("./approvals/view.js").then((room) => room.View),
  files: () => import("./files/view.js").then((room) => room.View),
  settings: () => import("./settings/room.js").then((room) => room.View),
  operate: () => import("./operate/room.js").then((room) => room.View),
  timeline: () => import("./timeline/room.js").then((room) => room.View),
  shared: () => import("./share/account.js").then((room) => room.View),
  added: () => import("./added/view.js").then((room) => room.View),
};

const wide = matchMedia("(min-width: 56rem)");
/** Whether files have room beside the conversation. */
const large = matchMedia("(min-width: 64rem)");
const roomy = signal(large.matches);
/** Whether the sidebar is shown: beside the view on a wide screen, over it on a narrow one. */
const sidebar = signal(wide.matches && recall("sidebar") !== false);

function App() {
  const { view, path } = route.value;
  useShortcuts();
  useListener(window, "hashchange", close);
  useListener(large, "change", () => (roomy.value = large.matches));
  const beside = view === "files" && roomy.value;
  return html`<div class=${classes("page", sidebar.value && "with-sidebar", beside && "with-side")} lang=${language.value}>
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => (e.preventDefault(), document.getElementById("composer") ?? document.getElementById("main"))?.focus()}>${t("skip")}</a>
    ${sidebar.value && html`<${Sidebar} onPick=${close} foot=${html`<${Foot} />`} />`}
    ${sidebar.value && html`<div class="shade" onClick=${close}></div>`}
    <main id="main" tabindex="-1">
      <div class="bar"><${IconButton} icon="menu" name=${t("sidebar")} shortcut="Ctrl B" pressed=${sidebar.value} onClick=${toggle} /><${Working} current=${view === "t" || view === "files" ? path[0] : ""} /></div>
      <${View} name=${beside ? "t" : view} path=${beside ? path.slice(0, 1) : path} />
    </main>
    ${beside && html`<aside class="beside" aria-label=${t("files")}><${View} name="files" path=${path} /></aside>`}
    <${Dialogs} /><${AccountDialogs} /><${Toasts} />
  </div>`;
}

/** @param {{name: string, path: string[]}} props */
function View({ name, path }) {
  const [views, setViews] = useState(/** @type {Record<string, any>} */ ({ "": Chat, t: Chat }));
  const load = VIEWS[name] ?? VIEWS[""];
  useEffect(() => {
    if (!views[name]) void Promise.resolve(load()).then((view) => setViews((all) => ({ ...all, [name]: view })));
  }, [name]);
  const Shown = views[name];
  return Shown ? html`<${Shown} path=${path} />` : html`<p class="quiet center">${t("loading")}</p>`;
}

/** What runs now in conversations that are not in view. @param {{current: string}} props */
function Working({ current }) {
  const others = working.value.filter((entry) => entry.id !== current);
  if (!others.length) return null;
  return html`<button type="button" class="working-now" onClick=${() => go(`t/${others[0].id}`)}><span class="pulse" aria-hidden="true"></span>${t("working", { n: others.length })}</button>`;
}

function Foot() {
  const theme = document.documentElement.dataset.theme ?? "system";
  const [now, setNow] = useState(theme);
  const paint = (/** @type {string} */ next) => {
    setNow(next);
    remember("theme", next === "system" ? null : next);
    dress();
  };
  const themes = ["system", "light", "dark"].map((one) => ({ label: t(`theme.${one}`), checked: one === now, run: () => paint(one) }));
  const languages = Object.entries(LANGUAGES).map(([key, label]) => ({ label, checked: key === language.value, run: () => void speak(/** @type {any} */ (key)) }));
  const dialogs = /** @type {const} */ (["skills", "keys"]).map((one) => ({ label: t(one), run: () => void (showing.value = one) }));
  const further = [...dialogs, { label: t("settings"), run: () => go("settings") }, ...(administers.value ? [{ label: t("operate"), run: () => go("operate") }] : []), ...added.map(({ name }) => ({ label: t(`added.${name}.title`), run: () => go(`added/${name}`) }))];
  return html`<div class="sidebar-foot">
    <a class="bar-link" href="#/approvals">${t("approvals")}${waiting.value > 0 && html`<span class="badge">${waiting.value}</span>`}</a>
    <${Menu} name=${t("theme")} icon="sun" entries=${themes} up=${true} />
    <${Menu} name=${t("language")} icon="globe" entries=${languages} up=${true} />
    <${Account} />
    <span class="spacer"></span>
    <${Menu} name=${t("further")} entries=${further} up=${true} align="end" />
  </div>`;
}

/** Closes the sidebar where it lies over the view. */
const close = () => wide.matches || (sidebar.value = false);

function toggle() {
  sidebar.value = !sidebar.value;
  if (wide.matches) remember("sidebar", sidebar.value ? null : false);
}

// ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

const TWICE_MS = 600;
let escapedAt = 0;

function useShortcuts() {
  useListener(document, "keydown", (/** @type {KeyboardEvent} */ event) => {
    const action = keyed(event);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** @param {KeyboardEvent} event @returns {(() => void) | undefined} */
function keyed(event) {
  if (event.isComposing || event.defaultPrevented) return undefined;
  const command = event.ctrlKey || event.metaKey;
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if (command && event.key === "k") return search;
  if (command && event.key === "b") return toggle;
  if (command && event.shiftKey && event.key.toLowerCase() === "o") return () => go("");
  if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) return () => neighbour(event.key === "ArrowUp" ? -1 : 1);
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) return escaped(event.timeStamp);
  if (typing || command || event.altKey) return undefined;
  if (event.key === "?") return () => (showing.value = "keys");
  if (event.key === "/") return () => document.getElementById("composer")?.focus();
  return undefined;
}

/** Escape, twice, stops the run. @param {number} at */
function escaped(at) {
  const twice = at - escapedAt < TWICE_MS;
  escapedAt = at;
  const thread = open.value;
  const run = thread && activeRun(thread.state.value);
  return twice && thread && run ? () => void stop(thread, run.id) : undefined;
}

function search() {
  sidebar.value = true;
  requestAnimationFrame(() => document.getElementById("search")?.focus());
}

/** @param {number} step */
function neighbour(step) {
  const at = threads.value.findIndex((entry) => entry.id === route.value.path[0]);
  const next = threads.value[at < 0 ? 0 : at + step];
  if (next) go(`t/${next.id}`);
}

// ── the beginning ────────────────────────────────────────────────────────────────────────────────────────────────────

/** Light or dark, as it was chosen; else as the system says. */
function dress() {
  const theme = recall("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function begin() {
  render(html`<${App} />`, /** @type {Element} */ (document.getElementById("page")));
  void loadMarkdown();
  watch();
  keepWaiting();
  void loadModels().catch(() => {});
  requestIdleCallback(() => void loadAgents().catch(() => {}), { timeout: 2000 });
}

/** The page of a conversation that somebody shares: nobody is asked who they are. */
function share() {
  const token = location.hash.slice(1);
  void loadMarkdown();
  render(html`<${Room} load=${() => import("./share/view.js").then((room) => room.View)} token=${token} /><${Toasts} />`, /** @type {Element} */ (document.getElementById("page")));
}

dress();
showHidden();
for (const view of added) learn(wordsOf(view));
if (location.pathname.endsWith("/shared")) void speak().then(share);
else void Promise.all([speak(), meet()]).then(begin);
