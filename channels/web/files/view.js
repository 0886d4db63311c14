// The files of a conversation: a tree that is read folder by folder, and the file that is chosen, as what it is.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call, send } from "../api/client.js";
import { fileUrl } from "../api/files.js";
import { size, t, wordsOf } from "../words/words.js";

const TOP = "/mnt/user-data";
const MOST_SHOWN = 500_000;
/** Kinds that are shown in a frame without rights. */
const FRAMED = /^(text\/html|application\/xhtml\+xml|image\/svg\+xml|application\/pdf)$/;
const TEXT = /^(text\/|application\/(json|xml|javascript|x-sh|toml|yaml))/;

/** @typedef {{path: string, name: string, kind: string, size: number|null, media_type: string|null}} File */

/** @param {{path: string[]}} props the thread, and the chosen file's path in parts */
export function View({ path: [thread, ...parts] }) {
  const chosen = parts.length ? `/${parts.join("/")}` : "";
  return html`<section class="files" aria-label=${t("files")}>
    <h1>${t("files")}</h1>
    <p><a href=${`#/t/${thread}`}>${t("files.back")}</a></p>
    <${Folder} key=${thread} thread=${thread} path=${TOP} chosen=${chosen} />
    ${chosen && html`<${Shown} key=${chosen} thread=${thread} path=${chosen} />`}
  </section>`;
}

/** @param {{thread: string, path: string, chosen: string}} props */
function Folder({ thread, path, chosen }) {
  const [files, setFiles] = useState(/** @type {File[] | null} */ (null));
  const [next, setNext] = useState(/** @type {string | null} */ (""));
  const [problem, setProblem] = useState("");
  const read = async (/** @type {string} */ after) => {
    try {
      const page = await call("GET", `threads/${thread}/files`, { query: { under: path, depth: 1, after: after || null } });
      setFiles((before) => [...(after ? (before ?? []) : []), ...page.files]);
      setNext(page.next);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  useEffect(() => void read(""), [thread, path]);
  if (problem) return html`<p class="error" role="alert">${problem}</p>`;
  if (files?.length === 0) return html`<p class="quiet">${t("files.none")}</p>`;
  return html`<ul>
    ${(files ?? []).map((file) => html`<li key=${file.path}><${Entry} file=${file} thread=${thread} chosen=${chosen} /></li>`)}
    ${files && next && html`<li><button type="button" class="button" onClick=${() => void read(next)}>${t("files.more")}</button></li>`}
  </ul>`;
}

/** @param {{file: File, thread: string, chosen: string}} props */
function Entry({ file, thread, chosen }) {
  const [open, setOpen] = useState(chosen.startsWith(`${file.path}/`));
  if (file.kind === "directory") {
    return html`<details open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
      <summary><bdi>${file.name}</bdi></summary>
      ${open && html`<${Folder} thread=${thread} path=${file.path} chosen=${chosen} />`}
    </details>`;
  }
  if (file.kind !== "file") return html`<bdi class="quiet">${file.name}</bdi>`;
  return html`<a href=${placeOf(thread, file.path)} aria-current=${file.path === chosen ? "true" : undefined}><bdi>${file.name}</bdi></a>${" "}<small>${size(file.size ?? 0)}</small>`;
}

/** @param {string} thread @param {string} path */
const placeOf = (thread, path) => `#/files/${thread}${path.split("/").map(encodeURIComponent).join("/")}`;

/** @param {{thread: string, path: string}} props */
function Shown({ thread, path }) {
  const [kind, setKind] = useState("");
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const [problem, setProblem] = useState("");
  const name = path.slice(path.lastIndexOf("/") + 1);
  useEffect(() => {
    const leaving = new AbortController();
    void look(thread, path, leaving.signal)
      .then(([found, content]) => {
        setKind(found);
        setText(content);
      })
      .catch((error) => {
        if (error instanceof Failure) setProblem(wordsOf(error));
        else if (error.name !== "AbortError") throw error;
      });
    return () => leaving.abort();
  }, [thread, path]);
  return html`<figure class="file-shown">
    <figcaption><bdi>${name}</bdi> <a href=${fileUrl(thread, path, { download: true })} download=${name}>${t("files.save")}</a></figcaption>
    ${problem ? html`<p class="error" role="alert">${problem}</p>` : kind && html`<${Content} thread=${thread} path=${path} name=${name} kind=${kind} text=${text} />`}
  </figure>`;
}

/** @param {{thread: string, path: string, name: string, kind: string, text: string | null}} props */
function Content({ thread, path, name, kind, text }) {
  const url = fileUrl(thread, path);
  if (FRAMED.test(kind)) {
    const sandbox = kind === "application/pdf" ? undefined : "allow-scripts";
    return html`<iframe src=${fileUrl(thread, path, { view: "sandbox" })} sandbox=${sandbox} title=${name} referrerpolicy="no-referrer"></iframe>`;
  }
  if (kind.startsWith("image/")) return html`<img src=${url} alt=${name} />`;
  if (kind.startsWith("audio/")) return html`<audio controls src=${url}></audio>`;
  if (kind.startsWith("video/")) return html`<video controls src=${url}></video>`;
  if (text !== null) return html`<pre dir="auto" tabindex="0" role="region" aria-label=${name}>${text}</pre>`;
  return html`<p class="quiet">${t("files.unshown")}</p>`;
}

/**
 * What a file is, and its text if it is one and not too long.
 * @param {string} thread @param {string} path @param {AbortSignal} signal @returns {Promise<[string, string | null]>}
 */
async function look(thread, path, signal) {
  const place = `threads/${thread}/artifacts/${path.replace(/^\//, "").split("/").map(encodeURIComponent).join("/")}`;
  const head = await send("HEAD", place, { signal });
  const kind = (head.headers.get("content-type") ?? "").split(";")[0];
  const short = Number(head.headers.get("content-length")) <= MOST_SHOWN;
  if (!TEXT.test(kind) || FRAMED.test(kind) || !short) return [kind, null];
  return [kind, await (await send("GET", place, { signal })).text()];
}
