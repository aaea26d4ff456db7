/** Adding a server from an address, a host's file, a command or a registry, with a preview and a start on trial. */

import { has, may, post, postStream } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { badge, button, facts, field, milliseconds, plural, problemNote, problemText, section } from "./parts.js";

const MAX_FILE = 1024 * 1024;

export function renderAdd(place, { title, actions }) {
  title("Add a server");
  put(actions, h("a", { class: "button", href: "#/servers" }, "All servers"));
  const way = h("div");
  const preview = h("div", { "aria-live": "polite" });
  const ways = [["address", "URL", address], ["file", "Host file", file], ["command", "Command", command]];
  if (has("post", "proposals")) ways.push(["registry", "Registry or package", registry]);
  const chosen = h("fieldset", { class: "choice ways" }, h("legend", { class: "hidden" }, "Source"), ways.map(([name, text, make], index) =>
    h("label", null, h("input", {
      type: "radio", name: "way", value: name, checked: index === 0,
      onchange: () => {
        put(preview);
        put(way, make(preview));
      },
    }), text)));
  put(way, address(preview));
  put(place, section("Source", chosen, way), preview);
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
    field("Address", url, "The URL of its MCP endpoint, as in its documentation."),
    field("Name", name, "Letters and digits, joined by single - or _. Its tools will be named NAME__tool."),
    h("details", null, h("summary", null, "A header to send"), field("Header", header), field("Value", value, "Stored in the state directory of the gateway, and not shown again.")),
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
    field("File of a host", input, "For example of Claude Desktop, Cursor or VS Code. The file is read in this browser; only servers that you add are sent."),
    field("Or paste its text", text, "An mcpServers or servers block, or the entry of a single server."),
    field("Name", name, "Only for a single entry."),
  ], () => entries(text.value, name.value.trim()));
}

function entries(text, name) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not valid JSON: ${error.message}`);
  }
  const block = found?.mcpServers ?? found?.servers ?? null;
  if (block && typeof block === "object") return Object.entries(block);
  if (found && typeof found === "object" && (found.command || found.url || found.endpoint || found.type)) return [[name, found]];
  if (found && typeof found === "object" && Object.values(found).every((one) => one && typeof one === "object")) return Object.entries(found);
  throw new Error("It contains no server; expected an object mcpServers");
}

/** A program with its arguments and variables, one row for each variable. */
function command(preview) {
  const name = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false" });
  const program = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false", placeholder: "npx" });
  const given = h("textarea", { class: "code", rows: 4, spellcheck: "false", placeholder: "-y\n@example/calendar@1.2.3" });
  const variables = [];
  const rows = h("ul", { class: "documented" });
  const draw = () => put(rows, variables.map((one) => one.node));
  const adding = button("Add a variable", () => {
    const label = h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "API_KEY" });
    const value = h("input", { type: "password", autocomplete: "off" });
    const secret = h("input", { type: "checkbox", checked: true, onchange: () => value.setAttribute("type", secret.checked ? "password" : "text") });
    const one = { name: label, value, node: h("li", { class: "variable" }, field("Variable", label), field("Value", value), h("label", { class: "tick" }, secret, "Secret"), button("Remove", () => {
      variables.splice(variables.indexOf(one), 1);
      draw();
      adding.focus();
    }, { "aria-label": "Remove this variable" })) };
    variables.push(one);
    draw();
    label.focus();
  });
  return wizard(preview, [
    field("Program", program, "Its name or path on the gateway's machine."),
    field("Arguments", given, "One per line, without quotes."),
    h("fieldset", null, h("legend", null, "Variables"), rows, h("div", { class: "actions" }, adding), h("p", { class: "hint" }, "Values are stored in the state directory of the gateway, and not shown again.")),
    field("Name", name, "Letters and digits, joined by single - or _. Its tools will be named NAME__tool."),
  ], () => {
    const env = Object.fromEntries(variables.filter((one) => one.name.value.trim()).map((one) => [one.name.value.trim(), one.value.value]));
    const args = given.value.split("\n").map((line) => line.trim()).filter(Boolean);
    return [[name.value.trim(), { command: program.value.trim(), ...(args.length ? { args } : {}), ...(Object.keys(env).length ? { env } : {}) }]];
  });
}

function registry(preview) {
  const what = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false", placeholder: "com.example/calendar" });
  const place = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "stack" }, field("Name", what, "A name in the MCP registry or a word of it, npm:PACKAGE, or pypi:PACKAGE. The exact version is looked up."),
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
    h("h3", null, "Choose a server"),
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

/** A published server, with a field for each required value. */
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
    field("Alias", alias),
    inputs.map(([one, control]) => field(one.name, control, one.about || (one.required ? "Required." : ""))),
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

/** Show what each of these servers would run, with buttons to start it on trial and to add it. */
async function show(preview, found) {
  const looked = await Promise.all(found.map(async ([name, config]) => {
    try {
      return { name, config, row: await post("preview", { name, config }) };
    } catch (error) {
      return { name, config, problem: error.message };
    }
  }));
  const shown = looked.map((one) => card(one, found.length === 1));
  const left = () => shown.filter((one) => one.add && !one.isAdded());
  const all = left().length > 1 ? button(`Add all ${left().length}`, async () => {
    const [before, failed] = [left().length, []];
    for (const one of left()) await one.add().catch(() => failed.push(one));
    say(failed.length ? `${plural(before - failed.length, "server")} added, ${failed.length} refused` : `${plural(before, "server")} added`, failed.length ? "error" : "note");
    all.hidden = !left().length;
  }, { kind: "primary" }) : null;
  put(preview, section(found.length === 1 ? "What will run" : `What will run: ${found.length} servers`, copies(preview, found, looked), all ? h("div", { class: "actions" }, all) : null, shown.map((one) => one.node)));
  preview.querySelector("button")?.focus();
}

/** With several processes, a program runs once in each of them; the administrator decides whether it may. */
function copies(preview, found, looked) {
  const refused = new Set(looked.filter((one) => one.problem?.includes('"copies": true')).map((one) => one.name));
  if (!refused.size) return null;
  return h("div", { class: "stack" },
    h("p", null, `This gateway has several processes, and each starts its own copy of ${[...refused].join(", ")}. Allow this only for a program that keeps nothing in its memory that a later call needs.`),
    h("div", { class: "actions" }, button("Allow a copy in each process", () => show(preview, found.map(([name, config]) => [name, refused.has(name) ? { ...config, copies: true } : config])))));
}

/** The preview of one server; `add` adds it, if that is allowed. */
function card(one, alone) {
  const trial = h("div", { class: "trial" });
  const done = h("div", { "aria-live": "polite" });
  let added = false;
  const add = one.row?.allowed ? async () => {
    try {
      await post("servers", { name: one.name, config: one.config });
    } catch (error) {
      put(done, problemText(error.message));
      throw error;
    }
    added = true;
    if (alone) {
      location.hash = `#/servers/${encodeURIComponent(one.name)}`;
      return;
    }
    actions.remove();
    put(done, badge("ok", "Added"), " ", h("a", { href: `#/servers/${encodeURIComponent(one.name)}` }, one.name));
  } : null;
  const actions = h("div", { class: "actions" }, add ? [
    may("post", "trials") ? button("Start on trial", () => start(trial, one), { "aria-label": `Start ${one.name} on trial` }) : null,
    button(`Add ${one.name}`, async () => {
      await add();
      say(`${one.name} is added; its tools appear as soon as it has listed them`);
    }, { kind: "primary" })] : null);
  const node = h("div", { class: "preview" },
    h("h3", null, foreign(one.name || "(no name)")),
    one.row ? facts([
      [one.row.local.length ? "Starts on the gateway's machine" : "Connects to", foreign(one.row.runs, "code")],
      ["Kind", one.row.type],
      ["Receives", one.row.sends.length ? foreign(one.row.sends.join(", ")) : null],
    ]) : null,
    one.problem || one.row?.error ? problemNote(one.problem ?? one.row.error) : null,
    trial, done, actions);
  return { node, add, isAdded: () => added };
}

