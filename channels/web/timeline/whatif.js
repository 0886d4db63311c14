// What if: from a moment on under other conditions. What it would cost is named before anything is spent.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Failure, send } from "../api/client.js";
import { readFrames } from "../api/sse.js";
import { loadModels, models } from "../chat/choices.js";
import { Button } from "../kit/button.js";
import { duration, money, short, t, wordsOf } from "../words/words.js";
import { Text } from "./loaded.js";
import { phraseOf } from "./phrases.js";
import { Step, differenceOf } from "./steps.js";

/** Samples that are offered; the server takes more. */
const SAMPLES = [1, 2, 3, 5];

/** @typedef {{tokens: number, cost: number | null, currency: string | null}} Estimate */
/** @typedef {{end: string, text: string, answers: number, tokens: number, cost: number | null, currency: string | null, milliseconds: number, calls: {call_id: string, name: string, made: string}[], events: any[]}} Future */
/** @typedef {{recorded: Future, samples: {future: Future, rows: [any, any][]}[], not_restored: string[]}} Result */

/**
 * Executes a what-if, or only estimates it. `tell` gets the type of each event; ends with the result. Raises `Failure`.
 * @param {string} thread @param {object} body @param {AbortSignal} signal @param {(type: string, sample: string) => void} tell
 * @returns {Promise<{estimate: Estimate | null, result: Result | null}>}
 */
async function execute(thread, body, signal, tell) {
  /** @type {{estimate: Estimate | null, result: Result | null}} */
  const outcome = { estimate: null, result: null };
  const response = await send("POST", `threads/${thread}/log/whatif`, { body, signal });
  await readFrames(response, (frames) => {
    for (const { event, data, id } of frames) {
      if (event === "estimate") outcome.estimate = JSON.parse(data);
      else if (event === "result") outcome.result = JSON.parse(data);
      else if (event === "error") throw new Failure(0, JSON.parse(data).code, JSON.parse(data).detail);
      else if (event) tell(event, id.split("-")[0] ?? "");
    }
  });
  return outcome;
}

