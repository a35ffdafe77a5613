/**
 * Making elements. Text only ever becomes text: nothing here, and nothing that uses it, parses HTML. And all of it is
 * seen: signs that hide, or turn the direction of writing, become their numbers on the way (`visible`).
 */

import { visible } from "./format.js";

const READ = new Set(["aria-label", "label", "placeholder", "title"]); // attributes that people read
const SVG = "http://www.w3.org/2000/svg";

/**
 * Return a new element.
 *
 * @param {string} name - a tag, with classes after dots: "p.muted"
 * @param {Object<string, *>} [fields] - `on...` are listeners, `false` and null are left out, `true` is an empty
 *   attribute, `value` and `checked` are set as properties, all else as attributes
 * @param {...(Node|string|number|null|Array)} children - strings and numbers become text
 */
export function make(name, fields = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  fill(element, fields, children);
  return element;
}

/** As `make`, for SVG. */
export function draw(tag, fields = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  fill(element, fields, children);
  return element;
}

function fill(element, fields, children) {
  for (const [key, value] of Object.entries(fields)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value === true ? "" : READ.has(key) ? visible(value) : String(value));
  }
  element.append(...asNodes(children));
}

function asNodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined)
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}

/** Return a text of several lines, such as a file's, in which lines stay lines. */
export function lines(text) {
  return document.createTextNode(text.split("\n").map(visible).join("\n"));
}

/** Return words of somebody else's: their direction of writing does not touch what stands beside them. */
export function theirs(text, name = "bdi.text") {
  return make(name, {}, text);
}

/** Replace what an element holds. */
export function show(element, ...children) {
  element.replaceChildren(...asNodes(children));
}

/**
 * Make an element hold what is given, and keep every node that need not change: focus, selection, what was typed and
 * what was unfolded stay. Children with `data-key` are told apart by it, others by their place. Listeners are those of
 * the nodes that stay: what they need must be in an attribute. A node that is to go in itself, not only its like, is
 * there already or has a `data-key`.
 */
