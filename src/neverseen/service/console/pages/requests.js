/** Requests, newest first, as they move. */

import { json, poll } from "../api.js";
import { announce, busy, complain, field, make, notice, refresh, show } from "../dom.js";
import { ago, count, time } from "../format.js";
import { freshness } from "../freshness.js";
import { certificateLink, kindWords, progress, stateChip } from "../progress.js";

export const title = "Requests";
const PAGE = 50;

export async function render(place, { left }) {
  const body = make("tbody");
  const table = make(
    "table.stacked",
    {},
    make("caption.unseen", {}, "Requests, newest first"),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        ["State", "What", "Samples", "When", "Key", "Certificate", "Request"].map((name) =>
          make("th", { scope: "col" }, name),
        ),
      ),
    ),
    body,
  );
  const none = notice(
    "plain",
    make("p", {}, "No requests that are not sealed yet: sealed ones no longer name their key. Look one up by its id."),
  );
  const numbers = make("div.card.flush", {}, none, table);
  const fresh = freshness(numbers);
  const older = make("button.quiet", { type: "button" }, "Older requests");
  const newer = make("button.quiet", { type: "button" }, "Newer requests");
  const which = make("span.muted");
  const starts = [null]; // of the pages up to this one, the request before which each begins; null is the newest
  let shown = [];
  async function update() {
    const start = starts.at(-1);
    const found = await load(start);
    if (left.aborted || start !== starts.at(-1)) return;
    shown = found;
    refresh(body, shown.map(row));
    none.hidden = shown.length > 0 || starts.length > 1;
    table.hidden = shown.length === 0;
    older.hidden = shown.length < PAGE;
    newer.hidden = starts.length === 1;
    show(which, starts.length === 1 ? "" : `Page ${count(starts.length)}`);
  }
  const turn = (button, change) =>
    button.addEventListener("click", () =>
      busy(button, "Loading…", async () => {
        const before = [...starts];
        change();
        try {
          await update();
          announce(`Requests, page ${starts.length}.`);
        } catch (error) {
          starts.splice(0, starts.length, ...before);
          fresh.told(error);
        }
      }),
    );
  turn(older, () => starts.push(shown.at(-1).id));
  turn(newer, () => starts.pop());
  await update();
  show(
    place,
    make("h1", {}, title),
    make("p.muted", {}, "The list updates itself while this tab is open. ", fresh.element),
    numbers,
    make("div.actions.start", {}, newer, older, which),
    lookUp(left),
  );
  poll(
    left,
    async () => {
      await update();
      return 1000;
    },
    fresh.told,
  );
}

/** Return a form that looks a request up by its id, and follows it. */
function lookUp(left) {
  const id = make("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const button = make("button", { type: "submit" }, "Look it up");
  const found = make("div");
  const form = make("form.card", { novalidate: true }, field("Id of a request", id), button, found);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, "Looking…", async () => {
      try {
        const { request } = await json("GET", `/v1/requests/${encodeURIComponent(id.value.trim())}`);
        show(found, progress(request, left));
      } catch (error) {
        complain(found, error.message);
      }
    });
  });
  return form;
}

async function load(before = null) {
  const answer = await json(
    "GET",
    `/v1/requests?limit=${PAGE}${before ? `&before=${encodeURIComponent(before)}` : ""}`,
  );
  return answer.requests ?? answer;
}

function row(request) {
  const cell = (name, ...children) => make("td", { "data-name": name }, ...children);
  const when = request.applied_at;
  const reached = request.state === "published" || request.state === "sealed";
  return make(
    "tr",
    { "data-key": request.id },
    cell("State", stateChip(request)),
    cell("What", kindWords(request.kind)),
    cell("Samples", make("span.number", {}, count(request.samples))),
    cell("When", when ? make("time", { title: time(when) }, ago(when)) : "–"),
    cell("Key", make("bdi.clip", { title: request.key }, request.key ?? "–")),
    cell(
      "Certificate",
      request.certificate && reached ? certificateLink(request.certificate) : make("span.muted", {}, "not yet"),
    ),
    cell("Request", make("code.clip", { title: request.id }, request.id)),
  );
}
