// The skills that one may use, those of one's own among them: uploaded by button or drop, switched, and removed.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call, upload } from "../api/client.js";
import { complain } from "../chat/actions.js";
import { forgetSkills } from "../chat/completions.js";
import { Button } from "../kit/button.js";
import { Dialog } from "../kit/dialog.js";
import { classes } from "../kit/view.js";
import { t, wordsOf } from "../words/words.js";

/** @typedef {{name: string, description: string, category: string, enabled: boolean, editable: boolean}} Skill */
/** @typedef {{skills: Skill[], skipped: {path: string, reason: string}[]}} Listing */

/** @param {{onClose: () => void}} props */
export function SkillsDialog({ onClose }) {
  const [listing, setListing] = useState(/** @type {Listing | null} */ (null));
  const read = async () => setListing(await call("GET", "skills"));
  useEffect(() => void read().catch(complain), []);
  const change = async (/** @type {() => Promise<unknown>} */ act) => {
    await act().then(read).catch(complain);
    forgetSkills();
  };
  const own = listing?.skills.filter((skill) => skill.editable) ?? [];
  const others = listing?.skills.filter((skill) => !skill.editable) ?? [];
  return html`<${Dialog} title=${t("skills")} onClose=${onClose} kind="wide">
    <p>${t("skills.text")}</p>
    <${Upload} onTaken=${() => change(async () => {})} />
    ${own.length > 0 && html`<h3>${t("skills.own")}</h3><${List} skills=${own} onChange=${change} />`}
    ${others.length > 0 && html`<h3>${t("skills.all")}</h3><${List} skills=${others} onChange=${change} />`}
    ${listing?.skipped.map(({ path, reason }) => html`<p class="error" key=${path}><bdi>${path}</bdi>: ${reason}</p>`)}
  <//>`;
}

/** @param {{skills: Skill[], onChange: (act: () => Promise<unknown>) => Promise<void>}} props */
function List({ skills, onChange }) {
  const path = (/** @type {Skill} */ { name }) => `skills/custom/${encodeURIComponent(name)}`;
  return html`<ul class="rows">${skills.map(
    (skill) => html`<li key=${skill.name} class=${classes(!skill.enabled && "off")}>
      <span><bdi>/${skill.name}</bdi>${!skill.enabled && ` · ${t("skills.off")}`}<small dir="auto">${skill.description}</small></span>
      ${skill.editable && html`<${Button} kind="danger" onClick=${() => onChange(() => call("DELETE", path(skill)))}>${t("delete")}<//>`}
    </li>`,
  )}</ul>`;
}

/** One archive at a time: a place to drop it, its progress, and why it was refused. @param {{onTaken: () => Promise<void>}} props */
function Upload({ onTaken }) {
  const [share, setShare] = useState(-1); // of the archive that is sent, 0 to 1; -1: none is
  const [end, setEnd] = useState({ text: "", failed: false });
  const [over, setOver] = useState(false);
  const send = async (/** @type {File | undefined} */ file) => {
    if (!file || share >= 0) return;
    const form = new FormData();
    form.append("file", file, file.name);
    setShare(0);
    setEnd({ text: "", failed: false });
    try {
      const { skill_name: name } = await upload("skills/upload", form, setShare, new AbortController().signal);
      setEnd({ text: t("skills.taken", { name }), failed: false });
      await onTaken();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setEnd({ text: error.detail || wordsOf(error), failed: true });
    }
    setShare(-1);
  };
  const drag = (/** @type {DragEvent} */ event, /** @type {boolean} */ inside) => {
    event.preventDefault();
    event.stopPropagation(); // the page would attach it
    setOver(inside);
  };
  const drop = (/** @type {DragEvent} */ event) => {
    drag(event, false);
    void send(event.dataTransfer?.files[0]);
  };
  return html`<div class=${classes("skill-drop", over && "over")} onDragOver=${(/** @type {DragEvent} */ e) => drag(e, true)} onDragLeave=${(/** @type {DragEvent} */ e) => drag(e, false)} onDrop=${drop}>
    <label class="button first">${t("skills.upload")}<input type="file" class="visually-hidden" accept=".skill,.zip" disabled=${share >= 0}
      onChange=${(/** @type {any} */ e) => (void send(e.target.files[0]), (e.target.value = ""))} /></label>
    <small>${t("skills.drop")}</small>
    ${share >= 0 && html`<progress max="1" value=${share} aria-label=${t("skills.upload")}></progress>`}
    ${end.text && html`<p class=${end.failed ? "error" : ""} role=${end.failed ? "alert" : "status"}>${end.text}</p>`}
  </div>`;
}
