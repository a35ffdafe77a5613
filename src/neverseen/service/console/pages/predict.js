/** Asking the model that answers: the published one, or the present one. */

import { json } from "../api.js";
import { announce, busy, complain, make, notice, show, theirs } from "../dom.js";
import { labelText, many } from "../format.js";
import { sampleBody, sampleInput } from "../inputs.js";
import { listText } from "../labels.js";

export const title = "Predict";
const SHOWN = 20;

export async function render(place) {
  const model = await json("GET", "/v1/model");
  const immediate = model.effect === "immediate";
  const sample = sampleInput(model);
  const button = make("button", { type: "submit" }, "Predict");
  const said = make("div");
  const form = make("form.card", { novalidate: true }, sample.element, button);
  let given = {}; // another one each time that what is in the form changes: an answer is about what is there
  form.addEventListener("input", () => {
    given = {};
    show(said);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, "Asking…", async () => {
      const asked = given;
      try {
        const read = sample.read();
        const answer = await json("POST", "/v1/predict", sampleBody(read));
        if (asked !== given) return;
        const names = read.files?.map((file) => file.name) ?? [];
        show(
          said,
          make(
            "section.card",
            {},
            make("h2", {}, "Answer"),
            make("p.muted", {}, immediate ? "By the model as it is now." : `By version ${answer.version}.`),
            make(
              "ol.answers",
              {},
              answer.predictions.map((prediction, row) =>
                make("li", {}, names[row] ? theirs(names[row], "bdi.muted.text") : null, words(prediction)),
              ),
            ),
          ),
        );
        const size = answer.predictions.length;
        announce(size === 1 ? "Answer:" : many(size, "answer"));
        if (size === 1) announce(said.querySelector(".answer"));
      } catch (error) {
        if (asked === given) complain(said, error.message);
      }
    });
  });
  const empty =
    model.samples || immediate
      ? null
      : notice(
          "plain",
          make("p", {}, "The published model is empty: ", make("a", { href: "/#/learn" }, "teach it something"), "."),
        );
  show(
    place,
    make("h1", {}, title),
    make(
      "p.muted",
      {},
      immediate
        ? "Predictions come from the model as it is now, published or not."
        : "Predictions come from the published version. Later changes are not in it yet.",
    ),
    empty,
    form,
    said,
  );
}

/** Return a prediction in the mode that the service answers in. */
function words(prediction) {
  const ranked = ranking(prediction),
    list = listText(prediction);
  if (!ranked) return make("b.answer.text", {}, list ?? labelText(prediction.label));
  const best = ranked[0];
  return make(
    "div",
    {},
    make("b.answer.text", {}, list ?? best?.text ?? "no class"),
    make(
      "table.scores",
      {},
      make("caption.unseen", {}, "Scores"),
      make(
        "tbody",
        {},
        ranked
          .slice(0, SHOWN)
          .map(({ text, score }) =>
            make("tr", {}, make("th.text", { scope: "row" }, text), make("td.end.number", {}, score.toFixed(4))),
          ),
      ),
    ),
    ranked.length > SHOWN ? make("p.muted", {}, `and ${ranked.length - SHOWN} more with lower scores`) : null,
  );
}

/** Return classes with their scores, best first; null if the service tells labels only. */
function ranking({ top, scores }) {
  if (top) return top.map(({ label, score }) => ({ text: labelText(label), score }));
  if (!scores) return null;
  return Object.entries(scores)
    .map(([text, score]) => ({ text, score }))
    .sort((one, other) => other.score - one.score);
}
