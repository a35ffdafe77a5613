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

/** Return a time as "15 Nov 2026, 14:05:09", in the reader's zone. */
export function time(value) {
  const at = instant(value);
  if (Number.isNaN(at)) return "–";
  return new Date(at).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  });
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

/** Return a label as text. One that is a text and looks like a number has quotes. */
export function labelText(label) {
  if (typeof label === "string") return /^-?\d+(\.\d+)?$|^$/.test(label) ? `"${label}"` : label;
  return typeof label === "number" ? String(label) : JSON.stringify(label);
}
