/** The API key. It lives in this tab's sessionStorage and nowhere else: closing the tab forgets it. */

import { ascii, hex, plainSha256 } from "./hashing.js";

const KEY = "neverseen.key";
const SCOPES = "neverseen.scopes";

export function key() {
  return sessionStorage.getItem(KEY);
}

export function signIn(token) {
  sessionStorage.setItem(KEY, token);
}

/** Note what the key may do, as the service said. @param {string[]} scopes */
export function note(scopes) {
  sessionStorage.setItem(SCOPES, scopes.join(" "));
}

/** Return whether the key has one of some scopes; true while that is not known. */
export function may(...wanted) {
  const scopes = sessionStorage.getItem(SCOPES)?.split(" ");
  return !scopes || scopes.includes("admin") || wanted.some((scope) => scopes.includes(scope));
}

let last = null;

/** Return who is visiting: a digest of the API key in use or, after signing out, of the last one. */
export function visitor() {
  if (key()) last = hex(plainSha256(ascii(key())));
  return last;
}

export function signOut() {
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(SCOPES);
}
