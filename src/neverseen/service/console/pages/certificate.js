/** One certificate, for anyone: what it says, and whether that holds. */

import { json } from "../api.js";
import { Rejected, parsed } from "../checks.js";
import { announce, copyButton, digest, facts, icon, lines, make, saveButton, show } from "../dom.js";
import { count, many, time } from "../format.js";
import { sha256 } from "../hashing.js";
import { checkList, fileOf } from "../verdicts.js";

export const title = "Certificate";

export async function render(place, { left, number }) {
  const [bytes, listed] = await Promise.all([
    fileOf(number),
    json("GET", "/v1/certificates?limit=1", { open: true }).catch(() => null),
  ]);
  const raw = new TextDecoder().decode(bytes);
  let certificate = null,
    fault = null;
  try {
    certificate = await parsed(bytes);
    if (certificate.number !== number)
      throw new Rejected(`The file is that of certificate ${certificate.number}, not ${number}.`);
  } catch (error) {
    fault = error;
  }
  const newest = listed?.certificates?.[0]?.number; // undefined if the list did not come
  const around = make(
    "nav.around",
    { "aria-label": "Certificates around" },
    number > 1
      ? make("a", { href: `/certificates/${number - 1}`, rel: "prev" }, `← Certificate ${number - 1}`)
      : make("span.muted", {}, "This is the first"),
    number < newest
      ? make("a", { href: `/certificates/${number + 1}`, rel: "next" }, `Certificate ${number + 1} →`)
      : make("span.muted", {}, newest ? "This is the newest" : "There may be newer ones"),
  );
  const file = make(
    "section.card",
    {},
    make("h2", {}, "The file"),
    make(
      "p.muted",
      {},
      "Canonical JSON. The checks above, and the command ",
      make("code", {}, "neverseen verify"),
      ", read it byte by byte.",
    ),
    facts([["SHA-256", digest(await sha256(bytes), "the digest of this file")]]),
    make(
      "div.actions.start",
      {},
      saveButton("Download JSON", `certificate-${number}.json`, bytes, "application/json"),
      copyButton(raw, "the file"),
    ),
    make("details", {}, make("summary", {}, "Show it"), make("pre", { tabindex: "0" }, lines(pretty(raw)))),
  );
  if (fault) {
    show(
      place,
      make("h1", {}, `Certificate ${number}`),
      around,
      make(
        "section.card.verdict.bad",
        { id: "checks" },
        make("h2", {}, icon("bad"), "Not a valid certificate"),
        make("p", {}, fault.message),
      ),
      file,
    );
    announce(`Not a valid certificate. ${fault.message}`);
    return;
  }
  const verdict = make("section.card.verdict");
  const checks = checkList(certificate, bytes, verdict, left);
  show(place, make("h1", {}, `Certificate ${number}`), around, verdict, story(certificate), checks.element, file);
  await checks.run();
}

function pretty(raw) {
  try {
    return JSON.stringify(JSON.parse(raw), null, 2).slice(0, 100_000);
  } catch {
    return raw.slice(0, 100_000);
  }
}

/** What the certificate says, in plain words. */
function story({
  time: issued,
  learned,
  forgotten,
  before,
  after,
  commitments,
  configuration,
  error_bound: bound,
  key: signer,
}) {
  const came = learned ? `learned ${many(learned, "sample")}` : null;
  const went = forgotten ? `forgot ${many(forgotten, "sample")}` : null;
  const what = [came, went].filter(Boolean).join(" and ") || "neither learned nor forgot";
  const compare = (name, one, other) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, name),
      make("td", { "data-name": "Before" }, one),
      make("td", { "data-name": "After" }, other),
    );
  return make(
    "section.card",
    {},
    make("h2", {}, "What it says"),
    make(
      "p.lead",
      {},
      `On ${time(issued)}, the model ${what}. `,
      forgotten ? "Bit for bit, this version never saw the forgotten samples, unless they were learned again." : "",
    ),
    make(
      "table.stacked.compare",
      {},
      make("caption.unseen", {}, "Before and after"),
      make(
        "thead",
        {},
        make("tr", {}, make("td"), make("th", { scope: "col" }, "Before"), make("th", { scope: "col" }, "After")),
      ),
      make(
        "tbody",
        {},
        compare("Samples", count(before.samples), count(after.samples)),
        compare("Classes", count(before.classes), count(after.classes)),
        compare(
          "Model",
          digest(before.model, "the model's digest before"),
          digest(after.model, "the model's digest after"),
        ),
        compare(
          "Sums",
          digest(before.statistics, "the sums' digest before"),
          digest(after.statistics, "the sums' digest after"),
        ),
      ),
    ),
    facts([
      ["Signed with", digest(signer, "the public key")],
      ["Configuration", digest(configuration, "the configuration's digest")],
      [
        "Error bound",
        make("code", {}, `2^${bound.split("p")[1]}`),
        make("span.hint", {}, "no weight is further from the exact solution"),
      ],
      [
        "Forgotten",
        commitments.length
          ? make(
              "details.inline",
              {},
              make("summary", {}, many(commitments.length, "commitment")),
              make(
                "ul.commitments",
                { tabindex: "0" },
                commitments.slice(0, 200).map((entry) => make("li", {}, make("code", {}, entry))),
              ),
              commitments.length > 200
                ? make("p.muted", {}, `and ${count(commitments.length - 200)} more in the file`)
                : null,
            )
          : "nothing",
      ],
    ]),
  );
}
