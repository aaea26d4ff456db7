/** The command palette: jump to a room, a server or a tool, or start an action, from the keyboard. */

import { get, has, may } from "./api.js";
import { foreign, freshId, h, put } from "./dom.js";
import { dialog } from "./parts.js";

const MAX_SHOWN = 40;

const entry = (kind, name, href, more = "") => ({ kind, name, href, text: `${name} ${more}`.toLowerCase() });

function actions() {
  return [
    may("post", "servers") ? entry("Action", "Add a server", "#/servers/add") : null,
    has("get", "changes") ? entry("Action", "Review changed definitions", "#/changes", "approve reject held") : null,
    entry("Action", "Show failing tools", "#/activity/failing", "errors"),
    entry("Action", "Show the slowest tools", "#/activity/slowest", "p95 latency"),
    entry("Action", "Show tools that do not exist", "#/activity/unknown", "unknown names"),
    may("post", "keys") ? entry("Action", "Issue a key", "#/access", "access callers") : null,
    entry("Action", "Explain a decision", "#/access", "policy rules refused why"),
  ].filter(Boolean);
}

async function everything(rooms) {
  const [{ servers }, { wrappers }] = await Promise.all([get("servers"), get("wrappers")]);
  const runs = may("post", "try");
  return [
    ...rooms.map(([name, text]) => entry("Room", text, `#/${name}`)),
    ...actions(),
    ...servers.map((row) => entry("Server", row.name, `#/servers/${encodeURIComponent(row.name)}`, row.displayName ?? "")),
    ...wrappers.map((row) => entry("Tool", row.name, runs ? `#/try/${encodeURIComponent(row.name)}` : `#/tools?q=${encodeURIComponent(row.name)}`)),
  ];
}

/** Sort names that begin with the words before names that only contain them. */
function matching(entries, typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const found = entries.filter((one) => words.every((word) => one.text.includes(word)));
  return words.length ? [...found.filter((one) => one.text.startsWith(words[0])), ...found.filter((one) => !one.text.startsWith(words[0]))] : found;
}

/** Open the palette, and follow the chosen entry. */
export async function showPalette(rooms) {
  const listId = freshId("commands");
  const input = h("input", { type: "text", role: "combobox", "aria-label": "Go to a room, server, tool or action", "aria-expanded": "true", "aria-controls": listId, "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", autofocus: true, placeholder: "Room, server, tool or action" });
  const options = h("ul", { id: listId, role: "listbox", "aria-label": "Commands", class: "commands" });
  const count = h("p", { class: "muted", role: "status" }, "Loading…");
  let entries = [];
  let shown = [];
  let chosen = 0;
  const mark = () => {
    [...options.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === chosen)));
    const item = options.children[chosen];
    if (item) {
      input.setAttribute("aria-activedescendant", item.id);
      item.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const href = await dialog("Go to", (close) => {
    const draw = () => {
      if (!entries.length) return;
      const found = matching(entries, input.value);
      shown = found.slice(0, MAX_SHOWN);
      chosen = 0;
      count.textContent = found.length ? `${found.length} found${found.length > shown.length ? `, the first ${shown.length} shown` : ""}` : "Nothing matches. Try other words.";
      put(options, shown.map((one, index) => h("li", { role: "option", id: `${listId}-${index}`, "aria-selected": "false", onclick: () => close(one.href) }, foreign(one.name, "span"), h("span", { class: "muted" }, one.kind))));
      mark();
    };
    const loaded = everything(rooms).then((found) => {
      entries = found;
      draw();
    }, (error) => {
      count.textContent = error.message;
    });
    const press = (step) => {
      if (!shown.length) return;
      if (!step) close(shown[chosen].href);
      chosen = (chosen + step + shown.length) % shown.length;
      mark();
    };
    input.addEventListener("input", draw);
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1, Enter: 0 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      // Keys that are pressed before the entries arrive wait for them.
      loaded.then(() => press(step));
    });
    return [input, count, options];
  });
  if (href) location.hash = href;
}

/** Open the palette with Ctrl+K; `/` moves to the filter of the room, or opens the palette where there is none. */
export function shortcuts(signal, rooms) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      showPalette(rooms);
    } else if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest?.("input, select, textarea, [contenteditable]")) {
      event.preventDefault();
      const filter = [...document.querySelectorAll(".room input[type=search]")].find((each) => each.offsetParent !== null);
      if (filter) filter.focus();
      else showPalette(rooms);
    }
  }, { signal });
}
