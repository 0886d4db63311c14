// Who is signed in, at the foot of the sidebar; and the dialogs about the account, whose rooms are loaded when they are met.

import { html, signal, useEffect } from "../vendor/preact.js";
import { Menu } from "../kit/menu.js";
import { Room } from "../kit/room.js";
import { t } from "../words/words.js";
import { complain } from "../chat/actions.js";
import { asking, person, signOut } from "./session.js";

/** The dialog that is open: its name, or none. */
const shown = signal("");
/** @type {Record<string, () => Promise<any>>} */
const DIALOGS = {
  password: () => import("./password.js").then((room) => room.Password),
  keys: () => import("./keys.js").then((room) => room.Keys),
};

export function Account() {
  if (!person.value) return null;
  const { email } = person.value;
  const out = (/** @type {boolean} */ all) => void signOut(all).catch(complain);
  const entries = [
    { label: t("account.password.change"), run: () => (shown.value = "password") },
    { label: t("account.keys"), run: () => (shown.value = "keys") },
    { label: t("account.signOut"), run: () => out(false) },
    { label: t("account.signOut.all"), run: () => out(true) },
  ];
  return html`<${Menu} name=${t("account.of", { email })} icon="people" entries=${entries} up=${true} />`;
}

export function AccountDialogs() {
  useEffect(() => void (person.value?.needs_setup && (shown.value = "password")), [person.value]);
  if (asking.value) return html`<${Room} load=${() => import("./view.js").then((room) => room.SignIn)} />`;
  const name = shown.value;
  return name && html`<${Room} key=${name} load=${DIALOGS[name]} onClose=${() => (shown.value = "")} />`;
}
