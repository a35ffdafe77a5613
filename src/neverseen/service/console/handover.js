/** Receipts handed from one page of the console to the next. They are in memory only, and given once. */

let held = "";

export function hand(text) {
  held = text;
}

export function handed() {
  const text = held;
  held = "";
  return text;
}
