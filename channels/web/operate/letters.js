// Dead letters: what could not be processed, with what it holds; sent again, or discarded.

import { html, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Act } from "../kit/act.js";
import { complain } from "../chat/actions.js";
import { Button } from "../kit/button.js";
import { later, notify } from "../kit/toast.js";
import { moment, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";

const PAGE = 50;

/** @typedef {{letter: number, at: string, actor: string, aggregate: string, reason: string, event_seq: number, event_type: string, content: string,
 *   thread_id: string|null, redrivable: boolean}} Letter */

export function Letters() {
  const [after, setAfter] = useState([0]); // of the pages up to this one
  const answer = useLive(`dlq?limit=${PAGE}&after=${after.at(-1)}`, 10_000);
  const [hidden, setHidden] = useState(/** @type {number[]} */ ([]));
  const letters = (answer.value?.letters ?? []).filter((/** @type {Letter} */ one) => !hidden.includes(one.letter));
  const redrive = async (/** @type {Letter[]} */ chosen) => {
    const { letters: sent } = await call("POST", "dlq/redrive", { body: { letters: chosen.map((one) => one.letter) } });
    notify(t("operate.letters.sent", { n: sent.length }));
    await answer.reload();
  };
  const discard = (/** @type {Letter} */ { letter }) => {
    const show = () => setHidden((all) => all.filter((one) => one !== letter));
    setHidden((all) => [...all, letter]);
    const act = () => void call("POST", "dlq/discard", { body: { letters: [letter] }, keepalive: true }).then(answer.reload).catch(complain).finally(show);
    later(t("operate.letters.discarded"), act, show);
  };
  const sendable = letters.filter((/** @type {Letter} */ one) => one.redrivable);
  const next = answer.value?.next_after;
  return html`<p>${t("operate.letters.text")}</p>
    <${Shown} of=${answer}>
      ${!letters.length && html`<p class="quiet">${t("operate.letters.none")}</p>`}
      ${sendable.length > 1 && html`<p><${Act} onAct=${() => redrive(sendable)} ask=${t("operate.letters.sure", { n: sendable.length })}>${t("operate.letters.redriveAll")}<//></p>`}
      <ul class="letters">${letters.map((/** @type {Letter} */ one) => html`<${Entry} key=${one.letter} letter=${one} onRedrive=${() => redrive([one])} onDiscard=${() => discard(one)} />`)}</ul>
      <p class="pages">
        ${after.length > 1 && html`<${Button} onClick=${() => setAfter(after.slice(0, -1))}>${t("operate.before")}<//>`}
        ${next != null && html`<${Button} onClick=${() => setAfter([...after, next])}>${t("operate.more")}<//>`}
      </p>
    <//>`;
}

/** @param {{letter: Letter, onRedrive: () => Promise<void>, onDiscard: () => void}} props */
function Entry({ letter, onRedrive, onDiscard }) {
  const about = letter.event_type ? t("operate.letters.event", { type: letter.event_type, seq: letter.event_seq }) : "";
  return html`<li>
    <p class="reason" dir="auto">${letter.reason}</p>
    <p class="quiet"><bdi>${letter.actor}</bdi> · <code dir="ltr">${letter.aggregate}</code>${about && ` · ${about}`}${letter.at && ` · ${moment(letter.at)}`}</p>
    ${letter.content && html`<details><summary>${t("operate.letters.content")}</summary><pre dir="ltr" tabindex="0">${letter.content}</pre></details>`}
    <p class="acts">
      ${letter.redrivable && html`<${Act} onAct=${onRedrive} kind="first" ask=${t("operate.letters.sure", { n: 1 })}>${t("operate.letters.redrive")}<//>`}
      <${Button} kind="danger" onClick=${onDiscard}>${t("operate.letters.discard")}<//>
    </p>
  </li>`;
}
