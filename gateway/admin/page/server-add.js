/** Adding a server: from an address, or from the file of a host; what will run is shown before anything does. */

import { has, post } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { badge, button, facts, field, problemNote, problemText, section } from "./parts.js";

const MAX_FILE = 1024 * 1024;

export function renderAdd(place, { title, actions }) {
  title("Add a server");
  put(actions, h("a", { class: "button", href: "#/servers" }, "All servers"));
  const way = h("div");
  const preview = h("div", { "aria-live": "polite" });
  const ways = [["address", "An address", address], ["file", "A file or its text", file]];
  if (has("post", "proposals")) ways.push(["registry", "The MCP registry or a package", registry]);
  const chosen = h("fieldset", { class: "choice ways" }, h("legend", { class: "hidden" }, "Where it is from"), ways.map(([name, text, make], index) =>
    h("label", null, h("input", {
      type: "radio", name: "way", value: name, checked: index === 0,
      onchange: () => {
        put(preview);
        put(way, make(preview));
      },
    }), text)));
  put(way, address(preview));
  put(place, section("Where is it?", chosen, way), preview);
}

function address(preview) {
  const name = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false" });
  const url = h("input", { type: "url", required: true, autocomplete: "off", placeholder: "https://example.test/mcp" });
  const header = h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "Authorization" });
  const value = h("input", { type: "password", autocomplete: "off" });
  let named = false;
  name.addEventListener("input", () => {
    named = true;
  });
  url.addEventListener("input", () => {
    if (!named) name.value = aliasOf(url.value);
  });
  return wizard(preview, [
    field("Address", url, "Of its MCP endpoint, as its documentation gives it."),
    field("Name", name, "Letters and digits, joined by single - or _. Its tools will be called NAME__tool."),
    h("details", null, h("summary", null, "A header to send"), field("Header", header), field("Its value", value, "It is kept in the state directory of the gateway, and not shown again.")),
  ], () => [[name.value.trim(), { url: url.value.trim(), ...(header.value ? { headers: { [header.value.trim()]: value.value } } : {}) }]]);
}

function aliasOf(text) {
  try {
    return new URL(text).hostname.replace(/^(www|mcp|api)\./, "").split(".")[0].replaceAll(/[^A-Za-z0-9]+/g, "-");
  } catch {
    return "";
  }
}

function file(preview) {
  const text = h("textarea", { class: "code", rows: 10, spellcheck: "false", placeholder: '{"mcpServers": {"calendar": {"command": "…"}}}' });
  const name = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const input = h("input", { type: "file", accept: ".json,.txt,application/json" });
  input.addEventListener("change", async () => {
    const found = input.files[0];
    if (!found) return;
    if (found.size > MAX_FILE) return say("This file is too large for a list of servers", "error");
    text.value = await found.text();
  });
  return wizard(preview, [
    field("The file of a host", input, "As of Claude Desktop, Cursor or VS Code. It is read in this browser; only the servers that you add are sent."),
    field("Or its text", text, "A block mcpServers or servers, or the entry of one server."),
    field("Name", name, "Only for an entry that stands alone."),
  ], () => entries(text.value, name.value.trim()));
}

function entries(text, name) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
  const block = found?.mcpServers ?? found?.servers ?? null;
  if (block && typeof block === "object") return Object.entries(block);
  if (found && typeof found === "object" && (found.command || found.url || found.endpoint || found.type)) return [[name, found]];
  if (found && typeof found === "object" && Object.values(found).every((one) => one && typeof one === "object")) return Object.entries(found);
  throw new Error("There is no server in it; expected an object mcpServers");
}

function registry(preview) {
  const what = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false", placeholder: "com.example/calendar" });
  const place = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "stack" }, field("Name", what, "In the MCP registry, or a word of it; npm:PACKAGE and pypi:PACKAGE are packages. The exact version is looked up."),
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Look it up")));
  const lookUp = async () => {
    put(preview);
    put(place, h("p", { class: "muted" }, "Looking it up…"));
    try {
      const found = await post("proposals", { what: what.value.trim() });
      put(place, found.choices.length ? several(found.choices) : proposal(preview, found));
    } catch (error) {
      put(place, problemText(foreign(error.message)));
    }
  };
  const several = (choices) => [
    h("h3", null, "Which of them?"),
    h("ul", { class: "findings" }, choices.map((one) => h("li", null,
      h("div", { class: "finding" }, foreign(one.name, "strong"), one.about ? foreign(one.about, "p") : null),
      button("Choose", async () => {
        what.value = one.name;
        await lookUp();
      }, { "aria-label": `Choose ${one.name}` })))),
  ];
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    lookUp();
  });
  return h("div", { class: "stack" }, form, place);
}

/** A server as it is published, with a field for each value that it wants. */
function proposal(preview, found) {
  const alias = h("input", { type: "text", required: true, autocomplete: "off", value: found.alias });
  const inputs = found.inputs.map((one) => [one, h("input", { type: one.secret ? "password" : "text", required: one.required, autocomplete: "off", value: one.default ?? "" })]);
  const filled = (value) => {
    if (typeof value === "string") return inputs.reduce((text, [one, control]) => text.replaceAll(`\${${one.name}}`, () => control.value), value);
    if (Array.isArray(value)) return value.map(filled);
    return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, one]) => [name, filled(one)])) : value;
  };
  return wizard(preview, [
    h("p", null, foreign(found.origin, "strong")),
    found.warnings.map((text) => foreign(text, "p")),
    field("Name here", alias),
    inputs.map(([one, control]) => field(one.name, control, one.about || (one.required ? "It is needed." : ""))),
  ], () => [[alias.value.trim(), filled(found.config)]]);
}

function wizard(preview, fields, read) {
  const form = h("form", { class: "stack" }, fields, h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Preview")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await show(preview, read());
    } catch (error) {
      put(preview, section("Preview", problemText(error.message)));
    }
  });
  return form;
}

/** What each of these servers would run, with a button for each that may be added. */
async function show(preview, found) {
  const looked = await Promise.all(found.map(async ([name, config]) => {
    try {
      return { name, config, row: await post("preview", { name, config }) };
    } catch (error) {
      return { name, config, problem: error.message };
    }
  }));
  put(preview, section(found.length === 1 ? "What will run" : `What will run: ${found.length} servers`, looked.map((one) => {
    const add = one.row?.allowed ? button(`Add ${one.name}`, async () => {
      await post("servers", { name: one.name, config: one.config });
      say(`${one.name} is added; its tools are there as soon as it has listed them`);
      if (found.length === 1) location.hash = `#/servers/${encodeURIComponent(one.name)}`;
      else put(card, h("p", null, badge("ok", "Added"), " ", h("a", { href: `#/servers/${encodeURIComponent(one.name)}` }, one.name)));
    }, { kind: "primary" }) : null;
    const card = h("div", { class: "preview" },
      h("h3", null, foreign(one.name || "(no name)")),
      one.row ? facts([
        [one.row.local.length ? "Starts on the gateway's machine" : "Connects to", foreign(one.row.runs, "code")],
        ["Kind", one.row.type],
        ["Is given", one.row.sends.length ? foreign(one.row.sends.join(", ")) : null],
      ]) : null,
      one.problem || one.row?.error ? problemNote(one.problem ?? one.row.error) : null,
      add);
    return card;
  })));
  preview.querySelector("button")?.focus();
}

