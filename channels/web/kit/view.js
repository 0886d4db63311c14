// What all views are made of: components that draw again only if something they were given changed, and small hooks.

import { Component, html, useEffect, useRef } from "../vendor/preact.js";

/**
 * A component that is left alone while its properties are the same objects: none of its elements are touched.
 * @template P @param {(props: P) => any} draw @returns {new (props: P) => Component<P>}
 */
export function still(draw) {
  return /** @type {any} */ (
    class extends Component {
      /** @param {any} next */
      shouldComponentUpdate(next) {
        const now = /** @type {any} */ (this.props);
        return Object.keys({ ...now, ...next }).some((name) => now[name] !== next[name]);
      }

      render() {
        return html`<${draw} ...${this.props} />`;
      }
    }
  );
}

/** Calls back on an event of the window or document while the component is shown. @param {EventTarget} target
 * @param {string} type @param {(event: any) => void} listener */
export function useListener(target, type, listener) {
  const newest = useRef(listener);
  newest.current = listener;
  useEffect(() => {
    const call = (/** @type {Event} */ event) => newest.current(event);
    target.addEventListener(type, call);
    return () => target.removeEventListener(type, call);
  }, [target, type]);
}

/** Calls back whenever the page is looked at again: others may have changed what it shows. Returns what ends that. @param {() => void} listener */
export function whenLookedAt(listener) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const looked = () => {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(listener); // a tab that comes to the front is visible, and has the focus
  };
  document.addEventListener("visibilitychange", looked);
  addEventListener("focus", looked);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", looked);
    removeEventListener("focus", looked);
  };
}

/** Names of classes, without those that do not hold. @param {...(string | false | null | undefined)} names */
export const classes = (...names) => names.filter(Boolean).join(" ");
