// What a file is, and as much of its text as is shown.

import { Failure, call, send } from "../api/client.js";
import { artifactOf, routeOf } from "../api/files.js";
import { t, wordsOf } from "../words/words.js";

/** @typedef {"frame"|"pdf"|"image"|"audio"|"video"|"markdown"|"table"|"document"|"text"|"none"} Kind */
/** @typedef {{kind: Kind, media: string, size: number, tag: string, text: string, cut: boolean}} Look `cut`: there is more text */

export const MOST_BYTES = 500_000;
const FRAMED = /^(text\/html|application\/xhtml\+xml|image\/svg\+xml)$/;
const TEXT = /^(text\/|application\/(.+\+)?(json|xml|javascript|x-sh|toml|yaml|x-ndjson|sql|x-python))/;
const TABLE = /\.(csv|tsv|tab|psv)$/i;
const DOCUMENT = /\.(docx|docm|dotx|pptx|pptm|ppsx|xlsx|xlsm|xltx|xls|odt|ods|odp|rtf|epub|msg|eml|doc|ppt)$/i;

/** @param {string} thread @param {string} path @param {AbortSignal} signal @returns {Promise<Look>} */
export async function look(thread, path, signal) {
  const place = artifactOf(thread, path);
  const { headers } = await send("HEAD", place, { signal });
  const media = (headers.get("content-type") ?? "").split(";")[0];
  const about = { media, size: Number(headers.get("content-length")), tag: headers.get("etag") ?? "", text: "", cut: false };
  const kind = kindOf(path, media);
  if (kind === "document") return { ...about, kind, ...(await documentText(thread, path, signal)) };
  if (!["markdown", "table", "text"].includes(kind) || !about.size) return { ...about, kind };
  const cut = about.size > MOST_BYTES;
  const response = await send("GET", place, { signal, headers: cut ? { range: `bytes=0-${MOST_BYTES - 1}` } : {} });
  const text = new TextDecoder().decode(await response.arrayBuffer(), { stream: cut });
  return { ...about, kind, text: cut ? text.slice(0, text.lastIndexOf("\n") + 1 || undefined) : text, cut };
}

/** @param {string} path @param {string} media @returns {Kind} */
export function kindOf(path, media) {
  if (FRAMED.test(media)) return "frame";
  if (media === "application/pdf") return "pdf";
  if (DOCUMENT.test(path)) return "document";
  if (TABLE.test(path)) return "table";
  if (media === "text/markdown") return "markdown";
  if (TEXT.test(media)) return "text";
  const [first] = media.split("/");
  return first === "image" || first === "audio" || first === "video" ? first : "none";
}

/** The text of a document, as the server's converter makes it. @param {string} thread @param {string} path @param {AbortSignal} signal */
async function documentText(thread, path, signal) {
  const { text, truncated } = await call("GET", `threads/${thread}/texts/${routeOf(path)}`, { signal });
  return { text: String(text), cut: Boolean(truncated) };
}

/** Why a file is not shown, in words. @param {unknown} error */
export function problemOf(error) {
  if (!(error instanceof Failure)) throw error;
  if (error.status === 404) return t("files.gone");
  if (error.status === 403) return t("files.refused");
  return error.status === 422 && error.detail ? t("files.noText", { text: error.detail }) : wordsOf(error);
}
