// A file that is looked at becomes a conversation of the person's, where there is a server.

import { html, useState } from "../vendor/preact.js";
import { served } from "../account/session.js";
import { Failure, upload } from "../api/client.js";
import { Button } from "../kit/button.js";
import { go } from "../state/route.js";
import { t, wordsOf } from "../words/words.js";

/** @param {{file: File}} props */
export function Import({ file }) {
  const [share, setShare] = useState(-1); // of the file that is sent, 0 to 1; -1: it is not
  const [problem, setProblem] = useState("");
  const send = async () => {
    const form = new FormData();
    form.append("file", file, file.name);
    setShare(0);
    setProblem("");
    try {
      const { thread_id: thread } = await upload("threads/import", form, setShare, new AbortController().signal);
      go(`timeline/${thread}`);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(error.detail || wordsOf(error));
      setShare(-1);
    }
  };
  if (!served.value) return null;
  return html`<${Button} disabled=${share >= 0} onClick=${send}>${t("timeline.import")}<//>
    ${share >= 0 && html`<progress max="1" value=${share} aria-label=${t("timeline.import")}></progress>`}
    ${problem && html`<span class="error" role="alert">${problem}</span>`}`;
}
