// A run in a table: its conversation, which only its owner may open, and whose it is.

import { html } from "../vendor/preact.js";
import { t } from "../words/words.js";

/**
 * @typedef {{run_id: string, thread_id: string, thread_title: string|null, user_id: string, user_name: string|null, own: boolean, assistant_id: string,
 *   model_name: string|null, status: string, created_at: string, started_at: string|null, ended_at: string|null}} Run
 * @param {{run: Run}} props
 */
export function Conversation({ run }) {
  const title = run.thread_title || t("approvals.untitled");
  if (!run.own) return html`<span><bdi>${title}</bdi> <code dir="ltr">${run.thread_id}</code></span>`;
  return html`<span><a href="#/t/${encodeURIComponent(run.thread_id)}" dir="auto">${title}</a> <a class="timeline-link" href="#/timeline/${encodeURIComponent(run.thread_id)}">${t("operate.timeline")}</a></span>`;
}

/** Whose something is. @param {{user_id: string, user_name: string|null}} one */
export const personOf = (one) => html`<bdi>${one.user_name ?? one.user_id}</bdi>`;
