/**
 * Checks of certificates, done here in the browser: docs/specification.md, section 10.2.
 *
 * A check that fails throws `Rejected` with the reason.
 */

import { isSigned } from "./ed25519.js";
import { ascii, fromHex, joined, sha256 } from "./hashing.js";

export class Rejected extends Error {}

const FORMATS = ["neverseen-certificate-1", "neverseen-certificate-2"]; // along a chain it never goes back
const FIELDS = [
  "after",
  "audit",
  "before",
  "commitments",
  "configuration",
  "error_bound",
  "forgotten",
  "format",
  "key",
  "learned",
  "number",
  "previous",
  "signature",
  "time",
];
const STATE = ["classes", "model", "samples", "statistics"];
const HEAD = ["head", "lines"];
const DIGEST = textOf(/^[0-9a-f]{64}$/);
const SIGNATURE = textOf(/^[0-9a-f]{128}$/);
const TIME = textOf(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
const BOUND = textOf(/^0x1\.0000000000000p-([2-9]|[1-4]\d|5[0-3])$/);
const MOST = 2 ** 48;

/** Return the one JSON text of a value: sorted keys, no spaces, ASCII. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.keys(value)
      .sort()
      .map((name) => `${canonical(name)}:${canonical(value[name])}`)
      .join(",")}}`;
  }
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/**
 * Return the certificate that a file holds, if its form is right.
 *
 * @param {Uint8Array} bytes - the file as it came
 * @returns {Promise<Object>}
 */
export async function parsed(bytes) {
  let certificate, text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); // every byte counts
    certificate = JSON.parse(text);
  } catch {
    throw new Rejected("The file is not JSON: it is damaged, or something else.");
  }
  const place = FORMATS.indexOf(certificate?.format);
  demand(place >= 0, `The file is not a certificate of format ${FORMATS.join(" or ")}.`);
  const fields = place === 0 ? FIELDS.filter((name) => name !== "audit") : FIELDS;
  demand(sameNames(certificate, fields), "The file does not have the fields of a certificate.");
  demand(text === `${canonical(certificate)}\n`, "The file is not in canonical form: it was altered or reformatted.");
  await demandSound(certificate);
  return certificate;
}

async function demandSound(certificate) {
  const { number, before, after, learned, forgotten, commitments } = certificate;
  demand(Number.isSafeInteger(number) && number >= 1, "Its number is not 1 or more.");
  demand(isTime(certificate.time), "Its time is not a time in UTC.");
  const audit = certificate.audit ?? null;
  demand(
    audit === null || (sameNames(audit, HEAD) && isCount(audit.lines, Number.MAX_SAFE_INTEGER) && DIGEST.test(audit.head)),
    "It does not name a line of the audit log.",
  );
  demand(DIGEST.test(certificate.configuration), "Its configuration is not a digest.");
  demand(DIGEST.test(certificate.key), "Its key is not an Ed25519 public key in hex.");
  demand(SIGNATURE.test(certificate.signature), "Its signature is not 128 hex digits.");
  demand(BOUND.test(certificate.error_bound), "Its error bound is not half a grid step.");
  demand(
    number === 1 ? certificate.previous === null : DIGEST.test(certificate.previous ?? ""),
    "It must name the certificate before it, and only certificate 1 has none.",
  );
  for (const [side, state] of [
    ["before", before],
    ["after", after],
  ]) {
    demand(sameNames(state, STATE), `The state ${side} does not have its fields.`);
    demand(DIGEST.test(state.model) && DIGEST.test(state.statistics), `A digest of the state ${side} is invalid.`);
    demand(
      isCount(state.samples) && isCount(state.classes) && state.classes <= state.samples,
      `The counts of the state ${side} are not numbers of samples and classes.`,
    );
    demand(
      state.samples === 0 ? sameState(state, await emptyState(certificate.configuration)) : state.classes > 0,
      `The state ${side} holds no sample or no class, and is not the empty model.`,
    );
  }
  demand(isCount(learned) && isCount(forgotten), "The counts of learned and forgotten samples are invalid.");
  demand(
    after.samples === before.samples + learned - forgotten,
    `${before.samples} samples before, ${learned} learned and ${forgotten} forgotten do not make ${after.samples}.`,
  );
  const same = sameState(before, after);
  demand(same || learned + forgotten > 0, "Nothing was learned or forgotten, yet the state changed.");
  demand(same || before.statistics !== after.statistics, "The states before and after have the same sums but differ.");
  demand(
    Array.isArray(commitments) && commitments.every((entry) => DIGEST.test(entry)),
    "A commitment is not a digest.",
  );
  demand(
    commitments.every((entry, place) => place === 0 || commitments[place - 1] < entry),
    "Its commitments are not sorted, or one appears twice.",
  );
  demand(
    commitments.length === forgotten,
    `It has ${commitments.length} commitments for ${forgotten} samples forgotten.`,
  );
}

