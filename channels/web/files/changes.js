// What each run changed in the files, newest first: the question, the files, and the lines as a diff.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { Dialog } from "../kit/dialog.js";
import { Icon } from "../kit/icon.js";
import { notify } from "../kit/toast.js";
import { classes } from "../kit/view.js";
import { messageOf } from "../state/message.js";
import { moment, t, wordsOf } from "../words/words.js";
import { placeOf, shortOf } from "./place.js";

const PAGE = 100;
const MOST_LINES = 2000;

/** @typedef {{id: string, text: string, at: string, files: number, additions: number, deletions: number, undone: boolean}} Run */

/** @param {{thread: string, tick: number, run: string}} props `run`: the one that is open at first */
export function Changes({ thread, tick, run }) {
  const [runs, setRuns] = useState(/** @type {Run[] | null} */ (null));
  const [before, setBefore] = useState(/** @type {number | null} */ (null));
  const [problem, setProblem] = useState("");
  const read = async (/** @type {number | null} */ from) => {
    try {
      const page = await call("GET", `threads/${thread}/messages/page`, { query: { limit: PAGE, before_seq: from } });
      setRuns((known) => [...(from ? (known ?? []) : []), ...runsOf(page)]);
      setBefore(page.next_before_seq);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  const undone = (/** @type {string} */ id) => setRuns((known) => known && known.map((one) => (one.id === id ? { ...one, undone: true } : one)));
  useEffect(() => void read(null), [thread, tick]);
  if (problem) return html`<p class="error file-note" role="alert">${problem}</p>`;
  if (!runs) return html`<p class="quiet file-note">${t("loading")}</p>`;
  return html`<div class="changes">
    ${runs.length === 0 && html`<p class="quiet file-none">${t("changes.none")}</p>`}
    ${runs.map((one) => html`<${OneRun} key=${one.id} run=${one} thread=${thread} first=${one.id === run || one === runs[0]} onUndone=${() => undone(one.id)} />`)}
    ${before && html`<${Button} kind="quiet" onClick=${() => void read(before)}>${t("older")}<//>`}
  </div>`;
}

/** The runs of a page that changed files, newest first. @param {any} page of `messages/page` @returns {Run[]} */
function runsOf({ data, runs }) {
  const texts = new Map(data.filter((/** @type {any} */ row) => row.content?.type === "human").map((/** @type {any} */ row) => [row.run_id, messageOf(row.content, 0, "", "")?.text ?? ""]));
  const ids = [...new Set(data.map((/** @type {any} */ row) => row.run_id))].reverse();
  return ids.filter((id) => runs[id]?.changes?.files).map((id) => ({ id, text: texts.get(id) ?? "", at: runs[id].ended_at ?? runs[id].started_at, ...runs[id].changes }));
}

/** @param {{run: Run, thread: string, first: boolean, onUndone: () => void}} props */
function OneRun({ run, thread, first, onUndone }) {
  const [open, setOpen] = useState(first);
  return html`<details open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
    <summary><${Icon} name=${open ? "down" : "right"} size=${14} />
      <span class="change-words"><strong dir="auto">${run.text.slice(0, 120) || t("changes.run")}</strong>
      <small>${moment(run.at)} · ${t("changes.files", { n: run.files })}${run.undone && ` · ${t("changes.undone")}`}</small></span>
      <${Counts} ...${run} /></summary>
    ${open && html`<${Files} thread=${thread} run=${run.id} />${!run.undone && html`<${TakeBack} thread=${thread} run=${run.id} onDone=${onUndone} />`}`}
  </details>`;
}

/** @param {{thread: string, run: string, onDone: () => void}} props */
function TakeBack({ thread, run, onDone }) {
  const [asks, setAsks] = useState(false);
  const [problem, setProblem] = useState("");
  const close = () => setAsks(false);
  const undo = async () => {
    close();
    try {
      await call("POST", `threads/${thread}/runs/${run}/undo`);
      notify(t("changes.takeBack.done"));
      onDone();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  return html`<p class="change-undo"><${Button} onClick=${() => setAsks(true)}>${t("changes.takeBack")}<//></p>
    ${problem && html`<p class="error file-note" role="alert" dir="auto">${problem}</p>`}
    ${asks && html`<${Dialog} title=${t("changes.takeBack.title")} onClose=${close}>
      <p>${t("changes.takeBack.text")}</p>
      <div class="card-actions"><${Button} onClick=${close}>${t("cancel")}<//><${Button} kind="danger" onClick=${undo}>${t("changes.takeBack")}<//></div>
    <//>`}`;
}

/** @param {{additions: number, deletions: number}} props */
const Counts = ({ additions, deletions }) => html`<span class="step-lines"><ins>+${additions}</ins> <del>−${deletions}</del></span>`;

/** @param {{thread: string, run: string}} props */
function Files({ thread, run }) {
  const [changes, setChanges] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    call("GET", `threads/${thread}/runs/${run}/workspace-changes`).then(setChanges, (error) => setProblem(error instanceof Failure ? wordsOf(error) : String(error)));
  }, [thread, run]);
  if (problem) return html`<p class="error" role="alert">${problem}</p>`;
  if (!changes) return html`<p class="quiet">${t("loading")}</p>`;
  return html`${changes.files.map((/** @type {any} */ file) => html`<${Change} key=${file.path} file=${file} thread=${thread} />`)}
    ${changes.summary.truncated && html`<p class="quiet">${t("changes.truncated")}</p>`}`;
}

/** @param {{file: any, thread: string}} props */
function Change({ file, thread }) {
  const lines = String(file.diff ?? "").split("\n").filter((line) => !/^(--- |\+\+\+ |\\ )/.test(line));
  const name = html`<bdi>${shortOf(file.path)}</bdi>`;
  return html`<figure class="output diff change">
    <figcaption><span class=${classes("change-kind", file.status)}>${t(`changes.${file.status}`)}</span>
      ${file.status === "deleted" ? name : html`<a href=${placeOf(thread, file.path)}>${name}</a>`}<${Counts} ...${file} /></figcaption>
    ${file.diff
      ? html`<pre tabindex="0" role="group" aria-label=${t("diff.of", { path: shortOf(file.path) })} dir="ltr">
${lines.slice(0, MOST_LINES).map((line) => html`<span class=${kindOf(line)}>${line.startsWith("@@") ? "⋯" : line}${"\n"}</span>`)}</pre>`
      : html`<p class="quiet change-why">${t(`changes.why.${file.diff_unavailable_reason ?? "none"}`)}</p>`}
    ${(file.diff_truncated || lines.length > MOST_LINES) && html`<p class="quiet">${t("changes.longer")}</p>`}
  </figure>`;
}

/** @param {string} line */
const kindOf = (line) => ({ "+": "added", "-": "removed", "@": "gap" })[line[0]] ?? "same";
