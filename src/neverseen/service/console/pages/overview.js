/** The model at a glance. */

import { json, poll } from "../api.js";
import { lineChart } from "../chart.js";
import { busy, chip, digest, draw, facts, make, notice, show } from "../dom.js";
import { count, instant, labelText, many, percent, seconds, time } from "../format.js";
import { certificateLink } from "../progress.js";

export const title = "Overview";

const OUTPUTS = { labels: "labels only", "top-k": "the best labels, with scores", scores: "all scores" };

export async function render(place, { left }) {
  const tiles = make("div.tiles"),
    details = make("div.columns"),
    charts = make("div.charts");
  const model = await json("GET", "/v1/model");
  const doing = make("div.actions");
  show(place, make("div.head", {}, make("h1", {}, title), doing), tiles, details, make("h2", {}, "Over time"), charts);
  if (model.key?.scopes?.includes("admin")) offerActions(doing);
  let drawn = "";
  function update(now) {
    const seen = JSON.stringify(now);
    if (seen === drawn) return;
    drawn = seen;
    show(tiles, tileRow(now));
    show(details, modelCard(now), classesCard(now));
  }
  update(model);
  let version = NaN;
  poll(left, async () => {
    const now = await json("GET", "/v1/model");
    if (left.aborted) return 0;
    update(now);
    if (now.version !== version) {
      version = now.version;
      await drawCharts(charts);
    }
    return 3000;
  });
}

function tile(name, value, note) {
  return make("div.tile", {}, make("span.name", {}, name), make("span.value", {}, value), make("span.note", {}, note));
}

function tileRow(model) {
  const waiting = model.queue ?? 0;
  return [
    tile("Samples", count(model.samples), "learned and not forgotten"),
    tile("Classes", count(model.classes), model.classes ? "in the published model" : "none yet"),
    tile(
      "Version",
      model.version ? count(model.version) : "–",
      model.version ? certificateLink(model.version) : "nothing published yet",
    ),
    tile("Queue", count(waiting), waitingWords(waiting, model.unpublished ?? 0)),
  ];
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
          make("p", {}, "The model is empty. ", make("a", { href: "/#/learn" }, "Teach it something"), "."),
        ),
    facts([
      ["Digest", digest(model.digest, "the model's digest")],
      ["Last certificate", last ? certificateLink(last) : "none yet"],
      [
        "Sealed",
        model.sealed ? chip("good", "sealed") : chip("busy", "not yet"),
        make(
          "span.hint",
          {},
          model.sealed
            ? "nothing of what was forgotten is left on disk"
            : "the next seal erases what was forgotten from the files",
        ),
      ],
      ["Backbone", `${model.backbone ?? "–"}, ${many(model.n_features ?? 0, "feature")}`],
      ["Publishing", policyWords(policy)],
      [
        "Sealing",
        policy.seal_after === 0
          ? "with each version"
          : `at most ${seconds(policy.seal_after)} after something was forgotten`,
      ],
      ["Answers with", OUTPUTS[model.output] ?? String(model.output ?? "–")],
      model.key
        ? [
            "Your key",
            `${model.key.name}: ${(model.key.scopes ?? []).join(", ")}`,
            model.key.owner ? `, owner ${model.key.owner}` : "",
          ]
        : null,
    ]),
  );
}

function policyWords({ min_batch: batch, max_delay: delay }) {
  if (batch === undefined) return "–";
  if (batch <= 1) return "each change at once";
  return `when ${many(batch, "sample")} changed, or ${seconds(delay)} after the first`;
}

function classesCard(model) {
  const classes = model.class_counts;
  if (!classes) {
    return make(
      "section.card",
      {},
      make("h2", {}, "Classes"),
      make("p.muted", {}, "Counts of each class are for keys with the scope audit."),
    );
  }
  const most = Math.max(1, ...classes.map(({ samples }) => samples));
  const rows = classes.map(({ label, samples }) => ({ label, samples, text: labelText(label) }));
  const list = make("ul.classes", { tabindex: "0", "aria-label": "Classes and their samples" });
  const filter = make("input", {
    type: "search",
    placeholder: "Find a class",
    "aria-label": "Find a class",
    autocomplete: "off",
  });
  const redraw = () => {
    const wanted = filter.value.toLowerCase();
    const found = rows.filter(({ text }) => text.toLowerCase().includes(wanted));
    show(
      list,
      found.map(({ text, samples }) =>
        make(
          "li",
          {},
          make("span.text", { title: text }, text),
          share(samples / most),
          make("span.number", {}, count(samples)),
        ),
      ),
      found.length ? null : make("li.muted", {}, "no class has this name"),
    );
  };
  filter.addEventListener("input", redraw);
  redraw();
  return make(
    "section.card",
    {},
    make("div.head", {}, make("h2", {}, "Classes"), rows.length > 12 ? filter : null),
    rows.length ? list : make("p.muted", {}, "No classes yet."),
  );
}

function share(part) {
  return draw(
    "svg",
    { viewBox: "0 0 72 8", class: "share", "aria-hidden": "true" },
    draw("rect", { class: "rest", width: 72, height: 8, rx: 4 }),
    draw("rect", { width: Math.max(4, 72 * part), height: 8, rx: 4 }),
  );
}

async function drawCharts(place) {
  let history;
  try {
    history = await json("GET", "/v1/history");
  } catch (error) {
    if (error.status !== 403) throw error;
    show(place, make("p.muted", {}, "Charts are for keys with the scope audit."));
    return;
  }
  const points = history.points ?? [],
    latency = history.latency ?? [];
  const line = (rows, name, value) => ({
    name,
    points: rows.filter((row) => typeof row[value] === "number").map((row) => [instant(row.time), row[value]]),
  });
  show(
    place,
    lineChart("Accuracy", "on the probe set", [line(points, "accuracy", "accuracy")], percent, { most: 1 }),
    lineChart(
      "Samples",
      "in the published model",
      [line(points, "samples", "samples")],
      (value) => count(Math.round(value)),
      { low: 0 },
    ),
    lineChart(
      "Predictions",
      "latency, by minute",
      [line(latency, "half below", "p50"), line(latency, "99 % below", "p99")],
      seconds,
      { low: 0 },
    ),
    lineChart(
      "Changes",
      "time to apply and to solve",
      [line(points, "apply", "apply_seconds"), line(points, "solve", "solve_seconds")],
      seconds,
      { low: 0 },
    ),
  );
}

function offerActions(place) {
  const said = make("span.muted", { role: "status" });
  const action = (words, path, done) =>
    make(
      "button.quiet",
      {
        type: "button",
        onclick: (event) =>
          busy(event.currentTarget, "Working…", async () => {
            try {
              await json("POST", path);
              said.textContent = `${done} ${time(Date.now())}.`;
            } catch (error) {
              said.textContent = error.message;
            }
          }),
      },
      words,
    );
  show(place, said, action("Publish now", "/v1/publish", "Published"), action("Seal now", "/v1/seal", "Sealed"));
}
