// Addresses of a thread's files.

import { address } from "./client.js";

/** The address of a file of a thread. @param {string} thread @param {string} path virtual @param {Record<string, any>} [query] */
export const fileUrl = (thread, path, query) =>
  address(`threads/${thread}/artifacts/${path.replace(/^\//, "").split("/").map(encodeURIComponent).join("/")}`, query);
