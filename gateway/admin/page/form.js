/** Forms generated from JSON Schema, with JSON input for schemas that a form cannot express. */

import { foreign, freshId, h, put } from "./dom.js";
import { button, select } from "./parts.js";

const MAX_DEPTH = 6;
const MAX_FIELDS = 150;
const LONG = 200;
const INPUTS = { date: "date", time: "time", email: "email", uri: "url", url: "url", "date-time": "text", password: "password" };
const HINTS = { "date-time": "such as 2027-01-31T08:00:00Z", date: "a date", uri: "an address", email: "an e-mail address", uuid: "a UUID" };

/** The form for the arguments of a tool, which can be switched to JSON input. */
export function argumentsForm(schema, initial = {}) {
  const budget = { fields: MAX_FIELDS };
  const root = { ...schema, type: "object" };
  let part = editor(root, root, initial, 0, budget, true);
  let raw = null;
  const place = h("div", { class: "form-body" }, part.node);
  const note = h("p", { class: "problem", role: "alert", hidden: true });
  const toggle = button("Write as JSON", () => {
    if (raw === null) {
      raw = textarea(JSON.stringify(part.read() ?? {}, null, 2), "Arguments as JSON");
      put(place, raw);
      toggle.textContent = "Back to the form";
      raw.focus();
      return;
    }
    const value = parsed(raw, note);
    if (value === undefined) return;
    raw = null;
    part = editor(root, root, value, 0, { fields: MAX_FIELDS }, true);
    put(place, part.node);
    toggle.textContent = "Write as JSON";
  }, { kind: "quiet" });
  return {
    node: h("div", { class: "schema-form" }, h("div", { class: "form-tools" }, toggle), place, note),
    /** Show problems, { path, kind, text }, at their fields, and focus the first; problems without a field are listed. */
    mark(problems) {
      for (const old of place.parentNode.querySelectorAll(".field-problem")) old.remove();
      for (const old of place.querySelectorAll("[aria-invalid]")) {
        old.removeAttribute("aria-invalid");
        old.setAttribute("aria-describedby", old.dataset.described ?? "");
      }
      const marked = problems.map((problem) => markOne(problem, raw === null ? part.find?.(problem.path) : null, place));
      marked.find(Boolean)?.focus();
    },
    /** Return the arguments, or show an error and return undefined if the JSON input is invalid. */
    read() {
      note.hidden = true;
      try {
        return raw === null ? (part.read() ?? {}) : parsed(raw, note);
      } catch (error) {
        note.hidden = false;
        note.textContent = error.message;
        return undefined;
      }
    },
  };
}

/** Show one problem at its field, or above the form; return the control to focus. */
function markOne(problem, node, place) {
  const text = problem.kind === "missing" && node ? "This argument is required" : problem.text;
  const shown = h("p", { class: "field-problem", id: freshId("problem") }, h("span", { "aria-hidden": "true" }, "▲ "), foreign(text, "span"));
  if (!node) {
    place.before(shown);
    return null;
  }
  node.append(shown);
  const control = node.querySelector("input, select, textarea, button");
  control?.setAttribute("aria-invalid", "true");
  if (control) {
    control.dataset.described ??= control.getAttribute("aria-describedby") ?? "";
    control.setAttribute("aria-describedby", `${shown.id} ${control.dataset.described}`.trim());
  }
  return control;
}

function parsed(area, note) {
  try {
    const value = JSON.parse(area.value || "{}");
    note.hidden = true;
    return value;
  } catch (error) {
    note.hidden = false;
    note.textContent = `This is not valid JSON: ${error.message}`;
    area.focus();
    return undefined;
  }
}

function textarea(text, label) {
  return h("textarea", { class: "code", rows: Math.min(20, Math.max(3, text.split("\n").length + 1)), spellcheck: "false", "aria-label": label, value: text });
}

