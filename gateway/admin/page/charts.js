/** Small plots of the last hour, each with the same in words. */

import { freshId, h, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 72;

/** Bars of one figure over time; the part of each that failed stands at its foot. */
export function bars(title, points, { part, kind = "" } = {}) {
  const most = Math.max(1, ...points.map((point) => point.value));
  const step = WIDTH / Math.max(1, points.length);
  const shapes = points.map((point, index) => {
    const height = (point.value / most) * (HEIGHT - 4);
    const failed = part ? (point.part / most) * (HEIGHT - 4) : 0;
    return [
      point.value ? svg("rect", { class: "plot-bar", x: index * step + 0.5, y: HEIGHT - height, width: Math.max(1, step - 1), height, rx: 1 }) : null,
      failed ? svg("rect", { class: "plot-part", x: index * step + 0.5, y: HEIGHT - failed, width: Math.max(1, step - 1), height: failed, rx: 1 }) : null,
    ];
  });
  const total = points.reduce((sum, point) => sum + point.value, 0);
  const failed = points.reduce((sum, point) => sum + (point.part ?? 0), 0);
  const words = total ? `${total} in all${part && failed ? `, ${failed} ${part}` : ""}; most in a minute: ${most}` : "none";
  return figure(title, words, shapes, kind);
}

/** A line of one figure over time; where there were no calls it is interrupted. */
export function line(title, points, format) {
  const values = points.map((point) => point.value).filter((value) => value !== null);
  const most = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, points.length - 1);
  const y = (value) => HEIGHT - 3 - (value / most) * (HEIGHT - 8);
  let path = "";
  let area = "";
  let pen = "M";
  let begun = 0;
  const dots = [];
  points.forEach((point, index) => {
    if (point.value === null) {
      pen = "M";
      return;
    }
    const x = index * step;
    const here = `${x.toFixed(1)} ${y(point.value).toFixed(1)}`;
    const last = (points[index + 1]?.value ?? null) === null;
    path += `${pen}${here}`;
    if (pen === "M") begun = x;
    area += `${pen === "M" ? `M${x.toFixed(1)} ${HEIGHT}L` : "L"}${here}${last ? `L${x.toFixed(1)} ${HEIGHT}L${begun.toFixed(1)} ${HEIGHT}Z` : ""}`;
    if (pen === "M" && last) dots.push(svg("path", { class: "plot-dot", d: `M${here}h0` }));
    pen = "L";
  });
  const words = values.length ? `latest ${format(values.at(-1))}, at most ${format(most)}` : "no calls";
  return figure(title, words, [svg("path", { class: "plot-area", d: area || "M0 0" }), svg("path", { class: "plot-line", d: path || "M0 0" }), dots]);
}

function figure(title, words, shapes, kind = "") {
  const id = freshId("plot");
  return h(
    "figure",
    { class: `plot ${kind}` },
    h("figcaption", { id }, h("strong", null, title), h("span", { class: "muted" }, words)),
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT + 2}`, role: "img", "aria-label": `${title} in the last hour: ${words}`, preserveAspectRatio: "none" },
      [4, HEIGHT / 2 + 2].map((at) => svg("line", { class: "plot-grid", x1: 0, x2: WIDTH, y1: at, y2: at })),
      svg("line", { class: "plot-axis", x1: 0, x2: WIDTH, y1: HEIGHT + 0.5, y2: HEIGHT + 0.5 }),
      shapes,
    ),
    h("div", { class: "plot-scale muted", "aria-hidden": "true" }, h("span", null, "1 hour ago"), h("span", null, "now")),
  );
}

/** The figures of each minute of the last hour. */
export function byMinute(activity) {
  const end = Math.floor(Date.now() / 60000);
  const minutes = Array.from({ length: 60 }, (_, index) => ({ at: (end - 59 + index) * 60, calls: 0, errors: 0, p95: null }));
  for (const bucket of activity.buckets) {
    const minute = minutes[Math.floor(bucket.at / 60) - (end - 59)];
    if (!minute || !bucket.calls) continue;
    minute.calls += bucket.calls;
    minute.errors += bucket.errors;
    minute.p95 = Math.max(minute.p95 ?? 0, bucket.p95Ms);
  }
  return minutes;
}
