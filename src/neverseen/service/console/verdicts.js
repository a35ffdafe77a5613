/** The checks of a certificate as a page shows them: each has a row that says how it went, and why. */

import { ask, json, pause, sentence } from "./api.js";
import { Rejected, checkLink, checkSignature, commitment, parsed } from "./checks.js";
import { busy, chip, field, icon, make, show } from "./dom.js";
import { count, many, seconds } from "./format.js";
import { fromBase64 } from "./hashing.js";
import { dropTarget } from "./inputs.js";
import { receiptsIn, receiptsInFile } from "./receipts.js";
import { key } from "./session.js";

const CHAIN_LIMIT = 1000;
const TOGETHER = 6;
const OUTCOMES = { good: "passed", bad: "failed", busy: "checking", plain: "not known" };
const ANSWERS = { good: "yes", bad: "no", plain: "not known" };

/** Return the bytes of a certificate's file. */
export async function fileOf(number) {
  const response = await ask("GET", `/v1/certificates/${number}`, { open: true });
  return new Uint8Array(await response.arrayBuffer());
}

/**
 * Return the list of checks, and what runs those that need nothing of the reader.
 *
 * @param {Object} certificate
 * @param {Uint8Array} bytes - its file
 * @param {string|null} publisher - the key that the service signs with
 * @param {HTMLElement} verdict - where the conclusion is shown
 * @param {AbortSignal} left - aborts when the page is left
 */
export function checkList(certificate, bytes, publisher, verdict, left) {
  const states = {};
  const row = (id, name, about, ...controls) => {
    const state = make("span.state", {}, chip("plain", "not checked")),
      reason = make("p.reason", { "aria-live": "polite" }, about);
    const element = make(
      "li.check",
      { id: `check-${id}` },
      make("div.head", {}, make("h3", {}, name), state),
      reason,
      ...controls,
    );
    return {
      element,
      reason,
      set(tone, words) {
        if (left.aborted) return;
        states[id] = { tone, words };
        element.dataset.tone = tone;
        show(state, chip(tone, (id === "mine" ? ANSWERS : OUTCOMES)[tone]));
        show(reason, words);
        conclude(verdict, states);
      },
    };
  };
  const signature = row("signature", "Signature", "Is the file as its signer left it?");
  const again = make("button.quiet.small", { type: "button", hidden: true }, "Check further back");
  const chain = row("chain", "Chain", "Does it follow on all the certificates before it?", again);
  const mine = row(
    "mine",
    "Is my sample in it?",
    "Paste or choose your receipt. It is compared here, and does not leave your browser.",
  );
  mine.element.append(mineForm(certificate, mine));
  const weigh = make("button.quiet", { type: "button" }, "Check the weights");
  const weights = row(
    "weights",
    "Weights",
    key()
      ? "The service proves its weights anew: one exact residual of the published version."
      : "The service does this check, for keys with the scope audit. Sign in for it.",
    key() ? weigh : make("a", { href: "/#/" }, "Sign in"),
  );
  weigh.addEventListener("click", () =>
    busy(weigh, "Checking…", () => serverCheck(weights, certificate.number, "weights")),
  );

  let link = { certificate, bytes };
  again.addEventListener("click", () => busy(again, "Checking…", walk));
  async function walk() {
    const { rest } = await chainCheck(chain, link, certificate, left);
    again.hidden = !rest;
    link = rest ?? link;
  }
  return {
    element: make(
      "section.card",
      { id: "checks" },
      make("h2", {}, "Checks"),
      make("ul.checks", {}, signature.element, chain.element, mine.element, weights.element),
    ),
    run: async () => {
      await signatureCheck(signature, certificate, publisher);
      await walk();
    },
  };
}

/** Show what all checks together say. What stays as it is, is not shown anew: a screen reader would read it again. */
function conclude(verdict, states) {
  const done = [states.signature, states.chain, states.weights].filter(Boolean);
  const failed = done.filter(({ tone }) => tone === "bad");
  const whole = states.signature?.tone === "good" && states.chain?.tone === "good" && !failed.length;
  let tone = "plain";
  let title = done.some((state) => state.tone === "busy") ? "Checking…" : "Checked in part";
  let words = "What was checked, and how, is below.";
  if (failed.length) [tone, title, words] = ["bad", "Do not trust this certificate", failed[0].words];
  else if (whole) {
    [tone, title] = ["good", "Signed, and part of an unbroken chain"];
    words = "It is as its publisher signed it, and every certificate before it is in place.";
  }
  if (verdict.dataset.said === title + words) return;
  verdict.dataset.said = title + words;
  verdict.className = `card verdict ${tone}`;
  show(verdict, make("h2", {}, icon({ good: "good", bad: "bad", plain: "wait" }[tone]), title), make("p", {}, words));
}

