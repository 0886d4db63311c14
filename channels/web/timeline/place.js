// Ways from a message to the timeline, and back.

/** The timeline of a conversation, at an event. @param {string} thread @param {number} [seq] */
export const timelineOf = (thread, seq) => `#/timeline/${encodeURIComponent(thread)}${seq ? `/${seq}` : ""}`;

/** The message of an event, in its conversation. @param {string} thread @param {number} seq */
export const messageOf = (thread, seq) => `#/t/${encodeURIComponent(thread)}${seq ? `?at=${seq}` : ""}`;
