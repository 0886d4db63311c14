// Who sits here. A request that finds no session waits until the same person has signed in, and is sent then; for anybody
// else the page begins anew, with nothing of the one before. Without accounts there is nobody to tell apart.

import { signal } from "../vendor/preact.js";
import { Failure, call, onRefused, onSignedOut } from "../api/client.js";
import { notify } from "../kit/toast.js";
import { moment, t } from "../words/words.js";
import { forget, recall, remember } from "../state/stored.js";

/** @typedef {{id: string, email: string, system_role: "admin"|"user", needs_setup: boolean, has_password: boolean, expires_at: string|null}} Person */

/** Who is signed in. Null: nobody yet, or there are no accounts. @type {import("../vendor/preact.js").Signal<Person|null>} */
export const person = signal(null);
/** Whether an administrator sits here: everybody is one where there are no accounts. */
export const administers = signal(false);
/** True once a server has said who sits here: a file can be read without one. */
export const served = signal(false);
/** True while the page asks for somebody. */
export const asking = signal(false);

/** How long before its end a session is warned of, and how long a browser's timers are. */
const WARNING_MS = 300_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let warning;
/** @type {Promise<void> | null} */
let looking = null;
/** @type {(() => void)[]} */
const waiting = [];

/** Finds out who sits here; before anything is drawn if somebody was signed in before. @returns {Promise<void>} */
export async function meet() {
  onSignedOut(async () => {
    look();
    await new Promise((/** @type {(value: void) => void} */ resolve) => waiting.push(resolve));
  });
  onRefused(look);
  addEventListener("storage", ({ key, oldValue }) => key === "sika.person" && (oldValue === null ? look() : location.reload()));
  const known = recall("person");
  const met = look();
  if (known) await met;
}

/** Asks the server who sits here, once for all that want to know. */
export function look() {
  looking ??= whoIsThere().finally(() => (looking = null));
  return looking;
}

async function whoIsThere() {
  try {
    enter(await call("GET", "v1/auth/me"));
  } catch (error) {
    if (error instanceof Failure && error.status === 401) asking.value = true;
    else setTimeout(release, 1000); // the requests say themselves what is wrong
  }
}

/** Goes on as a person. For another one than before the page begins anew. @param {Person} now */
export function enter(now) {
  const id = now.expires_at === null && now.email.endsWith("@localhost") ? "" : now.id;
  const before = recall("person");
  if (before !== null && before !== id) return leave(id);
  remember("person", id);
  person.value = id ? now : null;
  administers.value = now.system_role === "admin";
  asking.value = false;
  served.value = true;
  warnOf(id ? now.expires_at : null);
  release();
}

/** Warns before a session ends. @param {string|null} at */
function warnOf(at) {
  clearTimeout(warning);
  const left = at ? new Date(at).getTime() - Date.now() - WARNING_MS : Infinity;
  if (left > LONGEST_TIMER_MS) return;
  warning = setTimeout(() => notify(t("account.ends", { time: moment(at ?? "") }), { ms: WARNING_MS }), Math.max(0, left));
}

function release() {
  for (const go of waiting.splice(0)) go();
}

/** Forgets everything of the person, here and in the other tabs. @param {string|null} [next] who comes now */
export function leave(next = null) {
  forget();
  remember("person", next);
  location.replace("./#/");
  location.reload();
}

/** Ends the session, or all of them. @param {boolean} all */
export async function signOut(all) {
  await call("POST", all ? "v1/auth/logout-all" : "v1/auth/logout");
  leave();
}