async function signatureCheck(row, certificate, publisher) {
  row.set("busy", "Checking…");
  try {
    if (publisher !== null && publisher !== certificate.key) {
      throw new Rejected("It is signed with another key than the one this service publishes.");
    }
    if (await checkSignature(certificate)) {
      const whose = publisher === null ? "the key it names" : "this service's key";
      row.set(
        "good",
        `Ed25519, by ${whose}, checked in your browser. If you know the publisher's key from elsewhere, compare it.`,
      );
    } else {
      await serverCheck(
        row,
        certificate,
        "signature",
        "Your browser has no Ed25519 here (it is old, or the page has no https): the service was asked. ",
      );
    }
  } catch (error) {
    row.set(error instanceof Rejected ? "bad" : "plain", error.message);
  }
}

/** Return whether a check could not be made, which is no failure: the weights of older versions are not kept. */
function undecided({ name, message }) {
  return name === "weights" && /not here any more|not published yet/.test(message);
}

/**
 * Ask the service for a check.
 *
 * @param {Object|number} certificate - the document, or its number
 */
async function serverCheck(row, certificate, name, before = "") {
  row.set("busy", "The service is checking…");
  try {
    const answer = await json("POST", "/v1/verify", { body: { certificate, checks: [name] } });
    const found = answer.checks.find((entry) => entry.name === name);
    const took = typeof found.seconds === "number" ? ` (${seconds(found.seconds)})` : "";
    row.set(found.passed ? "good" : undecided(found) ? "plain" : "bad", `${before}${sentence(found.message)}${took}`);
  } catch (error) {
    row.set("plain", `${before}It could not be checked: ${error.message}`);
  }
}

/**
 * Walk back along the chain, `CHAIN_LIMIT` certificates at most.
 *
 * @returns {Promise<{rest: Object|null}>} where to go on, if the beginning was not reached
 */
async function chainCheck(row, from, start, left) {
  let later = from;
  let steps = 0;
  const bar = make("progress", {
    max: start.number,
    value: start.number - later.certificate.number,
    "aria-label": "Certificates checked",
  });
  try {
    while (later.certificate.number > 1 && steps < CHAIN_LIMIT) {
      if (left.aborted) return { rest: null };
      const lowest = Math.max(1, later.certificate.number - TOGETHER);
      const numbers = Array.from(
        { length: later.certificate.number - lowest },
        (_, back) => later.certificate.number - 1 - back,
      );
      row.set("busy", [`Certificate ${count(numbers[0])} of ${count(start.number)}, going back `, bar]);
      const files = await Promise.all(numbers.map((number) => patient(number)));
      for (const bytes of files) {
        const earlier = { bytes, certificate: await parsed(bytes) };
        await checkLink(earlier, later.certificate);
        await checkSignature(earlier.certificate);
        later = earlier;
        steps += 1;
      }
      bar.value = start.number - later.certificate.number;
    }
    if (later.certificate.number > 1) {
      row.set(
        "plain",
        `Unbroken back to certificate ${count(later.certificate.number)}. It stopped there, after ${count(steps)}.`,
      );
      return { rest: later };
    }
    await checkLink(null, later.certificate);
    const all = start.number - 1;
    row.set(
      "good",
      start.number === 1
        ? "It is the first, and begins with the empty model."
        : `Each names the SHA-256 of the one before: ${many(all, "certificate")} checked in your browser.`,
    );
  } catch (error) {
    row.set(
      error instanceof Rejected || error.status === 404 ? "bad" : "plain",
      error.status === 404 ? "A certificate before it is missing." : error.message,
    );
  }
  return { rest: null };
}

/** Return a certificate's file; wait where the service asks for it. */
async function patient(number) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await fileOf(number);
    } catch (error) {
      if (error.status !== 429 || tries >= 5) throw error;
      await pause((error.wait ?? 1) * 1000);
    }
  }
}

function mineForm(certificate, row) {
  const area = make("textarea", { rows: 3, spellcheck: "false", autocomplete: "off" });
  const file = make("input", { type: "file" });
  const button = make("button.quiet", { type: "submit" }, "Look for it");
  const form = make("form", { novalidate: true }, field("Receipt", area), field("Or a file", file), button);
  dropTarget(form, ([dropped]) => look(dropped ? receiptsInFile(dropped) : Promise.resolve([])));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    look(file.files.length ? receiptsInFile(file.files[0]) : Promise.resolve().then(() => receiptsIn(area.value)));
  });
  async function look(reading) {
    try {
      const receipts = await reading;
      const there = new Set(certificate.commitments);
      const found = await Promise.all(
        receipts.map(async (receipt) => there.has(await commitment(fromBase64(receipt)))),
      );
      const hits = found.filter(Boolean).length;
      if (hits === receipts.length) {
        row.set(
          "good",
          receipts.length === 1
            ? "Yes: this certificate says that your sample was forgotten."
            : `Yes: all ${count(hits)} are in it.`,
        );
      } else {
        row.set(
          "bad",
          receipts.length === 1
            ? "No: this certificate does not say that your sample was forgotten. Another one may."
            : `${count(hits)} of ${many(receipts.length, "receipt")} are in it.`,
        );
      }
    } catch (error) {
      row.set("plain", error.message);
    }
  }
  return form;
}
