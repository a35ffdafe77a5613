/** Forgetting: say what, see the effect, confirm, and follow it until the published model is without it. */

import { actionKey, json } from "../api.js";
import { announce, busy, field, make, notice, show } from "../dom.js";
import { count, labelText, many } from "../format.js";
import { handed } from "../handover.js";
import { dropTarget, labelInput } from "../inputs.js";
import { certificateLink, progress } from "../progress.js";
import { receiptsIn, receiptsInFile } from "../receipts.js";

export const title = "Forget";

export async function render(place, { left }) {
  const model = await json("GET", "/v1/model");
  const said = make("div", { "aria-live": "polite" });
  const byReceipt = receiptPart(),
    byClass = classPart(model.class_counts);
  const parts = { receipts: byReceipt, class: byClass };
  const names = { receipts: "By receipt", ...(model.key?.owner ? {} : { class: "A whole class" }) };
  const ways = Object.entries(names).map(([value, words]) => {
    const input = make("input", { type: "radio", name: "way", value, checked: value === "receipts" });
    input.addEventListener("change", () => choose(value));
    return make("label.way", {}, input, words);
  });
  const button = make("button", { type: "submit" }, "Show what would go");
  const form = make(
    "form.card",
    { novalidate: true },
    make("fieldset.ways", {}, make("legend", {}, "What shall be forgotten?"), ways),
    byReceipt.element,
    byClass.element,
    button,
  );
  show(
    place,
    make("h1", {}, title),
    make("p.muted", {}, "Nothing changes before you have seen the effect and confirmed it."),
    form,
    said,
  );
  let way = "receipts";
  function choose(value) {
    way = value;
    for (const [name, part] of Object.entries(parts)) part.element.hidden = name !== value;
  }
  choose(way);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(said);
    busy(button, "Looking…", async () => {
      let given = 0;
      try {
        const { path, body } = await parts[way].read();
        given = body.receipts?.length ?? 1;
        const { effect } = await json("POST", `${path}?dry_run=true`, { body });
        const request = await confirmed(effect, path, body);
        if (!request) {
          announce("Nothing was changed.");
          return;
        }
        parts[way].clear();
        show(
          said,
          make(
            "section.card",
            {},
            make("h2", { tabindex: "-1" }, "Accepted"),
            make("p", {}, "It is on disk. Once published, the model that answers is the one that never saw the data."),
            progress(request, left),
          ),
        );
        said.querySelector("h2").focus();
        said.scrollIntoView();
      } catch (error) {
        show(said, refusal(error, given));
        said.scrollIntoView({ block: "nearest" });
      }
    });
  });
}

function receiptPart() {
  const area = make("textarea", {
    rows: 5,
    spellcheck: "false",
    autocomplete: "off",
    value: handed(),
    placeholder: "TlNSMQ…",
  });
  const file = make("input", { type: "file", accept: ".jsonl,.json,.txt,.bin,.receipt" });
  const name = make("span.muted", { "aria-live": "polite" });
  let chosen = null;
  function take([first]) {
    chosen = first ?? null;
    name.textContent = chosen ? `${chosen.name} will be read` : "";
  }
  file.addEventListener("change", () => take([...file.files]));
  const zone = make("div.drop", {}, field("Or a file of receipts", file), name);
  dropTarget(zone, (files) => {
    file.value = "";
    take(files);
  });
  return {
    element: make("div.part", {}, field("Receipts", area, "One a line, as they were given."), zone),
    read: async () => {
      const receipts = area.value.trim() ? receiptsIn(area.value) : [];
      if (chosen) receipts.push(...(await receiptsInFile(chosen)));
      if (!receipts.length) throw new Error("Paste a receipt, or choose a file of receipts.");
      return { path: "/v1/forget", body: { receipts } };
    },
    clear: () => {
      area.value = "";
      file.value = "";
      take([]);
    },
  };
}

function classPart(known) {
  const label = labelInput(known);
  return {
    element: make("div.part", {}, label.element),
    read: async () => ({ path: "/v1/forget/class", body: { label: label.read() } }),
    clear: () => {
      label.input.value = "";
    },
  };
}

/**
 * Show the effect, and send the request if it is confirmed: once, whatever is clicked.
 *
 * @returns {Promise<Object|null>} the request; null if it was called off
 */
function confirmed(effect, path, body) {
  const key = actionKey(); // of this dialog: trying again after a lost answer cannot forget twice
  const size = effect.samples ?? 0;
  const go = make("button.danger", { type: "button" }, `Forget ${many(size, "sample")}`);
  const back = make("button.quiet", { type: "button", autofocus: true }, "Cancel");
  const said = make("div", { "aria-live": "assertive" });
  const dialog = make(
    "dialog",
    { "aria-labelledby": "effect-title" },
    make("h2", { id: "effect-title" }, `${many(size, "sample")} will be forgotten`),
    effectTable(effect),
    make("p.muted", {}, "This cannot be undone, except by learning the samples again."),
    said,
    make("div.actions", {}, back, go),
  );
  document.body.append(dialog);
  return new Promise((resolve, reject) => {
    let request = null,
      sending = false;
    back.addEventListener("click", () => {
      if (!sending) dialog.close();
    });
    dialog.addEventListener("cancel", (event) => {
      if (sending) event.preventDefault();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(request);
    });
    go.addEventListener("click", () =>
      busy(go, "Sending…", async () => {
        sending = true;
        show(said);
        try {
          ({ request } = await json("POST", path, { body, headers: { "Idempotency-Key": key } }));
          dialog.close();
        } catch (error) {
          if (error.status === 0 || error.status === 429 || error.status >= 500) {
            show(said, notice("bad", make("p", {}, `${error.message} Confirming again is safe: it counts once.`)));
          } else {
            dialog.close();
            reject(error);
          }
        } finally {
          sending = false;
        }
      }),
    );
    dialog.showModal();
  });
}

function effectTable({ classes = [] }) {
  const rows = Array.isArray(classes)
    ? classes
    : Object.entries(classes).map(([label, samples]) => ({ label, samples }));
  if (!rows.length) return null;
  return make(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": "Effect by class" },
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make("tr", {}, make("th", { scope: "col" }, "Class"), make("th.end", { scope: "col" }, "Samples")),
      ),
      make(
        "tbody",
        {},
        rows.map(({ label, samples }) =>
          make("tr", {}, make("td.text", {}, labelText(label)), make("td.end.number", {}, count(samples))),
        ),
      ),
    ),
  );
}

/** Say why something was refused. */
function refusal(error, given) {
  const known = error.code === "already_forgotten";
  const proof = error.certificate ? make("p", {}, "Its proof is in ", certificateLink(error.certificate), ".") : null;
  const still = /nothing was changed/i.test(error.message) ? null : make("p.muted", {}, "Nothing was changed.");
  return notice(
    known ? "plain" : "bad",
    make("p", {}, make("b", {}, known ? "Forgotten before. " : "Refused. "), countedFromOne(error, given)),
    proof,
    still,
  );
}

/** Return the service's words, in which receipts count from 0, as people count; one alone needs no number. */
function countedFromOne({ message, row }, given) {
  if (!Number.isInteger(row)) return message;
  return message.replace(new RegExp(`\\b(r)eceipt ${row}\\b`, "i"), (_, first) => {
    const words = given > 1 ? `receipt ${count(row + 1)} of ${count(given)}` : "this receipt";
    return first === "R" ? `${words[0].toUpperCase()}${words.slice(1)}` : words;
  });
}
