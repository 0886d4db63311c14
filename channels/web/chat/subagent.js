// A subagent: a card with what it does, which opens into its own conversation.

import { html, useEffect, useState } from "../vendor/preact.js";
import { call } from "../api/client.js";
import { Dialog } from "../kit/dialog.js";
import { Icon } from "../kit/icon.js";
import { classes } from "../kit/view.js";
import { Markdown } from "../markdown/text.js";
import { empty, withPage } from "../state/conversation.js";
import { textOf } from "../state/growing.js";
import { itemsOf } from "../state/items.js";
import { duration, short, t } from "../words/words.js";
import { open as at } from "./open.js";
import { Since, StepLine } from "./step.js";

/** Characters of a card: the newest of what is being written, or the first of an answer. */
const MOST = 200;

/** @param {{step: import("../state/items.js").Step, thread: string}} props */
export function Subagent({ step, thread }) {
  const [open, setOpen] = useState(false);
  const { subagent: agent, args } = step;
  if (!agent) return null;
  const running = agent.status === "running";
  const text = textOf(running ? at.value?.growing.value[agent.id] : undefined, "text");
  const ms = agent.endedAt ? new Date(agent.endedAt).getTime() - new Date(agent.at).getTime() : 0;
  return html`<div class=${classes("subagent", !running && agent.status !== "completed" && "failed")}>
    <button type="button" class="subagent-card" onClick=${() => setOpen(true)} aria-haspopup="dialog">
      <${Icon} name="people" />
      <span class="subagent-words">
        <strong dir="auto">${agent.description || args.description || agent.name}</strong>
        <small dir="auto">${agent.error || plainOf(text ? text.slice(-MOST) : agent.latest.slice(0, MOST)) || t("subagent.begins")}</small>
      </span>
      ${running ? html`<${Since} at=${agent.at} />` : html`<span class="step-state">${t(`subagent.${agent.status}`)}${ms > 0 && ` · ${duration(ms)}`}${agent.usage && ` · ${t("tokens", { tokens: short(agent.usage.total_tokens ?? 0) })}`}</span>`}
    </button>
    ${open && html`<${Conversation} agent=${agent} thread=${thread} onClose=${() => setOpen(false)} />`}
  </div>`;
}

/** A text without the marks of Markdown, for one line. @param {string} text */
const plainOf = (text) => text.replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/^\s*(?:[#>|]+|[-*+]|\d+\.)\s+/gm, "").replace(/[*_`~|]{1,3}(?=\S)|(?<=\S)[*_`~|]{1,3}/g, "");

/** @param {{agent: import("../state/conversation.js").Subagent, thread: string, onClose: () => void}} props */
function Conversation({ agent, thread, onClose }) {
  const [items, setItems] = useState(/** @type {import("../state/items.js").Item[]} */ ([]));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    call("GET", `threads/${thread}/subagents/${agent.id}/messages`, { query: { limit: 200 } })
      .then((page) => setItems(itemsOf(withPage(empty(), { data: page.data ?? page }))))
      .catch((error) => setProblem(String(error.detail ?? error)));
  }, [agent.steps, agent.status]);
  return html`<${Dialog} title=${agent.description || agent.name} onClose=${onClose} kind="wide">
    ${problem && html`<p class="error">${problem}</p>`}
    ${items.map((item) =>
      item.kind === "person"
        ? html`<div class="person" key=${item.key}><div class="bubble" dir="auto">${item.message.text}</div></div>`
        : item.kind === "answer" &&
          html`<div class="answer" key=${item.key}>
            ${item.message?.text && html`<${Markdown} text=${item.message.text} thread=${thread} />`}
            ${item.steps.map((step) => html`<${StepLine} key=${step.call.id} step=${step} thread=${thread} />`)}
          </div>`,
    )}
  <//>`;
}
