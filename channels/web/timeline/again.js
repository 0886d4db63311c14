// A run once more: beside its replay by the policies of today, and as a test that replays it.

import { html, useState } from "../vendor/preact.js";
import { Failure, call, send } from "../api/client.js";
import { Button } from "../kit/button.js";
import { saveAs } from "../kit/save.js";
import { t, wordsOf } from "../words/words.js";
import { Differences } from "./compare.js";
import { Wait, useLoaded } from "./loaded.js";

/** @param {{thread: string, run: string, onChoose: (seq: number) => void}} props the id of a run */
export function Replayed({ thread, run, onChoose }) {
  const loaded = useLoaded(() => call("GET", `threads/${thread}/log/replay`, { query: { run } }), [thread, run]);
  const { verdict = "", changed = [], difference = "", comparison = {}, not_compared: left = 0 } = loaded.value ?? {};
  return html`<section class="tl-compared" aria-label=${t("timeline.replay.compared")}><h3>${t("timeline.replay.compared")}</h3>
    <${Wait} of=${loaded}>
      ${verdict && html`<p><b>${t(`timeline.replay.${verdict.replaceAll(" ", "_")}`)}</b></p>`}
      ${difference && html`<p dir="auto">${difference}</p>`}
      <${Differences} ...${comparison} onChoose=${onChoose} />
      ${left > 0 && html`<p class="quiet">${t("timeline.replay.left", { n: left })}</p>`}
      ${changed.length > 0 && html`<p class="quiet">${t("timeline.replay.changed")} ${changed.join(" · ")}</p>`}
    <//></section>`;
}

/** @param {{thread: string, run: string}} props */
export function Pin({ thread, run }) {
  const [busy, setBusy] = useState(false);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const pin = async () => {
    setBusy(true);
    setText("");
    setProblem("");
    try {
      const response = await send("GET", `threads/${thread}/log/pin`, { query: { run } });
      const name = `${thread}.zip`;
      saveAs(name, await response.blob());
      setText(t(response.headers.get("X-Pin-Decided") === "otherwise" ? "timeline.pin.otherwise" : "timeline.pin.recorded", { name }));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
    setBusy(false);
  };
  return html`<div><${Button} disabled=${busy} onClick=${pin}>${t("timeline.pin")}<//><p class="quiet">${t("timeline.pin.text")}</p>
    ${text && html`<p role="status">${text}</p>`}${problem && html`<p class="error" role="alert">${problem}</p>`}</div>`;
}
