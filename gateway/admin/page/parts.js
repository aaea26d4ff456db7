/** Building blocks of the rooms: states, buttons, dialogs, lists. */

import { foreign, freshId, h, put, say } from "./dom.js";

const FEW = 8;
const CELLS = ["number", "wide", "deed", "beside"];

const STATES = {
  ready: ["good", "●", "Ready"],
  connecting: ["busy", "◌", "Connecting"],
  starting: ["busy", "◌", "Starting"],
  idle: ["off", "○", "Idle"],
  waiting: ["bad", "▲", "Not reached"],
  signInNeeded: ["warn", "◆", "Sign-in needed"],
  faulty: ["bad", "▲", "Invalid entry"],
  disabled: ["off", "■", "Disabled"],
  stale: ["warn", "◆", "Outdated"],
  ok: ["good", "●", "OK"],
  error: ["bad", "▲", "Failed"],
  denied: ["warn", "◆", "Refused"],
  good: ["good", "●", "Valid"],
  expired: ["off", "■", "Expired"],
  held: ["warn", "◆", "Held"],
  warned: ["warn", "◆", "Warned"],
  flagged: ["warn", "◆", "Flagged"],
  rejected: ["off", "■", "Rejected"],
  approved: ["good", "●", "Approved"],
  undone: ["off", "○", "Undone"],
  accepted: ["good", "●", "Accepted"],
  allowed: ["good", "●", "Allowed"],
  allow: ["good", "●", "Allowed"],
  deny: ["bad", "▲", "Denied"],
  ask: ["warn", "◆", "Approval required"],
  quarantined: ["bad", "▲", "Quarantined"],
  repaired: ["warn", "◆", "Repaired"],
  warning: ["warn", "◆", "Warning"],
};

/** A state as a word with a symbol and a colour. */
export function badge(state, text) {
  const [kind, sign, word] = STATES[state] ?? ["off", "■", String(state ?? "unknown")];
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, sign), " ", text ?? word);
}

const CHANGES = {
  server_added: "Server added", server_removed: "Server removed", server_disabled: "Server disabled",
  tool_disabled: "Tool disabled", tool_set: "Tool documented", key_added: "Key issued", key_revoked: "Key revoked",
};

/** Count the definitions of each server that are held for approval. */
export function heldBy(changes) {
  const counts = new Map();
  for (const row of changes) if (row.state === "held") counts.set(row.server, (counts.get(row.server) ?? 0) + 1);
  return counts;
}

/** Return the label of a kind of change. */
export const changeWord = (kind) => CHANGES[kind] ?? String(kind).replaceAll("_", " ");

export const stateWord = (state) => STATES[state]?.[2] ?? String(state);

/** A button that is disabled while its action runs; an error is shown as a message. */
export function button(text, action, { kind = "plain", ...attributes } = {}) {
  const made = h("button", { type: "button", class: `button ${kind}`, ...attributes }, text);
  made.addEventListener("click", async () => {
    if (made.getAttribute("aria-disabled") === "true") return;
    made.setAttribute("aria-disabled", "true");
    try {
      await action(made);
    } catch (error) {
      say(error.message, "error");
    } finally {
      made.removeAttribute("aria-disabled");
    }
  });
  return made;
}

const withSign = (text) => [h("span", { "aria-hidden": "true" }, "▲ "), text];

/** An error that screen readers announce at once. */
export const problemText = (text) => h("p", { class: "problem", role: "alert" }, withSign(text));

/** A problem of an item on the page, which is not announced. */
export const problemNote = (text) => h("p", { class: "problem" }, withSign(text));

/** A labelled field. */
export function field(label, control, hint) {
  const id = control.id || freshId("field");
  control.id = id;
  const hintId = hint ? freshId("hint") : null;
  if (hintId) control.setAttribute("aria-describedby", hintId);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint ? h("p", { class: "hint", id: hintId }, hint) : null);
}

