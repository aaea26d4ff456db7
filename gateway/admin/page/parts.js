/** Parts that every room is made of: states, buttons, dialogs, lists. */

import { freshId, h, put, say } from "./dom.js";

const FEW = 8;
const CELLS = ["number", "wide", "deed", "beside"];

const STATES = {
  ready: ["good", "●", "Ready"],
  connecting: ["busy", "◌", "Connecting"],
  starting: ["busy", "◌", "Starting"],
  waiting: ["bad", "▲", "Not reached"],
  signInNeeded: ["warn", "◆", "Sign-in needed"],
  faulty: ["bad", "▲", "Faulty entry"],
  disabled: ["off", "■", "Disabled"],
  stale: ["warn", "◆", "From before"],
  ok: ["good", "●", "OK"],
  error: ["bad", "▲", "Failed"],
  denied: ["warn", "◆", "Refused"],
  good: ["good", "●", "Good"],
  expired: ["off", "■", "Expired"],
  held: ["warn", "◆", "Held"],
  warned: ["warn", "◆", "Warned"],
  accepted: ["good", "●", "Accepted"],
  allowed: ["good", "●", "Allowed"],
  allow: ["good", "●", "Allowed"],
  deny: ["bad", "▲", "Denied"],
  ask: ["warn", "◆", "A person is asked"],
  quarantined: ["bad", "▲", "Not shown"],
  repaired: ["warn", "◆", "Repaired"],
  warning: ["warn", "◆", "Warning"],
};

/** A state in words, with a sign and a colour beside them. */
export function badge(state, text) {
  const [kind, sign, word] = STATES[state] ?? ["off", "■", String(state ?? "unknown")];
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, sign), " ", text ?? word);
}

const CHANGES = {
  server_added: "Server added", server_removed: "Server removed", server_disabled: "Server disabled",
  tool_disabled: "Tool disabled", key_added: "Key issued", key_revoked: "Key revoked",
};

/** How many definitions of each server are held until somebody approves them. */
export function heldBy(changes) {
  const counts = new Map();
  for (const row of changes) if (row.state === "held") counts.set(row.server, (counts.get(row.server) ?? 0) + 1);
  return counts;
}

/** What an administrator has done, in words. */
export const changeWord = (kind) => CHANGES[kind] ?? String(kind).replaceAll("_", " ");

export const stateWord = (state) => STATES[state]?.[2] ?? String(state);

/** A button that is busy while what it does goes on; a failure is told beside the others. */
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

/** What has gone wrong, said at once to whoever does not see it. */
export const problemText = (text) => h("p", { class: "problem", role: "alert" }, withSign(text));

/** What is wrong with something that is shown. */
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

/** A native dialog; resolves with what `close` was called with, or null. */
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

/** Ask before something that is not easily undone. */
export function confirm(title, text, action) {
  return dialog(title, (close) => [
    h("p", null, text),
    h("div", { class: "actions" }, button(action, () => close(true), { kind: "danger", autofocus: true }), button("Cancel", () => close(false))),
  ]);
}

const drawn = new WeakMap();

/** Something is being fetched, has failed, or is there: shown in one place, and drawn again only where it differs. */
export async function load(place, fetching, show) {
  // What was drawn may be nothing at all: it stays, for the same answer is not drawn again.
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

/** Draw anew what the focus may be in: whoever uses a keyboard stays where they are. */
function keepFocus(place, draw) {
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  draw();
  if (focused) [...place.querySelectorAll(FOCUSABLE)].find((element) => nameOf(element) === focused)?.focus({ preventScroll: true });
}

/** What a list shows when there is nothing in it. */
export function empty(title, text, ...actions) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, text), actions.length ? h("div", { class: "actions" }, actions) : null);
}

/**
 * A table that is filtered and paged here: thousands of rows cost as much as one page of them.
 *
 * plain: the filter is left out while there are few rows; titled: a heading says already what the caption does.
 * columns: [{ title, cell(row) → node or text, wide?, number?, deed?, beside? }]: deeds are buttons, and what stands
 * beside the name on a phone is the state; filters: [{ label, test(row, text), options? }].
 */
export function list({ caption, columns, rows, search, filters = [], pageSize = 50, none, key, initial = {}, plain = false, titled = false }) {
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
  const bar = find || chosen.length ? h("div", { class: "bar" }, find ? field("Filter", find) : null, filters.map((filter, index) => field(filter.label, chosen[index])), count) : null;
  const draw = () => {
    const words = find?.value.trim().toLowerCase().split(/\s+/).filter(Boolean) ?? [];
    shown = all.filter((row) => words.every((word) => textOf(row).includes(word)) && filters.every((filter, index) => !chosen[index].value || filter.test(row, chosen[index].value)));
    const pages = Math.max(1, Math.ceil(shown.length / pageSize));
    page = Math.min(page, pages - 1);
    const visible = shown.slice(page * pageSize, (page + 1) * pageSize);
    const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.key : null;
    const label = focused ? document.activeElement.textContent : null;
    put(
      body,
      visible.map((row) =>
        h("tr", { role: "row", "data-key": key ? key(row) : null }, columns.map((column, index) =>
          h(index === 0 ? "th" : "td", { role: index === 0 ? "rowheader" : "cell", scope: index === 0 ? "row" : null, "data-title": column.title, class: CELLS.filter((name) => column[name]).join(" ") || null }, column.cell(row)))),
      ),
    );
    if (focused) {
      const row = [...body.rows].find((one) => one.dataset.key === focused);
      [...(row?.querySelectorAll("a, button") ?? [])].find((one) => one.textContent === label)?.focus();
    }
    count.textContent = shown.length === all.length ? `${all.length} in all` : `${shown.length} of ${all.length}`;
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
    if (bar) bar.hidden = !all.length || (plain && all.length <= FEW && !find?.value);
    table.hidden = shown.length === 0;
    nothing.hidden = shown.length !== 0;
    put(nothing, all.length === 0 && none ? none() : empty("Nothing matches", "Other words or filters may."));
  };
  const again = () => {
    page = 0;
    draw();
  };
  find?.addEventListener("input", again);
  for (const one of chosen) one.addEventListener("change", again);
  draw();
  return {
    node: h("div", { class: "listing" }, bar, table, nothing, pager),
    replace(next) {
      all = next;
      texts.clear();
      draw();
    },
  };
}

/** Pairs of a name and what it stands for. */
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
