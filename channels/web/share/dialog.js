// Sharing a conversation: what is shown to whom, addresses that are made, copied, listed, and revoked.

import { html, useEffect, useState } from "../vendor/preact.js";
import { person } from "../account/session.js";
import { address, call } from "../api/client.js";
import { complain } from "../chat/actions.js";
import { Button } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { Dialog } from "../kit/dialog.js";
import { learn, moment, t } from "../words/words.js";
import { en } from "./words/en.js";
import { zh } from "./words/zh.js";

learn({ en, zh });

/** @typedef {"accounts"|"everybody"} Audience */
/** @typedef {{share_id: string, created_at: string, title: string, files: any[], tool_arguments: boolean, expires_at: string|null, audience: Audience, events: number|null}} Share */

/** Who may read it, those first who are offered first. @type {readonly Audience[]} */
const AUDIENCES = ["accounts", "everybody"];

/** Days after which an address ends. */
const DAYS = [0, 1, 7, 30];

/** @param {{thread: {id: string}, at?: number, onClose: () => void}} props `at`: the event as of which it is shared; by default as it stands */
export function ShareDialog({ thread, at = 0, onClose }) {
  const [audience, setAudience] = useState(/** @type {Audience} */ (person.value ? "accounts" : "everybody"));
  const [withEvents, setWithEvents] = useState(at > 0);
  const [shares, setShares] = useState(/** @type {Share[]} */ ([]));
  const [made, setMade] = useState("");
  const [withArguments, setWithArguments] = useState(false);
  const [days, setDays] = useState(0);
  const [busy, setBusy] = useState(false);
  const path = `threads/${thread.id}/share`;
  const read = async () => setShares((await call("GET", path)).shares);
  useEffect(() => void read().catch(complain), []);
  const change = async (/** @type {() => Promise<void>} */ act) => {
    setBusy(true);
    await act().then(read).catch(complain);
    setBusy(false);
  };
  const make = () =>
    change(async () => {
      const body = { tool_arguments: withArguments, expires_in_days: days || null, audience, events: withEvents && known, at: at ? `seq:${at}` : null };
      const { url } = await call("POST", path, { body });
      setMade(new URL(`..${url}`, address("")).href);
    });
  const known = audience === "accounts";
  const revoke = (/** @type {string} */ id) => change(() => call("DELETE", `${path}/${id}`).then(() => setMade("")));
  return html`<${Dialog} title=${t("share.title")} onClose=${onClose}>
    ${person.value && html`<fieldset class="share-audience"><legend>${t("share.audience")}</legend>${AUDIENCES.map((one) => html`<label class="check" key=${one}><input type="radio" name="audience" value=${one} checked=${one === audience} onChange=${() => setAudience(one)} /> ${t(`share.${one}`)}</label>`)}</fieldset>`}
    <p>${t(known ? "share.what.accounts" : "share.what")} ${at > 0 && t("share.at")}</p>
    ${known && html`<label class="check"><input type="checkbox" checked=${withEvents} onChange=${(/** @type {any} */ e) => setWithEvents(e.target.checked)} /> ${t("share.events")}</label>`}
    <p class="quiet">${t(known && withEvents ? "share.events.text" : "share.not")}</p>
    <label class="check"><input type="checkbox" checked=${withArguments} onChange=${(/** @type {any} */ e) => setWithArguments(e.target.checked)} /> ${t("share.arguments")}</label>
    <p class="share-days"><label for="share-days">${t("share.ends")}</label>
      <select id="share-days" class="field" value=${String(days)} onChange=${(/** @type {any} */ e) => setDays(Number(e.target.value))}>${DAYS.map((one) => html`<option key=${one} value=${String(one)}>${one ? t("share.days", { n: one }) : t("share.never")}</option>`)}</select></p>
    ${made
      ? html`<div class="made" role="status"><input class="field" readonly dir="ltr" aria-label=${t("share.address")} value=${made} onFocus=${(/** @type {any} */ e) => e.target.select()} />
          <${Button} kind="first" onClick=${() => copyText(made)}>${t("copy")}<//><small>${t("share.once")}</small></div>`
      : html`<div class="card-actions"><${Button} kind="first" disabled=${busy} onClick=${make}>${t("share.make")}<//></div>`}
    ${shares.length > 0 && html`<h3>${t("share.list")}</h3>
      <ul class="rows">${shares.map((share) => html`<li key=${share.share_id}><span>${moment(share.created_at)}<small>${aboutOf(share)}</small></span>
        <${Button} kind="danger" disabled=${busy} onClick=${() => revoke(share.share_id)}>${t("share.revoke")}<//></li>`)}</ul>`}
  <//>`;
}

/** @param {Share} share */
const aboutOf = ({ files, tool_arguments: args, expires_at: end, audience, events }) =>
  [person.value ? t(`share.of.${audience}`) : "", events ? t("share.withEvents") : "", t("changes.files", { n: files.length }), args ? t("share.withArguments") : "", end ? t("share.until", { time: moment(end) }) : t("share.never")].filter(Boolean).join(" · ");
