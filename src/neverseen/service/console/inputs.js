/** Parts of forms: a sample (features, text or image), a label, and receipts. */

import { announce, field, make, show } from "./dom.js";
import { count, labelText, visible } from "./format.js";
import { receiptsIn, receiptsInFile } from "./receipts.js";

const IMAGE_LIMIT = 20 * 2 ** 20;
const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const WHOLE = /^(0|-?[1-9]\d*)$/; // as it is written when it is a number: "007" is a text

/**
 * Return the rows of numbers in a text: JSON (one list, or a list of lists) or CSV. What could be read in two ways is
 * refused: a number that was guessed would be learned, and predicted for, as if it had been given.
 *
 * @param {string} text
 * @param {number|null} size - how many numbers a row must have, where that is known
 */
export function featureRows(text, size) {
  const bare = text.trim();
  if (!bare) throw new Error("Enter at least one row of numbers.");
  let rows;
  if (bare.startsWith("[")) {
    try {
      rows = JSON.parse(bare);
    } catch {
      throw new Error("The features look like JSON but are not valid: look for a missing bracket or comma.");
    }
    if (!Array.isArray(rows[0])) rows = [rows];
  } else {
    rows = text
      .split(/\r\n?|\n/)
      .filter((line) => line.trim())
      .map((line, place) => cells(line, place + 1).map((cell) => (DECIMAL.test(cell) ? Number(cell) : NaN)));
  }
  rows.forEach((row, place) => {
    if (!Array.isArray(row) || !row.every((value) => typeof value === "number" && Number.isFinite(value))) {
      throw new Error(`Row ${place + 1} has something that is not a finite number.`);
    }
    if (size && row.length !== size) {
      throw new Error(`Row ${place + 1} has ${count(row.length)} numbers; this model takes ${count(size)}.`);
    }
  });
  return rows;
}

/** Return the cells of a row of CSV. It has one separator: a semicolon, a comma, a tab, or else spaces. */
function cells(line, number) {
  if (line.includes(";") && line.includes(",")) {
    throw new Error(`Row ${count(number)} has commas and semicolons. Separate by one of them, and write decimals with a point.`);
  }
  const separator = [";", ",", "\t"].find((sign) => line.includes(sign));
  if (!separator) return line.trim().split(/\s+/);
  const found = line.split(separator).map((cell) => cell.trim());
  const empty = found.indexOf("");
  if (empty >= 0) throw new Error(`Row ${count(number)} has no value in place ${count(empty + 1)}.`);
  return found;
}

/**
 * A form's part for samples of the kind that the model takes.
 *
 * `element` goes into a form; `read()` returns `{samples}` for JSON or `{files}` for images, or throws an Error with a
 * sentence to show; `clear()` empties it.
 */
export function sampleInput(model) {
  const kind = { image: "images", text: "texts", feature: "features" }[model.kind] ?? model.kind ?? "features";
  if (kind === "images") return imageInput();
  if (kind === "texts") return textInput();
  return featureInput(model.n_features ?? null);
}

function featureInput(size) {
  const area = make("textarea", { rows: 5, spellcheck: "false", autocomplete: "off", placeholder: "0.1, 0.2, …" });
  const each = size ? `${count(size)} numbers per row` : "One sample per row";
  return {
    element: field("Features", area, `${each}, as CSV or JSON.`),
    read: () => ({ samples: featureRows(area.value, size).map((features) => ({ features })) }),
    clear: () => {
      area.value = "";
    },
  };
}

function textInput() {
  const area = make("textarea", { rows: 5, placeholder: "A text" });
  return {
    element: field("Text", area, "One sample."),
    read: () => {
      if (!area.value.trim()) throw new Error("Give a text.");
      return { samples: [{ text: area.value }] };
    },
    clear: () => {
      area.value = "";
    },
  };
}

function imageInput() {
  const input = make("input.unseen", { type: "file", accept: "image/*", multiple: true, id: "images" });
  const previews = make("div.previews");
  const said = make("p.muted");
  let files = [];
  const zone = make(
    "div.drop",
    {},
    input,
    make("label.button.quiet", { for: "images" }, "Choose images"),
    make("span.muted", {}, "or drop them here"),
    previews,
    said,
  );

  function take(chosen) {
    const large = chosen.find((file) => file.size > IMAGE_LIMIT);
    files = large ? [] : chosen;
    const words = large ? `${large.name} is larger than 20 MiB.` : chosen.map((file) => file.name).join(", ");
    show(said, words);
    if (words) announce(words);
    show(previews);
    files.slice(0, 12).forEach((file) => preview(file, previews));
    changed(zone);
  }
  input.addEventListener("change", () => take([...input.files]));
  dropTarget(zone, take);
  return {
    element: make("div.field", {}, make("span.label", {}, "Images"), zone),
    read: () => {
      if (!files.length) throw new Error("Choose or drop an image first.");
      return { files };
    },
    clear: () => {
      input.value = "";
      take([]);
    },
  };
}

