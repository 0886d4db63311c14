// Addresses of a thread's files.

import { address } from "./client.js";

/** The address of a file of a thread; steps up (`..`) are left out, they would lead to other routes. @param {string} thread @param {string} path virtual @param {Record<string, any>} [query] */
export const fileUrl = (thread, path, query) =>
  address(`threads/${thread}/artifacts/${partsOf(path).map(encodeURIComponent).join("/")}`, query);

/** @param {string} path */
const partsOf = (path) => path.split("/").filter((part) => part && part !== "." && part !== "..");
