// Everything that waits for the person, over all conversations: calls to approve, and questions.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { go } from "../state/route.js";
import { news } from "../state/threads.js";
import { moment, t, wordsOf } from "../words/words.js";
import { Approval } from "./card.js";

const CHANGES = /^(ready|gap|approval\.|question\.|run\.|thread\.deleted)/;

export function View() {
  const [waiting, setWaiting] = useState(/** @type {any[] | null} */ (null));
  const [problem, setProblem] = useState("");
  const read = async () => {
    try {
      setWaiting((await call("GET", "approvals")).waiting);
      setProblem("");
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  const newest = news.value;
  useEffect(() => {
    if (!newest || CHANGES.test(newest.event)) void read();
  }, [newest]);
  return html`<section class="waiting-list" aria-label=${t("approvals")}>
    <h1>${t("approvals")}</h1>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${waiting?.length === 0 && html`<p class="quiet">${t("approvals.none")}</p>`}
    ${waiting?.map((entry) => html`<${Entry} key=${entry.id} entry=${entry} />`)}
  </section>`;
}

/** @param {{entry: any}} props */
function Entry({ entry }) {
  const { approval, question } = entry;
  return html`<article>
    <header>
      <a href=${`#/t/${entry.thread_id}`}>${entry.thread_title || t("approvals.untitled")}</a>
      <time datetime=${entry.at}>${moment(entry.at)}</time>
    </header>
    ${approval && html`<${Approval} approval=${shown(approval)} thread=${{ id: entry.thread_id }} />`}
    ${question && html`<div class="card waiting"><p>${question.text}</p>
      <div class="card-actions"><${Button} kind="first" onClick=${() => go(`t/${entry.thread_id}`)}>${t("approvals.answer")}<//></div>
    </div>`}
  </article>`;
}

/** @param {any} approval as the API has it */
const shown = (approval) => ({ ...approval, id: approval.approval_id, allowed: approval.allowed_decisions });
