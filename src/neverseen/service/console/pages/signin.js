/** Signing in: an API key, kept in this tab alone. */

import { json } from "../api.js";
import { announce, busy, complain, field, make, notice, show } from "../dom.js";
import { note, signIn, signOut } from "../session.js";

export const title = "Sign in";

export async function render(place, { again, reason }) {
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
      signIn(token);
      try {
        const model = await json("GET", "/v1/model", { open: true, headers: { Authorization: `Bearer ${token}` } });
        note(model.key?.scopes ?? []);
      } catch (error) {
        if (error.status !== 403) {
          signOut();
          const words =
            error.status === 401
              ? "The service does not know this key, or it was revoked. Check that you copied all of it."
              : error.message;
          complain(said, words);
          input.focus();
          return;
        }
      }
      await again();
      document.getElementById("main").focus({ preventScroll: true });
    });
  });
  show(place, form);
  if (reason) announce(reason);
  input.focus();
}
