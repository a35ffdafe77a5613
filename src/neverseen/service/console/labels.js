/** Labels that are not classes: sets of labels, numbers, and classes with weights. */

import { field, make } from "./dom.js";
import { labelText } from "./format.js";
import { labelInput } from "./inputs.js";

const BETWEEN = "|";

/** Return what the labels of a model are: "classes", "weighted-classes", "label-sets" or "numbers". */
export function kindOf(model) {
  return model.targets?.kind ?? "classes";
}

/**
 * Return a form's part for a label of a model. `read()` returns it or throws: a class, a list of labels or numbers, or
 * a pair of class and weight, as receipts have it.
 */
export function labelPart(model) {
  const kind = kindOf(model);
  if (kind === "label-sets") return setPart();
  if (kind === "numbers") return numbersPart(model.targets.outputs);
  const name = labelInput(model.class_counts);
  return kind === "weighted-classes" ? weightedPart(name) : name;
}

function setPart() {
  const input = make("input", { type: "text", autocomplete: "off" });
  const hint = `Texts, with ${BETWEEN} between: red${BETWEEN}round. Leave it empty for a sample without labels.`;
  return {
    element: field("Labels", input, hint),
    read: () => {
      const parts = input.value.trim() ? input.value.split(BETWEEN) : [];
      if (parts.some((part) => part !== part.trim() || !part))
        throw new Error(`Write the labels as red${BETWEEN}round, without spaces around ${BETWEEN}.`);
      return parts;
    },
  };
}

function numbersPart(outputs) {
  const input = make("input", { type: "text", autocomplete: "off", inputmode: "decimal" });
  const hint = outputs === 1 ? "The number to predict." : `${outputs} numbers, with ${BETWEEN} between.`;
  return {
    element: field(outputs === 1 ? "Number" : "Numbers", input, hint),
    read: () => {
      const parts = input.value.split(BETWEEN).map((part) => part.trim());
      const numbers = parts.map(Number);
      if (parts.length !== outputs || parts.includes("") || !numbers.every(Number.isFinite))
        throw new Error(outputs === 1 ? "Enter a number." : `Enter ${outputs} numbers, with ${BETWEEN} between.`);
      return numbers;
    },
  };
}

function weightedPart(name) {
  const input = make("input", { type: "text", autocomplete: "off", inputmode: "numeric", value: "1" });
  return {
    element: make("div.part", {}, name.element, field("Weight", input, "How often the sample counts, from 1 to 1000.")),
    read: () => {
      const weight = Number(input.value.trim());
      if (!Number.isInteger(weight) || weight < 1 || weight > 1000)
        throw new Error("Enter a weight: a whole number from 1 to 1000.");
      return [name.read(), weight];
    },
  };
}

/** Return a label as fields of a sample. */
export function labelFields(model, label) {
  const kind = kindOf(model);
  if (kind === "label-sets") return { labels: label };
  if (kind === "numbers") return { numbers: label };
  return kind === "weighted-classes" ? { label: label[0], weight: label[1] } : { label };
}

/** Return the set or the numbers of a prediction as text; null if it is a class. */
export function listText({ labels, numbers }) {
  if (numbers) return numbers.map((number) => String(number)).join(", ");
  if (!labels) return null;
  return labels.length ? labels.map(labelText).join(", ") : "no label";
}
