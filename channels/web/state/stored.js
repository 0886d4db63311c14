// Small things that a browser remembers, each under a name of ours. A browser that remembers nothing does no harm.

const PREFIX = "sika.";

/** @param {string} name @returns {any} null if there is none */
export function recall(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name) ?? "null");
  } catch {
    return null;
  }
}

/** @param {string} name @param {unknown} value null removes it */
export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // The storage is full, or switched off.
  }
}

/** A name for what begins in this tab, the same after a reload until it is `begun`. @param {string} name @returns {string} */
export function nameInTab(name) {
  try {
    const id = sessionStorage.getItem(PREFIX + name) ?? crypto.randomUUID();
    sessionStorage.setItem(PREFIX + name, id);
    return id;
  } catch {
    return crypto.randomUUID();
  }
}

/** @param {string} name */
export function begun(name) {
  try {
    sessionStorage.removeItem(PREFIX + name);
  } catch {
    // There is nothing to remove.
  }
}

/** Forgets all of it. */
export function forget() {
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) localStorage.removeItem(key);
  } catch {
    // There is nothing to forget.
  }
}
