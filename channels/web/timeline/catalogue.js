// The words of event types, from the server: `channels/web/catalogue.py` writes this module. Here it is empty, for tests.

/**
 * @typedef {{defaults?: Record<string, unknown>, within?: Record<string, LeftOut>}} LeftOut what stored events leave out of themselves, and of the objects in them
 * @typedef {LeftOut & {en: [string, string], zh: [string, string], patches?: boolean}} Phrase by language the name of the kind and the template; `patches`: a package's event that changes the state as its code says
 */

/** By type. @type {Map<string, Phrase>} */
export const PHRASES = new Map();
/** The fields around an event's own. @type {string[]} */
export const ENVELOPE = [];
