/** The receipts that this tab was given, for whoever has not saved them yet. */

import { make, notice, show } from "../dom.js";
import { keptReceipts } from "../keeping.js";

export const title = "Receipts";

export async function render(place, { left }) {
  const kept = keptReceipts(left);
  show(
    place,
    make("h1", {}, title),
    kept.hidden ? notice("plain", make("p", {}, "This tab has received no receipts.")) : null,
    kept,
  );
}
