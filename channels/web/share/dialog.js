// Sharing a conversation: what is shown to whom, addresses that are made, copied, listed, and revoked.

import { html, useEffect, useState } from "../vendor/preact.js";
import { address, call } from "../api/client.js";
import { complain } from "../chat/actions.js";
import { Button } from "../kit/button.js";
import { copyText } from "../kit/copy.js";
import { Dialog } from "../kit/dialog.js";
import { moment, t } from "../words/words.js";

/** @typedef {{share_id: string, created_at: string, title: string, files: any[], tool_arguments: boolean, expires_at: string|null}} Share */

/** Days after which an address ends. */
const DAYS = [0, 1, 7, 30];

/** @param {{thread: import("../state/thread.js").Thread, onClose: () => void}} props */
export function ShareDialog({ thread, onClose }) {
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
      const { token } = await call("POST", path, { body: { tool_arguments: withArguments, expires_in_days: days || null } });
      setMade(new URL(`../shared#${token}`, address("")).href);
    });
  const revoke = (/** @type {string} */ id) => change(() => call("DELETE", `${path}/${id}`).then(() => setMade("")));
  return html`<${Dialog} title=${t("share.title")} onClose=${onClose}>
    <p>${t("share.what")}</p><p class="quiet">${t("share.not")}</p>
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
const aboutOf = ({ files, tool_arguments: args, expires_at: end }) =>
  [t("changes.files", { n: files.length }), args ? t("share.withArguments") : "", end ? t("share.until", { time: moment(end) }) : t("share.never")].filter(Boolean).join(" · ");
