// Steps from one moment to the next at which a replay would stop.

import { html, useState } from "../vendor/preact.js";
import { Failure } from "../api/client.js";
import { Button } from "../kit/button.js";
import { t, wordsOf } from "../words/words.js";

/** @param {{log: import("./moment.js").AnyLog, chosen: number, onChoose: (seq: number) => void}} props */
export function Stepping({ log, chosen, onChoose }) {
  const [stop, setStop] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const step = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setProblem("");
    setBusy(true);
    try {
      const seq = stop.trim() ? await log.next(stop.trim(), chosen) : (log.items.items[log.items.indexOf(chosen) + 1]?.seq ?? 0);
      if (seq) onChoose(seq);
      else setProblem(t("timeline.stop.none"));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    } finally {
      setBusy(false);
    }
  };
  return html`<form class="tl-filters" onSubmit=${step}>
    <input class="field" type="search" dir="auto" spellcheck="false" aria-label=${t("timeline.stop")} placeholder="model.completed message.content~sorry" value=${stop} onInput=${(/** @type {any} */ e) => setStop(e.target.value)} />
    <${Button} type="submit" disabled=${busy}>${t("timeline.stop.next")}<//>
    ${"bodiless" in log && log.bodiless > 0 && html`<span class="quiet">${t("timeline.stop.bodiless", { n: log.bodiless })}</span>`}
    ${problem && html`<span class="error" role="alert">${problem}</span>`}
  </form>`;
}
