// A message while it is made. The server sends pieces of its line (reasoning, text, the arguments of each tool call) with
// their places, counted in characters; a piece may come twice, cut anywhere, or not at all.

/**
 * @typedef {{part: "reasoning"|"text"|"call", index: number, id: string, name: string, text: string}} Part
 * @typedef {{message: string, after: number, length: number, parts: Part[], ahead: any[]}} Growing
 *   `length`: characters so far. `ahead`: pieces before which one is missing.
 */

const MOST_AHEAD = 64;

/** Takes a piece; returns what was there if it brings nothing. @param {Growing|undefined} growing @param {any} piece @returns {Growing} */
export function grown(growing, piece) {
  const base = growing && growing.message === piece.message ? growing : { message: piece.message, after: piece.after, length: 0, parts: [], ahead: [] };
  const next = joined(base, piece);
  return next.ahead.length && next.length > base.length ? withAhead(next) : next;
}

/** @param {Growing} growing @param {any} piece @returns {Growing} */
function joined(growing, piece) {
  const length = count(piece.text);
  if (piece.offset > growing.length) {
    return growing.ahead.length < MOST_AHEAD ? { ...growing, ahead: [...growing.ahead, piece] } : growing;
  }
  if (piece.offset + length <= growing.length) return growing;
  const text = cut(piece.text, growing.length - piece.offset);
  return { ...growing, length: piece.offset + length, parts: added(growing.parts, piece, text) };
}

/** @param {Part[]} parts @param {any} piece @param {string} text @returns {Part[]} */
function added(parts, { part = "text", index = 0, call_id: id = "", name = "" }, text) {
  const place = parts.findLastIndex((one) => one.part === part && one.index === index);
  if (place < 0) return [...parts, { part, index, id: id ?? "", name: name ?? "", text }];
  const old = parts[place];
  return parts.with(place, { ...old, id: old.id || id || "", name: old.name || name || "", text: old.text + text });
}

/** @param {Growing} growing @returns {Growing} */
function withAhead(growing) {
  const pieces = growing.ahead.toSorted((one, other) => one.offset - other.offset);
  return pieces.reduce(joined, { ...growing, ahead: [] });
}

/** The text of a part. @param {Growing|undefined} growing @param {"reasoning"|"text"} part */
export function textOf(growing, part) {
  return growing?.parts.find((one) => one.part === part)?.text ?? "";
}

/** Characters (code points, as the server counts). @param {string} text */
function count(text) {
  let pairs = 0;
  for (let i = 0; i < text.length; i++) if ((text.charCodeAt(i) & 0xfc00) === 0xd800) pairs += 1;
  return text.length - pairs;
}

/** Text without its first characters. @param {string} text @param {number} characters */
function cut(text, characters) {
  return characters ? Array.from(text).slice(characters).join("") : text;
}