/** @param {{thread: string, seq: number}} props from which event on */
export function WhatIf({ thread, seq }) {
  const [changes, setChanges] = useState({ model: "", message: "", prompt: "", samples: 1 });
  const [stage, setStage] = useState(/** @type {"open" | "asking" | "estimated" | "working" | "done"} */ ("open"));
  const [estimate, setEstimate] = useState(/** @type {Estimate | null} */ (null));
  const [result, setResult] = useState(/** @type {Result | null} */ (null));
  const [last, setLast] = useState("");
  const [problem, setProblem] = useState("");
  const work = useRef(new AbortController());
  useEffect(() => {
    void loadModels().catch(() => {}); // then there is none to choose from
    return () => work.current.abort();
  }, []);
  const set = (/** @type {Partial<typeof changes>} */ change) => {
    setChanges({ ...changes, ...change });
    setStage("open");
  };
  const go = async (/** @type {boolean} */ estimating) => {
    work.current = new AbortController();
    setProblem("");
    setLast("");
    setStage(estimating ? "asking" : "working");
    try {
      const body = { at: `seq:${seq}`, model: changes.model || null, message: changes.message.trim() || null, prompt: changes.prompt.trim() || null, samples: changes.samples, estimate_only: estimating };
      const outcome = await execute(thread, body, work.current.signal, (type, sample) => setLast(`${sample}. ${phraseOf(type)}`));
      setEstimate(outcome.estimate);
      setResult(outcome.result);
      setStage(estimating ? "estimated" : "done");
    } catch (error) {
      setStage("open");
      if (error instanceof Failure) setProblem(wordsOf(error));
      else if (!(error instanceof DOMException)) throw error;
    }
  };
  const busy = stage === "asking" || stage === "working";
  return html`<form class="tl-whatif" aria-label=${t("timeline.whatif")} onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    void go(stage !== "estimated");
  }}>
    <p class="quiet">${t("timeline.whatif.text")}</p>
    <label>${t("timeline.whatif.model")} <select class="field" value=${changes.model} disabled=${busy} onChange=${(/** @type {any} */ e) => set({ model: e.target.value })}>
      <option value="">${t("timeline.whatif.same")}</option>${models.value.map(({ name, display_name }) => html`<option key=${name} value=${name}>${display_name ?? name}</option>`)}</select></label>
    <label>${t("timeline.whatif.message")} <textarea class="field" rows="2" dir="auto" disabled=${busy} value=${changes.message} onInput=${(/** @type {any} */ e) => set({ message: e.target.value })}></textarea></label>
    <label>${t("timeline.whatif.prompt")} <textarea class="field" rows="2" dir="auto" disabled=${busy} value=${changes.prompt} onInput=${(/** @type {any} */ e) => set({ prompt: e.target.value })}></textarea></label>
    <label>${t("timeline.whatif.samples")} <select class="field" value=${String(changes.samples)} disabled=${busy} onChange=${(/** @type {any} */ e) => set({ samples: Number(e.target.value) })}>
      ${SAMPLES.map((n) => html`<option key=${n} value=${String(n)}>${n}</option>`)}</select></label>
    ${stage === "estimated" && estimate && html`<p role="status"><b>${expected(estimate, changes.samples)}</b></p>`}
    <p class="actions"><${Button} kind=${stage === "estimated" ? "first" : ""} type="submit" disabled=${busy}>${t(stage === "estimated" ? "timeline.whatif.go" : "timeline.whatif.estimate")}<//>
      ${busy && html`<${Button} onClick=${() => work.current.abort()}>${t("stop")}<//>`}</p>
    ${stage === "working" && html`<p class="quiet" role="status">${last || t("loading")}</p>`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${stage === "done" && result && html`<${Futures} result=${result} />`}
  </form>`;
}

/** @param {Estimate} estimate of a sample @param {number} samples */
function expected({ tokens, cost, currency }, samples) {
  const all = { tokens: short(tokens * samples) };
  return cost != null && currency ? t("timeline.whatif.costs", { ...all, cost: money(cost * samples, currency) }) : t("timeline.whatif.tokens", all);
}

/** What came of it, beside what was recorded. @param {{result: Result}} props */
function Futures({ result }) {
  const all = [{ name: t("timeline.whatif.recorded"), future: result.recorded, rows: /** @type {[any, any][]} */ ([]) }, ...result.samples.map((sample, index) => ({ name: t("timeline.whatif.sample", { number: index + 1 }), ...sample }))];
  return html`<section class="tl-futures" aria-label=${t("timeline.whatif.futures")}>
    <div class="tl-futures-row">${all.map(({ name, future }, index) => html`<article key=${index} aria-label=${name}><h3>${name}</h3>
      <p class="quiet">${[future.end ? phraseOf(future.end) : t("timeline.whatif.unended"), t("tokens", { tokens: short(future.tokens) }), future.cost != null && future.currency ? money(future.cost, future.currency) : "", duration(future.milliseconds)].filter(Boolean).join(" · ")}</p>
      <${Text} text=${future.text || String(future.events.at(-1)?.text ?? "")} />
      ${future.calls.length > 0 && html`<ul>${future.calls.map(({ call_id, name, made }) => html`<li key=${call_id}>${name} <small>${t(`timeline.whatif.made.${made}`)}</small></li>`)}</ul>`}</article>`)}</div>
    ${all.slice(1).map(({ name, rows }, index) => html`<${Differences} key=${index} name=${name} rows=${rows} />`)}
    ${result.not_restored.length > 0 && html`<p class="quiet">${t("timeline.whatif.lacks")} ${result.not_restored.join(" · ")}</p>`}
  </section>`;
}

/** A step, which a result has as a list of its fields. @param {any} fields */
const stepOf = (fields) => fields && { kind: fields[0], name: fields[1], seq: fields[2], input: fields[3], output: fields[4] };

/** @param {{name: string, rows: [any, any][]}} props */
function Differences({ name, rows }) {
  const different = rows.map((row) => row.map(stepOf)).map(([left, right]) => ({ left, right, difference: differenceOf(left, right) })).filter((row) => row.difference);
  return html`<details><summary>${different.length ? t("timeline.whatif.differences", { name, n: different.length }) : t("timeline.whatif.alike", { name })}</summary>
    <ul class="tl-compared">${different.map((step, index) => html`<${Step} key=${index} step=${step} />`)}</ul></details>`;
}
