// A component that is loaded when it is first shown.

import { html, useEffect, useState } from "../vendor/preact.js";

/** @param {any} props `load`: gives the component; it is given the others */
export function Room({ load, ...others }) {
  const [View, setView] = useState(/** @type {{draw: any} | null} */ (null));
  useEffect(() => void load().then((/** @type {any} */ draw) => setView({ draw })), []);
  return View && html`<${View.draw} ...${others} />`;
}
