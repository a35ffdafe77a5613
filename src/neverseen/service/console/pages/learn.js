/** Learning a few samples by hand, and the receipts for them. */

import { actionKey, json, mayBeDone } from "../api.js";
import { announce, busy, complain, field, make, notice, show } from "../dom.js";
import { many } from "../format.js";
import { hand } from "../handover.js";
import { sampleBody, sampleInput } from "../inputs.js";
import { changes, expect, keptReceipts } from "../keeping.js";
import { labelFields, labelPart } from "../labels.js";
import { progress } from "../progress.js";
import { visitor } from "../session.js";

export const title = "Learn";

/** Refusals of a repetition that say what became of the request itself: asking again would bring nothing else. */
const SETTLED = new Set(["idempotency_conflict", "idempotency_expired", "receipts_gone"]);

/** The request that was sent and not settled yet: it may have been carried out. It outlives the page. */
let pending = null;
changes.addEventListener("drop", () => {
  if (pending?.signedIn === visitor()) pending = null;
});

export async function render(place, { left }) {
  const model = await json("GET", "/v1/model");
  const sample = sampleInput(model),
    label = labelPart(model);
  const id = make("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const button = make("button", { type: "submit" }, "Learn");
  const said = make("div");
  const form = make(
    "form.card",
    { novalidate: true },
    sample.element,
    label.element,
    field("Id (optional)", id, "Your own name for the sample. With several samples, a number is added."),
    button,
  );
  const forget = (text) => make("a.button.quiet", { href: "/#/forget", onclick: () => hand(text) }, "Forget it again");
  show(
    place,
    make("h1", {}, title),
    make(
      "p.muted",
      {},
      "Each sample gets a receipt. Whoever has it can have the sample forgotten; the service keeps no copy of it.",
    ),
    form,
    said,
    keptReceipts(left, forget),
  );

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, "Learning…", async () => {
      try {
        if (pending) throw new Error("First finish the earlier request: its answer did not arrive.");
        await send(compose());
        sample.clear();
      } catch (error) {
        failed(error);
      }
    });
  });

  /** Return the request that the form asks for, with an idempotency key of its own. */
  function compose() {
    const read = sample.read();
    const size = (read.samples ?? read.files).length;
    const labels = Array(size).fill(label.read());
    const name = id.value.trim();
    const ids = name ? labels.map((_, row) => (size === 1 ? name : `${name}-${row + 1}`)) : [];
    const options = sampleBody(read, labels, (each) => labelFields(model, each));
    if (ids.length && options.form) options.form.append("ids", JSON.stringify(ids));
    options.body?.samples.forEach((entry, row) => {
      if (ids[row]) entry.id = ids[row];
    });
    const headers = { "Idempotency-Key": actionKey() };
    return { options: { ...options, headers }, labels, ids, signedIn: visitor(), tries: 0, awaited: expect() };
  }

  function settle(composed) {
    if (pending === composed) pending = null;
    composed.awaited.end();
  }

  /**
   * Send a request, and keep its receipts before anything else is done with them.
   *
   * A refusal settles it if it was sent once. After that an earlier try may have been carried out, whatever is wrong
   * with this one (too many requests, a key that was revoked), and only `SETTLED` settles it.
   */
  async function send(composed) {
    if (composed.signedIn !== visitor()) {
      throw new Error("Sign in with the key that sent it: with another key the samples would be learned once more.");
    }
    pending = composed;
    composed.tries += 1;
    let answer;
    try {
      answer = await json("POST", "/v1/samples", composed.options);
    } catch (error) {
      if (composed.tries === 1 ? !mayBeDone(error) : SETTLED.has(error.code)) settle(composed);
      throw error;
    }
    composed.awaited.keep(answer.request, answer.receipts, composed.labels, composed.ids);
    settle(composed);
    announce(`Learned ${many(answer.receipts.length, "sample")}. The receipts are on the page.`);
    if (left.aborted) return;
    const one = answer.receipts.length === 1;
    show(
      said,
      make(
        "section.card",
        {},
        make("h2", { tabindex: "-1" }, "Learned"),
        make("p", {}, `Save the ${one ? "receipt" : "receipts"} below: the service keeps no copy.`),
        progress(answer.request, left),
      ),
    );
    said.querySelector("h2").focus();
    said.scrollIntoView();
  }

  let asking = null;
  function failed(error) {
    if (left.aborted) return;
    if (!pending) {
      complain(said, error.message);
      if (error.request) said.append(progress({ id: error.request }, left));
      return;
    }
    const asked = pending;
    const again = make("button", { type: "button" }, "Ask again");
    again.addEventListener("click", () => busy(again, "Asking…", () => send(asked).catch(failed)));
    const stop = make("button.quiet", { type: "button" }, "Give up the receipts");
    stop.addEventListener("click", () => {
      settle(asked);
      complain(said, "Receipts given up. The samples may have been learned: see the page Requests.");
    });
    const words = "The samples may have been learned. Ask again for their receipts: it is safe, and counts once.";
    const actions = make("div.actions.start", {}, again, stop);
    asking = notice("bad", make("p", {}, error.message), make("p", {}, words), actions);
    show(said, asking);
    announce(`${error.message} ${words}`);
  }
  changes.addEventListener(
    "change",
    () => {
      if (!pending) asking?.remove(); // the answer to an earlier try came after all
    },
    { signal: left },
  );
  if (pending) failed(new Error("The answer to an earlier request did not arrive."));
}
