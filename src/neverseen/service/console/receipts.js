/** Receipts as people have them: pasted, or in a file. */

import { fromBase64, toBase64 } from "./hashing.js";

export const MAGIC = [0x4e, 0x53, 0x52]; // NSR, before 1 or 2
const LIMIT = 64 * 2 ** 20;

/**
 * Return the receipts in a text: base64 a line, or lines of JSON with a "receipt" as the service and the command write
 * them.
 *
 * @param {string} text
 * @returns {string[]} in base64url
 * @throws {Error} with a sentence to show
 */
export function receiptsIn(text) {
  const receipts = [];
  const lines = text.split(/\r?\n/);
  lines.forEach((line, place) => {
    const bare = line.trim();
    if (bare) receipts.push(...fromLine(bare, lines.length > 1 ? `Line ${place + 1}` : "This"));
  });
  if (!receipts.length) throw new Error("There is no receipt in it. Paste one, or choose a file.");
  return receipts;
}

function fromLine(line, where) {
  let tokens = [line];
  if (/^[[{"]/.test(line)) {
    let value;
    try {
      value = JSON.parse(line);
    } catch {
      throw new Error(`${where} is not a receipt: the JSON is cut short or damaged.`);
    }
    tokens = (Array.isArray(value) ? value : (value.receipts ?? [value])).map((entry) => entry?.receipt ?? entry);
  }
  return tokens.map((token) => {
    const bytes = typeof token === "string" ? fromBase64(token) : null;
    if (bytes === null)
      throw new Error(`${where} is not a receipt: a receipt is a long word of letters, digits, - and _.`);
    return toBase64(bytes);
  });
}

/** Return the receipts in a file: text as above, or the bytes of one receipt. */
export async function receiptsInFile(file) {
  if (file.size > LIMIT) throw new Error(`${file.name} is larger than 64 MiB. Use the command line for it.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (MAGIC.every((byte, place) => bytes[place] === byte)) return [toBase64(bytes)];
  return receiptsIn(new TextDecoder().decode(bytes));
}

/** Return lines of JSON for receipts, as files of receipts have them. */
export function receiptLines(receipts, labels, ids = []) {
  return receipts
    .map(
      (receipt, row) => `${JSON.stringify({ ...(ids[row] ? { id: ids[row] } : {}), label: labels[row], receipt })}\n`,
    )
    .join("");
}
