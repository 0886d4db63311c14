// Which dialog lies over the page; empty for none.

import { signal } from "../vendor/preact.js";

/** @type {import("../vendor/preact.js").Signal<""|"keys"|"goal"|"export"|"rename"|"share"|"skills">} */
export const showing = signal("");