export function select(options, value, attributes = {}) {
  return h("select", attributes, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

/** A native dialog; resolves with the argument of `close`, or null. */
export function dialog(title, make, { wide = false } = {}) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const id = freshId("dialog");
    let result = null;
    const box = h("dialog", { class: wide ? "wide" : null, "aria-labelledby": id });
    const close = (value = null) => {
      result = value;
      box.close();
    };
    const heading = h("h2", { id, tabindex: "-1" }, title);
    put(box, h("div", { class: "dialog-head" }, heading, button("Close", () => close(), { kind: "quiet" })), make(close));
    box.addEventListener("close", () => {
      box.remove();
      if (before?.isConnected) before.focus();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
    (box.querySelector("[autofocus]") ?? heading).focus();
  });
}

/** Ask for confirmation of an action that is not easily undone. */
export function confirm(title, text, action) {
  return dialog(title, (close) => [
    h("p", null, text),
    h("div", { class: "actions" }, button(action, () => close(true), { kind: "danger", autofocus: true }), button("Cancel", () => close(false))),
  ]);
}

const drawn = new WeakMap();

/** Fetch data and draw it in `place`, or show the error; the same data is not drawn again. */
export async function load(place, fetching, show) {
  // An earlier response may have drawn nothing; it must not be replaced by "Loading…", as it is not drawn again.
  if (!drawn.has(place) && !place.childNodes.length) put(place, h("p", { class: "muted" }, "Loading…"));
  try {
    const found = await fetching();
    const text = JSON.stringify(found);
    if (drawn.get(place) === text) return found;
    drawn.set(place, text);
    keepFocus(place, () => put(place, show(found)));
    return found;
  } catch (error) {
    if (error.status === 401) return null;
    drawn.delete(place);
    put(place, problemText(error.message));
    return null;
  }
}

const FOCUSABLE = "a, button, input, select, textarea, summary";
const nameOf = (element) => `${element.tagName} ${element.getAttribute("aria-label") ?? element.textContent}`;

/** Redraw a place, restoring the keyboard focus; if the focused control is gone, its section or the place gets the focus. */
function keepFocus(place, draw) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const name = focused ? nameOf(focused) : null;
  const title = focused?.closest("section")?.querySelector("h2")?.textContent;
  draw();
  if (!focused) return;
  const same = [...place.querySelectorAll(FOCUSABLE)].find((element) => nameOf(element) === name);
  if (same) return same.focus({ preventScroll: true });
  const headings = [...place.querySelectorAll("h2")];
  focusOn(headings.find((each) => each.textContent === title) ?? headings[0] ?? document.querySelector("#main h1"));
}

/** Move the keyboard focus to an element that is not a control, such as a heading. */
export function focusOn(element) {
  if (!element) return;
  if (!element.matches(FOCUSABLE)) element.setAttribute("tabindex", "-1");
  element.focus({ preventScroll: true });
}

/** The placeholder of an empty list. */
export function empty(title, text, ...actions) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, text), actions.length ? h("div", { class: "actions" }, actions) : null);
}

/**
 * A table that is filtered and paged in the browser, so that thousands of rows cost as much as one page.
 *
 * plain: hide the filter while there are few rows; titled: hide the caption, which a heading repeats.
 * columns: [{ title, cell(row) → node or text, wide?, number?, deed?, beside? }]: `deed` marks a column of buttons,
 * `beside` the column that is shown next to the name on a phone; filters: [{ label, test(row, text), options? }];
 * group: { label, of(row) }: a box that sorts the rows by a text, with a heading for each; onDraw(shown) gets all rows
 * that match.
 */
