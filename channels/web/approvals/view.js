// Everything that waits for the person, over all conversations: calls to approve, and questions.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { complain, send } from "../chat/actions.js";
import { Button } from "../kit/button.js";
import { news } from "../state/threads.js";
import { moment, t, wordsOf } from "../words/words.js";
import { CHANGES } from "./badge.js";
import { Approval } from "./card.js";
import { allowed, notifies, notifyMe } from "./notify.js";
import { Question } from "./question.js";

const PAGE = 50;

/** @param {{}} _ */
export function View(_) {
  const [waiting, setWaiting] = useState(/** @type {any[] | null} */ (null));
  const [more, setMore] = useState(false);
  const [problem, setProblem] = useState("");
  const pages = useRef(1);
  const read = async () => {
    try {
      const [entries, next] = await pagesOf(pages.current);
      setWaiting(entries);
      setMore(next !== null);
      setProblem("");
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  // Of each of the news, not of what is drawn: one that is followed by another at once is never drawn.
  useEffect(() => {
    let first = true;
    return news.subscribe((newest) => {
      if (first || (newest && CHANGES.test(newest.event))) void read();
      first = false;
    });
  }, []);
  const showMore = () => {
    pages.current += 1;
    void read();
  };
  return html`<section class="waiting-list" aria-label=${t("approvals")}>
    <header class="waiting-head"><h1>${t("approvals")}</h1><${Notify} /></header>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${waiting?.length === 0 && html`<div class="waiting-none"><p>${t("approvals.none")}</p><p class="quiet">${t("approvals.none.text")}</p></div>`}
    ${waiting?.map((entry) => html`<${Entry} key=${keyOf(entry)} entry=${entry} />`)}
    ${more && html`<div class="card-actions"><${Button} onClick=${showMore}>${t("files.more")}<//></div>`}
  </section>`;
}

/** So many pages, and where the next one begins. @param {number} count @returns {Promise<[any[], number | null]>} */
async function pagesOf(count) {
  /** @type {any[]} */ let entries = [];
  /** @type {number | null} */ let next = 0;
  for (let page = 0; page < count && next !== null; page++) {
    const answer = await call("GET", "approvals", { query: { limit: PAGE, offset: next } });
    entries = [...entries, ...answer.waiting];
    next = answer.next_offset;
  }
  return [[...new Map(entries.map((entry) => [keyOf(entry), entry])).values()], next];
}

/** @param {any} entry @returns {string} */
const keyOf = (entry) => `${entry.thread_id} ${entry.id}`;

/** Notices of the browser while the page is not looked at; it is asked for them by a click only. */
function Notify() {
  const state = allowed();
  if (state === "unsupported") return null;
  if (state === "denied") return html`<small class="quiet">${t("notify.denied")}</small>`;
  return html`<button type="button" class="button quiet" aria-pressed=${String(notifies.value)} onClick=${() => void notifyMe(!notifies.value)}>${notifies.value ? t("notify.on") : t("notify.off")}</button>`;
}

/** @param {{entry: any}} props */
function Entry({ entry }) {
  const { approval, question, thread_id: thread } = entry;
  return html`<article>
    <header>
      <a href=${`#/t/${thread}`} dir="auto">${entry.thread_title || t("approvals.untitled")}</a>
      <time datetime=${entry.at}>${moment(entry.at)}</time>
    </header>
    ${approval && html`<${Approval} approval=${shown(approval)} thread=${thread} />`}
    ${question && html`<${Question} question=${{ ...question, request: question.answer === "message" ? question.question_id : "" }} onAnswer=${(/** @type {string} */ text, /** @type {any} */ response) => answer(entry, text, response)} />`}
  </article>`;
}

/** Answers a question from here. @param {any} entry @param {string} text @param {any} response */
async function answer({ question, thread_id: id }, text, response) {
  if (question.answer === "message") return send(/** @type {any} */ ({ id, tip: "", begun: { value: "" }, open() {} }), text, { response });
  try {
    await call("POST", `threads/${id}/runs`, { body: { assistant_id: "lead_agent", command: { resume: text }, on_disconnect: "continue" } });
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

/** @param {any} approval as the API has it */
const shown = (approval) => ({ ...approval, id: approval.approval_id, allowed: approval.allowed_decisions });
