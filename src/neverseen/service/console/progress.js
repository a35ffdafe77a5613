/** A request on its way: queued, applied, published, sealed. */

import { json, poll } from "./api.js";
import { announce, chip, facts, make, show } from "./dom.js";
import { many, time } from "./format.js";

export const STATES = ["queued", "applied", "published", "sealed"];
const MEANING = {
  queued: "waits for its turn",
  applied: "durable: on disk, and in the next version",
  published: "the model that answers has it",
  sealed: "nothing of it is left in the store's files",
};

/** Return a state as a chip. */
export function stateChip(state) {
  return chip(state === "published" || state === "sealed" ? "good" : "busy", state);
}

/** Return what a request is, in words. */
export function kindWords(kind) {
  return { learn: "Learn", forget: "Forget", forget_class: "Forget a class" }[kind] ?? String(kind);
}

/** Return a link to a certificate's page. */
export function certificateLink(number) {
  return make("a", { href: `/certificates/${number}` }, `Certificate ${number}`);
}

/**
 * Return an element that follows a request until it is sealed, or the page is left.
 *
 * @param {Object} request - as the service gave it
 * @param {AbortSignal} left
 */
export function progress(request, left) {
  const place = make("div.progress");
  let state = null;
  function update(now) {
    if (now.state === state) return;
    state = now.state;
    const reached = STATES.indexOf(state);
    const published = reached >= STATES.indexOf("published");
    show(
      place,
      make(
        "ol.steps",
        {},
        STATES.map((name, at) =>
          make(
            `li.${at <= reached ? "done" : "todo"}`,
            { "aria-current": at === reached ? "step" : null },
            make("b", {}, name),
            make("span", {}, MEANING[name]),
          ),
        ),
      ),
      facts([
        ["Request", make("code", {}, now.id)],
        ["What", `${kindWords(now.kind)}, ${many(now.samples, "sample")}`],
        now.applied_at ? ["Applied", time(now.applied_at)] : null,
        ["Certificate", published && now.certificate ? certificateLink(now.certificate) : "comes when it is published"],
      ]),
    );
    announce(`The request is ${state}.`);
  }
  update(request);
  poll(left, async () => {
    const answer = await json("GET", `/v1/requests/${encodeURIComponent(request.id)}`);
    update(answer.request ?? answer);
    if (state === "sealed" || !place.isConnected) return null;
    return state === "published" ? 3000 : 500;
  });
  return place;
}
