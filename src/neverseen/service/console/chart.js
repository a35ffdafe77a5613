/** Small line charts in SVG: a title, axes with words, and a readout by pointer or arrow keys. */

import { announce, draw, make, refresh, show } from "./dom.js";
import { time } from "./format.js";

const HEIGHT = 200,
  LEFT = 56,
  RIGHT = 12,
  TOP = 12,
  BOTTOM = 28;

/**
 * Return a chart. `update(series)` draws it anew in place: it keeps the focus and the point that is being read.
 *
 * @param {string} title
 * @param {string} axis - what the vertical axis counts
 * @param {(value: number) => string} words - how a value is written
 * @param {{low?: number, high?: number, most?: number}} [range] - the least span of the vertical axis, and its end
 * @returns {{element: HTMLElement, update: (series: {name: string, points: [number, number][]}[]) => void}} points are
 *   (milliseconds, value), oldest first
 */
export function lineChart(title, axis, words, range = {}) {
  const picture = draw("svg", { role: "img", tabindex: "0" });
  const readout = make("p.readout");
  const nothing = make("p.muted.none", {}, "Nothing to draw yet.");
  const caption = make("figcaption", {}, make("h3", {}, title), make("span.hint", {}, axis));
  const element = make("figure.chart.card", {}, caption, nothing);
  let drawing = null;
  let reading = null; // the time of the point that is read; null for the newest
  function read(place, moved) {
    if (!drawing) return;
    const { times } = drawing;
    const at = times[Math.max(0, Math.min(times.length - 1, place))];
    reading = moved ? at : null;
    drawing.read(at, moved);
  }
  const newest = () => drawing.times.length - 1;
  const chosen = () => (reading === null ? newest() : drawing.times.indexOf(reading));
  picture.addEventListener("pointermove", (event) => read(drawing.nearest(event), true));
  picture.addEventListener("keydown", (event) => {
    const place = { ArrowLeft: chosen() - 1, ArrowRight: chosen() + 1, Home: 0, End: newest() }[event.key];
    if (place === undefined) return;
    event.preventDefault();
    read(place, true);
    announce(readout);
  });
  for (const away of ["pointerleave", "blur"]) picture.addEventListener(away, () => read(newest(), false));
  return {
    element,
    update(series) {
      const drawn = series.filter(({ points }) => points.length);
      drawing = drawn.length ? drawLines(picture, readout, title, axis, drawn, words, range) : null;
      if (!drawing) {
        show(element, caption, nothing);
        return;
      }
      if (picture.parentNode !== element) show(element, caption, picture, readout);
      const there = drawing.times.indexOf(reading);
      read(there < 0 ? newest() : there, there >= 0);
    },
  };
}

/** Draw lines into a picture; return their times, what shows the values of one, and what finds one by a pointer. */
function drawLines(picture, readout, title, axis, drawn, words, range) {
  const width = window.innerWidth < 640 ? 320 : 480; // letters stay readable on a phone
  const all = drawn.flatMap(({ points }) => points);
  const times = [...new Set(all.map(([at]) => at))].sort((one, other) => one - other);
  const lone = times.length === 1;
  const [first, last] = lone ? [times[0] - 1, times[0] + 1] : [times[0], times.at(-1)];
  const values = all.map(([, value]) => value);
  const [low, high] = rounded([Math.min(...values), Math.max(...values)], range);
  const x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const newest = drawn.map(({ name, points }) => `${name} ${words(points.at(-1)[1])}`).join(", ");
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.setAttribute("aria-label", `${title}, ${axis}. Newest: ${newest}. Arrow keys read the points.`);
  const parts = [draw("title", {}, title)];
  for (const value of [low, (low + high) / 2, high]) {
    parts.push(
      draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, words(value)),
    );
  }
  const ends = [
    [first, "start"],
    [last, "end"],
  ];
  for (const [at, anchor] of lone ? [[times[0], "middle"]] : ends) {
    parts.push(draw("text", { class: "tick", x: x(at), y: HEIGHT - 8, "text-anchor": anchor }, tick(at, last - first)));
  }
  drawn.forEach(({ points }, place) => {
    const line = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    parts.push(draw("polyline", { class: `line line-${place}`, points: line }));
    if (points.length <= 40) {
      parts.push(
        ...points.map(([at, value]) => draw("circle", { class: `dot line-${place}`, cx: x(at), cy: y(value), r: 2.5 })),
      );
    }
  });
  const cursor = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  show(picture, parts, cursor);

  function read(at, moved) {
    const found = drawn.map(({ name, points }, index) => {
      const point = points.findLast(([when]) => when <= at);
      return make(
        "span",
        {},
        draw(
          "svg",
          { viewBox: "0 0 10 10", class: "key", "aria-hidden": "true" },
          draw("line", { class: `line line-${index}`, x1: 0, x2: 10, y1: 5, y2: 5 }),
        ),
        `${name} `,
        make("b", {}, point ? words(point[1]) : "–"),
      );
    });
    refresh(readout, found, make("span.muted", {}, ` ${time(at)}`));
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    cursor.setAttribute("visibility", moved ? "visible" : "hidden");
  }

  function nearest({ clientX }) {
    const box = picture.getBoundingClientRect();
    const along = (((clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    const wanted = first + along * (last - first);
    return times.reduce(
      (best, when, place) => (Math.abs(when - wanted) < Math.abs(times[best] - wanted) ? place : best),
      0,
    );
  }
  return { times, read, nearest };
}

/** Widen a range so that its ends and its middle are round numbers. */
function rounded([low, high], { low: floor = low, high: ceiling = high, most = Infinity }) {
  const from = Math.min(low, floor);
  const to = Math.max(high, ceiling);
  const wide = Math.max(to - from, Math.abs(to) / 50) || 1;
  const unit = 10 ** Math.floor(Math.log10(wide / 2));
  for (const part of [1, 2, 2.5, 5, 10, 20, 25]) {
    const step = part * unit;
    const bottom = Math.floor(from / step + 1e-9) * step;
    if (bottom + 2 * step >= to - 1e-9 * step) return [bottom, Math.min(most, bottom + 2 * step)];
  }
  return [from, to];
}

/** Return a time for an axis, in UTC, with the parts that differ along it. */
function tick(at, wide) {
  const day = { day: "numeric", month: "short" },
    hour = { hour: "2-digit", minute: "2-digit" };
  let parts = { ...hour, second: "2-digit" };
  if (wide > 600_000) parts = hour;
  if (wide > 43_200_000) parts = { ...day, ...hour };
  if (wide > 172_800_000) parts = day;
  return new Date(at).toLocaleString("en-GB", { ...parts, timeZone: "UTC" });
}
