// A view of an installed package: its script and style are loaded when it is entered, and its defects stay in it.

import { Component, computed, effect, html, signal, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Failure, call } from "../api/client.js";
import { addSheet } from "../kit/sheet.js";
import { notify } from "../kit/toast.js";
import { go } from "../state/route.js";
import { t } from "../words/words.js";
import { added } from "./list.js";

const Broken = () => html`<p class="quiet center" role="alert">${t("added.broken")}</p>`;

class Guard extends Component {
  static getDerivedStateFromError() {
    return { broken: true };
  }

  /** @param {unknown} error */
  componentDidCatch(error) {
    console.error(error);
  }

  render() {
    const { state, props } = /** @type {any} */ (this);
    return state.broken ? html`<${Broken} />` : props.children;
  }
}

/** @param {string} name */
async function load(name) {
  const about = added.find((one) => one.name === name);
  if (!about) return Broken;
  const at = (/** @type {string} */ file) => new URL(`./${file}`, import.meta.url);
  try {
    const [script] = await Promise.all([import(at(about.script).href), about.style && addSheet(at(about.style))]);
    const text = (/** @type {string} */ key, /** @type {any} */ values) => t(`added.${name}.${key}`, values);
    return script.view({ html, signal, computed, effect, useEffect, useMemo, useRef, useState, call, Failure, notify, go, t: text });
  } catch (error) {
    console.error(error);
    return Broken;
  }
}

/** @param {{path: string[]}} props the name of the view, and what follows it in the address */
export function View({ path: [name = "", ...rest] }) {
  const [views, setViews] = useState(/** @type {Record<string, any>} */ ({}));
  useEffect(() => void load(name).then((view) => setViews((all) => ({ ...all, [name]: view }))), [name]);
  const Shown = views[name];
  if (!Shown) return html`<p class="quiet center">${t("loading")}</p>`;
  return html`<${Guard} key=${name}><div class=${`added added-${name}`}><${Shown} path=${rest} /></div><//>`;
}
