// A diagram, drawn in a frame without an origin: the library writes styles, which the page itself forbids.

import { t } from "../words/words.js";

const FRAME = new URL("./frame.html", import.meta.url);
const TALLEST = 1200;

/** @param {string} source of mermaid @returns {HTMLElement} */
export function diagram(source) {
  const box = document.createElement("div");
  box.className = "diagram";
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = t("diagram");
  frame.loading = "lazy";
  frame.src = FRAME.href;
  const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const listen = (/** @type {MessageEvent} */ event) => {
    if (event.source !== frame.contentWindow || !frame.contentWindow) return;
    const { ready, height, problem } = event.data ?? {};
    if (ready) frame.contentWindow.postMessage({ source, theme }, "*");
    if (typeof height === "number") frame.height = String(Math.min(TALLEST, Math.ceil(height)));
    if (!problem) return;
    box.remove();
    removeEventListener("message", listen);
  };
  addEventListener("message", listen);
  box.append(frame);
  return box;
}
