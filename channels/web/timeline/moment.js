// A moment: what happened, why, how everything stood then, and what can be done from there.

import { html, useState } from "../vendor/preact.js";
import { person } from "../account/session.js";
import { Failure, address, call } from "../api/client.js";
import { Button } from "../kit/button.js";
import { keepDraft } from "../chat/drafts.js";
import { copyText } from "../kit/copy.js";
import { Room } from "../kit/room.js";
import { classes } from "../kit/view.js";
import { go } from "../state/route.js";
import { duration, language, t, wordsOf } from "../words/words.js";
import { Pin, Replayed } from "./again.js";
import { Compared, ComparedRuns } from "./compare.js";
import { clock } from "./list.js";
import { Text, Wait, useLoaded } from "./loaded.js";
import { aboutOf, phraseOf, textOf } from "./phrases.js";
import { messageOf, timelineOf } from "./place.js";
import { LAST, Messages } from "./messages.js";
import { Prompt } from "./prompt.js";
import { Files, Lacks, Opened, Usage } from "./then.js";
import { WhatIf } from "./whatif.js";

/** @typedef {import("./log.js").Log | import("./log.js").FileLog} AnyLog */

/** @param {{log: AnyLog, seq: number, marked: number, onMark: (seq: number) => void, onChoose: (seq: number) => void}} props */
export function Moment({ log, seq, marked, onMark, onChoose }) {
  const { items } = log;
  const item = items.items[items.indexOf(seq)];
  const [tab, setTab] = useState("what");
  if (!item) return html`<p class="quiet center">${t("timeline.choose")}</p>`;
  const prompted = ["model.completed", "model.failed"].includes(item.type);
  const tabs = ["what", "why", ...(prompted ? ["prompt"] : []), "then", ...(log.tellsOf(item.subagent) ? ["subagent"] : []), ...(log.own ? ["whatif", "do"] : [])];
  const shown = tabs.includes(tab) ? tab : "what";
  const Part = { what: What, why: Why, prompt: Asked, then: Then, subagent: Subagent, whatif: If, do: Do }[shown] ?? What;
  return html`<article class="tl-moment" aria-label=${t("timeline.moment")}>
    <header><h2 class=${classes(item.fault && `tl-fault-${item.fault}`)}>${item.fault && html`<b>${t(`timeline.fault.${item.fault}`)} </b>`}${phraseOf(item.type)}</h2>
      <p class="quiet"><time>${clock(item.at)}</time> · ${t("timeline.since", { time: duration(item.at - (items.items[0]?.at ?? item.at)) })}${log.whole && html` · ${t("tokens", { tokens: items.tokensAt(items.indexOf(seq)) })}`}</p></header>
    ${log.own && html`<p><a href=${messageOf(log.thread, saidAt(items.items, item))}>${t("timeline.inChat")}</a></p>`}
    <div class="tl-tabs" role="group" aria-label=${t("timeline.moment")}>${tabs.map((one) => html`<button type="button" key=${one} class="button quiet" aria-pressed=${String(one === shown)} onClick=${() => setTab(one)}>${t(`timeline.tab.${one}`)}</button>`)}</div>
    <div class="tl-part"><${Part} key=${shown} log=${log} item=${item} marked=${marked} onMark=${onMark} onChoose=${onChoose} /></div>
  </article>`;
}

/** Where a message stands: that of a request is in the conversation when its run begins. @param {import("./items.js").Item[]} items @param {import("./items.js").Item} item */
const saidAt = (items, item) => (item.type === "run.requested" && items.find((one) => one.type === "run.started" && one.run === item.run)?.seq) || item.seq;

/** @param {{log: AnyLog, item: import("./items.js").Item}} props */
function What({ log, item }) {
  const stored = useLoaded(() => log.event(item.seq), [item.seq]);
  const again = item.type === "run.started" && item.fault !== "";
  return html`${again && html`<p>${t("timeline.again", { before: workerBefore(log.items.items, item) })}</p>`}
    ${item.type === "approval.requested" && log.items.problems().includes(item) && html`<p>${t("timeline.unanswered")}</p>`}
    ${stored.value?.blob && html`<p>${t("timeline.bodiless")}</p>`}
    <${Wait} of=${stored}>${stored.value && html`<${Told} event=${stored.value} />`}<//>`;
}

/** The messages with which a run was asked for. @param {any} event @returns {any[]} */
const messagesOf = (event) => event?.input?.messages ?? [];

