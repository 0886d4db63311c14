// Where files are shown: addresses in the page, and names of what lies in a thread.

export const TOP = "/mnt/user-data";

/** @typedef {{path: string, name: string, kind: string, size: number|null, modified_at: string, media_type: string|null, run_id: string|null}} File */

/** The address of a file in the room of files, or of the room itself. @param {string} thread @param {string} [path] virtual */
export const placeOf = (thread, path = "") => `#/files/${thread}${path.split("/").map(encodeURIComponent).join("/")}`;

/** @param {string} path */
export const nameOf = (path) => path.slice(path.lastIndexOf("/") + 1);

/** The path without what all paths have. @param {string} path */
export const shortOf = (path) => path.replace(`${TOP}/`, "");
