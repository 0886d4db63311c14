// Requests to the server: JSON in and out, the CSRF token of browsers, and failures as one kind of error.

/** The server's API, wherever the page is mounted. */
const API = new URL("../api/", String(import.meta.url));

/** What a request came to when it did not work. `status` 0: the server was not reached. `detail` is for people. */
export class Failure extends Error {
  /** @param {number} status @param {string} code @param {string} detail @param {number} retryAfter seconds */
  constructor(status, code, detail, retryAfter = 0) {
    super(detail);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.retryAfter = retryAfter;
  }

  /** True if the same request may work later. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Waits until somebody is signed in. @type {(() => Promise<void>) | null} */
let signedIn = null;

/** Has requests that find no session wait for one. @param {() => Promise<void>} wait */
export function onSignedOut(wait) {
  signedIn = wait;
}

/** Learns of requests that were refused. @type {(() => unknown) | null} */
let refused = null;

/** Tells of refused requests: who sits here may not do any more what they could. @param {() => unknown} tell */
export function onRefused(tell) {
  refused = tell;
}

/** Waits for a session if a request failed for want of one. Returns true if it is worth another try. @param {Failure} failure @param {string} path */
export async function sessionFor(failure, path) {
  if (failure.status !== 401 || !signedIn || path.startsWith("v1/auth/")) return false;
  await signedIn();
  return true;
}

/**
 * The address of a route: `path` below `/api`, with a query.
 * @param {string} path @param {Record<string, unknown>} [query] without those that are null or undefined
 */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), API);
  for (const [name, value] of Object.entries(query)) if (value != null) url.searchParams.set(name, String(value));
  return url.href;
}

/** Headers of a request: the CSRF token where it changes something. @param {string} method */
function headersOf(method) {
  /** @type {Record<string, string>} */
  const headers = {};
  const token = document.cookie.match(/(?:^|; )csrf_token=([^;]*)/)?.[1];
  if (token && method !== "GET" && method !== "HEAD") headers["X-CSRF-Token"] = decodeURIComponent(token);
  return headers;
}

/**
 * @typedef {{body?: unknown, query?: Record<string, unknown>, headers?: Record<string, string>, signal?: AbortSignal,
 *   keepalive?: boolean}} Options
 */

/**
 * Sends a request, and returns the response. Raises `Failure`, and `AbortError` if the signal says so.
 * @param {string} method @param {string} path @param {Options} [options]
 */
export async function send(method, path, options = {}) {
  const response = await sendOnce(method, path, options);
  if (response.ok) return response;
  const failure = await failureOf(response);
  if (await sessionFor(failure, path)) return send(method, path, options);
  if (failure.status === 403 && !path.startsWith("v1/auth/")) refused?.();
  throw failure;
}

/** @param {string} method @param {string} path @param {Options} options */
async function sendOnce(method, path, { body, query, headers, signal, keepalive }) {
  const form = body instanceof FormData || body instanceof URLSearchParams;
  /** @type {RequestInit} */
  const init = { method, signal: signal ?? null, credentials: "same-origin", keepalive: keepalive ?? false };
  init.headers = { ...headersOf(method), ...(body === undefined || form ? {} : { "content-type": "application/json" }), ...headers };
  if (body !== undefined) init.body = form ? body : JSON.stringify(body);
  try {
    return await fetch(address(path, query), init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Failure(0, "unreachable", "");
  }
}

/** The failure that a response tells of. @param {Response} response */
export async function failureOf(response) {
  const body = await response.json().catch(() => ({}));
  const inner = body?.detail && typeof body.detail === "object" && !Array.isArray(body.detail) ? body.detail : {};
  const text = typeof body?.detail === "string" ? body.detail : (inner.message ?? "");
  return new Failure(response.status, body?.code ?? inner.code ?? "", text, Number(response.headers.get("retry-after")) || 0);
}

/**
 * Sends a request, and returns the JSON of its answer; null if it has none.
 * @param {string} method @param {string} path @param {Options} [options] @returns {Promise<any>}
 */
export async function call(method, path, options) {
  const text = await (await send(method, path, options)).text();
  return text ? JSON.parse(text) : null;
}

/**
 * Uploads a form with progress, which `fetch` does not tell. `progress` is called with a share from 0 to 1.
 * @param {string} path @param {FormData} form @param {(share: number) => void} progress @param {AbortSignal} signal
 * @returns {Promise<any>}
 */
export function upload(path, form, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", address(path));
    for (const [name, value] of Object.entries(headersOf("POST"))) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onerror = () => reject(new Failure(0, "unreachable", ""));
    request.onload = async () => {
      const response = new Response(request.response || null, { status: request.status, headers: { "content-type": "application/json" } });
      if (response.ok) return resolve(await response.json().catch(() => null));
      const failure = await failureOf(response);
      if (await sessionFor(failure, path)) resolve(upload(path, form, progress, signal));
      else reject(failure);
    };
    signal.addEventListener("abort", () => {
      request.abort();
      reject(new DOMException("stopped", "AbortError"));
    });
    request.send(form);
  });
}
