// Server-sent events, read from a response: `EventSource` can neither resume at a place of ours nor say why it failed.

/** @typedef {{event: string, data: string, id: string}} Frame `event` is empty for a sign of life. */

/** Splits text into frames, in whatever pieces it comes. */
export class Parser {
  #rest = "";

  /** @param {string} text @returns {Frame[]} */
  feed(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = /** @type {string} */ (blocks.pop());
    return blocks.map(frameOf);
  }
}

/** @param {string} block @returns {Frame} */
function frameOf(block) {
  const frame = { event: "", data: "", id: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const name = line.slice(0, colon);
    const value = line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "event" || name === "id") frame[name] = value;
    else if (name === "data") frame.data = frame.data ? `${frame.data}\n${value}` : value;
  }
  return frame;
}

/**
 * Reads a response until it ends; calls `take` with the frames of each piece.
 * @param {Response} response @param {(frames: Frame[]) => void} take
 */
export async function readFrames(response, take) {
  const parser = new Parser();
  const decoder = new TextDecoder();
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    take(parser.feed(decoder.decode(value, { stream: true })));
  }
}
