/** What callers get wrong about each tool, and the editor for its documented arguments and names. */

import { at, get, getTagged, may, post } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { badge, button, dialog, empty, field, plural, problemText, select, time } from "./parts.js";
import { tree } from "./result.js";
import { traceLink } from "./traces.js";

const KINDS = {
  missing: "Missing", unknown: "Unknown name", type: "Wrong type", value: "Wrong value", unchecked: "Not checked", error_result: "Error of the server",
};
const TYPES = ["string", "integer", "number", "boolean", "array", "object"];

const kindWord = (kind) => KINDS[kind] ?? (kind.startsWith("repaired_") ? `Repaired: ${kind.slice(9).replaceAll("_", " ")}` : kind.replaceAll("_", " "));

/** One entry for each tool, the most frequent mistakes first. */
export function mistakeList(tools, draw) {
  if (!tools.length) return empty("No mistakes yet", "Wrong, missing and renamed arguments, and error texts of servers, are collected here for each tool.");
  return h("ul", { class: "findings mistakes" }, tools.map((row) => h("li", { class: "tall" },
    h("div", { class: "finding" },
      h("p", { class: "state-line" }, foreign(row.wrapper, "code"), h("span", { class: "muted" }, `${plural(row.calls, "call")} with mistakes`)),
      h("ul", { class: "kinds" }, row.mistakes.slice(0, 12).map(mistake)),
      row.mistakes.length > 12 ? h("p", { class: "muted" }, `${row.mistakes.length - 12} more kinds`) : null),
    h("div", { class: "actions" },
      h("a", { class: "button", href: `#/activity?tool=${encodeURIComponent(row.wrapper)}`, "aria-label": `Calls of ${row.wrapper}` }, "Calls"),
      may("post", "wrappers/{name}/overrides") ? [
        button("Document it", () => editTool(row.wrapper, "arguments", row.mistakes).then(draw), { kind: "primary", "aria-label": `Document ${row.wrapper}` }),
        button("Rename it", () => editTool(row.wrapper, "name").then(draw), { "aria-label": `Rename ${row.wrapper}` }),
      ] : null))));
}

function mistake(one) {
  const isRepaired = one.kind.startsWith("repaired_");
  const callers = Object.entries(one.callers).sort(([, a], [, b]) => b - a);
  const said = one.kind === "error_result" ? foreign(one.meant || "an error without text")
    : [one.sent ? [h("span", { class: "muted" }, "sent "), foreign(one.sent, "code")] : null, one.meant && one.meant !== one.sent ? [h("span", { class: "muted" }, one.sent ? " meant " : "needed "), foreign(one.meant, "code")] : null];
  return h("li", null,
    h("div", { class: "state-line" }, badge(isRepaired ? "repaired" : one.kind === "error_result" ? "error" : "warning", kindWord(one.kind)), h("span", null, said), h("span", { class: "muted" }, `${one.calls}×`)),
    h("details", null, h("summary", null, "Example and callers"),
      one.text && one.kind !== "error_result" ? foreign(one.text, "p") : null,
      h("p", { class: "muted" }, "By ", callers.map(([name, calls], index) => [index ? ", " : "", h("a", { href: `#/activity?principal=${encodeURIComponent(name)}` }, foreign(name)), ` (${calls}×)`]), ", last ", time(one.at * 1000)),
      one.trace ? h("p", null, traceLink(one.trace)) : null,
      h("p", { class: "muted" }, "The arguments that were sent, with placeholders for the values:"),
      tree(one.example)));
}

/** Names of arguments that callers used or needed, for the first rows of the editor. */
function guesses(mistakes) {
  const names = mistakes.filter((one) => one.kind === "missing" || one.kind === "unknown").map((one) => one.meant || one.sent);
  return [...new Set(names)].filter((name) => /^[\w-]+$/.test(name)).map((name) => ({ name, type: "string" }));
}

/** Open the editor of a tool; resolves when it is closed. */
export async function editTool(wrapper, first = "arguments", mistakes = []) {
  const [{ document: found, etag }, shown] = await Promise.all([getTagged(at`wrappers/${wrapper}/overrides`), get(at`wrappers/${wrapper}`).catch(() => null)]);
  const used = found.overrides;
  const saved = await dialog(`Document ${wrapper}`, (close) => editor({ wrapper, found, used, etag, shown, first, mistakes, close }), { wide: true });
  if (saved) say(saved);
}

function editor({ wrapper, found, used, etag, shown, first, mistakes, close }) {
  const name = h("input", { type: "text", autocomplete: "off", spellcheck: "false", maxlength: 128, value: used.name ?? "", placeholder: found.tool, autofocus: first === "name" });
  const description = h("textarea", { rows: 3, value: used.description ?? "", placeholder: shown?.definition?.description ?? "" });
  const supplement = h("textarea", { rows: 2, value: used.supplement ?? "" });
  const rows = h("ul", { class: "documented" });
  const add = (argument = {}) => {
    const parts = {
      name: h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: argument.name ?? "" }),
      type: select(TYPES.map((each) => [each, each]), argument.type ?? "string"),
      about: h("input", { type: "text", autocomplete: "off", value: argument.description ?? "" }),
      required: h("input", { type: "checkbox", checked: argument.required === true }),
    };
    const item = h("li", null, field("Argument", parts.name), field("Type", parts.type), field("Description", parts.about),
      h("label", { class: "tick" }, parts.required, "Required"),
      button("Remove", () => {
        item.remove();
        adding.focus();
      }, { "aria-label": "Remove this argument" }));
    item.read = () => ({ ...argument, name: parts.name.value.trim(), type: parts.type.value, description: parts.about.value.trim() || undefined, required: parts.required.checked || undefined });
    rows.append(item);
    return parts.name;
  };
  const adding = button("Add an argument", () => add().focus());
  const known = used.arguments ?? [];
  for (const argument of known) add(argument);
  const declared = new Set([...known.map((one) => one.name), ...(shown?.arguments ?? []).map((one) => one.name)]);
  const proposed = guesses(mistakes).filter((one) => !declared.has(one.name));
  for (const argument of proposed) add(argument);
  if (first === "arguments") (rows.querySelector("input") ?? adding).setAttribute("autofocus", "");
  const problem = h("div", { "aria-live": "polite" });
  const path = at`wrappers/${wrapper}/overrides`;
  const save = async () => {
    const documented = [...rows.children].map((item) => item.read()).filter((one) => one.name);
    try {
      const answer = await post(path, { name: name.value.trim() || null, description: description.value.trim() || null, supplement: supplement.value.trim() || null, arguments: documented.length || known.length ? documented : null }, { "if-match": etag });
      close(answer.wrapper === wrapper ? `${wrapper} is documented` : `${wrapper} is now ${answer.wrapper}`);
    } catch (error) {
      put(problem, problemText(error.message));
    }
  };
  const form = h("form", { class: "stack wide", novalidate: true },
    h("p", { class: "muted" }, "Models see this text and these arguments. The change is stored in the overlay; revert it under Settings. Rules and hooks that name the tool need its new name after a rename."),
    field("Name of the tool", name, "Empty: the name that the server gives it."),
    field("Description", description, "Empty: the description of the server."),
    field("Supplement", supplement, "Appended to the description."),
    h("fieldset", null, h("legend", null, "Documented arguments"),
      proposed.length ? h("p", { class: "muted" }, "Names that callers used or needed are proposed; check them before you save.") : null,
      rows, h("div", { class: "actions" }, adding)),
    problem,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Save"), button("Cancel", () => close())));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  return form;
}