/** Resolve a local `$ref`. */
function resolved(schema, root, seen = 0) {
  if (!schema || typeof schema !== "object") return {};
  if (typeof schema.$ref !== "string" || seen > 8) return schema;
  if (!schema.$ref.startsWith("#")) return {};
  let found = root;
  for (const step of schema.$ref.slice(1).split("/").filter(Boolean)) {
    const name = decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");
    found = found && typeof found === "object" && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  const { $ref: _, ...beside } = schema;
  return { ...resolved(found, root, seen + 1), ...beside };
}

function typeOf(schema) {
  const types = Array.isArray(schema.type) ? schema.type.filter((type) => type !== "null") : [schema.type];
  if (types.length === 1 && types[0]) return types[0];
  if (types.length > 1) return "any";
  if (schema.properties) return "object";
  if (schema.items) return "array";
  return "any";
}

function editor(written, root, value, depth, budget, required) {
  const schema = resolved(written, root);
  budget.fields -= 1;
  if (depth > MAX_DEPTH || budget.fields < 0) return jsonEditor(value);
  if (schema.const !== undefined) return fixed(schema.const);
  if (Array.isArray(schema.enum)) return choice(schema.enum, value ?? schema.default, required);
  const variants = (schema.oneOf ?? schema.anyOf ?? []).filter((each) => resolved(each, root).type !== "null");
  if (variants.length === 1) return editor({ ...schema, oneOf: undefined, anyOf: undefined, ...resolved(variants[0], root) }, root, value, depth, budget, required);
  if (variants.length > 1 && depth > 0) return variant(schema, variants, root, value, depth, budget, required);
  switch (typeOf(schema)) {
    case "object":
      return objectEditor(schema, root, value, depth, budget, required);
    case "array":
      return arrayEditor(schema, root, value, depth, budget);
    case "boolean":
      return choice([true, false], value ?? schema.default, required);
    case "integer":
    case "number":
      return numberEditor(schema, value);
    case "string":
      return textEditor(schema, value);
    case "null":
      return fixed(null);
    default:
      return jsonEditor(value ?? schema.default);
  }
}

function fixed(value) {
  return { node: h("output", { class: "code" }, JSON.stringify(value)), read: () => value };
}

function choice(values, value, required) {
  const index = values.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
  const options = values.map((each, at) => [String(at), typeof each === "string" ? each : JSON.stringify(each)]);
  const node = select([...(required && index >= 0 ? [] : [["", "(not given)"]]), ...options], index >= 0 ? String(index) : "");
  return { node, control: node, read: () => (node.value === "" ? undefined : values[Number(node.value)]) };
}

function numberEditor(schema, value) {
  const node = h("input", {
    type: "text", inputmode: schema.type === "integer" ? "numeric" : "decimal", autocomplete: "off",
    placeholder: range(schema), value: value ?? schema.default ?? "",
  });
  return {
    node, control: node,
    read() {
      const text = node.value.trim();
      if (text === "") return undefined;
      // Send invalid numbers unchanged, so that the gateway reports the error as it would to a model.
      return /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text) && Number.isFinite(Number(text)) ? Number(text) : text;
    },
  };
}

function range(schema) {
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const most = schema.maximum ?? schema.exclusiveMaximum;
  if (least !== undefined && most !== undefined) return `${least} to ${most}`;
  if (least !== undefined) return `from ${least}`;
  return most !== undefined ? `up to ${most}` : "";
}

function textEditor(schema, value) {
  const text = value ?? schema.default ?? "";
  const shown = typeof text === "string" ? text : JSON.stringify(text);
  const long = (schema.maxLength ?? 0) > LONG || shown.length > LONG || shown.includes("\n") || schema.contentMediaType;
  const example = schema.examples?.[0];
  const attributes = { autocomplete: "off", placeholder: typeof example === "string" ? `such as ${example}` : (HINTS[schema.format] ?? ""), value: shown };
  const node = long ? h("textarea", { rows: 4, ...attributes }) : h("input", { type: INPUTS[schema.format] ?? "text", ...attributes });
  return { node, control: node, read: () => (node.value === "" ? undefined : node.value) };
}

function jsonEditor(value) {
  const node = textarea(value === undefined ? "" : JSON.stringify(value, null, 2), "As JSON");
  node.placeholder = "JSON";
  return {
    node, control: node,
    read() {
      if (node.value.trim() === "") return undefined;
      try {
        return JSON.parse(node.value);
      } catch {
        // Accept an unquoted word as a string.
        return node.value;
      }
    },
  };
}

function variant(schema, variants, root, value, depth, budget, required) {
  const named = variants.map((each, index) => {
    const whole = resolved(each, root);
    return [String(index), String(whole.title ?? (whole.const !== undefined ? JSON.stringify(whole.const) : whole.type ?? `Form ${index + 1}`))];
  });
  const kind = select(named, "0", { "aria-label": "Form" });
  const place = h("div");
  let part = null;
  const draw = (initial) => {
    const { oneOf: _one, anyOf: _any, ...common } = schema;
    part = editor({ ...common, ...resolved(variants[Number(kind.value)], root) }, root, initial, depth + 1, budget, required);
    if (part.control && !part.control.hasAttribute("aria-label")) part.control.setAttribute("aria-label", "Value");
    put(place, part.node);
  };
  kind.addEventListener("change", () => draw(undefined));
  draw(value);
  return { node: h("div", { class: "variant" }, kind, place), read: () => part.read(), find: (path) => part.find?.(path) };
}

