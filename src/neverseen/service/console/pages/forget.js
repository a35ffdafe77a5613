/** Forgetting: say what, see the effect, confirm, and follow it until the published model is without it. */

import { actionKey, json, mayBeDone, sentence } from "../api.js";
import { announce, busy, complain, make, notice, show } from "../dom.js";
import { count, labelText, many } from "../format.js";
import { handed } from "../handover.js";
import { labelInput, receiptInput } from "../inputs.js";
import { kindOf } from "../labels.js";
import { certificateLink, progress } from "../progress.js";

export const title = "Forget";

/** What is wrong with a receipt, by the service's reason. */
const FAULTS = {
  foreign: "is not a receipt",
  truncated: "is cut short",
  altered: "was altered",
  key: "was sealed under a key that this model does not have: it is another model's, or the key was dropped",
  model: "belongs to another model, with other settings or another backbone",
  repeated: "is listed twice: list each once",
};

/** What was asked for may have been done; it was, if the service names the request. */
class Unsure extends Error {
  constructor(request) {
    super(
      request
        ? "The answer to an earlier try was lost, but the request was accepted."
        : "No answer came. The request may still have been carried out.",
    );
    this.request = request;
  }
}

export async function render(place, { left }) {
  const model = await json("GET", "/v1/model");
  const said = make("div");
  const byReceipt = receiptPart(),
    byClass = classPart(model.class_counts);
  const parts = { receipts: byReceipt, class: byClass };
  const whole = !model.key?.owner && kindOf(model) === "classes"; // other labels have no sums of their own
  const names = { receipts: "By receipt", ...(whole ? { class: "A whole class" } : {}) };
  const ways = Object.entries(names).map(([value, words]) => {
    const input = make("input", { type: "radio", name: "way", value, checked: value === "receipts" });
    input.addEventListener("change", () => choose(value));
    return make("label.way", {}, input, words);
  });
  const button = make("button", { type: "submit" }, "Show the effect");
  const form = make(
    "form.card",
    { novalidate: true },
    make("fieldset.ways", {}, make("legend", {}, "What should be forgotten?"), ways),
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
  let given = {}; // another one each time that what is in the form changes
  let refused = null; // what is said of what is in the form
  form.addEventListener("input", () => {
    given = {};
    refused?.remove();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(said);
    busy(button, "Looking…", async () => {
      const asked = given;
      let size = 0;
      try {
        const { path, body } = await parts[way].read();
        size = body.receipts?.length ?? 1;
        const { effect } = await json("POST", `${path}?dry_run=true`, { body });
        const request = asked === given ? await confirmed(effect, path, body) : null;
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
            make("p", {}, "The change is on disk. Once it is published, the model that answers never saw the data."),
            progress(request, left),
          ),
        );
        said.querySelector("h2").focus();
        said.scrollIntoView();
      } catch (error) {
        const told = refusal(error, size, left);
        if (!(error instanceof Unsure)) {
          if (asked !== given) return;
          refused = told;
        }
        show(said, told);
        announce(told);
        said.scrollIntoView({ block: "nearest" });
      }
    });
  });
}

function receiptPart() {
  const input = receiptInput("Receipts", "One per line, as you received them.", handed());
  return {
    ...input,
    read: async () => ({ path: "/v1/forget", body: { receipts: (await input.read()).map(({ receipt }) => receipt) } }),
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
  const what = typeof effect.samples === "number" ? many(effect.samples, "sample") : "the class"; // counts need audit
  const go = make("button.danger", { type: "button" }, `Forget ${what}`);
  const back = make("button.quiet", { type: "button", autofocus: true }, "Cancel");
  const said = make("div");
  const dialog = make(
    "dialog",
    { "aria-labelledby": "effect-title" },
    make("h2", { id: "effect-title" }, `${what[0].toUpperCase()}${what.slice(1)} will be forgotten`),
    effectTable(effect),
    make("p.muted", {}, "This cannot be undone, except by learning the samples again."),
    said,
    make("div.actions", {}, back, go),
  );
  document.body.append(dialog);
  return new Promise((resolve, reject) => {
    let request = null,
      sending = false,
      unsure = false; // whether a try was not answered: after that, no refusal says that nothing was changed
    back.addEventListener("click", () => {
      if (!sending) dialog.close();
    });
    dialog.addEventListener("cancel", (event) => {
      if (sending) event.preventDefault();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      if ((sending || unsure) && !request) reject(new Unsure()); // browsers close a dialog that is asked to twice
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
          unsure ||= mayBeDone(error);
          if (mayBeDone(error) || error.status === 408 || error.status === 429) {
            complain(said, `${error.message} Confirming again is safe: it counts once.`);
          } else {
            reject(unsure || error.request ? new Unsure(error.request) : error); // its key is of this dialog alone
            dialog.close();
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
          make(
            "tr",
            {},
            make("td.text", {}, labelText(label)),
            make("td.end.number", {}, samples === null ? "all" : count(samples)),
          ),
        ),
      ),
    ),
  );
}

/** Say why something was refused, or what is not known. */
function refusal(error, given, left) {
  if (error instanceof Unsure) {
    if (error.request) return notice("plain", make("p", {}, error.message), progress({ id: error.request }, left));
    return notice("bad", make("p", {}, `${error.message} See `, make("a", { href: "/#/requests" }, "Requests"), "."));
  }
  const still = make("p.muted", {}, " Nothing was changed.");
  if (error.code === "already_forgotten") return notHeld(error, given, still);
  const fault = FAULTS[error.reason];
  const words = fault ? sentence(`${which(error, given)} ${fault}`) : error.message;
  return notice("bad", make("p", {}, make("b", {}, "Refused. "), words), still);
}

/** Say that no sample is held under a receipt, and which certificate lists it; more is not known of the sample. */
function notHeld(error, given, still) {
  return notice(
    "plain",
    make(
      "p",
      {},
      make("b", {}, "Nothing to forget. "),
      `The service says that no sample is held under ${which(error, given)}.`,
    ),
    make(
      "p",
      {},
      error.certificate ? certificateLink(error.certificate) : "The next certificate",
      " lists it as forgotten. If the sample was learned again since, it has a new receipt.",
    ),
    still,
  );
}

/** Return which of the given receipts an error is about, as people count: from 1; one alone needs no number. */
function which({ row }, given) {
  return given > 1 && Number.isInteger(row) ? `receipt ${count(row + 1)} of ${count(given)}` : "this receipt";
}
