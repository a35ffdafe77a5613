/** The model at a glance. */

import { json, poll } from "../api.js";
import { lineChart } from "../chart.js";
import { announce, busy, chip, digest, draw, facts, make, notice, refresh, show, theirs } from "../dom.js";
import { clock, count, instant, jsonText, labelText, many, percent, seconds, visible } from "../format.js";
import { freshness } from "../freshness.js";
import { kindOf } from "../labels.js";
import { certificateLink } from "../progress.js";

export const title = "Overview";

const CLASSES = 100; // rows at a time
const MINUTE = 60_000;
const OUTPUTS = { labels: "labels only", "top-k": "the best labels, with scores", scores: "all scores" };

export async function render(place, { left }) {
  const tiles = make("div.tiles"),
    details = make("div.columns"),
    charts = chartRow();
  const numbers = make("div.page", {}, tiles, details, make("h2", {}, "Over time"), charts.element);
  const model = await json("GET", "/v1/model");
  const doing = make("div.actions");
  const fresh = freshness(numbers);
  const classes = classesCard();
  function update(now) {
    refresh(tiles, tileRow(now));
    refresh(details, modelCard(now), classes.element);
    classes.update(now.class_counts);
  }
  update(model);
  show(place, make("div.head", {}, make("h1", {}, title), doing), fresh.element, numbers);
  if (model.key?.scopes?.includes("admin")) offerActions(doing);
  let version = NaN;
  let drawn = 0;
  poll(
    left,
    async () => {
      const now = await json("GET", "/v1/model");
      if (left.aborted) return 0;
      update(now);
      if (now.version !== version || Date.now() - drawn > MINUTE) {
        await charts.update();
        [version, drawn] = [now.version, Date.now()];
      }
      return 3000;
    },
    fresh.told,
  );
}

function tile(name, value, note) {
  return make("div.tile", {}, make("span.name", {}, name), make("span.value", {}, value), make("span.note", {}, note));
}

function tileRow(model) {
  const tiles = [
    tile("Samples", count(model.samples), "learned and not forgotten"),
    tile(kindOf(model) === "label-sets" ? "Labels" : "Classes", ...classesTold(model)),
    tile(
      "Version",
      model.version ? count(model.version) : "–",
      model.version ? certificateLink(model.version) : "nothing published yet",
    ),
  ];
  // Only keys with the scope audit are told what waits.
  if (model.queue !== undefined) tiles.push(tile("Queue", count(model.queue), waitingWords(model.queue, model.unpublished)));
  return tiles;
}

function classesTold(model) {
  if (kindOf(model) === "numbers") return ["–", `${many(model.targets.outputs, "number")} to predict`];
  return [count(model.classes), model.classes ? "in the published model" : "none yet"];
}

function waitingWords(waiting, unpublished) {
  if (waiting) return "requests wait for the writer";
  return unpublished ? `${many(unpublished, "sample")} changed, to be published` : "nothing waits";
}

function modelCard(model) {
  const policy = model.policy ?? {};
  const last = model.certificate;
  return make(
    "section.card",
    {},
    make("h2", {}, "Published model"),
    model.samples
      ? null
      : notice(
          "plain",
          make("p", {}, "The published model is empty. ", make("a", { href: "/#/learn" }, "Teach it something"), "."),
        ),
    facts([
      ["Digest", digest(model.digest, "the model's digest")],
      ["Last certificate", last ? certificateLink(last) : "none yet"],
      model.sealed === undefined
        ? null
        : [
            "Sealed",
            model.sealed ? chip("said", "sealed") : chip("busy", "not yet"),
            make(
              "span.hint",
              {},
              model.sealed
                ? "nothing of what was forgotten is left on disk"
                : "the next seal erases what was forgotten from the files",
            ),
          ],
      ["Backbone", make("span", {}, theirs(model.backbone ?? "–"), `, ${many(model.n_features ?? 0, "feature")}`)],
      ["Publishing", policyWords(policy)],
      [
        "Sealing",
        policy.seal_after === 0
          ? "with each version"
          : `at most ${seconds(policy.seal_after)} after something was forgotten`,
      ],
      ["Answers with", OUTPUTS[model.output] ?? String(model.output ?? "–")],
      [
        "Answers from",
        model.effect === "immediate" ? "the model as it is now, published or not" : "the published version",
      ],
      model.key
        ? [
            "Your key",
            make(
              "span",
              {},
              theirs(model.key.name),
              `: ${(model.key.scopes ?? []).join(", ")}`,
              model.key.owner ? [", owner ", theirs(model.key.owner)] : null,
            ),
          ]
        : null,
    ]),
  );
}

function policyWords({ min_batch: batch, max_delay: delay, publish_below_min_batch: small }) {
  if (batch === undefined) return "–";
  if (batch <= 1) return "each change at once";
  const words = `when ${many(batch, "sample")} changed`;
  return small ? `${words}, or ${seconds(delay)} after the first` : `${words}; fewer wait for more`;
}

