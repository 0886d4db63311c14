// A conversation that somebody shares, to be read only. For everybody the token is in the part of the address that browsers
// keep to themselves, and requests carry no cookie.

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { Failure, address, failureOf, send } from "../api/client.js";
import { Content } from "../files/content.js";
import { MOST_BYTES, kindOf } from "../files/look.js";
import { Pdf } from "../files/pdf.js";
import { Button, IconButton } from "../kit/button.js";
import { Icon } from "../kit/icon.js";
import { visible } from "../kit/visible.js";
import { Markdown } from "../markdown/text.js";
import { learn, moment, size, t, wordsOf } from "../words/words.js";
import { en } from "./words/en.js";
import { zh } from "./words/zh.js";

learn({ en, zh });

/** @typedef {{path: string, name: string, size: number, media_type: string|null}} File */

const PAGE = 100;
/** @type {RequestInit} */
const ANONYMOUS = { credentials: "omit", referrerPolicy: "no-referrer" };

/** @typedef {{url: (path: string, query?: Record<string, unknown>) => string, read: (path: string, query?: Record<string, unknown>) => Promise<Response>}} Source */

/** Where a share is read: `shared` for everybody, `shares` for people with an account. @param {"shared"|"shares"} kind @param {string} token @returns {Source} */
export function sourceOf(kind, token) {
  const below = (/** @type {string} */ path) => `${kind}/${encodeURIComponent(token)}${path.split("/").map(encodeURIComponent).join("/")}`;
  /** @type {Source["url"]} */
  const url = (path, query) => address(below(path), query);
  return { url, read: (path, query = {}) => (kind === "shared" ? anonymously(url(path, query)) : send("GET", below(path), { query })) };
}

/** @param {string} url */
async function anonymously(url) {
  const response = await fetch(url, ANONYMOUS).catch(() => {
    throw new Failure(0, "unreachable", "");
  });
  if (!response.ok) throw await failureOf(response);
  return response;
}

/** The pages of a share that were read. @param {Source} source */
export function useShared(source) {
  const [pages, setPages] = useState(/** @type {any[]} */ ([]));
  const [problem, setProblem] = useState("");
  const more = async () => {
    try {
      const response = await source.read("", { limit: PAGE, after_seq: pages.at(-1)?.next_after_seq ?? null });
      const page = await response.json();
      setPages((before) => [...before, page]);
      document.title = `${visible(page.title || t("approvals.untitled"))} · Sika`;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(error.status === 404 ? t("shared.gone") : wordsOf(error));
    }
  };
  useEffect(() => void more(), []);
  return { pages, problem, more };
}

/** The page for everybody. @param {{token: string}} props */
export function View({ token }) {
  const source = useMemo(() => sourceOf("shared", token), []);
  return html`<main class="shared"><${Shared} source=${source} shared=${useShared(source)} /></main>`;
}

/** @param {{source: Source, shared: ReturnType<typeof useShared>, children?: any}} props `children`: below the heading */
export function Shared({ source, shared: { pages, problem, more }, children }) {
  const last = pages.at(-1);
  if (problem) return html`<div class="gone"><div class="card"><h1>${problem}</h1></div></div>`;
  if (!last) return html`<p class="quiet center">${t("loading")}</p>`;
  const [{ title, shared_at: at, files, shared_by: who }] = pages;
  return html`<div class="column">
    <header><h1 dir="auto">${title || t("approvals.untitled")}</h1><p class="quiet">${who ? t("shared.by", { time: moment(at), who }) : t("shared.about", { time: moment(at) })}</p></header>
    ${children}
    ${files.length > 0 && html`<${Files} files=${files} source=${source} />`}
    ${pages.flatMap((page) => page.messages).map((message) => html`<${Message} key=${message.id} message=${message} />`)}
    ${last.next_after_seq !== null && html`<${Button} onClick=${() => void more()}>${t("files.more")}<//>`}
  </div>`;
}

/** @param {{message: any}} props */
function Message({ message: { type, text, tool_calls: calls, status, name } }) {
  if (type === "human") return text && html`<article class="person" aria-label=${t("you")}><div class="bubble" dir="auto">${text}</div></article>`;
  if (type === "tool") return (text || status === "error") && html`<p class="step-line"><${Icon} name=${status === "error" ? "warn" : "flag"} size=${16} />${text || `${name}: ${t("tool.failed")}`}</p>`;
  return html`<article class="answer" aria-label=${t("answer")}>
    ${text && html`<${Markdown} text=${text} thread="" />`}
    ${calls.map((/** @type {any} */ call) => html`<${Called} key=${call.id} call=${call} />`)}
  </article>`;
}

/** @param {{call: any}} props */
function Called({ call: { name, arguments: args } }) {
  const line = html`<${Icon} name="spark" size=${16} />${t("tool.other.done", { name: name.replaceAll("_", " ") })}`;
  if (!args) return html`<p class="step-line">${line}</p>`;
  return html`<details class="shared-call"><summary class="step-line">${line}</summary><pre dir="ltr" tabindex="0" role="group" aria-label=${t("tool.arguments")}>${JSON.stringify(args, null, 2)}</pre></details>`;
}

/** @param {{files: File[], source: Source}} props */
function Files({ files, source }) {
  const [open, setOpen] = useState(/** @type {File | null} */ (null));
  return html`<div class="files shared-files">${files.map((file) => html`<button type="button" class="file" key=${file.path} aria-expanded=${String(open === file)} onClick=${() => setOpen(open === file ? null : file)}><${Icon} name="file" size=${16} /><bdi>${file.name}</bdi><small>${size(file.size)}</small></button>`)}</div>
    ${open && html`<${Shown} key=${open.path} file=${open} source=${source} onClose=${() => setOpen(null)} />`}`;
}

/** @param {{file: File, source: Source, onClose: () => void}} props */
function Shown({ file, source, onClose }) {
  const kind = kindOf(file.name, file.media_type ?? "");
  const readable = ["markdown", "table", "text"].includes(kind) && file.size <= MOST_BYTES;
  const [text, setText] = useState("");
  const url = source.url(`/files${file.path}`);
  const load = () => source.read(`/files${file.path}`);
  useEffect(() => {
    if (readable) void load().then((response) => response.text()).then(setText, () => {});
  }, []);
  return html`<section class="card shared-file" aria-label=${file.name}>
    <header class="file-head"><span class="file-title"><strong><bdi>${file.name}</bdi></strong></span>
      <a class="icon-button" href=${url} download=${file.name} aria-label=${t("files.save", { name: file.name })} title=${t("files.save", { name: file.name })}><${Icon} name="save" /></a>
      <${IconButton} icon="cross" name=${t("close")} onClick=${onClose} /></header>
    ${kind === "frame"
      ? html`<iframe src=${`${url}?view=sandbox`} sandbox="allow-scripts" title=${file.name} referrerpolicy="no-referrer"></iframe>`
      : kind === "pdf"
        ? html`<${Pdf} place=${file.path} size=${file.size} load=${load} />`
      : kind === "image"
        ? html`<div class="file-picture"><img src=${url} alt=${file.name} crossorigin="anonymous" /></div>`
        : readable
          ? text && html`<${Content} file=${{ ...file, thread: "", media: file.media_type ?? "", kind, text, cut: false }} source=${false} />`
          : html`<p class="quiet file-note">${t("files.unshown")}</p>`}
  </section>`;
}
