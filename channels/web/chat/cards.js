// Where a call waits for a person, a card stands under its line: an approval or a question. Their forms are a room of their
// own, loaded when one is met.

import { html, useEffect, useState } from "../vendor/preact.js";

/** @param {import("../state/items.js").Step} step */
export function needsCard({ call, approval, result }) {
  return Boolean(approval && !approval.decision) || (call.name === "ask_clarification" && Boolean(result));
}

/** @param {{step: import("../state/items.js").Step, thread: import("../state/thread.js").Thread}} props */
export function Card({ step, thread }) {
  const [View, setView] = useState(/** @type {{draw: any} | null} */ (null));
  useEffect(() => {
    void import("../approvals/card.js").then((room) => setView({ draw: room.ApprovalCard }));
  }, []);
  return View && html`<${View.draw} step=${step} thread=${thread} />`;
}
