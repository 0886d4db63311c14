// A call that waits, as what it is: a command, a file with what changes in it, an address, or its arguments.

import { html, useEffect, useState } from "../vendor/preact.js";
import { fileUrl } from "../api/files.js";
import { Button } from "../kit/button.js";
import { Diff } from "../chat/diff.js";
import { hides, visible, withoutHidden } from "../kit/visible.js";
import { t } from "../words/words.js";

/** The argument of a call that a person may change before it is made: a command, or the text of a file. */
const TEXTS = /** @type {Record<string, string>} */ ({ bash: "command", write_file: "content", str_replace: "new_str" });
const MOST_BEFORE = 500_000;

/** @param {{tool: string, args: any}} call @returns {string} the name of the argument that can be changed, if there is one */
export const textOf = ({ tool, args }) => (typeof args?.[TEXTS[tool]] === "string" ? TEXTS[tool] : "");

/**
 * @param {{call: {tool: string, args: any}, thread: string, text: string, edits: boolean, sent: boolean, onInput: (text: string) => void}} props
 *   `text`: of the argument that can be changed
 */
export function Call({ call, thread, text, edits, sent, onInput }) {
  const { tool, args } = call;
  const [open, setOpen] = useState(tool === "bash");
  const field = edits && html`<${Edited} text=${text} sent=${sent} onInput=${onInput} />`;
  if (tool === "bash") {
    return html`${args.description && html`<p class="quiet" dir="auto">${args.description}</p>`}
      ${field || html`<pre class="call-shown" dir="ltr" tabindex="0" role="group" aria-label=${t("tool.command")}>${text}</pre>`}`;
  }
  if (textOf(call) && args.path) {
    return html`<${FileChange} thread=${thread} args=${args} tool=${tool} text=${text} />
      ${edits && !open && html`<${Button} kind="quiet" disabled=${sent} onClick=${() => setOpen(true)}>${t("approval.edit.open")}<//>`}${open && field}`;
  }
  if (tool === "edit_files" && Array.isArray(args?.edits)) {
    return args.edits.map((/** @type {any} */ edit, /** @type {number} */ index) => html`<${Diff} key=${index} path=${String(edit?.path ?? "")} before=${String(edit?.old_str ?? "")} after=${String(edit?.new_str ?? edit?.content ?? "")} />`);
  }
  if (typeof args?.url === "string") return html`<${Page} url=${args.url} />`;
  return html`<pre class="call-shown" dir="ltr" tabindex="0" role="group" aria-label=${tool}>${JSON.stringify(args ?? {}, null, 2)}</pre>`;
}

/** A text that can be changed. Characters that nobody sees are shown below, as a field cannot. @param {{text: string, sent: boolean, onInput: (text: string) => void}} props */
function Edited({ text, sent, onInput }) {
  const rows = Math.min(16, Math.max(2, text.split("\n").length + 1));
  const shown = hides(text) && visible(text) !== text;
  return html`<textarea class="call-shown" dir="ltr" rows=${rows} spellcheck=${false} aria-label=${t("approval.edit")} value=${text} disabled=${sent}
      onInput=${(/** @type {any} */ event) => onInput(event.target.value)} />
    ${shown && html`<div class="hidden-found" role="alert"><p>${t("approval.hidden")}</p><pre dir="ltr" tabindex="0" role="group" aria-label=${t("approval.hidden")}>${text}</pre>
      <${Button} disabled=${sent} onClick=${() => onInput(withoutHidden(text))}>${t("approval.hidden.remove")}<//></div>`}`;
}

/** What a call makes of a file. @param {{thread: string, args: any, tool: string, text: string}} props */
function FileChange({ thread, args, tool, text }) {
  const before = useBefore(thread, tool === "write_file" ? String(args.path) : "");
  const path = String(args.path);
  if (tool === "str_replace") return html`<${Diff} path=${path} before=${String(args.old_str ?? "")} after=${text} />`;
  return before === null ? html`<p class="quiet">${t("loading")}</p>` : html`<${Diff} path=${path} before=${before} after=${text} />`;
}

/** The text of a file as it is now; empty if there is none, null while it is not known. @param {string} thread @param {string} path */
function useBefore(thread, path) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  useEffect(() => {
    if (!path) return undefined;
    const leaving = new AbortController();
    const headers = { range: `bytes=0-${MOST_BEFORE - 1}` };
    fetch(fileUrl(thread, path), { headers, signal: leaving.signal })
      .then((response) => (response.ok ? response.text() : ""))
      .then(setText, () => leaving.signal.aborted || setText(""));
    return () => leaving.abort();
  }, [thread, path]);
  return text;
}

/** A page that a program asks the person to open. @param {{url: string}} props */
function Page({ url }) {
  const safe = /^https?:\/\//i.test(url) && URL.canParse(url);
  if (!safe) return html`<pre class="call-shown" dir="ltr">${url}</pre>`;
  return html`<p class="call-page"><a href=${url} target="_blank" rel="noopener noreferrer nofollow">${t("approval.page", { host: new URL(url).host })}</a><br /><small dir="ltr">${url}</small></p>`;
}
