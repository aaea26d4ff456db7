/** One tool, run from a form that is made of its schema, as a model would run it. */

import { at, get, post } from "./api.js";
import { foreign, freshId, h, put } from "./dom.js";
import { argumentsForm } from "./form.js";
import { badge, button, empty, field, load, problemText, section, select } from "./parts.js";
import { exchange, tree } from "./result.js";

const MAX_SUGGESTED = 100;

export function render(place, room) {
  load(place, () => Promise.all([get("wrappers"), get("profiles"), get("keys")]), ([{ wrappers }, { profiles }, { keys }]) => {
    if (!wrappers.length) return empty("There is no tool to try yet", "Tools appear as soon as a server has listed them.", h("a", { class: "button primary", href: "#/servers/add" }, "Add a server"));
    return chooser(room, wrappers, profiles, keys);
  });
}

function chooser(room, wrappers, profiles, keys) {
  const listId = freshId("tools");
  const options = h("datalist", { id: listId });
  const tool = h("input", { type: "text", list: listId, autocomplete: "off", spellcheck: "false", value: room.part[0] ?? "", placeholder: "server__tool" });
  const profile = select(profiles.map((one) => [one.name, one.name]), room.query.get("profile") ?? "default");
  const principal = select([["local", "local (a caller without a key)"], ...[...new Set(keys.map((key) => key.name))].map((name) => [name, name])], "local");
  const names = new Set(wrappers.map((row) => row.name));
  const suggest = () => {
    const word = tool.value.toLowerCase();
    put(options, wrappers.filter((row) => row.name.toLowerCase().includes(word)).slice(0, MAX_SUGGESTED).map((row) => h("option", { value: row.name })));
  };
  const place = h("div");
  let latest = 0;
  const open = async () => {
    if (!names.has(tool.value)) return put(place, tool.value ? h("p", { class: "muted" }, "There is no tool of this name.") : h("p", { class: "muted" }, "Choose a tool: its form appears here."));
    const turn = ++latest;
    await load(place, async () => get(at`wrappers/${tool.value}?profile=${profile.value}`), (row) => (turn === latest ? form(row, profile, principal) : []));
    return undefined;
  };
  tool.addEventListener("input", () => {
    suggest();
    if (names.has(tool.value)) {
      history.replaceState(null, "", `#/try/${encodeURIComponent(tool.value)}`);
      open();
    }
  });
  tool.addEventListener("change", open);
  profile.addEventListener("change", open);
  suggest();
  open();
  return [section("Which tool", h("div", { class: "fields" }, labelled("Tool", tool, options), field("Profile", profile), field("With the rights of", principal))), place];
}

function labelled(text, input, beside) {
  const made = field(text, input);
  made.append(beside);
  return made;
}

function form(row, profile, principal) {
  const definition = row.definition;
  const made = argumentsForm(definition.inputSchema ?? { type: "object" });
  const answer = h("div", { "aria-live": "polite", class: "answer" });
  const run = async () => {
    const value = made.read();
    if (value === undefined) return;
    put(answer, h("p", { class: "muted" }, "Running…"));
    const began = performance.now();
    try {
      const found = await post("try", { wrapper: row.name, arguments: value, profile: profile.value, principal: principal.value });
      put(answer, exchange(found));
    } catch (error) {
      put(answer, problemText(`${error.message} (after ${Math.round(performance.now() - began)} ms)`));
    }
  };
  const go = button("Run it", run, { kind: "primary" });
  const arguments_ = h("form", { novalidate: true }, made.node, h("div", { class: "actions" }, go));
  arguments_.addEventListener("submit", (event) => {
    event.preventDefault();
    go.click();
  });
  arguments_.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go.click();
    else if (event.key === "Enter" && event.target.tagName === "INPUT") {
      event.preventDefault();
      go.click();
    }
  });
  const hints = definition.annotations ?? {};
  return h("div", { class: "try" },
    section("Arguments",
      h("p", { class: "state-line" }, foreign(row.name, "code"), badge(row.status), hints.readOnlyHint === true ? badge("good", "Only reads") : hints.destructiveHint === true ? badge("warned", "May delete or overwrite") : null),
      definition.description ? h("details", { open: definition.description.length < 400 }, h("summary", null, "Description"), foreign(definition.description, "p")) : null,
      arguments_,
      h("details", null, h("summary", null, "Schema"), tree(definition.inputSchema ?? {}))),
    section("Result", answer));
}