/** Draw an image file on a canvas: the page's policy allows images from the service alone. */
async function preview(file, place) {
  const canvas = make("canvas", { width: 96, height: 96, role: "img", "aria-label": file.name });
  place.append(canvas);
  try {
    const picture = await createImageBitmap(file);
    const scale = Math.min(96 / picture.width, 96 / picture.height);
    const [width, height] = [picture.width * scale, picture.height * scale];
    canvas.getContext("2d").drawImage(picture, (96 - width) / 2, (96 - height) / 2, width, height);
    picture.close();
  } catch {
    canvas.replaceWith(make("span.muted", {}, `${file.name}: no image that this browser can show`));
  }
}

/** Tell the form that what is in it changed: files that are dropped or removed cause no event by themselves. */
function changed(zone) {
  zone.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Let files be dropped on an element. */
export function dropTarget(zone, take) {
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take([...event.dataTransfer.files]);
  });
}

/**
 * A form's part for a label, which is a text or a whole number. `read()` returns it or throws.
 *
 * @param {{label: *}[]} known - classes that are there, offered while typing
 */
export function labelInput(known = []) {
  const options = make(
    "datalist",
    { id: "known-labels" },
    known.map(({ label }) => make("option", { value: String(label), label: labelText(label) })),
  );
  const input = make("input", { type: "text", autocomplete: "off", list: known.length ? "known-labels" : null });
  const kind = make(
    "select",
    {},
    make("option", { value: "text" }, "text"),
    make("option", { value: "number" }, "whole number"),
  );
  let chosen = false;
  kind.addEventListener("change", () => {
    chosen = true;
  });
  input.addEventListener("input", () => {
    const there = known.filter(({ label }) => String(label) === input.value);
    if (there.length === 1) kind.value = /number|bigint/.test(typeof there[0].label) ? "number" : "text";
    else if (!chosen) kind.value = WHOLE.test(input.value.trim()) ? "number" : "text";
  });
  const hidden = make("p.hint", { hidden: true });
  input.addEventListener("input", () => {
    hidden.hidden = visible(input.value) === input.value;
    show(hidden, hidden.hidden ? "" : `Pages show it as: ${input.value}`);
  });
  const row = field("Label", input);
  row.append(options, hidden);
  return {
    element: make("div.pair", {}, row, field("Kind", kind)),
    input,
    read: () => {
      const text = input.value;
      if (!text.trim()) throw new Error("Enter a label.");
      if (kind.value === "text") return text;
      const number = Number(text.trim());
      if (WHOLE.test(text.trim()) && Number.isSafeInteger(number)) return number;
      const why = WHOLE.test(text.trim())
        ? " that a browser can send: use the command line for it."
        : ". Choose “text” if the label is a text.";
      throw new Error(`“${text.slice(0, 40)}” is not a whole number${why}`);
    },
  };
}

/**
 * A form's part for receipts: pasted, in files, or both; what will be read is said. `read()` returns them or throws,
 * `clear()` empties it.
 *
 * @param {string} name - of the field for text
 * @param {string} hint
 * @param {string} text - to begin with
 */
export function receiptInput(name, hint, text = "") {
  const fields = { rows: 4, spellcheck: "false", autocomplete: "off", value: text, placeholder: "TlNSM…" };
  const area = make("textarea", fields);
  const input = make("input", { type: "file", multiple: true, accept: ".jsonl,.json,.txt,.bin,.receipt" });
  const said = make("span.muted");
  const none = make("button.quiet.small", { type: "button", hidden: true }, "Remove");
  let files = [];
  function tell() {
    const names = files.map((file) => file.name).join(", ");
    const both = area.value.trim() ? "Both will be read: the text, and " : "";
    show(said, files.length ? `${both}${names}${both ? "" : " will be read"}` : "");
    none.hidden = !files.length;
  }
  function take(chosen) {
    files = chosen;
    tell();
    changed(zone);
    announce(files.length ? said : "No file is chosen.");
  }
  input.addEventListener("change", () => take([...input.files]));
  none.addEventListener("click", () => {
    input.value = "";
    take([]);
    input.focus();
  });
  area.addEventListener("input", tell);
  const zone = make("div.drop", {}, field("Or a file of receipts", input), said, none);
  dropTarget(zone, (dropped) => {
    input.value = "";
    take(dropped);
  });
  return {
    element: make("div.part", {}, field(name, area, hint), zone),
    read: async () => {
      const read = area.value.trim() ? receiptsIn(area.value) : [];
      for (const file of files) read.push(...(await receiptsInFile(file)));
      if (!read.length) throw new Error("Paste a receipt, or choose a file of receipts.");
      return read;
    },
    clear: () => {
      area.value = "";
      input.value = "";
      files = [];
      tell();
    },
  };
}

/** Return the options for a request with samples: JSON, or multipart for files. `fields` writes a label in JSON. */
export function sampleBody({ samples, files }, labels = null, fields = (label) => ({ label })) {
  if (!files)
    return { body: { samples: labels ? samples.map((sample, row) => ({ ...sample, ...fields(labels[row]) })) : samples } };
  const form = new FormData();
  files.forEach((file) => form.append("files", file, file.name));
  if (labels) form.append("labels", JSON.stringify(labels));
  return { form };
}
