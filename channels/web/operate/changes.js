// What was configured when, and by whom.

import { html, useState } from "../vendor/preact.js";
import { Button } from "../kit/button.js";
import { moment, t } from "../words/words.js";
import { Shown, useLive } from "./live.js";
import { Table } from "./table.js";

export function Changes() {
  const [before, setBefore] = useState([0]); // of the pages up to this one
  const last = before.at(-1);
  const answer = useLive(last ? `operations/changes?before=${last}` : "operations/changes", last ? 0 : 15_000);
  const next = answer.value?.next_before;
  return html`<p>${t("operate.changes.text")}</p>
    <${Shown} of=${answer}>
      <${Table} name=${t("operate.changes.newest")} columns=${[{ name: t("operate.when") }, { name: t("operate.what") }, { name: t("operate.by") }, { name: t("operate.details") }]}
        rows=${answer.value?.changes.map((/** @type {any} */ one) => ({ key: one.seq, cells: [moment(one.at), html`<code dir="ltr">${one.type}</code>`, html`<bdi>${one.by_name ?? one.by}</bdi>`, html`<span class="change-text" dir="auto">${one.text}</span>`] })) ?? []} />
      <p class="pages">
        ${before.length > 1 && html`<${Button} onClick=${() => setBefore(before.slice(0, -1))}>${t("operate.before")}<//>`}
        ${next != null && html`<${Button} onClick=${() => setBefore([...before, next])}>${t("operate.more")}<//>`}
      </p>
    <//>`;
}
