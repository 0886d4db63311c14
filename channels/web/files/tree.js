// The tree of a conversation's files, read folder by folder, with sizes, times, and the runs that changed them.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Icon } from "../kit/icon.js";
import { moment, size, t, wordsOf } from "../words/words.js";
import { TOP, placeOf } from "./place.js";

/** @typedef {import("./place.js").File} File */

/** @param {{thread: string, tick: number, onRun: (run: string) => void}} props */
export function Tree({ thread, tick, onRun }) {
  return html`<div class="file-tree"><${Folder} thread=${thread} path=${TOP} tick=${tick} onRun=${onRun} /></div>`;
}

/** @param {{thread: string, path: string, tick: number, onRun: (run: string) => void}} props */
function Folder({ thread, path, tick, onRun }) {
  const [files, setFiles] = useState(/** @type {File[] | null} */ (null));
  const [next, setNext] = useState(/** @type {string | null} */ (null));
  const [problem, setProblem] = useState("");
  const read = async (/** @type {string | null} */ after) => {
    try {
      const limit = after ? 200 : Math.min(1000, Math.max(200, files?.length ?? 0));
      const page = await call("GET", `threads/${thread}/files`, { query: { under: path, depth: 1, limit, after } });
      setFiles((before) => [...(after ? (before ?? []) : []), ...page.files]);
      setNext(page.next);
      setProblem("");
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  useEffect(() => void read(null), [thread, path, tick]);
  if (problem) return html`<p class="error" role="alert">${problem}</p>`;
  if (!files) return null;
  if (!files.length) return html`<p class="quiet file-none">${path === TOP ? t("files.none") : t("files.folder.none")}</p>`;
  return html`<ul>
    ${files.map((file) => html`<li key=${file.path}><${Entry} file=${file} thread=${thread} tick=${tick} onRun=${onRun} /></li>`)}
    ${next && html`<li><button type="button" class="button" onClick=${() => void read(next)}>${t("files.more")}</button></li>`}
  </ul>`;
}

/** Folders that hold what people came for. */
const ROOTS = [`${TOP}/outputs`, `${TOP}/uploads`, `${TOP}/workspace`];

/** @param {{file: File, thread: string, tick: number, onRun: (run: string) => void}} props */
function Entry({ file, thread, tick, onRun }) {
  const [open, setOpen] = useState(ROOTS.includes(file.path));
  if (file.kind === "directory") {
    return html`<details open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
      <summary><${Icon} name=${open ? "down" : "right"} size=${14} /><${Icon} name="folder" size=${16} /><bdi>${ROOTS.includes(file.path) ? t(`files.root.${file.name}`) : file.name}</bdi></summary>
      ${open && html`<${Folder} thread=${thread} path=${file.path} tick=${tick} onRun=${onRun} />`}
    </details>`;
  }
  if (file.kind !== "file") return html`<span class="file-row"><${Icon} name="file" size=${16} /><bdi class="quiet">${file.name}</bdi></span>`;
  const { run_id: run } = file;
  return html`<span class="file-row">
    <a href=${placeOf(thread, file.path)}><${Icon} name="file" size=${16} /><bdi>${file.name}</bdi></a>
    <small class="file-size">${size(file.size ?? 0)}</small>
    <small class="file-time">${run ? html`<button type="button" class="link" title=${t("files.byRun")} onClick=${() => onRun(run)}>${moment(file.modified_at)}</button>` : moment(file.modified_at)}</small>
  </span>`;
}
