// The way from a message or a step to its place in the timeline.

import { html } from "../vendor/preact.js";
import { Icon } from "../kit/icon.js";
import { PLACES } from "../state/message.js";
import { timelineOf } from "../timeline/place.js";
import { t } from "../words/words.js";

/** @param {{thread: string, at: number}} props `at`: the place in the log of what it belongs to */
export function ToTimeline({ thread, at }) {
  return html`<a class="icon-button" href=${timelineOf(thread, Math.floor(at / PLACES))} aria-label=${t("timeline.show")} title=${t("timeline.show")}><${Icon} name="clock" size=${16} /></a>`;
}
