/** A request on its way: queued, applied, published, sealed. */

import { json, poll } from "./api.js";
import { announce, chip, facts, make, refresh } from "./dom.js";
import { many, time } from "./format.js";
import { freshness } from "./freshness.js";

/** What each state means. A seal erases what was forgotten: to what was learned it does nothing. */
const MEANING = {
  queued: "waits for its turn",
  applied: "durable: on disk, and in the next version",
  published: "the model that answers has it",
  sealed: "nothing of it is left in the store's files",
};

function statesOf({ kind }) {
  return Object.keys(MEANING).slice(0, kind === "learn" ? 3 : 4);
}

/** Return how far a request is: the last that concerns it. */
function stateOf(request) {
  return request.state === "sealed" ? statesOf(request).at(-1) : request.state;
}

/** Return a request's state as a chip. */
export function stateChip(request) {
  const state = stateOf(request);
  return chip(state === "published" || state === "sealed" ? "said" : "busy", state);
}

/** Return what a request is, in words. */
export function kindWords(kind) {
  return { learn: "Learn", forget: "Forget", forget_class: "Forget a class" }[kind] ?? String(kind);
}

/** Return what a request is about; of a class, not every key is told how many samples it had. */
function samplesWords({ kind, samples }) {
  return samples === null ? kindWords(kind) : `${kindWords(kind)}, ${many(samples, "sample")}`;
}

/** Return a link to a certificate's page. */
export function certificateLink(number) {
  return make("a", { href: `/certificates/${number}` }, `Certificate ${number}`);
}

/**
 * Return an element that follows a request to its last state, or until the page is left.
 *
 * @param {Object} request - as the service gave it, or its id alone
 * @param {AbortSignal} left
 */
export function progress(request, left) {
  const place = make("div.progress");
  const told = make("div.progress");
  const fresh = freshness(told);
  place.append(told, fresh.element);
  let state = null;
  let last = false;
  function update(now) {
    if (stateOf(now) === state) return;
    const states = statesOf(now);
    state = stateOf(now);
    last = state === states.at(-1);
    const reached = states.indexOf(state);
    const published = reached >= states.indexOf("published");
    refresh(
      told,
      make(
        "ol.steps",
        {},
        states.map((name, at) =>
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
        ["What", samplesWords(now)],
        now.applied_at ? ["Applied", time(now.applied_at)] : null,
        ["Certificate", published && now.certificate ? certificateLink(now.certificate) : "comes when it is published"],
      ]),
    );
    announce(`The request is ${state}.`);
  }
  if (request.state) update(request);
  poll(
    left,
    async () => {
      const answer = await json("GET", `/v1/requests/${encodeURIComponent(request.id)}`);
      update(answer.request ?? answer);
      if (last || !place.isConnected) return null;
      return state === "published" ? 3000 : 500;
    },
    fresh.told,
  );
  return place;
}