/** Return the one state of a model that holds nothing. */
async function emptyState(configuration) {
  const model = joined(ascii("neverseen:model:1"), fromHex(configuration), new Uint8Array(24));
  const statistics = joined(ascii("neverseen:statistics:1"), new Uint8Array(8));
  return { classes: 0, model: await sha256(model), samples: 0, statistics: await sha256(statistics) };
}

/** Return the bytes that are signed. */
export function signedBytes(certificate) {
  const { signature: _, ...rest } = certificate;
  return ascii(`neverseen:certificate:${FORMATS.indexOf(certificate.format) + 1}${canonical(rest)}`);
}

/** Check the signature by the key that a certificate names, here in the browser. */
export async function checkSignature(certificate) {
  const { key, signature } = certificate;
  demand(
    await isSigned(fromHex(key), fromHex(signature), signedBytes(certificate)),
    "Its signature is wrong: it was altered after it was signed.",
  );
}

/**
 * Check that one certificate follows directly on another.
 *
 * @param {{certificate: Object, bytes: Uint8Array}|null} earlier - null stands for the beginning
 * @param {Object} later
 */
export async function checkLink(earlier, later) {
  if (earlier === null) {
    demand(later.number === 1, "Certificate 1 is missing.");
    demand(
      sameState(later.before, await emptyState(later.configuration)),
      "Certificate 1 does not begin with the empty model.",
    );
    return;
  }
  const { certificate, bytes } = earlier;
  const name = `Certificate ${later.number}`;
  demand(
    certificate.number === later.number - 1,
    `Certificate ${later.number - 1} is missing: another one is in its place.`,
  );
  demand(
    later.previous === (await sha256(bytes)),
    `${name} follows on another certificate ${certificate.number} than the one that is there now.`,
  );
  demand(
    later.configuration === certificate.configuration && later.error_bound === certificate.error_bound,
    `${name} is about a model with another configuration.`,
  );
  demand(sameState(later.before, certificate.after), `${name} does not begin where the one before ended.`);
  demand(later.time >= certificate.time, `${name} has an earlier time than the one before.`);
  demand(later.key === certificate.key, `${name} is signed with another key than the one before.`);
  demand(
    FORMATS.indexOf(later.format) >= FORMATS.indexOf(certificate.format),
    `${name} is of an older format than the one before.`,
  );
}

/** Return what stands for a receipt in public: its SHA-256, after a fixed word. @param {Uint8Array} receipt */
export function commitment(receipt) {
  return sha256(joined(ascii("neverseen:commitment:1"), receipt));
}

/** Return a pattern for texts alone: a regular expression takes a list of one text for that text. */
function textOf(pattern) {
  return { test: (value) => typeof value === "string" && pattern.test(value) };
}

function demand(holds, why) {
  if (!holds) throw new Rejected(why);
}

function sameNames(value, names) {
  return value !== null && typeof value === "object" && Object.keys(value).sort().join() === names.join();
}

function sameState(one, other) {
  return STATE.every((name) => one[name] === other[name]);
}

function isCount(value, most = MOST) {
  return Number.isInteger(value) && value >= 0 && value <= most;
}

/** Return whether a text is a moment of the calendar; a browser alone takes 30 February for 2 March. */
function isTime(value) {
  if (!TIME.test(value) || value.startsWith("0000")) return false;
  const moment = new Date(value);
  return !Number.isNaN(moment.getTime()) && moment.toISOString() === value.replace("Z", ".000Z");
}
