// Routes and addresses of a thread's files.

import { address } from "./client.js";

/** The route of a file; steps up (`..`) are left out, they would lead to other routes. @param {string} thread @param {string} path virtual */
export const artifactOf = (thread, path) => `threads/${thread}/artifacts/${routeOf(path)}`;

/** The address of a file of a thread. @param {string} thread @param {string} path virtual @param {Record<string, any>} [query] */
export const fileUrl = (thread, path, query) => address(artifactOf(thread, path), query);

/** A path as the end of a route. @param {string} path */
export const routeOf = (path) => path.split("/").filter((part) => part && part !== "." && part !== "..").map(encodeURIComponent).join("/");
