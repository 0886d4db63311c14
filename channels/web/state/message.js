// Messages as the page shows them, made of LangChain's dumps as they are in the log and in a page of history.

/**
 * @typedef {{id: string, name: string, args: Record<string, any>}} ToolCall
 * @typedef {{name: string, size: number, path: string}} Attachment
 * @typedef {{seq: number, id: string, run: string, type: "human"|"ai", text: string, reasoning: string, calls: ToolCall[],
 *   images: string[], files: Attachment[], at: string, usage: Usage|null, error: string, branches: Branches|null}} Message
 *   `seq`: of a row of history. `error`: why the run failed, if the message only says so.
 * @typedef {{input: number, output: number, total: number}} Usage tokens
 * @typedef {{index: number, count: number, checkpoint_ids: string[]}} Branches
 * @typedef {{seq: number, call: string, text: string, failed: boolean, exitCode: number|null, ms: number,
 *   artifact: any, edited: any}} Result of a tool call. `edited`: the arguments of a call that a person changed
 */

/** Rows of one fact at most: the place of a message in the log is `seq` of its fact times this, plus its place in it. */
export const PLACES = 10_000;
const UPLOADS = /\s*<uploaded_files>.*?<\/uploaded_files>\s*/s;

/**
 * @param {any} dump @param {number} seq @param {string} run @param {string} at
 * @returns {Message | null} null if it is not for people, or the result of a tool
 */
export function messageOf(dump, seq, run, at) {
  const extra = dump?.additional_kwargs ?? {};
  const type = dump?.type === "human" || dump?.type === "ai" ? dump.type : null;
  if (!type || extra.hide_from_ui) return null;
  const { text, reasoning, images } = contentOf(dump.content);
  return {
    seq, run, at, type, images,
    id: String(dump.id),
    text: type === "human" ? text.replace(UPLOADS, "") : text,
    reasoning: extra.reasoning_content || reasoning,
    calls: (dump.tool_calls ?? []).map((/** @type {any} */ one) => ({ id: one.id, name: one.name, args: one.args ?? {} })),
    files: type === "human" ? (extra.files ?? []).map(attachmentOf) : [],
    usage: usageOf(dump.usage_metadata),
    error: type === "ai" ? (extra.error_reason ?? "") : "",
    branches: null,
  };
}

/**
 * The result of a tool call. @param {any} dump a tool message @param {number} seq @param {number} ms
 * @param {number|null} exitCode @param {any} [edited] @returns {Result}
 */
export function resultOf(dump, seq, ms, exitCode, edited = null) {
  const failed = dump.status === "error" || (exitCode !== null && exitCode !== 0);
  return { seq, call: dump.tool_call_id, text: contentOf(dump.content).text, failed, exitCode, ms, artifact: dump.artifact ?? null, edited };
}

/** @param {any} usage @returns {Usage|null} */
export function usageOf(usage) {
  if (!usage) return null;
  const { input_tokens: input = 0, output_tokens: output = 0, total_tokens: total = input + output } = usage;
  return { input, output, total };
}

/** @param {any} file @returns {Attachment} */
function attachmentOf(file) {
  const name = String(file.filename ?? file.name ?? "");
  return { name, size: Number(file.size ?? 0), path: String(file.path ?? `/mnt/user-data/uploads/${name}`) };
}

/** The text, reasoning and pictures of a message's content: a text, or a list of blocks. @param {any} content */
function contentOf(content) {
  if (typeof content === "string") return { text: content, reasoning: "", images: [] };
  const all = { text: "", reasoning: "", images: /** @type {string[]} */ ([]) };
  for (const block of Array.isArray(content) ? content : []) {
    if (typeof block === "string") all.text += block;
    else if (block?.type === "text") all.text += block.text ?? "";
    else if (block?.type === "reasoning" || block?.type === "thinking") all.reasoning += block.reasoning ?? block.thinking ?? "";
    else if (block?.type === "image_url") all.images.push(block.image_url?.url ?? String(block.image_url));
  }
  return all;
}
