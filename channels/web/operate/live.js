// What a route answers, asked again while somebody looks: less and less often while it fails, never while the page is hidden.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { whenLookedAt } from "../kit/view.js";
import { moment, t, wordsOf } from "../words/words.js";

const LONGEST_MS = 60_000;

/**
 * @typedef {{value: any, problem: string, at: string, reload: () => Promise<void>}} Live `at`: when `value` came
 * @param {string} path @param {number} everyMs 0: only once, and when it is asked for @returns {Live}
 */
export function useLive(path, everyMs) {
  const [answer, setAnswer] = useState({ value: /** @type {any} */ (null), problem: "", at: "" });
  const asked = useRef(0);
  const read = async () => {
    const turn = (asked.current += 1);
    try {
      const value = await call("GET", path);
      if (turn === asked.current) setAnswer({ value, problem: "", at: new Date().toISOString() });
      return true;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      const text = error.status && error.status < 500 && error.detail ? error.detail : wordsOf(error);
      if (turn === asked.current) setAnswer((before) => ({ ...before, problem: text }));
      return !error.passing;
    }
  };
  useEffect(() => keepAsking(read, everyMs), [path, everyMs]);
  return { ...answer, reload: async () => void (await read()) };
}

/** Asks now and again; returns what ends it. @param {() => Promise<boolean>} read @param {number} everyMs */
function keepAsking(read, everyMs) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let pause = everyMs;
  let ended = false;
  const ask = async () => {
    clearTimeout(timer);
    if (document.hidden) return; // the page asks once it is looked at
    const well = await read();
    pause = well ? everyMs : Math.min(2 * Math.max(pause, 1000), LONGEST_MS);
    clearTimeout(timer);
    if (!ended && everyMs) timer = setTimeout(() => void ask(), pause);
  };
  const unlook = whenLookedAt(() => void ask());
  void ask();
  return () => {
    ended = true;
    clearTimeout(timer);
    unlook();
  };
}

/** Something once it has come; what came before stays while it cannot be asked for. @param {{of: Live, children: any}} props */
export function Shown({ of, children }) {
  if (!of.value) return of.problem ? html`<p class="error" role="alert">${of.problem}</p>` : html`<p class="quiet">${t("loading")}</p>`;
  return html`${of.problem && html`<p class="error" role="alert">${of.problem} ${t("operate.stale", { time: moment(of.at) })}</p>`}${children}`;
}
