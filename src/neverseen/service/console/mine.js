/**
 * "Is my sample in it?": receipts looked for in a certificate, here in the browser.
 *
 * A certificate says what was forgotten until then. It cannot say that a sample was not learned again: the words here
 * name the certificate, and what is held now is for the service to say, if it is asked.
 */

import { json } from "./api.js";
import { commitment } from "./checks.js";
import { announce, busy, chip, make, notice, saveButton, show, theirs } from "./dom.js";
import { asciiJson, count, many, time } from "./format.js";
import { fromBase64 } from "./hashing.js";
import { receiptInput } from "./inputs.js";
import { certificateLink } from "./progress.js";
import { key, may } from "./session.js";

const SHOWN = 100;
const ASKED = 20; // receipts for which the service is asked: each is a request of its own
const AGAIN = "Later versions may have learned the sample again.";
const ANEW = "learned again, it has a new receipt.";

/**
 * Return the row of the list of checks. What it says is about the receipts in the field: when they change, it is gone.
 *
 * @param {Object} certificate
 * @param {() => boolean} trusted - whether the certificate has passed its checks, and failed none
 * @returns {{element: HTMLElement, update: () => void}} `update` is to be called when `trusted` may have changed
 */
export function mineForm(certificate, trusted) {
  const state = make("span.state", {}, chip("plain", "not looked for"));
  const said = make("div.found");
  const doubt = make("p");
  const input = receiptInput("Receipt", "It is compared here, and does not leave your browser.");
  const button = make("button.quiet", { type: "submit" }, "Look for it");
  const form = make("form", { novalidate: true }, input.element, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, "Looking…", look);
  });
  let found = null; // what was found for the receipts in the field
  let given = {}; // another one each time that the receipts in the field change
  form.addEventListener("input", () => {
    found = null;
    given = {};
    show(state, chip("plain", "not looked for"));
    show(said);
  });

  function update() {
    if (!found) return;
    const { hits, all } = found;
    const doubted = hits && !trusted();
    doubt.hidden = !doubted;
    show(doubt, doubted ? "The certificate itself has not passed its checks." : "");
    show(state, chip(hits && !doubted ? "good" : "plain", answer(hits, all)));
  }

  async function look() {
    const asked = given;
    let looked;
    try {
      const there = new Set(certificate.commitments);
      looked = await Promise.all(
        (await input.read()).map(async (given) => ({
          ...given,
          listed: there.has(await commitment(fromBase64(given.receipt))),
        })),
      );
    } catch (error) {
      if (asked !== given) return;
      show(state, chip("plain", "no receipt"));
      show(said, notice("bad", make("p", {}, error.message)));
      announce(error.message);
      return;
    }
    if (asked !== given) return;
    const hits = looked.filter(({ listed }) => listed).length;
    const words = outcome(certificate, hits, looked.length);
    found = { hits, all: looked.length };
    update();
    show(
      said,
      make("p", {}, words),
      doubt,
      looked.length > 1 ? lists(certificate, looked) : null,
      key() && may("forget") && looked.length <= ASKED ? question(looked) : null,
    );
    announce(`${words} ${doubt.textContent}`.trim());
  }
  const element = make(
    "li.check",
    { id: "check-mine" },
    make("div.head", {}, make("h3", {}, "Is my sample in it?"), state),
    form,
    said,
  );
  return { element, update };
}

function answer(hits, all) {
  if (all === 1) return hits ? "listed" : "not listed";
  return `${count(hits)} of ${count(all)} listed`;
}

function outcome({ number, time: issued }, hits, all) {
  const name = `Certificate ${number}`;
  if (all === 1) {
    return hits
      ? `${name} lists this receipt as forgotten (${time(issued)}). ${AGAIN}`
      : `${name} does not list this receipt. Another one may.`;
  }
  return hits
    ? `${name} lists ${count(hits)} of ${many(all, "receipt")} as forgotten (${time(issued)}). ${AGAIN}`
    : `${name} lists none of ${many(all, "receipt")}. Others may.`;
}

/** Return which receipts are in it, and which are not: to unfold, and to download. */
function lists({ number }, looked) {
  const part = (words, entries) =>
    entries.length
      ? make(
          "details",
          {},
          make("summary", {}, `${words}: ${count(entries.length)}`),
          make(
            "ul.commitments",
            { tabindex: "0" },
            entries
              .slice(0, SHOWN)
              .map(({ where, id }) => make("li", {}, theirs(where), id === null ? null : [", id ", theirs(id)])),
          ),
          entries.length > SHOWN
            ? make("p.muted", {}, `and ${count(entries.length - SHOWN)} more in the download`)
            : null,
        )
      : null;
  const lines = looked.map(({ where, id, listed }) => `${asciiJson({ where, id, certificate: number, listed })}\n`);
  return [
    part(
      "Listed",
      looked.filter(({ listed }) => listed),
    ),
    part(
      "Not listed",
      looked.filter(({ listed }) => !listed),
    ),
    saveButton("Download the list", `listed-in-${number}.jsonl`, lines.join(""), "application/jsonl"),
  ];
}

/** Offer to ask the service what is held now. That sends the receipts, so it is asked for. */
function question(looked) {
  const said = make("ul.held");
  const button = make("button.quiet", { type: "button" }, "Ask the service what is held now");
  button.addEventListener("click", () =>
    busy(button, "Asking…", async () => {
      show(said);
      let held = 0;
      for (const { receipt, where } of looked) {
        const { tone, word, words } = await heldNow(receipt);
        if (tone === "bad") held += 1;
        const which = looked.length > 1 ? [theirs(where), ": "] : null;
        said.append(make("li", {}, which, chip(tone, `the service says: ${word}`), " ", words));
      }
      if (!said.isConnected) return;
      const size = many(looked.length, "receipt");
      announce(`The service says: a sample is held under ${count(held)} of ${size}. If a sample was ${ANEW}`);
    }),
  );
  return make(
    "div.asked",
    {},
    button,
    make("span.hint", {}, "This sends the receipt to the service. Nothing is changed."),
    said,
  );
}

/** Ask the service what it would do with a receipt. A rehearsal of forgetting tells what is held under this receipt. */
async function heldNow(receipt) {
  try {
    await json("POST", "/v1/forget?dry_run=true", { body: { receipts: [receipt] } });
    return { tone: "bad", word: "held", words: ["A sample is held under this receipt now. ", forgetLink()] };
  } catch (error) {
    if (error.code === "already_forgotten") {
      const proof = error.certificate ? [" See ", certificateLink(error.certificate), "."] : "";
      const words = `No sample is held under this receipt. If it was ${ANEW}`;
      return { tone: "said", word: "used up", words: [words, proof] };
    }
    // A receipt that cannot be read tells nothing of its sample: it may be of a key since dropped, or a bad copy.
    return { tone: "plain", word: "not known", words: error.message };
  }
}

function forgetLink() {
  return make("a", { href: "/#/forget" }, "Have it forgotten");
}
