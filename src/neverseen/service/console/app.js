/** The console: which page is shown, who is signed in, and whether the service answers. */

import { ask, events, pause } from "./api.js";
import { announce, make, notice, show } from "./dom.js";
import { many } from "./format.js";
import { atRisk, atRiskHere, changes, drop, saveAll, untaken } from "./keeping.js";
import { key, may, signOut } from "./session.js";
import * as certificate from "./pages/certificate.js";
import * as certificates from "./pages/certificates.js";
import * as forget from "./pages/forget.js";
import * as learn from "./pages/learn.js";
import * as overview from "./pages/overview.js";
import * as predict from "./pages/predict.js";
import * as receipts from "./pages/receipts.js";
import * as requests from "./pages/requests.js";
import * as signin from "./pages/signin.js";

/** Each page has a `title`, and `render(place, context)` that fills an element. */
const PAGES = [
  { path: "/", page: overview },
  { path: "/requests", page: requests, needs: ["learn", "forget", "audit"] },
  { path: "/learn", page: learn, needs: ["learn"] },
  { path: "/forget", page: forget, needs: ["forget"] },
  { path: "/predict", page: predict, needs: ["predict"] },
  { path: "/certificates", page: certificates, open: true },
  { path: "/receipts", page: receipts, open: true, unlisted: true },
];

const main = document.getElementById("main");
const banner = document.getElementById("banner");
let leave = new AbortController();
let failed = false;
let reason = null;
let shown = null; // the address of the page that is shown

/** Go to a page of the console without loading it anew: what the tab was given stays in memory. */
function go(address) {
  if (address !== location.href) history.pushState(null, "", address);
  route({ moved: true });
}

async function route({ moved = false } = {}) {
  leave.abort();
  shown = location.href;
  leave = new AbortController();
  const left = leave.signal;
  const { page, open = false, path, number } = current();
  const asked = open || key() ? page : signin;
  drawFrame(path);
  document.title = `${number ? `Certificate ${number}` : asked.title} · neverseen`;
  const context = { left, number, again: route, reason };
  reason = null;
  failed = false;
  const place = make("div.page");
  show(main, place);
  if (moved) main.focus({ preventScroll: true });
  if (moved) window.scrollTo(0, 0);
  show(
    place,
    make("h1", {}, asked.title),
    make("p.muted.loading", {}, make("span.spin", { "aria-hidden": "true" }), "Loading…"),
  );
  try {
    await asked.render(place, context);
  } catch (error) {
    if (left.aborted) return;
    failed = true;
    const retry = make("button", { type: "button", onclick: () => route() }, "Try again");
    show(place, make("h1", {}, asked.title), notice("bad", make("p", {}, error.message), retry));
    announce(error.message);
  }
}

function current() {
  const found = /^\/certificates\/([1-9]\d{0,15})\/?$/.exec(location.pathname);
  if (found) return { page: certificate, open: true, path: "/certificates", number: Number(found[1]) };
  const path = location.hash.replace(/^#/, "") || "/";
  return PAGES.find((entry) => entry.path === path) ?? PAGES[0];
}

function drawFrame(path) {
  const offered = PAGES.filter(
    ({ open, needs, unlisted }) => !unlisted && (open || (key() && (!needs || may(...needs)))),
  );
  show(
    document.getElementById("nav"),
    offered.map((entry) =>
      make("a", { href: `/#${entry.path}`, "aria-current": entry.path === path ? "page" : null }, entry.page.title),
    ),
  );
  tellUnsaved();
  const out = make("button.quiet.small", { type: "button", onclick: leaveAccount }, "Sign out");
  const into = make("a", { href: "/#/" }, "Sign in");
  show(document.getElementById("who"), unsaved, key() ? out : path === "/certificates" ? into : null);
}

const unsaved = make("a.unsaved", { href: "/#/receipts", hidden: true });
function tellUnsaved() {
  unsaved.hidden = !untaken();
  show(unsaved, `${many(untaken(), "receipt")} to save`);
}
changes.addEventListener("change", tellUnsaved);

async function leaveAccount() {
  if (atRisk() && !(await mayLose())) return;
  drop();
  signOut();
  reason = "You are signed out. The key is no longer in this tab.";
  go(new URL("/#/", location.href).href);
}

/** Ask whether what is not saved may be lost. @returns {Promise<boolean>} */
function mayLose() {
  const back = make("button.quiet", { type: "button", autofocus: true }, "Stay");
  const lose = make("button.danger", { type: "button" }, "Lose them");
  const keepThem = make("button", { type: "button", hidden: !untaken() }, "Download, then sign out");
  const dialog = make(
    "dialog",
    { "aria-labelledby": "lose-title" },
    make("h2", { id: "lose-title" }, "Signing out loses receipts"),
    make("p", {}, `${atRisk()}. The service keeps no copy.`),
    make("div.actions", {}, back, lose, keepThem),
  );
  document.body.append(dialog);
  return new Promise((resolve) => {
    const end = (answer) => () => {
      resolve(answer);
      dialog.close();
    };
    back.addEventListener("click", end(false));
    lose.addEventListener("click", end(true));
    keepThem.addEventListener("click", () => {
      saveAll();
      end(true)();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(false);
    });
    dialog.showModal();
  });
}

let mending = false;
let leaving = false; // what is asked when a page is left is cut off, which says nothing about the service
async function mend() {
  if (leaving) return;
  banner.hidden = false;
  if (mending) return;
  mending = true;
  const now = make("button.small", { type: "button" }, "Try now");
  show(banner, make("span", {}, "The service does not answer. Trying again every few seconds."), now);
  while (!banner.hidden) {
    await Promise.race([
      pause(4000),
      new Promise((resolve) => {
        now.onclick = resolve;
      }),
    ]);
    if (!document.hidden) await ask("GET", "/healthz", { open: true, timeout: 5000 }).catch(() => null);
  }
  mending = false;
}

window.addEventListener("beforeunload", (event) => {
  if (atRiskHere()) event.preventDefault(); // the browser asks
  leaving = true;
  setTimeout(() => {
    leaving = false; // who is still here has stayed
  }, 3000);
});
for (const dragged of ["dragover", "drop"]) {
  window.addEventListener(dragged, (event) => event.preventDefault()); // a file beside its field would replace the page
}
events.addEventListener("down", mend);
events.addEventListener("up", () => {
  if (banner.hidden) return;
  banner.hidden = true;
  announce("The service answers again.");
  if (failed) route();
});
events.addEventListener("signed-out", () => {
  if (!key()) return;
  signOut();
  reason = "The service does not know this key, or it was revoked. Sign in with another one.";
  route();
});
for (const moved of ["hashchange", "popstate"]) {
  window.addEventListener(moved, () => {
    if (location.href !== shown && location.hash !== "#main") route({ moved: true });
  });
}
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.origin !== location.origin || !/^\/(certificates\/\d+)?$/.test(link.pathname) || link.download) return;
  event.preventDefault();
  go(link.href);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
route();
