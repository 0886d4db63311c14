// Saving what the page made as a file of the person's.

/** @param {string} name @param {Blob} content */
export function saveAs(name, content) {
  const url = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
