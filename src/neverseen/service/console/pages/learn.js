/** Learning a few samples by hand, and the receipts for them. */

import { actionKey, json } from "../api.js";
import { announce, busy, complain, field, make, notice, show } from "../dom.js";
import { many } from "../format.js";
import { hand } from "../handover.js";
import { labelInput, sampleBody, sampleInput } from "../inputs.js";
import { changes, expect, keptReceipts } from "../keeping.js";
import { progress } from "../progress.js";

export const title = "Learn";

/** A request that was sent and not answered, which may have been carried out. It outlives the page. */
let unanswered = null;
changes.addEventListener("drop", () => {
  unanswered = null;
});

export async function render(place, { left }) {
  const model = await json("GET", "/v1/model");
  const sample = sampleInput(model),
    label = labelInput(model.class_counts);
  const id = make("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const button = make("button", { type: "submit" }, "Learn");
  const said = make("div");
  const form = make(
    "form.card",
    { novalidate: true },
    sample.element,
    label.element,
    field("Id (optional)", id, "Yours, to tell samples apart. With several samples, a number is added."),
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
        if (unanswered) throw new Error("First settle the request before: its answer did not come.");
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
    const options = sampleBody(read, labels);
    if (ids.length && options.form) options.form.append("ids", JSON.stringify(ids));
    options.body?.samples.forEach((entry, row) => {
      if (ids[row]) entry.id = ids[row];
    });
    return { options: { ...options, headers: { "Idempotency-Key": actionKey() } }, labels, ids, awaited: expect() };
  }

  /** Send a request, and keep its receipts before anything else is done with them. */
  async function send(composed) {
    unanswered = null;
    let answer;
    try {
      answer = await json("POST", "/v1/samples", composed.options);
    } catch (error) {
      if (mayBeDone(error)) unanswered = composed;
      else composed.awaited.end();
      throw error;
    }
    composed.awaited.keep(answer.request, answer.receipts, composed.labels, composed.ids);
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

  function failed(error) {
    if (left.aborted) return;
    if (!unanswered) {
      complain(said, error.message);
      return;
    }
    const again = make("button", { type: "button" }, "Ask again");
    again.addEventListener("click", () => busy(again, "Asking…", () => send(unanswered).catch(failed)));
    const words = "The samples may have been learned. Ask again for their receipts: however often, it counts once.";
    show(said, notice("bad", make("p", {}, error.message), make("p", {}, words), again));
    announce(`${error.message} ${words}`);
  }
  if (unanswered) failed(new Error("The answer to an earlier request did not come."));
}

/** Return whether a request that failed may have been carried out all the same. */
function mayBeDone({ status, code }) {
  return status === 0 || status >= 500 || code === "bad_answer";
}
