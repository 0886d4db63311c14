// Where the page is: the part of the address after `#/`, as `t/<thread>` or `approvals`. A view needs no route of the server.

import { signal } from "../vendor/preact.js";

/** @returns {{view: string, path: string[], query: URLSearchParams}} */
function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...rest] = path.split("/").map(decodeURIComponent);
  return { view, path: rest, query: new URLSearchParams(query) };
}

export const route = signal(read());
addEventListener("hashchange", () => (route.value = read()));

/** Goes to a place. @param {string} place as `t/<id>` @param {{replace?: boolean}} [how] */
export function go(place, { replace = false } = {}) {
  const url = `#/${place}`;
  if (replace) history.replaceState(null, "", url);
  else if (location.hash !== url) history.pushState(null, "", url);
  route.value = read();
}
