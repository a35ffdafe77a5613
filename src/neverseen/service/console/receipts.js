/** Receipts as people have them: pasted, or in a file. */

import { asciiJson, count } from "./format.js";
import { fromBase64, toBase64 } from "./hashing.js";

const LIMIT = 64 * 2 ** 20;
const HEADER = 28; // bytes before what is sealed: "NSR1" or "NSR2", the length of the whole, key check, nonce

/**
 * @typedef {Object} Given - a receipt, and where it was found
 * @property {string} receipt - in base64url
 * @property {string} where - "line 3", "receipts.jsonl, line 3"
 * @property {string|null} id - the sample's, where the line has it
 */

/**
 * Return the receipts in a text: base64 a line, or JSON with a "receipt" as the service and the command write it.
 *
 * @param {string} text
 * @param {string} [file] - the name of the file that it is from
 * @returns {Given[]} one at least
 * @throws {Error} with a sentence to show, if anything in it is no receipt
 */
export function receiptsIn(text, file = "") {
  const lines = text.split(/\r?\n/);
  const placed = (line) => [file, lines.length > 1 || file ? `line ${count(line + 1)}` : ""].filter(Boolean).join(", ");
  const found = lines.flatMap((line, place) => (line.trim() ? fromLine(line.trim(), placed(place)) : []));
  if (!found.length) throw new Error(`There is no receipt in ${file || "it"}. Paste one, or choose a file.`);
  return found;
}

function fromLine(line, where) {
  const wrong = (why) => new Error(`${where.replace(/^line/, "Line") || "This"} ${why}`);
  let entries = [line];
  if (/^[[{"]/.test(line)) {
    try {
      const value = JSON.parse(line);
      entries = Array.isArray(value) ? value : Array.isArray(value.receipts) ? value.receipts : [value];
    } catch {
      throw wrong("is not a receipt: the JSON is cut short or damaged.");
    }
  }
  return entries.map((entry) => {
    const token = entry?.receipt ?? entry;
    const bytes = typeof token === "string" ? fromBase64(token.trim()) : null;
    if (bytes === null) throw wrong("is not a receipt: a receipt is a long word of letters, digits, - and _.");
    const why = fault(bytes);
    if (why) throw wrong(why);
    const id = typeof entry?.id === "string" ? entry.id : null;
    return { receipt: toBase64(bytes), where: where || "the receipt", id };
  });
}

/** Return why bytes cannot be a receipt; null if they can. Whether it is genuine, only the service can tell. */
function fault(bytes) {
  if (!startsLikeOne(bytes)) return "is not a receipt: receipts begin with TlNSM.";
  const length = bytes.length < HEADER ? HEADER : new DataView(bytes.buffer).getUint32(4, true);
  if (bytes.length < length) {
    return `is a receipt that is cut short: ${count(bytes.length)} of at least ${count(length)} bytes are there.`;
  }
  if (bytes.length > length) {
    return `is a receipt with something after it: it has ${count(bytes.length)} bytes and says ${count(length)}.`;
  }
  return null;
}

function startsLikeOne(bytes) {
  return /^NSR[12]/.test(String.fromCharCode(...bytes.subarray(0, 4)));
}

/** Return the receipts in a file: text as above, or the bytes of one receipt. @returns {Promise<Given[]>} */
export async function receiptsInFile(file) {
  if (file.size > LIMIT) throw new Error(`${file.name} is larger than 64 MiB. Use the command line for it.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (startsLikeOne(bytes)) return fromLine(toBase64(bytes), file.name);
  return receiptsIn(new TextDecoder().decode(bytes), file.name);
}

/** Return lines of JSON for receipts, as files of receipts have them. */
export function receiptLines(receipts, labels, ids = []) {
  return receipts
    .map((receipt, row) => `${asciiJson({ ...(ids[row] ? { id: ids[row] } : {}), label: labels[row], receipt })}\n`)
    .join("");
}
