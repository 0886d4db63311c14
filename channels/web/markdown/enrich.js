// What is done to the elements of a block before they are shown: links that lead out, frames around code and tables,
// pictures from the thread's files; and, when the block is whole, colours, formulas and diagrams.

import { fileUrl } from "../api/files.js";
import { placeOf } from "../files/place.js";
import { copyText } from "../kit/copy.js";
import { reveal } from "../kit/visible.js";
import { t } from "../words/words.js";
import { highlight } from "./highlight.js";
import { diagram } from "../diagram/diagram.js";
import { safeMath } from "./safe.js";

const FILES = "/mnt/user-data/";

/**
 * @param {DocumentFragment} fragment @param {{thread: string, whole: boolean}} about `whole`: no more text comes; `thread`: empty where its files are not shown
 */
export function enrich(fragment, { thread, whole }) {
  reveal(fragment);
  for (const link of fragment.querySelectorAll("a")) leadOut(link, thread);
  for (const image of fragment.querySelectorAll("img")) place(image, thread);
  for (const table of fragment.querySelectorAll("table")) frame(table, "table-frame");
  for (const code of fragment.querySelectorAll("pre > code")) block(/** @type {HTMLElement} */ (code), whole);
  if (!whole) return;
  for (const math of fragment.querySelectorAll(".math, .math-block")) void formula(/** @type {HTMLElement} */ (math));
}

/** @param {HTMLAnchorElement} link @param {string} thread */
function leadOut(link, thread) {
  const href = link.getAttribute("href") ?? "";
  if (href.startsWith(FILES)) return thread ? void (link.href = placeOf(thread, decoded(href))) : link.removeAttribute("href");
  else if (!/^(?:https?:|mailto:)/i.test(href)) return link.removeAttribute("href");
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  if (!link.host || link.host === location.host) return;
  link.title = link.href;
  if (looksElsewhere(link)) link.after(hostOf(link));
}

/** @param {string} href */
function decoded(href) {
  try {
    return decodeURIComponent(href);
  } catch {
    return href;
  }
}

/** A host at the beginning of a text: after a scheme whatever stands there, without one what looks like a name. */
const ADDRESS = /^\s*(?:[a-z]+:\/\/([^\s/?#]*)|((?:[\p{L}\d-]+\.)+\p{L}{2,})(?=[\s/?#:]|$))/iu;

/** True if a text reads as an address of another host than the one it leads to. @param {HTMLAnchorElement} link */
function looksElsewhere(link) {
  const match = ADDRESS.exec(link.textContent ?? "");
  const bare = (/** @type {string} */ host) => host.toLowerCase().replace(/^www\./, "");
  return Boolean(match) && bare(match?.[1] ?? match?.[2] ?? "") !== bare(link.host);
}

/** @param {HTMLAnchorElement} link */
function hostOf(link) {
  const host = document.createElement("bdi");
  host.className = "host";
  host.textContent = ` (${link.hostname})`;
  return host;
}

/** A picture of the thread's files; one from elsewhere becomes a link: showing it would tell its server. @param {HTMLImageElement} image @param {string} thread */
function place(image, thread) {
  const source = image.getAttribute("src") ?? "";
  image.loading = "lazy";
  if (source.startsWith("data:")) return;
  if (source.startsWith(FILES)) return thread ? void (image.src = fileUrl(thread, source)) : image.replaceWith(image.alt || source);
  const link = document.createElement("a");
  link.textContent = image.alt || source;
  link.setAttribute("href", source);
  leadOut(link, thread);
  image.replaceWith(link);
}

/** @param {Element} element @param {string} kind */
function frame(element, kind) {
  const box = document.createElement("div");
  box.className = kind;
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", t("table"));
  element.replaceWith(box);
  box.append(element);
}

/** @param {HTMLElement} code @param {boolean} whole */
function block(code, whole) {
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const pre = /** @type {HTMLElement} */ (code.parentElement);
  const box = document.createElement("div");
  box.className = "code-frame";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy-code";
  copy.textContent = t("copy");
  copy.onclick = () => copyText(code.textContent ?? "");
  head.append(name, copy);
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", language ? t("code.in", { language }) : t("code"));
  pre.dir = "ltr";
  pre.replaceWith(box);
  box.append(head, pre);
  if (!whole) return;
  if (language === "mermaid") box.before(diagram(code.textContent ?? ""));
  else if (language) void highlight(code, language);
}

/** @param {HTMLElement} element */
async function formula(element) {
  const source = element.textContent ?? "";
  try {
    const { renderToString } = await import("../vendor/katex.js");
    const displayMode = element.classList.contains("math-block");
    const markup = renderToString(source, { displayMode, output: "mathml", throwOnError: true, trust: false, maxExpand: 200, maxSize: 20 });
    element.replaceChildren(safeMath(markup));
  } catch {
    element.classList.add("math-source");
  }
}
