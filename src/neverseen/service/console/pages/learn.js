/** Learning a few samples by hand, and the receipts for them. */

import { actionKey, json } from "../api.js";
import { announce, busy, copyButton, field, make, notice, saveButton, show } from "../dom.js";
import { labelText, many } from "../format.js";
import { hand } from "../handover.js";
import { labelInput, sampleBody, sampleInput } from "../inputs.js";
import { progress } from "../progress.js";
import { receiptLines } from "../receipts.js";

export const title = "Learn";

export async function render(place, { left }) {
  const model = await json("GET", "/v1/model");
  const sample = sampleInput(model),
    label = labelInput(model.class_counts);
  const id = make("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const button = make("button", { type: "submit" }, "Learn");
  const said = make("div", { "aria-live": "polite" });
  const form = make(
    "form.card",
    { novalidate: true },
    sample.element,
    label.element,
    field("Id (optional)", id, "Yours, to tell samples apart. With several samples, a number is added."),
    button,
  );
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
  );

  let key = null,
    keyed = null; // the idempotency key of what is being sent, so that trying again cannot learn twice
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, "Learning…", async () => {
      try {
        const read = sample.read();
        const size = (read.samples ?? read.files).length;
        const labels = Array(size).fill(label.read());
        const ids = id.value.trim()
          ? labels.map((_, row) => (size === 1 ? id.value.trim() : `${id.value.trim()}-${row + 1}`))
          : [];
        const options = sampleBody(read, labels);
        if (ids.length && options.form) options.form.append("ids", JSON.stringify(ids));
        options.body?.samples.forEach((entry, row) => {
          if (ids[row]) entry.id = ids[row];
        });
        const content = JSON.stringify([
          options.body ?? read.files.map((file) => [file.name, file.size, file.lastModified]),
          labels,
          ids,
        ]);
        if (content !== keyed) [key, keyed] = [actionKey(), content];
        const answer = await json("POST", "/v1/samples", { ...options, headers: { "Idempotency-Key": key } });
        key = keyed = null;
        sample.clear();
        show(said, given(answer, labels, ids, left));
        said.querySelector("h2").focus();
        said.scrollIntoView();
        announce(`Learned ${many(size, "sample")}. The receipts are on the page.`);
      } catch (error) {
        if (error.code?.startsWith("idempotency_")) key = keyed = null; // this key is used up
        show(said, notice("bad", make("p", {}, error.message)));
      }
    });
  });
}

function given({ request, receipts }, labels, ids, left) {
  const text = receipts.join("\n");
  const area = make("textarea", {
    rows: Math.min(6, receipts.length + 2),
    readonly: true,
    spellcheck: "false",
    value: text,
  });
  const forget = make("a.button.quiet", { href: "/#/forget", onclick: () => hand(text) }, "Forget it again");
  return make(
    "section.card",
    { id: "receipt" },
    make("h2", { tabindex: "-1" }, receipts.length === 1 ? "Your receipt" : `Your ${many(receipts.length, "receipt")}`),
    make(
      "p",
      {},
      receipts.length === 1 ? "Keep it safe: it is shown once." : "Keep them safe: they are shown once.",
      " Label: ",
      make("b.text", {}, labelText(labels[0])),
      ".",
    ),
    field(receipts.length === 1 ? "Receipt" : "Receipts, one a line", area),
    make(
      "div.actions.start",
      {},
      copyButton(text, "the receipts"),
      saveButton("Download", `receipts-${request.id}.jsonl`, receiptLines(receipts, labels, ids), "application/jsonl"),
      forget,
    ),
    progress(request, left),
  );
}
