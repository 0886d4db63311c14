// The words of Markdown, for places that show one line of it.

/** The words of a piece of Markdown, which may begin and end within a link. @param {string} text */
export const withoutMarkdown = (text) =>
  text
    .replace(/!?\[([^\]\n]*)\]\([^)\n]*(?:\)|$)/g, "$1")
    .replace(/^[^\s[\]()]*(?:\]\([^)\s]*)?\)\s*/, "")
    .replace(/```\w*|`|\*\*|__|~~|^#{1,6}\s+|^\s*>\s?/gm, "")
    .replace(/^\s*\|?[\s:|-]+\|[\s:|-]*$/gm, "")
    .replace(/^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$/gm, "")
    .replace(/\s*\|\s*/g, " · ")
    .replace(/\s+/g, " ")
    .trim();
