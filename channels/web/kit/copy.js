// Copying a text, with a notice of what became of it.

import { t } from "../words/words.js";
import { notify } from "./toast.js";

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify(t("copied"), { ms: 2000 });
  } catch {
    notify(t("copied.not"), { kind: "error" });
  }
}
