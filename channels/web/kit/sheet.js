// The style sheet of a room that brings its own.

/** Adds a sheet once, and waits until it is in force. @param {URL} url @returns {Promise<void>} */
export function addSheet(url) {
  if (document.querySelector(`link[href="${url.href}"]`)) return Promise.resolve();
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = url.href;
  return new Promise((resolve) => {
    link.onload = link.onerror = () => resolve();
    document.head.append(link);
  });
}
