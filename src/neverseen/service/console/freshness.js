/** Whether what is shown is still so: when the service said it, and since when it has said nothing. */

import { announce, icon, make, refresh } from "./dom.js";
import { clock } from "./format.js";

/**
 * Return a line that says how old the numbers of an element are. While they are stale the element is greyed.
 *
 * @param {HTMLElement} place - what holds the numbers
 * @returns {{element: HTMLElement, told: (error: Error|null) => void}} `told` is for `poll`
 */
export function freshness(place) {
  const element = make("span.fresh");
  let last = Date.now();
  let stale = false;
  function told(error) {
    if (!error) last = Date.now();
    const was = stale;
    stale = error !== null;
    place.toggleAttribute("data-stale", stale);
    element.classList.toggle("stale", stale);
    refresh(
      element,
      stale
        ? [icon("wait"), make("span", {}, make("b", {}, `Stale: as of ${clock(last)}. `), error.message)]
        : `As of ${clock(last)}`,
    );
    if (stale && !was && error.status) announce(`The numbers are stale. ${error.message}`); // a banner tells the rest
  }
  told(null);
  return { element, told };
}
