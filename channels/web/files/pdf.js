// A PDF, page by page, drawn by a library. A browser's own viewer would run the scripts of the document, and ask people
// in the name of this server.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { scriptUrl } from "../markdown/safe.js";
import { t } from "../words/words.js";

/** Documents that are larger are only saved. */
const MOST_BYTES = 100_000_000;
const MOST_PAGES = 1000;
/** Limit of what a picture in a document may take, in pixels. */
const MOST_PIXELS = 64_000_000;
/** How far from the window a page is drawn, and its picture kept. */
const NEAR = "800px";

/** @typedef {import("../vendor/pdf.js").PdfDocument} PdfDocument */

/** @param {{place: string, size: number, load: (signal: AbortSignal) => Promise<Response>}} props `place`: what it is, so that another is read anew */
export function Pdf({ place, size, load }) {
  const [shown, setShown] = useState(/** @type {{document: PdfDocument, wide: number, high: number} | null} */ (null));
  const [problem, setProblem] = useState(size > MOST_BYTES ? t("files.pdf.large") : "");
  useEffect(() => {
    if (size > MOST_BYTES) return;
    const leaving = new AbortController();
    /** @type {(() => Promise<void>) | null} */ let destroy = null;
    const read = async () => {
      const library = await import("../vendor/pdf.js");
      const data = await (await load(leaving.signal)).arrayBuffer();
      if (leaving.signal.aborted) return;
      library.GlobalWorkerOptions.workerPort ??= new Worker(scriptUrl(new URL("./pdf-worker.js", import.meta.url)), { type: "module" });
      const task = library.getDocument({ data, maxImageSize: MOST_PIXELS, useWasm: false, enableXfa: false, stopAtErrors: false });
      destroy = () => task.destroy();
      const document = await task.promise;
      const { width, height } = (await document.getPage(1)).getViewport({ scale: 1 });
      setShown({ document, wide: width, high: height });
    };
    read().catch((error) => leaving.signal.aborted || setProblem(t(error.name === "PasswordException" ? "files.pdf.locked" : "files.pdf.broken")));
    return () => {
      leaving.abort();
      void destroy?.().catch(() => {});
    };
  }, [place]);
  if (problem) return html`<p class="quiet file-note" role="alert">${problem}</p>`;
  if (!shown) return html`<p class="quiet file-note">${t("loading")}</p>`;
  const pages = Math.min(shown.document.numPages, MOST_PAGES);
  return html`<div class="pdf">${Array.from({ length: pages }, (_, index) => html`<${Page} key=${index} number=${index + 1} ...${shown} />`)}
    ${pages < shown.document.numPages && html`<p class="quiet file-note">${t("files.pdf.more", { n: MOST_PAGES })}</p>`}</div>`;
}

/** A page; it is drawn when it comes near. @param {{document: PdfDocument, number: number, wide: number, high: number}} props */
function Page({ document, number, wide, high }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const words = useRef(/** @type {HTMLElement | null} */ (null));
  const [near, setNear] = useState(false);
  useEffect(() => {
    if (!place.current) return;
    place.current.style.aspectRatio = `${wide} / ${high}`;
    const observer = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { rootMargin: NEAR });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!near) return;
    const drawing = drawn(document, number, place, canvas, words);
    return () => void drawing.then((stop) => stop());
  }, [near]);
  return html`<section ref=${place} class="pdf-page" aria-label=${t("files.pdf.page", { n: number, all: document.numPages })}>
    <canvas ref=${canvas} aria-hidden="true"></canvas><div ref=${words} class="pdf-words" dir="ltr"></div>
  </section>`;
}

/**
 * Draws a page, and lays its words over it, so that they can be selected and read out.
 * @param {PdfDocument} document @param {number} number
 * @param {{current: HTMLElement | null}} place @param {{current: HTMLCanvasElement | null}} canvas @param {{current: HTMLElement | null}} words
 * @returns {Promise<() => void>} what frees the picture
 */
async function drawn(document, number, place, canvas, words) {
  const { TextLayer } = await import("../vendor/pdf.js");
  const page = await document.getPage(number);
  const [frame, target, container] = [place.current, canvas.current, words.current];
  if (!frame || !target || !container) return () => {};
  const natural = page.getViewport({ scale: 1 });
  frame.style.aspectRatio = `${natural.width} / ${natural.height}`;
  const scale = frame.clientWidth / natural.width;
  const viewport = page.getViewport({ scale: scale * Math.min(2, devicePixelRatio) });
  [target.width, target.height] = [Math.floor(viewport.width), Math.floor(viewport.height)];
  const drawing = page.render({ canvas: target, viewport });
  container.style.setProperty("--total-scale-factor", String(scale));
  const layer = new TextLayer({ textContentSource: page.streamTextContent(), container, viewport: page.getViewport({ scale }) });
  await Promise.allSettled([drawing.promise, layer.render()]);
  return () => {
    drawing.cancel();
    layer.cancel();
    container.replaceChildren();
    [target.width, target.height] = [0, 0];
    page.cleanup();
  };
}
