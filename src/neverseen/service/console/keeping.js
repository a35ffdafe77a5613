/**
 * Receipts that this tab was given and must not lose. They are secrets, so they are in memory only: whoever leaves the
 * console before they are copied or downloaded is asked first. And they are of one key: no other gets them.
 */

import { copyButton, field, icon, make, refresh, save, show, theirs } from "./dom.js";
import { labelText, many } from "./format.js";
import { receiptLines } from "./receipts.js";
import { visitor } from "./session.js";

/**
 * @typedef {{request: Object, receipts: string[], labels: Array, ids: string[], taken: boolean, whose: string}} Batch
 */

/** @type {Batch[]} newest first, of all keys that were signed in */
let batches = [];
/** @type {Set<{whose: string, dropped: boolean}>} requests to learn whose answers, and receipts, are still to come */
const awaited = new Set();

function isMine({ whose }) {
  return whose === visitor();
}

/** Listeners for "change", and for "drop" when somebody signs out. */
export const changes = new EventTarget();

function changed() {
  changes.dispatchEvent(new Event("change"));
}

/**
 * Note that receipts are on their way: until `keep` or `end` is called, leaving would lose them.
 *
 * @returns {{keep: Function, end: Function}} `keep` keeps them until the tab is closed or this key signs out; `end`
 *   says that none will come
 */
export function expect() {
  const asked = { whose: visitor(), dropped: false };
  let kept = false;
  awaited.add(asked);
  changed();
  function end() {
    awaited.delete(asked);
    changed();
  }
  function keep(request, receipts, labels, ids) {
    const batch = { request, receipts, labels, ids, taken: false, whose: asked.whose };
    if (!kept && !asked.dropped) batches = [batch, ...batches];
    kept = true; // a request that was sent twice may be answered twice
    end();
  }
  return { keep, end };
}

function size(chosen) {
  return chosen.reduce((sum, { taken, receipts }) => sum + (taken ? 0 : receipts.length), 0);
}

/** Return how many receipts of this key were neither copied nor downloaded. */
export function untaken() {
  return size(batches.filter(isMine));
}

/** Return what this key would lose by signing out, in words; "" if nothing. */
export function atRisk() {
  const coming = [...awaited].filter(isMine).length;
  return [
    untaken() ? `${many(untaken(), "receipt")} not saved yet` : "",
    coming ? `${many(coming, "request")} whose receipts have not come yet` : "",
  ]
    .filter(Boolean)
    .join(", and ");
}

/** Return whether anything would be lost with this tab, whoever's it is. */
export function atRiskHere() {
  return size(batches) + awaited.size > 0;
}

/** Drop all receipts of this key: it signs out. */
export function drop() {
  batches = batches.filter((batch) => !isMine(batch));
  for (const asked of [...awaited].filter(isMine)) {
    asked.dropped = true;
    awaited.delete(asked);
  }
  changes.dispatchEvent(new Event("drop"));
  changed();
}

function take(chosen) {
  for (const batch of chosen) batch.taken = true;
  changed();
}

/** Save all receipts of this key as one file. */
export function saveAll() {
  const mine = batches.filter(isMine);
  const lines = mine.map(({ receipts, labels, ids }) => receiptLines(receipts, labels, ids));
  save("receipts.jsonl", lines.reverse().join(""), "application/jsonl");
  take(mine);
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
    const mine = batches.filter(isMine);
    place.hidden = !mine.length;
    for (const batch of mine) if (!cards.has(batch)) cards.set(batch, card(batch, offer));
    for (const batch of mine) cards.get(batch).told();
    const all = make("button.quiet.small", { type: "button", onclick: saveAll }, icon("down"), "Download all");
    refresh(
      place,
      make("div.head", {}, make("h2", {}, "Receipts of this visit"), mine.length > 1 ? all : null),
      make(
        "p.muted",
        {},
        "The service keeps no copy. They exist only in this tab: if you close or reload it, they are lost.",
      ),
      mine.map((batch) => cards.get(batch).element),
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