/** The process that worked on a run before. @param {import("./items.js").Item[]} items @param {import("./items.js").Item} item */
function workerBefore(items, { run, seq }) {
  const starts = items.filter((one) => one.type === "run.started" && one.run === run && one.seq < seq);
  return starts.at(-1)?.worker ?? "";
}

/** What an event says: its texts first, all of it as stored below. @param {{event: any}} props */
function Told({ event }) {
  const text = textOf(event.message?.content) || event.text || event.result || event.error || "";
  const calls = event.message?.tool_calls ?? [];
  const args = event.args ?? null;
  return html`${text && html`<${Text} text=${String(text)} />`}
    ${calls.map((/** @type {any} */ one) => html`<figure class="output" key=${one.id}><figcaption>→ ${one.name}</figcaption><${Text} text=${JSON.stringify(one.args, null, 2)} /></figure>`)}
    ${args && html`<${Text} text=${JSON.stringify(args, null, 2)} />`}
    <details><summary>${t("timeline.stored")}</summary><${Text} text=${JSON.stringify(event, null, 2)} /></details>`;
}

/** @param {{log: AnyLog, item: import("./items.js").Item, onChoose: (seq: number) => void}} props */
function Why({ log, item, onChoose }) {
  const chain = useLoaded(() => log.why(item.seq), [item.seq]);
  return html`<p class="quiet">${t("timeline.why.text")}</p><${Wait} of=${chain}><ol class="tl-why">${chain.value?.map(({ kind, aggregate, seq, event }) => html`<${Cause} key=${`${kind}${aggregate}${seq}`} here=${kind === "thread" && aggregate === log.thread} log=${log} kind=${kind} seq=${seq} event=${event} onChoose=${onChoose} />`)}</ol><//>`;
}

/** @param {{here: boolean, log: AnyLog, kind: string, seq: number, event: any, onChoose: (seq: number) => void}} props */
function Cause({ here, log, kind, seq, event, onChoose }) {
  const own = here ? log.items.items[log.items.indexOf(seq)] : undefined;
  const about = own?.seq === seq ? own.about : aboutOf(event);
  return html`<li><button type="button" disabled=${!here} onClick=${() => onChoose(seq)}><b>${phraseOf(event.type)}</b>${!here && html` <small>${kind}</small>`} <span dir="auto">${about[language.value]}</span></button></li>`;
}

/** @param {{log: AnyLog, item: import("./items.js").Item, marked: number, onMark: (seq: number) => void, onChoose: (seq: number) => void}} props */
function Then({ log, item, marked, onMark, onChoose }) {
  const [all, setAll] = useState(false);
  const state = useLoaded(() => log.state(item.seq, all ? undefined : LAST), [item.seq, all]);
  const values = state.value?.values ?? {};
  const { messages = [], title: _, todos, artifacts, ...others } = values;
  return html`${log.compares && html`<div class="tl-compare"><${Button} onClick=${() => onMark(item.seq)}>${t("timeline.mark")}<//></div>`}
    ${marked > 0 && marked !== item.seq && html`<${Compared} log=${log} left=${marked} right=${item.seq} />`}
    <${Wait} of=${state}>
      <${Lacks} of=${state.value?.missing} onChoose=${onChoose} />
      <p>${t("timeline.status", { status: state.value?.status ?? "" })}</p>
      ${artifacts?.length > 0 && html`<h3>${t("files")}</h3><ul>${artifacts.map((/** @type {any} */ path) => html`<li key=${path}><bdi>${String(path)}</bdi></li>`)}</ul>`}
      ${todos?.length > 0 && html`<h3>${t("timeline.todos")}</h3><ul>${todos.map((/** @type {any} */ one, /** @type {number} */ index) => html`<li key=${index}>${String(one.content)} <small>${String(one.status)}</small></li>`)}</ul>`}
      <h3>${t("timeline.messages", { n: state.value?.messages ?? messages.length })}</h3>
      <${Messages} messages=${messages} more=${state.value?.messages > messages.length ? () => setAll(true) : null} />
      <${Opened} title=${t("timeline.files")}><${Files} log=${log} seq=${item.seq} /><//>
      ${"path" in log && html`<${Opened} title=${t("timeline.usage")}><${Usage} log=${log} seq=${item.seq} /><//>`}
      <details><summary>${t("timeline.values")}</summary><${Text} text=${JSON.stringify(others, null, 2)} /></details>
    <//>`;
}