function objectEditor(schema, root, value, depth, budget, required) {
  const given = value && typeof value === "object" && !Array.isArray(value) ? value : {};
  const wanted = new Set(schema.required ?? []);
  const entries = Object.entries(schema.properties ?? {});
  // Required arguments come first.
  entries.sort(([a], [b]) => Number(wanted.has(b)) - Number(wanted.has(a)));
  const parts = entries.map(([name, property]) => {
    const part = editor(property, root, given[name], depth + 1, budget, wanted.has(name));
    return { name, part, node: member(name, resolved(property, root), part, wanted.has(name)) };
  });
  const known = new Set(entries.map(([name]) => name));
  const others = Object.fromEntries(Object.entries(given).filter(([name]) => !known.has(name)));
  const open = schema.additionalProperties !== undefined && schema.additionalProperties !== false;
  const more = open || !entries.length || Object.keys(others).length ? jsonEditor(Object.keys(others).length ? others : undefined) : null;
  const free = entries.length === 0;
  const extra = more && (schema.additionalProperties !== false || Object.keys(others).length)
    ? member(free ? "Members" : "Additional members", { description: "A JSON object" }, more, false, true) : null;
  return {
    node: h("div", { class: depth ? "object" : "object root" }, parts.map((each) => each.node), entries.length === 0 && schema.additionalProperties === false ? h("p", { class: "muted" }, "This tool takes no arguments.") : extra),
    read() {
      const made = {};
      const beside = extra ? more.read() : undefined;
      if (beside && typeof beside === "object" && !Array.isArray(beside)) Object.assign(made, beside);
      for (const { name, part } of parts) {
        const found = part.read();
        if (found !== undefined) made[name] = found;
      }
      return Object.keys(made).length || depth === 0 || required ? made : undefined;
    },
    /** Return the element of the member at a path, or of the nearest one around it. */
    find([name, ...rest]) {
      const found = parts.find((each) => each.name === name);
      return found ? ((rest.length ? found.part.find?.(rest) : null) ?? found.node) : null;
    },
  };
}

function member(name, schema, part, required, ours = false) {
  const label = [ours ? name : foreign(schema.title && schema.title !== name ? `${name} – ${schema.title}` : name), required ? h("span", { class: "needed" }, " required") : null];
  const hints = [schema.description, HINTS[schema.format] && !schema.description ? HINTS[schema.format] : null].filter(Boolean);
  const hint = hints.length ? foreign(String(hints[0]), "p") : null;
  if (hint) hint.classList.add("hint");
  if (!part.control) return h("fieldset", null, h("legend", null, label), hint, part.node);
  const id = freshId("argument");
  part.control.id = id;
  part.control.removeAttribute("aria-label");
  if (!ours) part.control.dataset.argument = name;
  if (required) part.control.setAttribute("aria-required", "true");
  if (hint) {
    hint.id = freshId("hint");
    part.control.setAttribute("aria-describedby", hint.id);
  }
  return h("div", { class: "field" }, h("label", { for: id }, label), part.control, hint);
}

function arrayEditor(schema, root, value, depth, budget) {
  const items = [];
  const place = h("ol", { class: "items" });
  const item = schema.items && typeof schema.items === "object" ? schema.items : {};
  const draw = () => put(place, items.map((one, index) => {
    one.part.control?.setAttribute("aria-label", `Item ${index + 1}`);
    return h("li", null, one.part.node, button("Remove", () => {
      items.splice(items.indexOf(one), 1);
      draw();
      add.focus();
    }, { kind: "quiet", "aria-label": `Remove item ${index + 1}` }));
  }));
  const push = (initial) => items.push({ part: editor(item, root, initial, depth + 1, budget, true) });
  const add = button("Add an item", () => {
    push(undefined);
    draw();
    place.lastElementChild?.querySelector("input, select, textarea")?.focus();
  });
  for (const one of Array.isArray(value) ? value : []) push(one);
  draw();
  return {
    node: h("div", { class: "array" }, place, add),
    read() {
      const made = items.map((one) => one.part.read()).filter((one) => one !== undefined);
      return items.length ? made : undefined;
    },
    find([index, ...rest]) {
      return (rest.length ? items[index]?.part.find?.(rest) : null) ?? place.children[index] ?? null;
    },
  };
}
