// The other versions of a message, and the way to them: ‹2/3›.

import { html } from "../vendor/preact.js";
import { IconButton } from "../kit/button.js";
import { t } from "../words/words.js";
import { showBranch } from "./actions.js";

/** @param {{message: import("../state/message.js").Message, thread: import("../state/thread.js").Thread}} props */
export function Branches({ message, thread }) {
  const { branches } = message;
  if (!branches || branches.count < 2) return null;
  const to = (/** @type {number} */ step) => showBranch(thread, branches.checkpoint_ids[branches.index + step]);
  return html`<span class="branches">
    <${IconButton} icon="left" size=${14} name=${t("branch.before")} disabled=${branches.index === 0} onClick=${() => to(-1)} />
    <span aria-label=${t("branch.of", { at: branches.index + 1, count: branches.count })}>${branches.index + 1}/${branches.count}</span>
    <${IconButton} icon="right" size=${14} name=${t("branch.after")} disabled=${branches.index === branches.count - 1} onClick=${() => to(1)} />
  </span>`;
}
