// What stands between the conversation and the composer: the state of the connection, the goal, to-dos, and what waits.

import { call } from "../api/client.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { IconButton } from "../kit/button.js";
import { Icon } from "../kit/icon.js";
import { waitingOf } from "../state/items.js";
import { t } from "../words/words.js";
import { send, stop, suggest } from "./actions.js";
import { isBusy } from "../state/conversation.js";

const BACK_MS = 4000;
const PLACE_MS = 2000;

/** @param {{thread: import("../state/thread.js").Thread}} props */
export function Strip({ thread }) {
  return html`<div class="strip"><${Connection} thread=${thread} /><${Goal} thread=${thread} /><${Todos} thread=${thread} /><${Place} thread=${thread} /><${Waiting} thread=${thread} /><${Suggestions} thread=${thread} /></div>`;
}

/** @param {{thread: import("../state/thread.js").Thread}} props */
export function Connection({ thread }) {
  const condition = thread.condition.value;
  const [was, setWas] = useState(false);
  const lost = condition.kind === "lost";
  useEffect(() => {
    if (lost) return setWas(true);
    if (!was || condition.kind !== "open") return;
    const timer = setTimeout(() => setWas(false), BACK_MS);
    return () => clearTimeout(timer);
  }, [lost, condition.kind, was]);
  const text = lost ? t("connection.lost", { attempt: condition.attempt }) : was && condition.kind === "open" ? t("connection.back") : "";
  return html`<div role="status" class=${text ? "connection" : "visually-hidden"}>${text && html`<${Icon} name=${lost ? "warn" : "check"} size=${16} />`}${text}</div>`;
}

/** @param {{thread: import("../state/thread.js").Thread}} props */
function Goal({ thread }) {
  const { goal } = thread.state.value;
  if (!goal) return null;
  return html`<div class="goal"><${Icon} name="flag" size=${16} /><span dir="auto">${goal.objective}</span>${goal.paused && html`<small>${t("goal.paused", { reason: goal.reason })}</small>`}</div>`;
}

/** @param {{thread: import("../state/thread.js").Thread}} props */
function Todos({ thread }) {
  const { todos } = thread.state.value;
  const [open, setOpen] = useState(false);
  if (!todos.length) return null;
  const done = todos.filter((one) => one.status === "completed").length;
  const now = todos.find((one) => one.status === "in_progress");
  if (done === todos.length && !isBusy(thread.state.value)) return null;
  return html`<div class="todos">
    <button type="button" class="todos-line" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <${Icon} name="list" size=${16} /><span>${t("todos.done", { done, all: todos.length })}</span>${now && html`<span class="todos-now" dir="auto">${now.content}</span>`}<${Icon} name=${open ? "down" : "right"} size=${14} />
    </button>
    ${open && html`<ol>${todos.map((one, index) => html`<li key=${index} class=${one.status} dir="auto"><span class="visually-hidden">${t(`todo.${one.status}`)}: </span>${one.content}</li>`)}</ol>`}
  </div>`;
}

/** How many runs start before this one, while the server has no place for it. @param {{thread: import("../state/thread.js").Thread}} props */
function Place({ thread }) {
  const runs = Object.values(thread.state.value.runs);
  const run = runs.some((one) => one.status === "running") ? "" : (runs.find((one) => one.status === "pending")?.id ?? "");
  const [ahead, setAhead] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    setAhead(null);
    if (!run) return;
    const look = () => call("GET", `threads/${thread.id}/runs/${run}`).then((one) => setAhead(one.queue?.ahead ?? null), () => {});
    const timer = setInterval(look, PLACE_MS);
    return () => clearInterval(timer);
  }, [thread.id, run]);
  return html`<div role="status" class=${ahead === null ? "visually-hidden" : "goal"}>${ahead !== null && html`<${Icon} name="clock" size=${16} /><span>${t("queue.place", { ahead })}</span>`}</div>`;
}

/** @param {{thread: import("../state/thread.js").Thread}} props */
function Waiting({ thread }) {
  const waiting = waitingOf(thread.state.value);
  if (!waiting.length) return null;
  return html`<ul class="queue" aria-label=${t("queue")}>
    ${waiting.map(
      (one) => html`<li key=${one.id}>
        <small>${one.steering ? t("queue.steering") : t("queue.waiting")}</small><span dir="auto">${one.text}</span>
        ${one.run && html`<${IconButton} icon="cross" size=${14} name=${t("queue.remove", { text: one.text.slice(0, 40) })} onClick=${() => stop(thread, one.run)} />`}
      </li>`,
    )}
  </ul>`;
}

/** @param {{thread: import("../state/thread.js").Thread}} props */
function Suggestions({ thread }) {
  const c = thread.state.value;
  const run = c.runs[thread.begun.value];
  const done = run?.status === "success" && !isBusy(c) && run.id;
  useEffect(() => {
    if (!done) return;
    thread.begun.value = "";
    void suggest(thread);
  }, [done]);
  if (!c.suggestions.length || isBusy(c)) return null;
  return html`<div class="suggestions" role="group" aria-label=${t("suggestions")}>
    ${c.suggestions.map((text) => html`<button type="button" class="suggestion" key=${text} dir="auto" onClick=${() => send(thread, text)}>${text}</button>`)}
  </div>`;
}
