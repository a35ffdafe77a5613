/** Talking to the service. Every failure becomes a `Refusal` with a sentence to show. */

import { key } from "./session.js";

/** The service's word that it will not do something, or the network's. */
export class Refusal extends Error {
  /**
   * @param {string} message - a sentence for people
   * @param {{status?: number, code?: string, row?: number, reason?: string, certificate?: number, wait?: number,
   *   request?: string}} [details] - `status` is 0 when no answer came; `wait` is in seconds; `request` is the id of the
   *   earlier request with the same idempotency key
   */
  constructor(message, details = {}) {
    super(message);
    this.status = details.status ?? 0;
    this.code = details.code ?? "unreachable";
    this.row = details.row ?? null;
    this.reason = details.reason ?? null;
    this.certificate = details.certificate ?? null;
    this.wait = details.wait ?? null;
    this.request = details.request ?? null;
  }
}

/** Listeners for "up", "down" and "signed-out". */
export const events = new EventTarget();

const TIMEOUT = 60_000;

/**
 * Ask the service and return its answer.
 *
 * @param {string} method
 * @param {string} path
 * @param {{body?: *, form?: FormData, headers?: Object<string, string>, open?: boolean, timeout?: number}} [options] -
 *   `body` is sent as JSON; `open` sends no key
 * @returns {Promise<Response>} with a status of 2xx
 */
export async function ask(method, path, options = {}) {
  const headers = { Accept: "application/json", ...options.headers };
  const sent = { method, headers, cache: "no-store", signal: AbortSignal.timeout(options.timeout ?? TIMEOUT) };
  if (!options.open && key()) headers.Authorization = `Bearer ${key()}`;
  if (options.form) sent.body = options.form;
  else if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    sent.body = JSON.stringify(options.body);
  }
  let response;
  try {
    response = await fetch(path, sent);
  } catch (error) {
    events.dispatchEvent(new Event("down"));
    throw new Refusal(
      error.name === "TimeoutError" ? "The service took too long to answer." : "The service does not answer.",
    );
  }
  events.dispatchEvent(new Event("up"));
  if (!response.ok) throw await refusal(response, options.open);
  return response;
}

/** Ask, and return the JSON of the answer. */
export async function json(method, path, options) {
  const response = await ask(method, path, options);
  try {
    return parsed(await response.text());
  } catch {
    throw new Refusal("The answer of the service was cut off. Try again.", {
      status: response.status,
      code: "bad_answer",
    });
  }
}

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g; // texts and numbers

/** Return the value of a JSON text. A whole number that a Number would round is a BigInt: it may be a label. */
function parsed(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const mark = actionKey(); // nobody can know it, so no text of theirs begins with it
  const large = (token) => /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token));
  return JSON.parse(
    text.replace(TOKENS, (token) => (large(token) ? `"${mark}${token}"` : token)),
    (_, value) => (typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value),
  );
}

async function refusal(response, open) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // A proxy in between may answer with anything.
  }
  const details = { ...said, status: response.status };
  const asked = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  if (Number.isFinite(asked)) details.wait = Math.max(1, Math.ceil(asked));
  if (response.status === 401 && !open) {
    events.dispatchEvent(new Event("signed-out"));
    return new Refusal("The service does not know this key. Sign in with another one.", details);
  }
  if (response.status === 403)
    return new Refusal(`This key may not do that. ${sentence(said.message)}`.trim(), details);
  if (response.status === 429) {
    const wait = details.wait ? `Wait ${details.wait} s and try again.` : "Wait a little and try again.";
    return new Refusal(`Too many requests at once. ${wait}`, details);
  }
  return new Refusal(sentence(said.message) || `The service answered with status ${response.status}.`, details);
}

/** Return what the service said as a sentence: it begins small and has no full stop. */
export function sentence(words) {
  if (typeof words !== "string" || !words.trim()) return "";
  const bare = words.trim();
  return `${bare[0].toUpperCase()}${bare.slice(1)}${/[.!?]$/.test(bare) ? "" : "."}`;
}

/** Return whether a request that failed may have been carried out all the same. @param {Error} error */
export function mayBeDone({ status, code }) {
  return status === 0 || status >= 500 || code === "bad_answer";
}

/** Return a fresh idempotency key: one is made for each action that a person confirms. */
export function actionKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function pause(milliseconds) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
  });
}

/**
 * Call `task` again and again until the page is left; not while the tab is hidden.
 *
 * @param {AbortSignal} left - aborts when the page is left
 * @param {() => Promise<number|null>} task - returns the milliseconds to wait until the next time; null ends it
 * @param {(error: Error|null) => void} told - called after each time, with the error if it failed
 */
export async function poll(left, task, told) {
  while (!left.aborted) {
    await visible(left);
    if (left.aborted) return;
    let wait;
    let failure = null;
    try {
      wait = await task();
    } catch (error) {
      failure = error;
      wait = error.wait ? error.wait * 1000 : 5000;
    }
    if (left.aborted) return;
    told(failure);
    if (wait === null) return;
    await pause(wait);
  }
}

function visible(left) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const wake = () => {
      if (document.hidden && !left.aborted) return;
      document.removeEventListener("visibilitychange", wake);
      resolve();
    };
    document.addEventListener("visibilitychange", wake);
    left.addEventListener("abort", wake, { once: true });
  });
}
