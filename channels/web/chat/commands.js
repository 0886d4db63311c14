// Commands of the page, as `/` offers them.

import { call } from "../api/client.js";
import { notify } from "../kit/toast.js";
import { go } from "../state/route.js";
import { t } from "../words/words.js";
import { complain } from "./actions.js";
import { showing } from "./showing.js";

/** @param {import("../state/thread.js").Thread} thread @returns {{name: string, run: () => void}[]} */
export function commands(thread) {
  return [
    { name: "new", run: () => go("") },
    { name: "goal", run: () => (showing.value = "goal") },
    { name: "compact", run: () => void compact(thread.id) },
    { name: "skills", run: () => (showing.value = "skills") },
    { name: "share", run: () => (showing.value = "share") },
    { name: "export", run: () => (showing.value = "export") },
    { name: "help", run: () => (showing.value = "keys") },
  ];
}

/** @param {string} thread */
async function compact(thread) {
  try {
    const { compacted } = await call("POST", `threads/${thread}/compact`, { body: {} });
    notify(compacted === false ? t("compact.not") : t("compact.done"));
  } catch (error) {
    complain(error);
  }
}
