// Icons as lines in a square of 24. They are decoration: what they are on has a name.

import { html } from "../vendor/preact.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.500 17a1.700 1.700 0 0 1-2.400-2.400L14.500 7.200",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.500l4.500 4.500L19 7.500",
  cross: "M6 6l12 12M18 6L6 18",
  down: "M6 9l6 6 6-6",
  right: "M9 6l6 6-6 6",
  left: "M15 6l-6 6 6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3-1-6ZM12 15v5",
  pencil: "M4 20l1-4L16 5l3 3L8 19l-4 1Z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  retry: "M20 11a8 8 0 1 0-2.300 6.300M20 5v6h-6",
  save: "M12 4v11M8 11l4 4 4-4M5 19h14",
  folder: "M3 7h6l2 2h10v10H3z",
  share: "M12 15V4M8 8l4-4 4 4M5 13v7h14v-7",
  up: "M7 11v9H4v-9zM7 11l4-7c2 0 2.500 1.500 2 3l-.800 3H19l-2 10H7",
  thumbDown: "M17 13V4h3v9zM17 13l-4 7c-2 0-2.500-1.500-2-3l.800-3H5L7 4h10",
  terminal: "M5 7l5 5-5 5M12 18h7",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  globe: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  spark: "M12 4l1.800 5.200L19 11l-5.200 1.800L12 18l-1.800-5.200L5 11l5.200-1.800z",
  people: "M9 11a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7ZM3 20c0-4 3-6 6-6s6 2 6 6M16 5a3.500 3.500 0 0 1 0 6M17 14c2.500.500 4 2.500 4 6",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM12 7v5l3 2",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
  flag: "M6 21V4h11l-2 4 2 4H6",
  list: "M9 6h11M9 12h11M9 18h11M4 6h.01M4 12h.01M4 18h.01",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500L19 19M5 19l1.500-1.500M17.500 6.500L19 5",
};

/** @param {{name: keyof typeof PATHS, size?: number}} props */
export function Icon({ name, size = 18 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}
