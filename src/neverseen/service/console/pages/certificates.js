/** All certificates. Anyone may look. */

import { json } from "../api.js";
import { busy, complain, digest, make, notice, show } from "../dom.js";
import { count, time } from "../format.js";
import { certificateLink } from "../progress.js";

export const title = "Certificates";

export async function render(place) {
  const [list, signer] = await Promise.all([load(), json("GET", "/v1/certificates/key", { open: true })]);
  const body = make("tbody", {}, list.map(row));
  const more = make("button.quiet", { type: "button" }, "Older certificates");
  const said = make("div");
  let last = list.at(-1)?.number ?? 1;
  more.hidden = last === 1;
  more.addEventListener("click", () =>
    busy(more, "Loading…", async () => {
      try {
        const older = await load(last);
        show(said);
        body.append(...older.map(row));
        last = older.at(-1)?.number ?? 1;
        more.hidden = last === 1;
      } catch (error) {
        complain(said, error.message);
      }
    }),
  );
  const table = make(
    "table.stacked",
    {},
    make("caption.unseen", {}, "Certificates, newest first"),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        ["Certificate", "Issued", "Learned", "Forgotten", "Samples after"].map((name) =>
          make("th", { scope: "col" }, name),
        ),
      ),
    ),
    body,
  );
  show(
    place,
    make("h1", {}, title),
    make(
      "p.muted",
      {},
      "Each published version has a signed certificate: what was learned and forgotten, and digests of the model. ",
      "Certificates hold counts and commitments, no data.",
    ),
    make("p.signer", {}, "Signed with ", digest(signer.key, "the publisher's key")),
    list.length
      ? make("div.card.flush", {}, table)
      : notice("plain", make("p", {}, "No certificates yet: nothing was published.")),
    said,
    more,
  );
}

async function load(before = null) {
  const answer = await json("GET", `/v1/certificates?limit=50${before ? `&before=${before}` : ""}`, { open: true });
  return answer.certificates;
}

function row(entry) {
  const cell = (name, ...children) => make("td", { "data-name": name }, ...children);
  return make(
    "tr",
    {},
    cell("Certificate", certificateLink(entry.number)),
    cell("Issued", time(entry.time)),
    cell("Learned", make("span.number", {}, count(entry.learned))),
    cell("Forgotten", make("span.number", {}, count(entry.forgotten))),
    cell("Samples after", make("span.number", {}, count(entry.samples))),
  );
}
