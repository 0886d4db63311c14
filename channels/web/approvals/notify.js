// Notices of the browser that something waits. They name no conversation and no command: others may see the screen.

import { signal } from "../vendor/preact.js";
import { go } from "../state/route.js";
import { recall, remember } from "../state/stored.js";
import { t } from "../words/words.js";

/** What the browser lets us. @returns {NotificationPermission | "unsupported"} */
export const allowed = () => ("Notification" in globalThis ? Notification.permission : "unsupported");

export const notifies = signal(recall("notify") === true && allowed() === "granted");

/** Begins or ends notices. The browser asks the person, at their click. @param {boolean} on */
export async function notifyMe(on) {
  const granted = on && (await Notification.requestPermission()) === "granted";
  remember("notify", granted || null);
  notifies.value = granted;
}

/** @param {import("../state/threads.js").News} item */
export function announce({ event, data }) {
  if (!notifies.value || !document.hidden) return;
  const title = event.startsWith("approval") ? t("notify.approval") : t("notify.question");
  const notice = new Notification(title, { body: t("notify.text"), tag: `sika-${data.thread_id}` });
  notice.onclick = () => {
    window.focus();
    go(`t/${data.thread_id}`);
    notice.close();
  };
}
