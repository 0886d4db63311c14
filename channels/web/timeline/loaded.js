// Things that are asked for and shown once they have come.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Failure } from "../api/client.js";
import { t, wordsOf } from "../words/words.js";

/** Characters of a text that are shown. */
const LONG = 20_000;

/**
 * What something that is waited for comes to: drawn again when it is there; that of before is dropped.
 * @template T @param {() => Promise<T>} load @param {unknown[]} inputs @returns {{value: T | undefined, problem: string}}
 */
export function useLoaded(load, inputs) {
  const [loaded, setLoaded] = useState(/** @type {{value: T | undefined, problem: string}} */ ({ value: undefined, problem: "" }));
  useEffect(() => {
    let left = false;
    setLoaded({ value: undefined, problem: "" });
    load().then(
      (value) => left || setLoaded({ value, problem: "" }),
      (error) => {
        if (!(error instanceof Failure)) throw error;
        if (!left) setLoaded({ value: undefined, problem: wordsOf(error) });
      },
    );
    return () => {
      left = true;
    };
  }, inputs);
  return loaded;
}

/** @param {{of: {value: any, problem: string}, children: any}} props */
export function Wait({ of, children }) {
  if (of.problem) return html`<p class="error" role="alert">${of.problem}</p>`;
  return of.value === undefined ? html`<p class="quiet">${t("loading")}</p>` : children;
}

/** @param {{text: string}} props */
export function Text({ text }) {
  return html`<pre class="tl-text" dir="auto" tabindex="0">${text.length > LONG ? `${text.slice(0, LONG)}…` : text}</pre>`;
}
