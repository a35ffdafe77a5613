/**
 * The checks of a certificate as a page shows them: each has a row that says how it went, and why.
 *
 * Green is for what was checked here, in the browser. What the service says of itself is told as its word.
 */

import { ask, json, pause, sentence } from "./api.js";
import { Rejected, checkLink, checkSignature, parsed } from "./checks.js";
import { announce, busy, chip, icon, make, show } from "./dom.js";
import { count, many, seconds } from "./format.js";
import { mineForm } from "./mine.js";
import { key } from "./session.js";

const CHAIN_LIMIT = 1000;
const TOGETHER = 6;
const WITHOUT_HTTPS =
  " This page came without https: somebody on the way could have changed it. Check the file with neverseen verify.";
const OUTCOMES = {
  good: "passed",
  bad: "failed",
  busy: "checking",
  said: "the service says: passed",
  plain: "not known",
};

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
 * @param {HTMLElement} verdict - where the conclusion is shown
 * @param {AbortSignal} left - aborts when the page is left
 */
export function checkList(certificate, bytes, verdict, left) {
  const states = {};
  const row = (id, name, about, ...controls) => {
    const state = make("span.state", {}, chip("plain", "not checked")),
      reason = make("p.reason", {}, about);
    const element = make(
      "li.check",
      { id: `check-${id}` },
      make("div.head", {}, make("h3", {}, name), state),
      reason,
      ...controls,
    );
    return {
      element,
      set(tone, words) {
        if (left.aborted) return;
        states[id] = { tone, words };
        element.dataset.tone = tone;
        show(state, chip(tone, OUTCOMES[tone]));
        show(reason, words);
        conclude(verdict, states);
        mine.update();
      },
    };
  };
  const signature = row("signature", "Signature", "Is the file unchanged since it was signed?");
  const again = make("button.quiet.small", { type: "button", hidden: true }, "Check further back");
  const chain = row("chain", "Chain", "Are all certificates before it present and in order?", again);
  const weigh = make("button.quiet", { type: "button" }, "Check the weights");
  const weights = row(
    "weights",
    "Weights",
    key()
      ? "The service proves its weights again, with one exact residual of the published version."
      : "The service makes this check for keys with the scope audit. Sign in first.",
    key() ? weigh : make("a", { href: "/#/" }, "Sign in"),
  );
  weigh.addEventListener("click", () => busy(weigh, "Checking…", () => weightsCheck(weights, certificate.number)));

  let link = { certificate, bytes };
  again.addEventListener("click", () => busy(again, "Checking…", walk));
  async function walk() {
    const { rest } = await chainCheck(chain, link, certificate, left);
    again.hidden = !rest;
    link = rest ?? link;
  }
  const mine = mineForm(certificate, () => passed(states));
  return {
    element: make(
      "section.card",
      { id: "checks" },
      make("h2", {}, "Checks"),
      make("ul.checks", {}, signature.element, chain.element, mine.element, weights.element),
    ),
    run: async () => {
      await signatureCheck(signature, certificate);
      await walk();
    },
  };
}

/** Return whether what the browser can check was checked and held, and no check failed. */
function passed(states) {
  const failed = Object.values(states).some(({ tone }) => tone === "bad");
  return !failed && ["signature", "chain"].every((name) => states[name]?.tone === "good");
}

/** Show what all checks together say, and tell a screen reader once they are through. */
function conclude(verdict, states) {
  const done = [states.signature, states.chain, states.weights].filter(Boolean);
  const failed = done.filter(({ tone }) => tone === "bad");
  const working = done.some((state) => state.tone === "busy") || !states.chain;
  let tone = "plain";
  let title = working ? "Checking…" : "Checked in part";
  let words = "See below what was checked, and how.";
  if (failed.length) [tone, title, words] = ["bad", "Do not trust this certificate", failed[0].words];
  else if (passed(states)) {
    [tone, title] = ["good", "Signed, and part of an unbroken chain"];
    words = "Your browser checked it: it is unchanged since it was signed, and no certificate before it is missing.";
  }
  if (verdict.dataset.said === title + words) return;
  verdict.dataset.said = title + words;
  verdict.className = `card verdict ${tone}`;
  show(verdict, make("h2", {}, icon({ good: "good", bad: "bad", plain: "wait" }[tone]), title), make("p", {}, words));
  if (tone !== "plain" || !working) announce(`${title}. ${words}`);
}

async function signatureCheck(row, certificate) {
  row.set("busy", "Checking…");
  try {
    await checkSignature(certificate);
    const publisher = await patient(() => json("GET", "/v1/certificates/key", { open: true })).catch((error) => {
      throw new Error(`It is signed by the key it names. Whether this is the service's key could not be checked: ${error.message}`);
    });
    if (publisher.key !== certificate.key) {
      throw new Rejected("It is not signed with the key that this service publishes.");
    }
    row.set("good", [
      "Ed25519, by this service's key, checked in your browser. If you know the publisher's key from elsewhere, compare it.",
      globalThis.isSecureContext ? "" : WITHOUT_HTTPS,
    ]);
  } catch (error) {
    row.set(error instanceof Rejected ? "bad" : "plain", error.message);
  }
}

/** Have the service check its weights: what comes of it is the service's word. */
async function weightsCheck(row, number) {
  row.set("busy", "The service is checking…");
  try {
    const answer = await json("POST", "/v1/verify", { body: { certificate: number, checks: ["weights"] } });
    const found = answer.checks.find((entry) => entry.name === "weights");
    const took = typeof found.seconds === "number" ? ` (${seconds(found.seconds)})` : "";
    const words = `${sentence(found.message)}${took}`;
    // Undecided is no failure: the weights of older versions are not kept.
    row.set(found.passed ? "said" : found.undecided === true ? "plain" : "bad", `The service says: ${words}`);
    announce(words);
  } catch (error) {
    row.set("plain", `It could not be checked: ${error.message}`);
    announce(error.message);
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
      const files = await Promise.all(numbers.map((number) => patient(() => fileOf(number))));
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
        `Unbroken back to certificate ${count(later.certificate.number)}. Stopped there, after ${count(steps)}.`,
      );
      return { rest: later };
    }
    await checkLink(null, later.certificate);
    const all = start.number - 1;
    row.set(
      "good",
      start.number === 1
        ? "It is the first certificate and begins with the empty model: checked in your browser."
        : `Each is signed and names the SHA-256 of the one before: ${many(all, "certificate")}, all in your browser.`,
    );
  } catch (error) {
    row.set(
      error instanceof Rejected || error.status === 404 ? "bad" : "plain",
      error.status === 404 ? "A certificate before it is missing." : error.message,
    );
  }
  return { rest: null };
}

/** Return what the service is asked for; wait where it asks for that. */
async function patient(request) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await request();
    } catch (error) {
      if (error.status !== 429 || tries >= 5) throw error;
      await pause((error.wait ?? 1) * 1000);
    }
  }
}
