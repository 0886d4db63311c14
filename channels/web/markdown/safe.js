// The one gate through which markup of others gets into the page. What comes out is made of elements and attributes of this
// list; the browser refuses every other way (`require-trusted-types-for`).

import { DOMPurify } from "../vendor/dompurify.js";

const TAGS = (
  "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img input ins kbd li mark ol p pre q s samp small " +
  "span strong sub summary sup table tbody td tfoot th thead tr u ul var"
).split(" ");
const ATTRIBUTES = ["align", "alt", "checked", "class", "colspan", "disabled", "href", "open", "rowspan", "src", "start", "title", "type"];
/** Classes that mean something to us; others would let a text look like a part of the page. */
const CLASSES = /^(?:language-[\w+#.-]{1,40}|math|math-block|cite)$/;

const purifier = DOMPurify(window);
purifier.addHook("uponSanitizeAttribute", (/** @type {Element} */ _, /** @type {any} */ data) => {
  if (data.attrName === "class" && !CLASSES.test(data.attrValue)) data.keepAttr = false;
});
purifier.addHook("afterSanitizeAttributes", (/** @type {Element} */ element) => {
  if (element.tagName === "INPUT" && element.getAttribute("type") !== "checkbox") element.remove();
  else if (element.tagName === "INPUT") element.setAttribute("disabled", "");
});

/** Elements of HTML that may be shown. @param {string} markup @returns {DocumentFragment} */
export function safeHtml(markup) {
  return /** @type {any} */ (purifier.sanitize(markup, {
    ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#|\/mnt\/|data:image\/(?:png|jpeg|gif|webp);)/i,
  }));
}

/** Elements of MathML that may be shown. @param {string} markup @returns {DocumentFragment} */
export function safeMath(markup) {
  return /** @type {any} */ (purifier.sanitize(markup, { USE_PROFILES: { mathMl: true }, ADD_TAGS: ["semantics", "annotation"], RETURN_DOM_FRAGMENT: true }));
}

/** Addresses of scripts of our own, for workers. */
const own = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("sika", {
  createScriptURL: (/** @type {string} */ url) => {
    if (new URL(url).origin !== location.origin) throw new TypeError(`not a script of ours: ${url}`);
    return url;
  },
});

/** @param {URL} url @returns {any} */
export const scriptUrl = (url) => own?.createScriptURL(url.href) ?? url.href;