export function list({ caption, columns, rows, search, filters = [], pageSize = 50, none, key, initial = {}, plain = false, titled = false, group = null, onDraw = () => {} }) {
  let shown = rows;
  let all = rows;
  let page = 0;
  const body = h("tbody", { role: "rowgroup" });
  const count = h("p", { class: "muted count", role: "status" });
  const pager = h("div", { class: "pager" });
  const table = h(
    "table",
    { role: "table", class: "list" },
    h("caption", { class: titled ? "hidden" : null }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => h("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null }, column.deed ? h("span", { class: "hidden" }, column.title) : column.title)))),
    body,
  );
  const texts = new Map();
  const textOf = (row) => {
    let text = texts.get(row);
    if (text === undefined) texts.set(row, (text = search(row).join("\n").toLowerCase()));
    return text;
  };
  const find = search ? h("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "Filter…", value: initial.q ?? "" }) : null;
  const chosen = filters.map((filter) => select([["", filter.all], ...filter.options()], initial[filter.name] ?? "", { "data-filter": filter.name }));
  const nothing = h("div");
  const grouping = group ? h("input", { type: "checkbox" }) : null;
  const bar = find || chosen.length ? h("div", { class: "bar" }, find ? field("Filter", find) : null, filters.map((filter, index) => field(filter.label, chosen[index])), grouping ? h("label", { class: "tick" }, grouping, group.label) : null, count) : null;
  const draw = () => {
    const words = find?.value.trim().toLowerCase().split(/\s+/).filter(Boolean) ?? [];
    shown = all.filter((row) => words.every((word) => textOf(row).includes(word)) && filters.every((filter, index) => !chosen[index].value || filter.test(row, chosen[index].value)));
    if (grouping?.checked) shown = [...shown].sort((a, b) => group.of(a).localeCompare(group.of(b)));
    const sizes = new Map();
    if (grouping?.checked) for (const row of shown) sizes.set(group.of(row), (sizes.get(group.of(row)) ?? 0) + 1);
    const pages = Math.max(1, Math.ceil(shown.length / pageSize));
    page = Math.min(page, pages - 1);
    const visible = shown.slice(page * pageSize, (page + 1) * pageSize);
    const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.key : null;
    const label = focused ? document.activeElement.textContent : null;
    const place = focused ? [...body.rows].findIndex((each) => each.dataset.key === focused) : 0;
    const turned = pager.contains(document.activeElement) ? document.activeElement.textContent : null;
    put(
      body,
      visible.map((row, at) => [
        grouping?.checked && (at === 0 || group.of(visible[at - 1]) !== group.of(row))
          ? h("tr", { role: "row", class: "group-row" }, h("th", { role: "rowheader", scope: "rowgroup", colspan: columns.length }, foreign(group.of(row)), h("span", { class: "muted" }, ` ${sizes.get(group.of(row))}`)))
          : null,
        h("tr", { role: "row", "data-key": key ? key(row) : null }, columns.map((column, index) =>
          h(index === 0 ? "th" : "td", { role: index === 0 ? "rowheader" : "cell", scope: index === 0 ? "row" : null, "data-title": column.title, class: CELLS.filter((name) => column[name]).join(" ") || null }, column.cell(row)))),
      ]),
    );
    onDraw(shown);
    if (focused) {
      // If the row is gone, as after "Disable", continue at the row that has taken its place.
      const row = [...body.rows].find((each) => each.dataset.key === focused) ?? body.rows[Math.min(place, body.rows.length - 1)];
      const controls = [...(row?.querySelectorAll("a, button") ?? [])];
      focusOn(controls.find((each) => each.textContent === label) ?? controls[0] ?? find ?? document.querySelector("#main h1"));
    }
    count.textContent = shown.length === all.length ? `${all.length} in total` : `${shown.length} of ${all.length}`;
    const turn = (by) => () => {
      page += by;
      draw();
      table.scrollIntoView({ block: "start" });
    };
    put(pager, pages > 1 ? [
      button("Previous", turn(-1), { disabled: page === 0 }),
      h("span", null, `Page ${page + 1} of ${pages}`),
      button("Next", turn(1), { disabled: page === pages - 1 }),
    ] : []);
    if (turned) [...pager.querySelectorAll("button:enabled")].sort((a, b) => (b.textContent === turned) - (a.textContent === turned))[0]?.focus();
    if (bar) bar.hidden = !all.length || (plain && all.length <= FEW && !find?.value);
    table.hidden = shown.length === 0;
    nothing.hidden = shown.length !== 0;
    put(nothing, all.length === 0 && none ? none() : empty("Nothing matches", "Try other words or filters."));
  };
  const again = () => {
    page = 0;
    draw();
  };
  find?.addEventListener("input", again);
  for (const one of [...chosen, grouping].filter(Boolean)) one.addEventListener("change", again);
  draw();
  return {
    node: h("div", { class: "listing" }, bar, table, nothing, pager),
    draw,
    replace(next) {
      all = next;
      texts.clear();
      draw();
    },
  };
}

/** A list of names and values; empty values are omitted. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** A section with a heading. */
export function section(title, ...children) {
  const id = freshId("section");
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
}

export function time(text) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return String(text ?? "");
  return h("time", { datetime: moment.toISOString(), title: moment.toLocaleString() }, moment.toDateString() === new Date().toDateString() ? moment.toLocaleTimeString() : moment.toLocaleString());
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "";
  if (value >= 10000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}

export function bytes(value) {
  if (value < 1024) return `${value} bytes`;
  return value < 1024 * 1024 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1024 / 1024).toFixed(1)} MiB`;
}

export const plural = (count, word, words = `${word}s`) => `${count} ${count === 1 ? word : words}`;