/** Return the card of classes: `update` takes the counts, and leaves alone what was typed to find one. */
function classesCard() {
  const list = make("ul.classes", { tabindex: "0", "aria-label": "Classes and their samples" });
  const filter = make("input", {
    type: "search",
    placeholder: "Find a class",
    "aria-label": "Find a class",
    autocomplete: "off",
  });
  const more = make("button.quiet.small", { type: "button" }, "Show more");
  const words = make("p.muted");
  const element = make(
    "section.card",
    {},
    make("div.head", {}, make("h2", {}, "Classes"), filter),
    words,
    list,
    more,
  );
  let rows = null;
  let room = CLASSES;
  function redraw() {
    const wanted = filter.value.toLowerCase();
    const found = (rows ?? []).filter(({ text }) => visible(text).toLowerCase().includes(wanted));
    const most = Math.max(1, ...(rows ?? []).map(({ samples }) => samples));
    refresh(
      list,
      found
        .slice(0, room)
        .map(({ key, text, samples }) =>
          make(
            "li",
            { "data-key": key },
            make("span.text", { title: text }, text),
            share(samples / most),
            make("span.number", {}, count(samples)),
          ),
        ),
      rows?.length && !found.length ? make("li.muted", {}, "no class has this name") : null,
    );
    more.hidden = found.length <= room;
    show(more, `Show more of ${count(found.length)}`);
  }
  filter.addEventListener("input", redraw);
  more.addEventListener("click", () => {
    room += CLASSES;
    redraw();
  });
  return {
    element,
    update(counts) {
      rows = counts?.map(({ label, samples }) => ({ key: jsonText(label), text: labelText(label), samples }));
      filter.hidden = !filter.value && !(rows?.length > 12);
      show(words, rows ? "No classes yet." : "Only keys with the scope audit see the counts of each class.");
      words.hidden = Boolean(rows?.length);
      list.hidden = !rows?.length;
      redraw();
    },
  };
}

function share(part) {
  return draw(
    "svg",
    { viewBox: "0 0 72 8", class: "share", "aria-hidden": "true" },
    draw("rect", { class: "rest", width: 72, height: 8, rx: 4 }),
    draw("rect", { width: Math.max(4, 72 * part), height: 8, rx: 4 }),
  );
}

/** Return the charts: `update` asks for their points. */
function chartRow() {
  const whole = (value) => count(Math.round(value));
  const accuracy = lineChart("Accuracy", "on the probe set", percent, { most: 1 });
  const samples = lineChart("Samples", "in the published model", whole, { low: 0 });
  const predictions = lineChart("Predictions", "latency, by minute", seconds, { low: 0 });
  const changes = lineChart("Changes", "time to apply and to solve", seconds, { low: 0 });
  const element = make("div.charts");
  const line = (rows, name, value) => ({
    name,
    points: rows.filter((row) => typeof row[value] === "number").map((row) => [instant(row.time), row[value]]),
  });
  return {
    element,
    async update() {
      let history;
      try {
        history = await json("GET", "/v1/history");
      } catch (error) {
        if (error.status !== 403) throw error;
        show(element, make("p.muted", {}, "Only keys with the scope audit see charts."));
        return;
      }
      const { points = [], latency = [] } = history;
      accuracy.update([line(points, "accuracy", "accuracy")]);
      samples.update([line(points, "samples", "samples")]);
      predictions.update([line(latency, "half below", "p50"), line(latency, "99 % below", "p99")]);
      changes.update([line(points, "apply", "apply_seconds"), line(points, "solve", "solve_seconds")]);
      refresh(element, accuracy.element, samples.element, predictions.element, changes.element);
    },
  };
}

/** Offer to publish and to seal, and say what came of it: a version, or that there was nothing to do. */
function offerActions(place) {
  const said = make("span.muted");
  const tell = (words) => {
    show(said, words);
    announce(words);
  };
  const action = (words, path, outcome) =>
    make(
      "button.quiet",
      {
        type: "button",
        onclick: (event) =>
          busy(event.currentTarget, "Working…", async () => {
            try {
              const before = await json("GET", "/v1/model");
              const { certificate } = await json("POST", path);
              tell(`${outcome(before, certificate)} (${clock(Date.now())})`);
            } catch (error) {
              tell(error.message);
            }
          }),
      },
      words,
    );
  show(
    place,
    said,
    action("Publish now", "/v1/publish", ({ version }, certificate) =>
      certificate > version ? `Published as version ${count(certificate)}` : "Nothing to publish",
    ),
    action("Seal now", "/v1/seal", ({ version, sealed }, certificate) =>
      certificate > version || !sealed ? `Sealed up to version ${count(certificate)}` : "Nothing to seal",
    ),
  );
}