/** What a subagent was told, and did. @param {{log: AnyLog, item: import("./items.js").Item}} props */
function Subagent({ log, item }) {
  const loaded = useLoaded(() => log.subagent(item.subagent), [log, item.subagent]);
  const { name = "", status = "", prompt = "", messages = [] } = loaded.value ?? {};
  return html`<${Wait} of=${loaded}><p><b>${String(name)}</b> ${String(status)}</p>${prompt && html`<${Text} text=${String(prompt)} />`}<${Messages} messages=${messages} /><//>`;
}

/** @param {{log: AnyLog, item: import("./items.js").Item, onChoose: (seq: number) => void}} props */
const Asked = ({ log, item, onChoose }) => html`<${Prompt} log=${log} seq=${item.seq} onChoose=${onChoose} />`;

/** @param {{log: AnyLog, item: import("./items.js").Item}} props */
const If = ({ log, item }) => html`<${WhatIf} key=${item.seq} thread=${log.thread} seq=${item.seq} />`;

/** @param {{log: AnyLog, item: import("./items.js").Item, onChoose: (seq: number) => void}} props */
function Do({ log, item, onChoose }) {
  const [problem, setProblem] = useState("");
  const [comparing, setComparing] = useState("");
  const [replaying, setReplaying] = useState(false);
  const [sharing, setSharing] = useState(false);
  const runs = [...new Set(log.items.items.map((one) => one.run).filter(Boolean))];
  const others = item.run ? runs.filter((run) => run !== item.run) : [];
  const asked = item.type === "run.requested" ? log.items.items[log.items.indexOf(item.seq) - 1] : undefined;
  /** @param {number} seq @param {() => Promise<string>} [text] what is written in the new conversation, and not sent */
  const fork = async (seq, text) => {
    setProblem("");
    try {
      const draft = await text?.();
      const made = await call("POST", `threads/${log.thread}/log/fork`, { body: { at: `seq:${seq}` } });
      if (draft) keepDraft(made.thread, draft);
      go(`t/${made.thread}`);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      setProblem(wordsOf(error));
    }
  };
  const said = async () => messagesOf(await log.event(item.seq)).map((message) => textOf(message.content)).join("\n\n");
  const link = () => copyText(new URL(timelineOf(log.thread, item.seq), location.href).href);
  return html`<div class="tl-acts">
    <div><${Button} kind="first" onClick=${() => fork(item.seq)}>${t("timeline.fork")}<//><p class="quiet">${t("timeline.fork.text")}</p></div>
    ${asked && html`<div><${Button} onClick=${() => fork(asked.seq, said)}>${t("timeline.edit")}<//><p class="quiet">${t("timeline.edit.text")}</p></div>`}
    <div><${Button} onClick=${link}>${t("timeline.link")}<//>${person.value && html` <${Button} onClick=${() => setSharing(true)}>${t("timeline.share")}<//>`}<p class="quiet">${t(person.value ? "timeline.share.text" : "timeline.link.text")}</p>
      ${sharing && html`<${Room} load=${() => import("../share/dialog.js").then((room) => room.ShareDialog)} thread=${{ id: log.thread }} at=${item.seq} onClose=${() => setSharing(false)} />`}</div>
    <div><a class="button" download="${log.thread}.jsonl" href=${address(`threads/${log.thread}/log/export`, { blobs: 1 })}>${t("timeline.export")}</a>
      <a class="button" download="${log.thread}.jsonl" href=${address(`threads/${log.thread}/log/export`, { blobs: 1, redact: 1 })}>${t("timeline.export.redacted")}</a><p class="quiet">${t("timeline.export.text")}</p></div>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${item.run && html`<div><${Button} onClick=${() => setReplaying(true)}>${t("timeline.replay")}<//><p class="quiet">${t("timeline.replay.text")}</p>
      ${replaying && html`<${Replayed} thread=${log.thread} run=${item.run} onChoose=${onChoose} />`}</div>
    <${Pin} key=${item.run} thread=${log.thread} run=${item.run} />`}
    ${others.length > 0 && html`<div><select class="field" aria-label=${t("timeline.runs.with")} value=${comparing} onChange=${(/** @type {any} */ e) => setComparing(e.target.value)}>
      <option value="">${t("timeline.runs.with")}</option>${others.map((run) => html`<option key=${run} value=${run}>${t("timeline.run", { number: runs.indexOf(run) + 1 })}</option>`)}</select>
      ${comparing && html`<${ComparedRuns} thread=${log.thread} left=${comparing} right=${item.run} onChoose=${onChoose} />`}</div>`}
  </div>`;
}
