/** Signing in: an API key, kept in this tab alone. */

import { json } from "../api.js";
import { announce, busy, complain, field, make, notice, show } from "../dom.js";
import { many } from "../format.js";
import { changes, saveAll, untaken } from "../keeping.js";
import { note, signIn } from "../session.js";

export const title = "Sign in";

export async function render(place, { again, left, reason }) {
  const input = make("input", {
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    placeholder: "nsk_…",
  });
  const button = make("button", { type: "submit" }, "Sign in");
  const said = make("div", {}, reason ? notice("plain", make("p", {}, reason)) : null);
  const form = make(
    "form.card.narrow",
    { novalidate: true },
    make("h1", {}, "Sign in"),
    make(
      "p.muted",
      {},
      "Sign in with the API key that the operator of this service gave you. ",
      "Certificates need no key: ",
      make("a", { href: "/#/certificates" }, "look at them"),
      ".",
    ),
    said,
    unsaved(left),
    field("API key", input, "It stays in this tab until you sign out or close it."),
    button,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, "Signing in…", async () => {
      const token = input.value.trim();
      if (!/^[\x21-\x7e]+$/.test(token)) {
        complain(said, token ? "A key has no spaces and no special characters." : "Paste your key first.");
        input.focus();
        return;
      }
      let scopes = null;
      try {
        const model = await json("GET", "/v1/model", { open: true, headers: { Authorization: `Bearer ${token}` } });
        scopes = model.key?.scopes ?? [];
      } catch (error) {
        if (error.status !== 403) {
          const words =
            error.status === 401
              ? "The service does not know this key, or it was revoked. Check that you copied all of it."
              : error.message;
          complain(said, words);
          input.focus();
          return;
        }
      }
      signIn(token);
      if (scopes) note(scopes);
      await again();
      document.getElementById("main").focus({ preventScroll: true });
    });
  });
  show(place, form);
  if (reason) announce(reason);
  input.focus();
}

/** Offer the receipts that the last key did not save, if the service refused it: no other key gets them. */
function unsaved(left) {
  const place = make("div");
  const button = make("button.quiet", { type: "button", onclick: saveAll }, "Download");
  function update() {
    const words = `${many(untaken(), "receipt")} not saved yet. The service keeps no copy, and no other key gets any.`;
    show(place, untaken() ? notice("plain", make("p", {}, words), button) : null);
  }
  changes.addEventListener("change", update, { signal: left });
  update();
  return place;
}
