// The room of a conversation's files: those that were presented, all of them as a tree, what each run changed, and the one
// that is chosen. Beside the conversation where there is room, else by itself.

import { html, useState } from "../vendor/preact.js";
import { address } from "../api/client.js";
import { open } from "../chat/open.js";
import { Icon } from "../kit/icon.js";
import { classes } from "../kit/view.js";
import { t } from "../words/words.js";
import { Changes } from "./changes.js";
import { useFilesTick } from "./live.js";
import { nameOf, placeOf } from "./place.js";
import { Shown } from "./shown.js";
import { Tree } from "./tree.js";

/** @param {{path: string[]}} props the thread, and the chosen file's path in parts */
export function View({ path: [thread, ...parts] }) {
  const [run, setRun] = useState(/** @type {string | null} */ (null));
  const tick = useFilesTick(thread);
  const path = parts.length ? `/${parts.join("/")}` : "";
  return html`<section class="files-room" aria-label=${t("files")}>
    ${path
      ? html`<${Shown} key=${path} thread=${thread} path=${path} tick=${tick} />`
      : html`<header class="file-head">
            <h1>${t("files")}</h1>
            <div class="tabs" role="group" aria-label=${t("files.shown")}>
              <${Tab} name=${t("files.tree")} on=${run === null} onClick=${() => setRun(null)} />
              <${Tab} name=${t("changes")} on=${run !== null} onClick=${() => setRun("")} />
            </div>
            <span class="spacer"></span>
            <a class="icon-button" href=${address(`threads/${thread}/files.zip`)} download aria-label=${t("files.save.all")} title=${t("files.save.all")}><${Icon} name="save" /></a>
            <a class="icon-button" href=${`#/t/${thread}`} aria-label=${t("files.close")} title=${t("files.close")}><${Icon} name="cross" /></a>
          </header>
          <div class="file-body">
            ${run === null ? html`<${Presented} thread=${thread} /><${Tree} thread=${thread} tick=${tick} onRun=${setRun} />` : html`<${Changes} key=${run} thread=${thread} tick=${tick} run=${run} />`}
          </div>`}
  </section>`;
}

/** @param {{name: string, on: boolean, onClick: () => void}} props */
const Tab = ({ name, on, onClick }) => html`<button type="button" class=${classes("tab", on && "on")} aria-pressed=${String(on)} onClick=${onClick}>${name}</button>`;

/** What the agent presented in the conversation that is open. @param {{thread: string}} props */
function Presented({ thread }) {
  const paths = open.value?.id === thread ? presentedIn(open.value.state.value) : [];
  if (!paths.length) return null;
  return html`<h2>${t("files.presented")}</h2>
    <div class="file-chips">${paths.map((path) => html`<a class="file" key=${path} href=${placeOf(thread, path)}><${Icon} name="file" size=${16} /><bdi>${nameOf(path)}</bdi></a>`)}</div>`;
}

/** @param {import("../state/conversation.js").Conversation} c @returns {string[]} */
function presentedIn({ messages, results }) {
  const calls = messages.flatMap((message) => message.calls).filter(({ id, name }) => name === "present_files" && results[id] && !results[id].failed);
  return [...new Set(calls.flatMap(({ args }) => (Array.isArray(args.filepaths) ? args.filepaths.map(String) : [])))];
}
