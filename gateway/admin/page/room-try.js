/** Trying a tool, a prompt or a resource: a form for what it takes, and the result beside it. */

import { at, gatewayUrl, get, post } from "./api.js";
import { foreign, freshId, h, put } from "./dom.js";
import { argumentsForm } from "./form.js";
import { badge, button, empty, field, load, section, select } from "./parts.js";
import { tree } from "./result.js";
import { panel } from "./run.js";

const MAX_SUGGESTED = 100;
// Pages of a list; a person finds nothing in longer ones.
const MAX_PAGES = 20;
const KINDS = [["tools", "Tools"], ["prompts", "Prompts"], ["resources", "Resources"]];

/** Arguments for the tool that is opened next, from the history. */
let prepared = null;

export function render(place, room) {
  const kind = room.query.get("kind") ?? "tools";
  const tabs = h("nav", { class: "tabs", "aria-label": "What to try" }, KINDS.map(([name, text]) => h("a", { href: name === "tools" ? "#/try" : `#/try?kind=${name}`, "aria-current": name === kind ? "page" : null }, text)));
  const body = h("div");
  put(place, tabs, body);
  load(body, () => Promise.all([get("wrappers"), get("profiles"), get("keys")]), ([{ wrappers }, { profiles }, { keys }]) => {
    if (kind === "tools" && !wrappers.length) return empty("There are no tools to try yet", "Tools appear as soon as a server has listed them.", h("a", { class: "button primary", href: "#/servers/add" }, "Add a server"));
    const profile = select(profiles.map((one) => [one.name, one.name]), room.query.get("profile") ?? "default");
    const principal = select([["local", "local (a caller without a key)"], ...[...new Set(keys.map((key) => key.name))].map((name) => [name, name])], "local");
    const as = () => ({ profile: profile.value, principal: principal.value });
    const beside = [field("Profile", profile), field("Call as", principal)];
    const results = panel(room, (name) => gatewayUrl(profiles.find((one) => one.name === name)), (request) => {
      prepared = request;
      if (made.use) made.use(request);
      else location.hash = `#/try/${encodeURIComponent(request.wrapper)}`;
    });
    const made = kind === "tools" ? tools(room, wrappers, { as, beside, profile, results }) : kind === "prompts" ? prompts({ as, beside, results }) : resources({ as, beside, results });
    for (const control of [profile, principal]) control.addEventListener("change", made.open);
    made.open();
    return [made.chooser, h("div", { class: "try" }, made.place, results.node), results.past];
  });
}

function tools(room, wrappers, { as, beside, profile, results }) {
  const listId = freshId("tools");
  const options = h("datalist", { id: listId });
  const tool = h("input", { type: "text", list: listId, autocomplete: "off", spellcheck: "false", value: room.part[0] ?? "", placeholder: "server__tool" });
  const names = new Set(wrappers.map((row) => row.name));
  const suggest = () => {
    const word = tool.value.toLowerCase();
    put(options, wrappers.filter((row) => row.name.toLowerCase().includes(word)).slice(0, MAX_SUGGESTED).map((row) => h("option", { value: row.name })));
  };
  const place = h("div");
  let latest = 0;
  let inner = null;
  const open = async () => {
    if (!names.has(tool.value)) {
      inner = null;
      return put(place, section("Arguments", h("p", { class: "muted" }, tool.value ? "There is no tool with this name." : "Choose a tool to show its form.")));
    }
    const turn = ++latest;
    if (!inner) put(place, (inner = h("div")));
    await load(inner, async () => get(at`wrappers/${tool.value}?profile=${profile.value}`), (row) => (turn === latest ? toolForm(row, as, results) : []));
    return undefined;
  };
  const use = (request) => {
    tool.value = request.wrapper;
    history.replaceState(null, "", `#/try/${encodeURIComponent(tool.value)}`);
    // A new place, because `load` would not draw the same tool again with other arguments.
    inner = null;
    open();
  };
  tool.addEventListener("input", () => {
    suggest();
    if (names.has(tool.value)) {
      history.replaceState(null, "", `#/try/${encodeURIComponent(tool.value)}`);
      open();
    }
  });
  tool.addEventListener("change", open);
  suggest();
  return { chooser: section("Tool", h("div", { class: "fields" }, labelled("Tool", tool, options), beside)), place, open, use };
}

function labelled(text, input, beside, hint) {
  const made = field(text, input, hint);
  made.append(beside);
  return made;
}

function toolForm(row, as, results) {
  const definition = row.definition;
  const given = prepared?.wrapper === row.name ? prepared.arguments : undefined;
  prepared = null;
  const made = argumentsForm(definition.inputSchema ?? { type: "object" }, given);
  const go = button("Run it", async () => {
    const value = made.read();
    if (value !== undefined) await results.run({ wrapper: row.name, arguments: value, ...as() }, made.mark);
  }, { kind: "primary" });
  const hints = definition.annotations ?? {};
  return section("Arguments",
    h("p", { class: "state-line" }, foreign(row.name, "code"), badge(row.status), hints.readOnlyHint === true ? badge("good", "Only reads") : hints.destructiveHint === true ? badge("warned", "May delete or overwrite") : null),
    definition.description ? h("details", { open: definition.description.length < 400 }, h("summary", null, "Description"), foreign(definition.description, "p")) : null,
    submitting(go, made.node),
    h("details", null, h("summary", null, "Schema"), tree(definition.inputSchema ?? {})));
}

