/** Receipts handed from one page of the console to the next. They are in memory only, and given once, to one key. */

import { visitor } from "./session.js";

let held = null;

export function hand(text) {
  held = { text, whose: visitor() };
}

export function handed() {
  const text = held?.whose === visitor() ? held.text : "";
  held = null;
  return text;
}
