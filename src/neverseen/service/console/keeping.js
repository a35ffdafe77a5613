/**
 * Receipts that this tab was given and must not lose. They are secrets, so they are in memory only: whoever leaves the
 * console before they are copied or downloaded is asked first.
 */

import { copyButton, field, icon, make, refresh, save, show, theirs } from "./dom.js";
import { labelText, many } from "./format.js";
import { receiptLines } from "./receipts.js";

/** @typedef {{request: Object, receipts: string[], labels: Array, ids: string[], taken: boolean}} Batch */

/** @type {Batch[]} newest first */
let batches = [];
let awaited = 0; // requests to learn whose answers, and receipts, are still to come
let visit = 0; // counts who has signed out: what was theirs does not come to the next

/** Listeners for "change", and for "drop" when somebody signs out. */
export const changes = new EventTarget();

function changed() {
  changes.dispatchEvent(new Event("change"));
}

/**
 * Note that receipts are on their way: until `keep` or `end` is called, leaving would lose them.
 *
 * @returns {{keep: Function, end: Function}} `keep` keeps them until the tab is closed or somebody signs out; `end`
 *   says that none will come
 */
export function expect() {
  const mine = visit;
  let open = true,
    kept = false;
  awaited += 1;
  changed();
  function end() {
    if (open && mine === visit) awaited -= 1;
    open = false;
    changed();
  }
  function keep(request, receipts, labels, ids) {
    if (!kept && mine === visit) batches = [{ request, receipts, labels, ids, taken: false }, ...batches];
    kept = true; // a request that was sent twice may be answered twice
    end();
  }
  return { keep, end };
}

/** Return how many receipts were neither copied nor downloaded. */
export function untaken() {
  return batches.reduce((sum, { taken, receipts }) => sum + (taken ? 0 : receipts.length), 0);
}

/** Return what would be lost with this tab, in words; "" if nothing would. */
export function atRisk() {
  const kept = untaken() ? `${many(untaken(), "receipt")} not saved yet` : "";
  const coming = awaited ? `${many(awaited, "request")} whose receipts have not come yet` : "";
  return [kept, coming].filter(Boolean).join(", and ");
}

/** Drop all receipts: somebody signs out. */
export function drop() {
  batches = [];
  awaited = 0;
  visit += 1;
  changes.dispatchEvent(new Event("drop"));
  changed();
}

function take(chosen) {
  for (const batch of chosen) batch.taken = true;
  changed();
}

/** Save all receipts as one file. */
export function saveAll() {
  const lines = batches.map(({ receipts, labels, ids }) => receiptLines(receipts, labels, ids));
  save("receipts.jsonl", lines.reverse().join(""), "application/jsonl");
  take(batches);
}

/**
 * Return an element that shows all receipts of this visit, newest first, until the page is left.
 *
 * @param {AbortSignal} left
 * @param {(text: string) => Node} [offer] - makes what else to do with some receipts
 */
export function keptReceipts(left, offer = () => null) {
  const place = make("section.card.kept", { id: "kept" });
  const cards = new Map();
  function update() {
    place.hidden = !batches.length;
    for (const batch of batches) if (!cards.has(batch)) cards.set(batch, card(batch, offer));
    for (const batch of batches) cards.get(batch).told();
    const all = make("button.quiet.small", { type: "button", onclick: saveAll }, icon("down"), "Download all");
    refresh(
      place,
      make("div.head", {}, make("h2", {}, "Receipts of this visit"), batches.length > 1 ? all : null),
      make(
        "p.muted",
        {},
        "The service keeps no copy. They exist only in this tab: if you close or reload it, they are lost.",
      ),
      batches.map((batch) => cards.get(batch).element),
    );
  }
  changes.addEventListener("change", update, { signal: left });
  update();
  return place;
}

function card(batch, offer) {
  const { request, receipts, labels, ids } = batch;
  const one = receipts.length === 1;
  const text = receipts.join("\n");
  const rows = Math.min(6, receipts.length + 2);
  const area = make("textarea", { rows, readonly: true, spellcheck: "false", value: text });
  area.addEventListener("copy", () => {
    if (area.selectionStart === 0 && area.selectionEnd === area.value.length) take([batch]); // a part saves nothing
  });
  const id = ids.length ? [", id ", theirs(ids[0])] : null;
  const state = make("span.hint");
  const download = () => {
    save(`receipts-${request.id}.jsonl`, receiptLines(receipts, labels, ids), "application/jsonl");
    take([batch]);
  };
  const element = make(
    "div.batch",
    { "data-request": request.id },
    field(one ? "Receipt" : `${many(receipts.length, "receipt")}, one a line`, area),
    make("p.hint", {}, "Label ", theirs(labelText(labels[0])), id, ". ", state),
    make(
      "div.actions.start",
      {},
      copyButton(text, one ? "the receipt" : "the receipts", () => take([batch])),
      make("button.quiet", { type: "button", onclick: download }, icon("down"), "Download"),
      offer(text),
    ),
  );
  return { element, told: () => show(state, batch.taken ? "Saved." : "Not saved yet.") };
}