export function refresh(element, ...children) {
  const wanted = asNodes(children);
  const stays = new Set(wanted);
  const keys = new Set(wanted.map(keyOf));
  const keyed = new Map();
  for (const node of [...element.childNodes]) {
    if (stays.has(node)) continue;
    const key = keyOf(node);
    if (key === undefined) continue;
    if (keys.has(key)) keyed.set(key, node);
    else node.remove();
  }
  let place = element.firstChild;
  for (const fresh of wanted) {
    const key = keyOf(fresh);
    const there = key === undefined ? place : keyed.get(key);
    const same = there && !stays.has(there) && fresh.parentNode !== element && alike(there, fresh);
    const kept = same ? there : fresh;
    if (kept === place) place = place.nextSibling;
    else element.insertBefore(kept, place);
    if (kept !== fresh) become(kept, fresh);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function keyOf(node) {
  return node.dataset?.key;
}

function alike(one, other) {
  return one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function become(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const name of old.getAttributeNames()) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  refresh(old, ...fresh.childNodes);
}

const PATHS = {
  good: "M3.5 8.5l3 3 6-7",
  bad: "M4 4l8 8M12 4l-8 8",
  wait: "M8 1.8a6.2 6.2 0 1 0 .01 0M8 4.8V8l2.2 1.4",
  note: "M8 1.8a6.2 6.2 0 1 0 .01 0M8 7.4v3.4M8 5.1v.1",
  copy: "M6 6h7.5v7.5H6zM2.5 10V2.5H10",
  down: "M8 3v7M4.8 7.3 8 10.5l3.2-3.2M3.5 13h9",
};

/** Return a small picture that says nothing by itself: words always stand beside it. */
export function icon(name) {
  return draw(
    "svg",
    { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true", focusable: "false" },
    draw("path", { d: PATHS[name] }),
  );
}

/**
 * Return a state as a chip: icon and word.
 *
 * @param {string} tone - "good" is for what this browser has checked, and for nothing else; "said" for what the service
 *   says; bad, busy, plain
 */
export function chip(tone, word) {
  const picture = { good: "good", bad: "bad", busy: "wait", said: "note", plain: "note" }[tone];
  return make(`span.chip.${tone}`, {}, icon(picture), word);
}

/** Return a box with a message; `tone` is bad or plain. */
export function notice(tone, ...children) {
  return make(`div.notice.${tone}`, {}, icon(tone === "bad" ? "bad" : "note"), make("div", {}, ...children));
}

let words = [];

/** Say something to a screen reader, a text or an element's: what comes at once is said together, and once. */
export function announce(message) {
  const said = message instanceof Node ? message.textContent : visible(message);
  if (!words.includes(said)) words.push(said);
  if (words.length > 1) return;
  const place = document.getElementById("announce");
  place.textContent = "";
  setTimeout(() => {
    place.textContent = words.join(" ");
    words = [];
  }, 100);
}

/** Show that something went wrong, and say so. */
export function complain(place, message) {
  show(place, notice("bad", make("p", {}, message)));
  announce(message);
}

/**
 * Return a button that copies a text, and says so.
 *
 * @param {() => void} [taken] - called when it was copied
 */
export function copyButton(text, what, taken = () => {}) {
  const word = document.createTextNode("Copy");
  const fields = { type: "button", "aria-label": `Copy ${what}`, "data-text": text };
  const button = make("button.quiet.small", fields, icon("copy"), word);
  button.addEventListener("click", async () => {
    const done = await copied(button.dataset.text);
    word.data = done ? "Copied" : "Select and copy by hand";
    announce(done ? `Copied ${what}` : word.data);
    if (done) taken();
    setTimeout(() => {
      word.data = "Copy";
    }, 2000);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without https the clipboard is not there; the old way is.
    const area = make("textarea.unseen", { value: text, readonly: true });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Return a button that saves bytes or text as a file. */
export function saveButton(label, name, content, type = "application/octet-stream") {
  return make("button.quiet", { type: "button", onclick: () => save(name, content, type) }, icon("down"), label);
}

/** Save bytes or text as a file. */
export function save(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/**
 * Run a task for a button: the button is off and says so while it runs, so that a second click does nothing.
 *
 * @param {HTMLButtonElement} button
 * @param {string} meanwhile - what the button says while it runs
 * @param {() => Promise<void>} task
 */
export async function busy(button, meanwhile, task) {
  if (button.getAttribute("aria-disabled") === "true") return;
  const before = [...button.childNodes];
  button.setAttribute("aria-disabled", "true"); // not `disabled`: the focus would be lost
  show(button, make("span.spin", { "aria-hidden": "true" }), meanwhile);
  try {
    await task();
  } finally {
    button.removeAttribute("aria-disabled");
    show(button, ...before);
  }
}

/** Return a label, its control, and a hint below. The control gets an id if it has none. */
export function field(label, control, hint = null) {
  control.id ||= `field-${++made}`;
  const note = hint === null ? null : make("p.hint", { id: `${control.id}-hint` }, hint);
  if (note) control.setAttribute("aria-describedby", note.id);
  return make("div.field", {}, make("label", { for: control.id }, label), control, note);
}
let made = 0;

/** Return a list of names and values. */
export function facts(entries) {
  return make(
    "dl.facts",
    {},
    entries.filter(Boolean).map(([name, ...value]) => make("div", {}, make("dt", {}, name), make("dd", {}, ...value))),
  );
}

/** Return a digest, shortened, with the whole of it to copy. */
export function digest(hex, what) {
  if (!hex) return make("span.muted", {}, "none yet");
  return make(
    "span.digest",
    {},
    make("code", { title: hex }, `${hex.slice(0, 12)}…${hex.slice(-4)}`),
    copyButton(hex, what),
  );
}
