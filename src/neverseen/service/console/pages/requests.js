/** Requests, newest first, as they move. */

import { json, poll } from "../api.js";
import { busy, make, notice, show } from "../dom.js";
import { ago, count, time } from "../format.js";
import { certificateLink, kindWords, stateChip } from "../progress.js";

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
    make("p", {}, "No requests yet. ", make("a", { href: "/#/learn" }, "Learn something"), " to make the first."),
  );
  const more = make("button.quiet", { type: "button", hidden: true }, "Older requests");
  let newest = await load();
  let older = [];
  let drawn = "";
  show(
    place,
    make("h1", {}, title),
    make("p.muted", {}, "The list follows the service by itself while this tab is open."),
    make("div.card.flush", {}, none, table),
    more,
  );

  function update() {
    const all = [...newest, ...older.filter(({ id }) => !newest.some((entry) => entry.id === id))];
    const seen = JSON.stringify(all) + Math.floor(Date.now() / 10_000);
    if (seen === drawn) return;
    drawn = seen;
    const focused = document.activeElement?.closest?.("tr")?.dataset.request;
    show(body, all.map(row));
    if (focused) body.querySelector(`tr[data-request="${CSS.escape(focused)}"] a`)?.focus();
    none.hidden = all.length > 0;
    table.hidden = all.length === 0;
    if (!older.length) more.hidden = newest.length < PAGE;
  }
  more.addEventListener("click", () =>
    busy(more, "Loading…", async () => {
      const last = [...newest, ...older].at(-1);
      const next = await load(last.id);
      older = [...older, ...next];
      more.hidden = next.length < PAGE;
      update();
    }),
  );
  update();
  poll(left, async () => {
    const now = await load();
    if (left.aborted) return 0;
    newest = now;
    update();
    return 1000;
  });
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
    { "data-request": request.id },
    cell("State", stateChip(request.state)),
    cell("What", kindWords(request.kind)),
    cell("Samples", make("span.number", {}, count(request.samples))),
    cell("When", when ? make("time", { title: time(when) }, ago(when)) : "–"),
    cell("Key", make("span.clip", { title: request.key }, request.key ?? "–")),
    cell(
      "Certificate",
      request.certificate && reached ? certificateLink(request.certificate) : make("span.muted", {}, "not yet"),
    ),
    cell("Request", make("code.clip", { title: request.id }, request.id)),
  );
}
