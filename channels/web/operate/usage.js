// Tokens and cost by day, model, user and agent.

import { html, useState } from "../vendor/preact.js";
import { money, short, t } from "../words/words.js";
import { Choice } from "./choice.js";
import { Shown, useLive } from "./live.js";
import { personOf } from "./run.js";
import { Bar, Columns, Table } from "./table.js";

const DAYS = [7, 30, 90];

export function Usage() {
  const [days, setDays] = useState(30);
  const answer = useLive(`console/usage?all_users=true&days=${days}`, 60_000);
  const { value } = answer;
  const head = [{ name: t("operate.runs"), number: true }, { name: t("operate.tokens.input"), number: true }, { name: t("operate.tokens.output"), number: true }, { name: t("operate.cost"), number: true }];
  return html`<${Choice} name=${t("operate.span")} values=${DAYS} value=${days} onChange=${setDays} say=${(/** @type {number} */ n) => t("operate.days", { n })} />
    <${Shown} of=${answer}>
      <p class="total">${t("operate.usage.total", { runs: value?.runs, tokens: short(value?.total_tokens ?? 0) })} ${cost(value)}</p>
      <${Columns} name=${t("operate.usage.days")} parts=${[t("operate.tokens.input"), t("operate.tokens.output")]} columns=${[{ name: t("operate.day") }, ...head]}
        days=${value?.days.map((/** @type {any} */ one) => ({ day: one.date, values: [one.input_tokens, one.output_tokens], cells: numbers(one) })) ?? []} />
      <${By} name=${t("operate.byUser")} of=${t("operate.user")} lines=${value?.by_user} say=${personOf} head=${head} />
      <${By} name=${t("operate.byModel")} of=${t("operate.model")} lines=${value?.by_model} say=${(/** @type {any} */ one) => one.model} head=${head} />
      <${By} name=${t("operate.byAgent")} of=${t("operate.agent")} lines=${value?.by_agent} say=${(/** @type {any} */ one) => one.assistant_id} head=${head} />
    <//>`;
}

/** @param {{name: string, of: string, lines: any[] | undefined, say: (one: any) => any, head: {name: string, number?: boolean}[]}} props */
function By({ name, of, lines = [], say, head }) {
  const most = Math.max(1, ...lines.map((one) => one.total_tokens));
  const [, ...others] = head;
  return html`<h3>${name}</h3>
    <${Table} name=${name} columns=${[{ name: of }, { name: t("operate.share") }, { name: t("operate.runs.used"), number: true }, ...others]}
      rows=${lines.map((one) => ({ key: one.user_id ?? one.model ?? one.assistant_id, cells: [say(one), html`<${Bar} parts=${[one.total_tokens]} most=${most} />`, ...numbers(one)] }))} />`;
}

/** @param {any} amount */
const numbers = (amount) => [amount.runs, short(amount.input_tokens), short(amount.output_tokens), cost(amount)];

/** What something cost; nothing where there are no prices. @param {any} amount */
const cost = (amount) => (amount?.total_cost == null ? "" : money(amount.total_cost, amount.currency));