/** Start a server without adding it, and show what it prints and lists. */
async function start(place, { name, config }) {
  const control = new AbortController();
  const began = performance.now();
  const elapsed = h("span", { class: "muted" }, "0 s");
  const log = h("pre", { class: "code printed", tabindex: "0", role: "region", "aria-label": `What ${name} prints`, hidden: true });
  const head = h("div", { class: "result-head", role: "status" }, badge("starting", "Starting, not exposed"), elapsed, button("Cancel", () => control.abort(), { kind: "danger" }));
  put(place, head, log);
  const tick = setInterval(() => {
    elapsed.textContent = `${Math.floor((performance.now() - began) / 1000)} s`;
    // The room was left: nobody waits for the server.
    if (!place.isConnected) control.abort();
  }, 500);
  try {
    const found = await postStream("trials", { name, config }, control.signal, ({ line }) => {
      log.hidden = false;
      log.append(foreign(line, "span"), "\n");
      log.scrollTop = log.scrollHeight;
    });
    const took = milliseconds(performance.now() - began);
    if (found.error) return put(head, badge("error", "Not started"), foreign(found.error, "span"));
    put(head, badge("ok", `${plural(found.tools.length, "tool")} after ${took}`), h("span", { class: "muted" }, `${plural(found.prompts, "prompt")}, ${plural(found.resources, "resource")}. It is ended again.`));
    return put(place, head, log,
      found.refused.length ? h("ul", { class: "findings" }, found.refused.map((text) => h("li", null, badge("quarantined"), foreign(text)))) : null,
      h("ul", { class: "findings" }, found.tools.map((tool) => h("li", null, h("div", { class: "finding" }, foreign(tool.name, "strong"), tool.description ? foreign(tool.description, "p") : null)))));
  } catch (error) {
    return put(head, error.name === "AbortError" ? badge("disabled", "Cancelled and ended") : problemText(error.message));
  } finally {
    clearInterval(tick);
  }
}
