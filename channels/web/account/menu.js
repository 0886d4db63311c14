// Who is signed in, at the foot of the sidebar; and the dialogs about the account, whose rooms are loaded when they are met.

import { html, signal, useEffect } from "../vendor/preact.js";
import { Menu } from "../kit/menu.js";
import { Room } from "../kit/room.js";
import { t } from "../words/words.js";
import { complain } from "../chat/actions.js";
import { asking, person, signOut } from "./session.js";

/** True while another password is chosen. */
const changing = signal(false);

export function Account() {
  if (!person.value) return null;
  const { email } = person.value;
  const out = (/** @type {boolean} */ all) => void signOut(all).catch(complain);
  const entries = [
    { label: t("account.password.change"), run: () => (changing.value = true) },
    { label: t("account.signOut"), run: () => out(false) },
    { label: t("account.signOut.all"), run: () => out(true) },
  ];
  return html`<${Menu} name=${t("account.of", { email })} icon="people" entries=${entries} up=${true} />`;
}

export function AccountDialogs() {
  useEffect(() => void (person.value?.needs_setup && (changing.value = true)), [person.value]);
  if (asking.value) return html`<${Room} load=${() => import("./view.js").then((room) => room.SignIn)} />`;
  return changing.value && html`<${Room} load=${() => import("./password.js").then((room) => room.Password)} onClose=${() => (changing.value = false)} />`;
}
