// Tables, bars within them, and columns over days that can be read as a table, too.

import { html } from "../vendor/preact.js";
import { classes } from "../kit/view.js";
import { t } from "../words/words.js";

/**
 * @typedef {{name: string, number?: boolean}} Column
 * @param {{name: string, columns: Column[], rows: {key: string | number, cells: any[]}[], none?: string}} props `name`: of the table, for those
 *   who do not see where it stands
 */
export function Table({ name, columns, rows, none }) {
  if (!rows.length) return html`<p class="quiet">${none ?? t("operate.none")}</p>`;
  return html`<div class="scrolls" role="region" aria-label=${name} tabindex="0"><table>
    <caption class="visually-hidden">${name}</caption>
    <thead><tr>${columns.map((column) => html`<th scope="col" key=${column.name} class=${classes(column.number && "number")}>${column.name}</th>`)}</tr></thead>
    <tbody>${rows.map(
      ({ key, cells }) => html`<tr key=${key}>${cells.map((cell, place) => (place ? html`<td class=${classes(columns[place]?.number && "number")}>${cell}</td>` : html`<th scope="row">${cell}</th>`))}</tr>`,
    )}</tbody>
  </table></div>`;
}

/** A bar of up to two parts, the second beyond the first. Its numbers stand beside it. @param {{parts: number[], most: number}} props */
export function Bar({ parts, most }) {
  const scale = (/** @type {number} */ value) => (most > 0 ? Math.max((100 * value) / most, value > 0 ? 0.5 : 0) : 0);
  return html`<svg class="bar-chart" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">
    ${[...parts].reverse().map((value, back) => html`<rect key=${back} class="part-${parts.length - 1 - back}" x="0" y="0" width=${scale(value)} height="8" />`)}
  </svg>`;
}

const HEIGHT = 100;
const STEP = 10; // a column and the gap after it

/**
 * Columns over days, of parts that stand on each other.
 * @param {{name: string, parts: string[], days: {day: string, values: number[], cells: any[]}[], columns: Column[]}} props `cells`, `columns`: the same as a
 *   table
 */
export function Columns({ name, parts, days, columns }) {
  const most = Math.max(1, ...days.map(({ values }) => values.reduce((sum, value) => sum + value, 0)));
  return html`<figure class="chart">
    <figcaption>${name} <span class="legend">${parts.map((part, place) => html`<span key=${part}><i class="swatch part-${place}" aria-hidden="true"></i>${part}</span>`)}</span></figcaption>
    <svg viewBox="0 0 ${days.length * STEP} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${name}>
      ${days.map(({ day, values }, place) => html`<g key=${day}>${stacked(values, most).map(({ y, height }, part) => html`<rect key=${part} class="part-${part}" x=${place * STEP + 1} y=${y} width=${STEP - 2} height=${height} />`)}</g>`)}
    </svg>
    <div class="axis" aria-hidden="true"><span>${days[0]?.day}</span><span>${days.at(-1)?.day}</span></div>
    <details><summary>${t("operate.asTable")}</summary><${Table} name=${name} columns=${columns} rows=${[...days].reverse().map(({ day, cells }) => ({ key: day, cells: [day, ...cells] }))} /></details>
  </figure>`;
}

/** The places of parts that stand on each other. @param {number[]} values @param {number} most */
function stacked(values, most) {
  let top = HEIGHT;
  return values.map((value) => {
    const height = (HEIGHT * value) / most;
    top -= height;
    return { y: top, height };
  });
}
