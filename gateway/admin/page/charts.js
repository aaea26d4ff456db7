/** Plots over time with axes, whose values are read with the mouse or the keyboard. */

import { freshId, h, put, svg } from "./dom.js";

const WIDTH = 400;
const HEIGHT = 100;
// The longest span in seconds, and the seconds between the labels of its time axis.
const INTERVALS = [[900, 300], [3600, 900], [86400, 21600], [Infinity, 86400]];
// Labels closer to an end would be cut, as a share of the axis.
const MARGIN = 0.06;

/** A round number above the greatest value, for the top of an axis. */
function roundAbove(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((step) => step >= value);
}

const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = (at, options) => new Date(at * 1000).toLocaleDateString([], { weekday: "short", ...options });

/** Times between two times at round distances in local time, with their labels. */
function timeLabels(from, to) {
  const [, every] = INTERVALS.find(([span]) => to - from <= span);
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - zone) / every) * every + zone; at < to; at += every) found.push([at, every < 86400 ? clock(at) : day(at)]);
  return found.filter(([at]) => Math.min(at - from, to - at) > (to - from) * MARGIN);
}

/** Describe a period, such as "16:30 to 16:31". */
export function period(at, step) {
  return `${step >= 7200 ? `${day(at, { month: "short", day: "numeric" })}, ` : ""}${clock(at)} to ${clock(at + step)}`;
}

/** The cursor that several plots share. */
export function sharedCursor() {
  const plots = [];
  return { join: (move) => plots.push(move), move: (index) => plots.forEach((each) => each(index)) };
}

/**
 * A plot of one value over time. `update` draws { from, to, step, values: [{ at, value, part }] }, where a value of null
 * is a gap; `part` is the failed share of a bar. `open(at)` is called for a chosen period.
 */
export function plot(title, { cursor, format, words, open, kind = "bars", tone = "" }) {
  const id = freshId("plot");
  const shapes = svg("g");
  const mark = svg("line", { class: "plot-mark", y1: 0, y2: HEIGHT, visibility: "hidden" });
  const said = h("span", { class: "muted plot-said" });
  const top = h("span");
  const middle = h("span");
  const times = h("div", { class: "plot-times muted", "aria-hidden": "true" });
  const frame = h("div", {
    class: "plot-frame", role: "slider", tabindex: "0", "aria-labelledby": id, "aria-valuemin": "0",
    onpointermove: (event) => cursor.move(indexAt(event)),
    onpointerleave: () => document.activeElement !== frame && cursor.move(null),
    onblur: () => cursor.move(null),
    onclick: (event) => open(data.values[indexAt(event)].at),
    onkeydown: (event) => press(event),
  }, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    [0, HEIGHT / 2].map((at) => svg("line", { class: "plot-grid", x1: 0, x2: WIDTH, y1: at, y2: at })), shapes,
    svg("line", { class: "plot-axis", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }), mark));
  let data = { from: 0, to: 1, step: 1, values: [] };
  let summary = "";
  let index = null;

  function indexAt(event) {
    const box = frame.getBoundingClientRect();
    return Math.min(data.values.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * data.values.length)));
  }

  function press(event) {
    const last = data.values.length - 1;
    const now = index ?? last;
    const moved = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: last }[event.key];
    if (event.key === "Enter") open(data.values[now].at);
    else if (event.key === "Escape" && index !== null) cursor.move(null);
    else if (moved === undefined) return;
    else cursor.move(Math.min(last, Math.max(0, index === null && event.key !== "Home" ? last : moved)));
    event.preventDefault();
  }

  function show(at) {
    index = at;
    const point = at === null ? null : data.values[at];
    const text = point ? `${period(point.at, data.step)}: ${words(point)}` : summary;
    said.textContent = text;
    frame.setAttribute("aria-valuenow", String(at ?? Math.max(0, data.values.length - 1)));
    frame.setAttribute("aria-valuetext", text);
    const x = point ? ((at + 0.5) / data.values.length) * WIDTH : 0;
    mark.setAttribute("x1", x);
    mark.setAttribute("x2", x);
    mark.setAttribute("visibility", point ? "visible" : "hidden");
  }
  cursor.join(show);

  return {
    node: h("figure", { class: `plot ${tone}` }, h("figcaption", { id }, h("strong", null, title), " ", said),
      h("div", { class: "plot-values muted", "aria-hidden": "true" }, top, middle, h("span", null, "0")), frame, times),
    update(next, text) {
      const kept = index === null ? null : data.values[index]?.at;
      data = next;
      summary = text;
      const most = roundAbove(Math.max(0, ...data.values.map((point) => point.value ?? 0)));
      top.textContent = format(most);
      middle.textContent = most > 1 || kind === "line" ? format(most / 2) : "";
      put(shapes, kind === "bars" ? bars(data.values, most) : line(data.values, most));
      put(times, timeLabels(data.from, data.to).map(([at, label]) => h("span", { "data-at": String((at - data.from) / (data.to - data.from)) }, label)));
      // Set here, because the content security policy refuses the style attribute of markup.
      for (const each of times.children) each.style.left = `${Number(each.dataset.at) * 100}%`;
      frame.setAttribute("aria-valuemax", String(Math.max(0, data.values.length - 1)));
      const at = kept === null ? -1 : data.values.findIndex((point) => point.at === kept);
      show(at < 0 ? null : at);
    },
  };
}

function bars(values, most) {
  const step = WIDTH / Math.max(1, values.length);
  const bar = (name, index, value) => (value ? svg("rect", { class: name, x: index * step + step * 0.1, y: HEIGHT - (value / most) * HEIGHT, width: step * 0.8, height: (value / most) * HEIGHT }) : null);
  return values.map((point, index) => [bar("plot-bar", index, point.value), bar("plot-part", index, point.part)]);
}

/** A line that is interrupted where there are no calls. */
function line(values, most) {
  const step = WIDTH / Math.max(1, values.length);
  const spot = (index) => `${((index + 0.5) * step).toFixed(1)} ${(HEIGHT - (values[index].value / most) * HEIGHT).toFixed(1)}`;
  const has = (index) => values[index] !== undefined && values[index].value !== null;
  let path = "";
  const dots = [];
  values.forEach((_, index) => {
    if (!has(index)) return;
    path += `${has(index - 1) ? "L" : "M"}${spot(index)}`;
    if (!has(index - 1) && !has(index + 1)) dots.push(svg("path", { class: "plot-dot", d: `M${spot(index)}h0` }));
  });
  return [svg("path", { class: "plot-line", d: path || "M0 0" }), dots];
}
