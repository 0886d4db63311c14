// Tables in text: values between commas, semicolons, tabs or bars, with quotes as RFC 4180 has them. Values stay texts, so
// that an id keeps its zeros.

const SEPARATORS = [",", ";", "\t", "|"];
const SAMPLE = 20;

/**
 * The rows of a text, at most so many. `more`: there are others.
 * @param {string} text @param {number} most @param {string} [separator] by default the one that fits
 * @returns {{rows: string[][], more: boolean, separator: string}}
 */
export function tableOf(text, most, separator = separatorOf(text)) {
  const rows = [...rowsOf(text.replace(/^\ufeff/, ""), separator, most + 1)];
  return { rows: rows.slice(0, most), more: rows.length > most, separator };
}

/** The separator that divides the first rows most evenly. @param {string} text */
function separatorOf(text) {
  const head = text.slice(0, 64_000);
  let best = { separator: ",", score: 0 };
  for (const separator of SEPARATORS) {
    const widths = [...rowsOf(head, separator, SAMPLE)].map((row) => row.length);
    const same = widths.filter((width) => width === widths[0]).length;
    const score = widths[0] > 1 ? (same / widths.length) * Math.min(widths[0], 50) : 0;
    if (score > best.score) best = { separator, score };
  }
  return best.separator;
}

/** @param {string} text @param {string} separator @param {number} most @returns {Generator<string[]>} */
function* rowsOf(text, separator, most) {
  /** @type {string[]} */ let row = [];
  let at = 0;
  let count = 0;
  while (at < text.length && count < most) {
    const [value, next] = text[at] === '"' ? quoted(text, at) : plain(text, at, separator);
    row.push(value);
    if (text[next] === separator) {
      at = next + 1;
      if (at < text.length) continue;
      row.push("");
    } else at = text.startsWith("\r\n", next) ? next + 2 : next + 1;
    if (row.length > 1 || row[0]) {
      yield row;
      count += 1;
    }
    row = [];
  }
}

/** A value in quotes, and where it ends; what follows a closing quote belongs to it. @param {string} text @param {number} begin @returns {[string, number]} */
function quoted(text, begin) {
  let value = "";
  let at = begin + 1;
  for (;;) {
    const end = text.indexOf('"', at);
    if (end < 0) return [value + text.slice(at), text.length];
    value += text.slice(at, end);
    if (text[end + 1] !== '"') return [value, end + 1];
    value += '"';
    at = end + 2;
  }
}

/** @param {string} text @param {number} begin @param {string} separator @returns {[string, number]} */
function plain(text, begin, separator) {
  let end = begin;
  while (end < text.length && text[end] !== separator && text[end] !== "\n" && text[end] !== "\r") end += 1;
  return [text.slice(begin, end), end];
}
