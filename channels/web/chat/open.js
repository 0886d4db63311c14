// The conversation that is open, for what stands outside of it: dialogs, shortcuts, panels.

import { signal } from "../vendor/preact.js";

/** @type {import("../vendor/preact.js").Signal<import("../state/thread.js").Thread | null>} */
export const open = signal(null);
