// Files on their way into a conversation: several at once, each with its progress; one that is refused says why.

import { html, signal } from "../vendor/preact.js";
import { Failure, upload } from "../api/client.js";
import { IconButton } from "../kit/button.js";
import { Icon } from "../kit/icon.js";
import { classes } from "../kit/view.js";
import { size, t, wordsOf } from "../words/words.js";

/**
 * @typedef {{key: number, name: string, size: number, share: number, path: string, problem: string, stop: AbortController}} Upload
 *   `share`: of it that was sent, 0 to 1; `path`: where it lies, when it does
 */

let newest = 0;

/** The files of one composer. */
export class Uploads {
  /** @type {import("../vendor/preact.js").Signal<Upload[]>} */
  list = signal([]);

  /** @param {string} thread */
  constructor(thread) {
    this.thread = thread;
  }

  /** @param {Iterable<File>} files */
  add(files) {
    for (const file of files) void this.#send(file);
  }

  /** @param {number} key */
  remove(key) {
    this.list.value.find((one) => one.key === key)?.stop.abort();
    this.list.value = this.list.value.filter((one) => one.key !== key);
  }

  clear() {
    this.list.value = [];
  }

  get busy() {
    return this.list.value.some((one) => !one.path && !one.problem);
  }

  /** Files that lie with the server. @returns {import("../state/message.js").Attachment[]} */
  get done() {
    return this.list.value.filter((one) => one.path).map(({ name, size: bytes, path }) => ({ name, size: bytes, path }));
  }

  /** @param {File} file */
  async #send(file) {
    const key = (newest += 1);
    const entry = { key, name: file.name || "file", size: file.size, share: 0, path: "", problem: "", stop: new AbortController() };
    this.list.value = [...this.list.value, entry];
    const form = new FormData();
    form.append("files", file, entry.name);
    try {
      const answer = await upload(`threads/${this.thread}/uploads`, form, (share) => this.#change(key, { share }), entry.stop.signal);
      const [taken] = answer?.files ?? [];
      this.#change(key, taken ? { share: 1, path: taken.virtual_path ?? taken.path, name: taken.filename } : { problem: answer?.skipped_files?.[0] ?? t("upload.refused") });
    } catch (error) {
      if (error instanceof Failure) this.#change(key, { problem: wordsOf(error) });
    }
  }

  /** @param {number} key @param {Partial<Upload>} change */
  #change(key, change) {
    this.list.value = this.list.value.map((one) => (one.key === key ? { ...one, ...change } : one));
  }
}

/** @param {{uploads: Uploads}} props */
export function Attachments({ uploads }) {
  const list = uploads.list.value;
  if (!list.length) return null;
  return html`<ul class="attachments" aria-label=${t("attachments")}>
    ${list.map(
      (one) => html`<li key=${one.key} class=${classes("file", one.problem && "refused")}>
        <${Icon} name=${one.problem ? "warn" : "file"} size=${16} />
        <span class="file-words"><bdi>${one.name}</bdi><small role=${one.problem ? "alert" : undefined}>${one.problem || size(one.size)}</small></span>
        ${!one.path && !one.problem && html`<progress max="1" value=${one.share} aria-label=${t("upload.progress", { name: one.name })}></progress>`}
        <${IconButton} icon="cross" size=${14} name=${t("upload.remove", { name: one.name })} onClick=${() => uploads.remove(one.key)} />
      </li>`,
    )}
  </ul>`;
}
