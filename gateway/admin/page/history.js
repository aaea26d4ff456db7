/** Calls, failures and durations over time: of all calls, or of one server, tool or caller. */

import { get } from "./api.js";
import { period, plot, sharedCursor } from "./charts.js";
import { foreign, h, put } from "./dom.js";
import { listen } from "./live.js";
import { empty, field, list, milliseconds, problemText, section, select } from "./parts.js";

const RANGES = [["15m", "15 minutes"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"]];
const KINDS = [["server", "Server"], ["tool", "Tool"], ["caller", "Caller"]];
const AGAIN_MS = 3000;

/** The range that every room uses until another one is chosen. */
const shared = { range: "1h" };

export const rangeWords = () => `the last ${RANGES.find(([name]) => name === shared.range)[1]}`.replace("last 1 ", "last ");

/** Return the figures of each server in the chosen range, by name. */
export async function serverFigures() {
  const found = await get(`history?range=${shared.range}&by=server`);
  const minutes = (found.to - found.from) / 60;
  return new Map(found.series.map((row) => [row.name, { ...row, perMinute: row.calls / minutes }]));
}

/** A rate with as many digits as it needs. */
export const perMinute = (value) => (value === 0 ? "0" : value < 0.1 ? "<0.1" : value < 10 ? value.toFixed(1) : String(Math.round(value)));

export const failedShare = (row) => (row.errors ? `${row.errors} (${((row.errors / row.calls) * 100).toFixed(1)} %)` : "0");

/** The address of the calls of a subject in a period. */
function callsAddress([kind, name], from, to) {
  const words = new URLSearchParams({ since: new Date(from * 1000).toISOString(), until: new Date(to * 1000).toISOString() });
  if (kind === "server") words.set("server", name);
  else if (kind !== "all") words.set(kind === "caller" ? "principal" : "tool", name);
  return `#/activity?${words}`;
}

/**
 * Draw the history of `subject`, a pair of a kind and a name, and redraw it while calls are made; `chosen` is called
 * after another range was chosen. The history of all calls can be broken down by server, tool or caller.
 */
export function renderHistory(place, { signal, title, subject = ["all", ""], chosen = () => {} }) {
  const whole = subject[0] === "all";
  const cursor = sharedCursor();
  const open = (at) => {
    location.hash = callsAddress(subject, at, at + step);
  };
  const calls = plot("Calls", { cursor, open, format: String, words: (point) => `${point.value} ${point.value === 1 ? "call" : "calls"}${point.part ? `, ${point.part} failed` : ""}${point.denied ? `, ${point.denied} refused` : ""}` });
  const slow = plot("p95", { cursor, open, kind: "line", format: milliseconds, words: (point) => (point.value === null ? "no calls" : `p95 ${milliseconds(point.value)}, p50 ${milliseconds(point.p50)}`) });
  const failures = plot("Failures", { cursor, open, tone: "bad", format: String, words: (point) => `${point.value} failed` });
  const tiles = h("dl", { class: "tiles" });
  const problem = h("div");
  const broken = h("div");
  const by = select(KINDS, "server");
  const ranges = h("fieldset", { class: "choice ways" }, h("legend", { class: "hidden" }, "Time range"), RANGES.map(([name, text]) => h("label", null, h("input", {
    type: "radio", name: `range-${subject.join("-")}`, value: name, checked: name === shared.range,
    onchange: () => {
      shared.range = name;
      draw();
      chosen();
    },
  }), text)));
  let step = 60;
  let minutes = 60;
  let shown = null;
  let asked = 0;
  let late = 0;

  async function draw() {
    clearTimeout(late);
    late = 0;
    const turn = ++asked;
    const words = new URLSearchParams({ range: shared.range, ...(whole ? { by: by.value } : { [subject[0]]: subject[1] }) });
    try {
      const found = await get(`history?${words}`);
      if (turn === asked && !signal.aborted) show(found);
    } catch (error) {
      if (error.status !== 401) put(problem, problemText(error.message));
    }
  }

  function show(found) {
    step = found.stepSeconds;
    minutes = (found.to - found.from) / 60;
    put(problem, found.lastError ? problemText(`The history cannot be written: ${found.lastError}`) : []);
    const points = new Map(found.points.map((point) => [point.at, point]));
    const spread = (value) => {
      const values = [];
      for (let at = found.from; at < found.to; at += step) values.push({ at, ...value(points.get(at)) });
      return { from: found.from, to: found.to, step, values };
    };
    const { total } = found;
    const busiest = found.points.reduce((most, point) => (point.calls > (most?.calls ?? 0) ? point : most), null);
    const slowest = found.points.reduce((most, point) => (point.calls && point.p95Ms > (most?.p95Ms ?? 0) ? point : most), null);
    calls.update(spread((point) => ({ value: point?.calls ?? 0, part: point?.errors ?? 0, denied: point?.denied ?? 0 })), busiest ? `most: ${busiest.calls}, ${period(busiest.at, step)}` : "none");
    slow.update(spread((point) => ({ value: point?.calls ? point.p95Ms : null, p50: point?.p50Ms })), slowest ? `most: ${milliseconds(slowest.p95Ms)}, ${period(slowest.at, step)}` : "no calls");
    failures.update(spread((point) => ({ value: point?.errors ?? 0 })), total.errors ? `${total.errors} in ${rangeWords()}` : "none");
    const tile = (name, value, note, kind = "") => h("div", { class: `tile ${kind}` }, h("dt", null, name), h("dd", null, h("strong", null, value), note ? h("span", { class: "muted" }, note) : null));
    put(tiles,
      tile("Calls", String(total.calls), total.calls ? `${perMinute(total.calls / minutes)} per minute` : "none yet"),
      tile("Failed", String(total.errors), total.calls ? `${((total.errors / total.calls) * 100).toFixed(1)} % of calls` : "none so far", total.errors ? "bad" : ""),
      tile("Refused", String(total.denied), "by rules, people or hooks", total.denied ? "warn" : ""),
      tile("p50", total.calls ? milliseconds(total.p50Ms) : "–", "half of the calls are faster"),
      tile("p95", total.calls ? milliseconds(total.p95Ms) : "–", "one call in 20 is slower"));
    if (whole) breakdown(found);
  }

  function breakdown(found) {
    const rows = [...found.series].sort((a, b) => b.calls - a.calls || b.denied - a.denied);
    const kind = by.value;
    if (shown?.kind === kind) return shown.list.replace(rows);
    const link = (row) => (kind === "server" ? `#/servers/${encodeURIComponent(row.name)}` : `#/overview?${new URLSearchParams({ [kind]: row.name })}`);
    const made = list({
      caption: "Most calls first",
      plain: true,
      rows,
      key: (row) => row.name,
      search: (row) => [row.name],
      none: () => empty("No calls", "Calls and refusals in the chosen time appear here."),
      columns: [
        { title: KINDS.find(([name]) => name === kind)[1], cell: (row) => h("a", { href: link(row) }, foreign(row.name, kind === "tool" ? "code" : "bdi")) },
        { title: "Calls", number: true, cell: (row) => String(row.calls) },
        { title: "Per minute", number: true, cell: (row) => perMinute(row.calls / minutes) },
        { title: "Failed", number: true, cell: failedShare },
        { title: "Refused", number: true, cell: (row) => String(row.denied) },
        { title: "p50", number: true, cell: (row) => (row.calls ? milliseconds(row.p50Ms) : "–") },
        { title: "p95", number: true, cell: (row) => (row.calls ? milliseconds(row.p95Ms) : "–") },
      ],
    });
    shown = { kind, list: made };
    return put(broken, made.node);
  }

  by.addEventListener("change", draw);
  put(place, section(title, ranges,
    problem, tiles, h("div", { class: "plots" }, calls.node, slow.node, failures.node),
    h("p", { class: "muted" }, "Choose a bar, or press Enter on a plot, to see its calls."),
    whole ? h("div", { class: "bar" }, field("Figures of each", by)) : null, broken));
  draw();
  listen(["call", "refused"], signal, () => {
    late ||= setTimeout(() => signal.aborted || draw(), AGAIN_MS);
  });
  const minute = setInterval(draw, 30000);
  signal.addEventListener("abort", () => {
    clearInterval(minute);
    clearTimeout(late);
  });
}