/** A form in which Enter in a field, or Ctrl+Enter anywhere, presses the button. */
function submitting(go, ...children) {
  const made = h("form", { novalidate: true }, children, h("div", { class: "actions" }, go));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    go.click();
  });
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go.click();
    else if (event.key === "Enter" && event.target.tagName === "INPUT") {
      event.preventDefault();
      go.click();
    }
  });
  return made;
}

/** Every page of a list, as this caller sees it. */
async function listed(method, member, as) {
  const found = [];
  let cursor;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const { response } = await post("try", { method, params: cursor ? { cursor } : {}, ...as() });
    if (response.error) throw new Error(response.error.message);
    found.push(...(response.result[member] ?? []));
    cursor = response.result.nextCursor;
    if (!cursor) break;
  }
  return found;
}

/** A text field whose suggestions the server completes. */
function completed(name, ref, as, others, { label = name, hint, required } = {}) {
  const id = freshId("values");
  const values = h("datalist", { id });
  const input = h("input", { type: "text", autocomplete: "off", list: id, "aria-required": required ? "true" : null });
  let late = 0;
  input.addEventListener("input", () => {
    clearTimeout(late);
    late = setTimeout(async () => {
      const given = Object.fromEntries(others().filter(([key, value]) => key !== name && value));
      const params = { ref, argument: { name, value: input.value }, ...(Object.keys(given).length ? { context: { arguments: given } } : {}) };
      const found = await post("try", { method: "completion/complete", params, ...as() }).catch(() => null);
      put(values, (found?.response.result?.completion?.values ?? []).slice(0, MAX_SUGGESTED).map((value) => h("option", { value })));
    }, 250);
  });
  return { name, input, node: labelled([foreign(label), required ? h("span", { class: "needed" }, " required") : null], input, values, hint) };
}

function prompts({ as, beside, results }) {
  const prompt = select([["", "Choose a prompt"]], "");
  const place = h("div");
  let found = [];
  const open = () => load(place, () => listed("prompts/list", "prompts", as), (rows) => {
    found = rows;
    const before = prompt.value;
    put(prompt, h("option", { value: "" }, "Choose a prompt"), rows.map((row) => h("option", { value: row.name, selected: row.name === before }, row.name)));
    return draw();
  });
  const draw = () => {
    const row = found.find((one) => one.name === prompt.value);
    if (!found.length) return empty("There are no prompts", "No server lists a prompt that this caller sees.");
    if (!row) return section("Arguments", h("p", { class: "muted" }, "Choose a prompt to show its form."));
    const fields = [];
    const others = () => fields.map((one) => [one.name, one.input.value]);
    fields.push(...(row.arguments ?? []).map((one) => completed(one.name, { type: "ref/prompt", name: row.name }, as, others, { hint: one.description ? foreign(one.description) : null, required: one.required })));
    const go = button("Get it", () => results.run({ method: "prompts/get", params: { name: row.name, arguments: Object.fromEntries(others().filter(([, value]) => value !== "")) }, ...as() }), { kind: "primary" });
    return section("Arguments", row.description ? foreign(row.description, "p") : null, submitting(go, fields.map((one) => one.node)));
  };
  prompt.addEventListener("change", () => put(place, draw()));
  return { chooser: section("Choose a prompt", h("div", { class: "fields" }, field("Prompt", prompt), beside)), place, open };
}

function resources({ as, beside, results }) {
  const resource = select([["", "Choose a resource"]], "");
  const place = h("div");
  let found = [];
  const open = () => load(place, () => Promise.all([listed("resources/list", "resources", as), listed("resources/templates/list", "resourceTemplates", as)]), ([plain, templates]) => {
    found = [...plain.map((row) => ({ ...row, key: row.uri })), ...templates.map((row) => ({ ...row, key: row.uriTemplate }))];
    const before = resource.value;
    put(resource, h("option", { value: "" }, "Choose a resource"), found.map((row) => h("option", { value: row.key, selected: row.key === before }, `${row.title ?? row.name}: ${row.key}`)));
    return draw();
  });
  const draw = () => {
    const row = found.find((one) => one.key === resource.value);
    if (!found.length) return empty("There are no resources", "No server lists a resource that this caller sees.");
    if (!row) return section("Resource", h("p", { class: "muted" }, "Choose a resource or a template."));
    const fields = [];
    const others = () => fields.map((one) => [one.name, one.input.value]);
    const variables = row.uriTemplate ? [...row.uriTemplate.matchAll(/\{[+#./;?&]?([^}*:]+)[^}]*\}/g)].flatMap(([, names]) => names.split(",")) : [];
    fields.push(...variables.map((name) => completed(name, { type: "ref/resource", uri: row.uriTemplate }, as, others)));
    const uri = () => (row.uriTemplate ? fields.reduce((text, one) => text.replace(new RegExp(`\\{[+#./;?&]?${one.name.replaceAll(/[^\w]/g, "\\$&")}[^}]*\\}`), () => encodeURIComponent(one.input.value)), row.uriTemplate) : row.uri);
    const go = button("Read it", () => results.run({ method: "resources/read", params: { uri: uri() }, ...as() }), { kind: "primary" });
    return section("Resource", foreign(row.key, "code"), row.description ? foreign(row.description, "p") : null, submitting(go, fields.map((one) => one.node)));
  };
  resource.addEventListener("change", () => put(place, draw()));
  return { chooser: section("Choose a resource", h("div", { class: "fields" }, field("Resource or template", resource), beside)), place, open };
}
