// What somebody shared with the people of this server: the conversation, and the timeline up to that moment.

import { html, useMemo } from "../vendor/preact.js";
import { Room } from "../kit/room.js";
import { t } from "../words/words.js";
import { Shared, sourceOf, useShared } from "./view.js";

/** @param {{path: string[]}} props the token, and the sequence of an event */
export function View({ path: [token = "", seq = ""] }) {
  return html`<${Opened} key=${token} token=${token} seq=${Number(seq) || 0} />`;
}

/** @param {{token: string, seq: number}} props */
function Opened({ token, seq }) {
  const source = useMemo(() => sourceOf("shares", token), []);
  const shared = useShared(source);
  const [first] = shared.pages;
  if (first && seq && first.events !== null) {
    const { thread_id: thread, title } = first;
    return html`<${Room} load=${() => import("../timeline/room.js").then((room) => room.SharedTimeline)} shared=${{ token, thread, title }} seq=${seq} />`;
  }
  return html`<div class="shared"><${Shared} source=${source} shared=${shared}>
    ${first && first.events !== null && html`<p><a class="button" href="#/shared/${token}/${first.events}">${t("shared.timeline")}</a></p>`}
  <//></div>`;
}
