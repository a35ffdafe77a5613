/** Numbers, times and labels as people read them. */

const whole = new Intl.NumberFormat("en");

export function count(number) {
  return typeof number === "number" ? whole.format(number) : "–";
}

/** Return "1 sample", "1,200 samples". */
export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

/** Return seconds in the unit that suits them. */
export function seconds(value) {
  if (typeof value !== "number") return "–";
  if (value === 0) return "0";
  if (value < 0.001) return `${short(value * 1e6)} µs`;
  if (value < 1) return `${short(value * 1000)} ms`;
  if (value < 120) return `${short(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
}

/** Return a number with a place after the point only where that says something. */
function short(value) {
  return value.toFixed(value < 10 ? 1 : 0).replace(/\.0$/, "");
}

export function percent(share) {
  return typeof share === "number" ? `${(100 * share).toFixed(1).replace(/\.0$/, "")} %` : "–";
}

/** Return the milliseconds of a time given in ISO, or in seconds or milliseconds since 1970; NaN if it is none. */
export function instant(value) {
  if (typeof value === "number") return value > 1e11 ? value : value * 1000;
  return typeof value === "string" ? Date.parse(value) : NaN;
}

/** Return a time as "15 Nov 2026, 14:05:09 UTC": the same wherever it is read, as in the certificates. */
export function time(value) {
  const at = instant(value);
  if (Number.isNaN(at)) return "–";
  const words = new Date(at).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    timeZone: "UTC",
  });
  return `${words} UTC`;
}

/** Return the time of day as "14:05:09 UTC". */
export function clock(value) {
  return `${new Date(value).toISOString().slice(11, 19)} UTC`;
}

/** Return how long ago a time was. */
export function ago(value) {
  const past = (Date.now() - instant(value)) / 1000;
  if (Number.isNaN(past)) return "";
  if (past < 5) return "just now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86_400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86_400)} d ago`;
}

// The three by number have no ink. A backslash that would begin such a number is written as one.
const HIDDEN = /\p{C}|\p{Zl}|\p{Zp}|\p{DI}|(?! )\p{Zs}|[\u{2800}\u{16fe4}\u{1d159}]|\\(?=u\{[\da-fA-F]+\})/gu;
const FOREIGN = /[^ -~]|\\(?=u\{[\da-fA-F]+\})/gu;

/**
 * Return a text in which everything is seen: what is invisible, turns the direction of writing, breaks lines or only
 * looks like a space is written as its number, "\u{202e}"; so is every letter beyond ASCII of a text that is not in
 * Unicode's normal form, and so looks like another. Two texts that differ in these then look different. That needs
 * `visible` to be used once: a text that is shown goes through it in `dom.js`, and nowhere else.
 */
export function visible(text) {
  const whole = String(text);
  const odd = whole === whole.normalize() ? HIDDEN : FOREIGN;
  return whole.replace(odd, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

/** Return a label as text. One that is a text has quotes if it could be JSON, or begins or ends with a space. */
export function labelText(label) {
  return typeof label === "string" && !/^$|^ | $/.test(label) && !isJson(label) ? label : jsonText(label);
}

/** Return the JSON of a value, which may have BigInts in it. */
export function jsonText(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(jsonText).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}:${jsonText(part)}`)}}`;
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Return the JSON of a value in one line of ASCII. */
export function asciiJson(value) {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
