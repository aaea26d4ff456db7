/** Access: API keys, rules, and the explanation of decisions. */

import { at, get, may, post, remove } from "./api.js";
import { copy, foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, confirm, dialog, empty, facts, field, list, load, plural, problemText, section, select } from "./parts.js";

const SCOPES = ["tools", "tools:read", "prompts", "prompts:read", "resources", "resources:read", "metrics"];

export function render(place, { signal, query }) {
  const keys = h("div");
  const rules = h("div");
  const why = h("div");
  const who = h("div");
  put(place, keys, why, rules, who);
  const draw = () => {
    load(keys, () => Promise.all([get("keys"), get("profiles")]), ([found, { profiles }]) => keyList(found.keys, profiles, draw));
    load(rules, () => get("policy"), ruleList);
    matrix.again();
  };
  const matrix = callerMatrix(who, query);
  draw();
  load(why, () => Promise.all([get("keys"), get("wrappers"), get("profiles")]), ([found, { wrappers }, { profiles }]) => explain(found.keys, wrappers, profiles, query));
  listen(["changed"], signal, draw);
}

function keyList(rows, profiles, draw) {
  return section("API keys",
    h("p", { class: "muted" }, rows.length ? ["A caller sends its key as ", h("code", null, "Authorization: Bearer KEY"), "."] : "Without any key, everyone who can reach the port may call."),
    may("post", "keys") ? h("div", { class: "actions" }, button("Issue a key", async () => {
      await issue(profiles, !rows.length);
      draw();
    }, { kind: "primary" })) : null,
    rows.length ? list({
      caption: "Keys", titled: true, plain: true, rows, key: (row) => `${row.name}/${row.hash}`, search: (row) => [row.name, row.groups, row.scopes],
      columns: [
        { title: "Caller", cell: (row) => foreign(row.name) },
        { title: "State", beside: true, cell: (row) => badge(row.state) },
        { title: "Profiles", cell: (row) => row.profiles },
        { title: "May use", cell: (row) => row.scopes },
        { title: "Groups", cell: (row) => row.groups || "–" },
        { title: "Expires", cell: (row) => h("span", { class: "nowrap" }, (row.expires ?? "never").replace(/T23:59:59(?:Z|\+00:00)$/, "")) },
        { title: "Where", cell: (row) => h("span", { class: "nowrap" }, row.origin === "overlay" ? "issued here" : "in the file") },
        { title: "Actions", deed: true, cell: (row) => (may("delete", "keys/{key}") && row.state !== "expired" ? button("Revoke", async () => {
          if (!(await confirm(`Revoke the key of ${row.name}?`, "Callers with this key are refused from now on; their open streams end within seconds.", "Revoke"))) return;
          await remove(at`keys/${row.hash ?? row.name}`);
          say(`The key of ${row.name} is revoked`);
          draw();
        }, { kind: "danger", "aria-label": `Revoke the key of ${row.name}` }) : "") },
      ],
    }).node : null);
}

async function issue(profiles, isFirst) {
  const made = await dialog("Issue a key", (close) => {
    const name = h("input", { type: "text", required: true, autocomplete: "off", maxlength: "256", autofocus: true });
    const opens = select([["", "All profiles"], ...profiles.map((one) => [one.name, one.name])], "");
    const expires = h("input", { type: "date" });
    const groups = h("input", { type: "text", autocomplete: "off", placeholder: "interns, night-shift" });
    const boxes = SCOPES.map((scope) => h("label", null, h("input", { type: "checkbox", value: scope }), scope));
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const form = h("form", { class: "stack" },
      field("Name of the caller", name, "Used in logs and rules."),
      field("Profiles", opens),
      h("fieldset", { class: "choice" }, h("legend", null, "May use (everything if nothing is selected)"), boxes),
      field("Groups", groups, "Separated by commas."),
      field("Expires", expires, "At the end of that day, UTC. Leave empty for a key that does not expire."),
      isFirst ? h("p", { class: "note" }, "This is the first key: from now on, callers without a key are refused.") : null,
      problem,
      h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Issue"), button("Cancel", () => close())));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = { name: name.value.trim() };
      const scopes = boxes.map((box) => box.firstElementChild).filter((box) => box.checked).map((box) => box.value);
      const named = groups.value.split(",").map((one) => one.trim()).filter(Boolean);
      if (opens.value) body.profiles = [opens.value];
      if (scopes.length) body.scopes = scopes;
      if (named.length) body.groups = named;
      if (expires.value) body.expires = expires.value;
      try {
        close(await post("keys", body));
      } catch (error) {
        problem.hidden = false;
        problem.textContent = error.message;
      }
    });
    return form;
  });
  if (!made) return;
  await dialog(`The key of ${made.name}`, (close) => [
    h("p", null, "This key is shown only once. Copy it now."),
    h("pre", { class: "code secret", tabindex: "0", "data-secret": "" }, made.key),
    h("div", { class: "actions" }, button("Copy", () => copy(made.key), { kind: "primary", autofocus: true }), button("Done", () => close())),
  ]);
}

function ruleList(found) {
  return section("Rules",
    facts([["If no rule covers a tool", badge(found.default)]]),
    found.warnings.map((text) => h("p", { class: "note" }, text)),
    found.rules.length ? list({
      caption: "Rules, in order", plain: true, rows: found.rules, search: (row) => [row.name, row.effect, JSON.stringify([row.whom, row.what, row.when])],
      columns: [
        { title: "Rule", cell: (row) => foreign(row.name) },
        { title: "Effect", beside: true, cell: (row) => badge(row.effect) },
        { title: "Whom", cell: (row) => patterns(row.whom, "every caller") },
        { title: "What", cell: (row) => patterns(row.what, "everything") },
        { title: "When", cell: (row) => (row.when.length ? h("ul", { class: "plain" }, row.when.map((text) => foreign(text, "li"))) : "always") },
        { title: "Covers", number: true, cell: (row) => plural(row.tools, "tool") },
      ],
    }).node : empty("There are no rules", "Rules are configured under gateway.policy."));
}

const PATTERNS = { principals: "callers", groups: "groups", scopes: "scopes", servers: "servers", tags: "tags", names: "names", tools: "tools", kinds: "kinds" };

/** Patterns by kind, such as "groups: interns". */
function patterns(found, none) {
  const entries = Object.entries(found);
  return entries.length ? h("ul", { class: "plain" }, entries.map(([kind, words]) => h("li", null, h("span", { class: "muted" }, `${PATTERNS[kind] ?? kind} `), foreign(words.join(", "), "code")))) : none;
}

const CELLS = { allow: ["good", "●", "Allowed"], deny: ["bad", "–", "Denied"], ask: ["warn", "◆", "Approval required"], depends: ["warn", "◇", "Depends on the arguments"] };
const PAGE = 100;

/** Which caller may use which tool; each cell leads to its explanation. */
function callerMatrix(place, query) {
  const found = h("div");
  const filter = h("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const callers = h("input", { type: "text", autocomplete: "off", placeholder: "ci, ann@issuer" });
  const pager = h("div", { class: "pager" });
  let cursor = null;
  const again = () => {
    const words = new URLSearchParams({ limit: String(PAGE), profile: query.get("profile") ?? "default" });
    if (filter.value.trim()) words.set("q", filter.value.trim());
    for (const one of callers.value.split(",").map((text) => text.trim()).filter(Boolean)) words.append("principal", one);
    if (cursor) words.set("cursor", cursor);
    return load(found, () => get(`policy/matrix?${words}`), (shown) => {
      put(pager, h("span", { class: "muted" }, plural(shown.total, "tool")), cursor ? button("First page", () => turn(null)) : null, shown.next ? button("Next page", () => turn(shown.next)) : null);
      return grid(shown);
    });
  };
  const turn = (next) => {
    cursor = next;
    return again();
  };
  for (const control of [filter, callers]) control.addEventListener("change", () => turn(null));
  put(place, section("Who may use what",
    h("p", { class: "muted" }, "One column for each key, or for the callers that you enter. A cell leads to the explanation of its decision."),
    h("div", { class: "bar explained" }, field("Tools that contain", filter), field("Callers", callers, "Separated by commas. Empty: every key.")),
    found, pager));
  return { again };
}

function grid({ callers, tools, profile }) {
  if (!tools.length) return empty("No tool matches", "Enter other words, or none.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Callers and tools" }, h("table", { class: "matrix" },
    h("caption", { class: "hidden" }, "Decisions by tool and caller"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Tool"), callers.map((name) => h("th", { scope: "col" }, foreign(name))))),
    h("tbody", null, tools.map((row) => h("tr", null, h("th", { scope: "row" }, foreign(row.name, "code")), row.decisions.map((decision, index) => {
      const [kind, sign, word] = CELLS[decision];
      const words = new URLSearchParams({ principal: callers[index], name: row.name, profile });
      return h("td", null, h("a", { class: `badge ${kind}`, href: `#/access?${words}`, "aria-label": `${word}: ${callers[index]}, ${row.name}` }, h("span", { "aria-hidden": "true" }, sign), " ", word));
    }))))));
}

/** What each rule requires, and which of it is not met. */
function conditions(rows) {
  const near = rows.slice(0, 12);
  return near.length ? h("div", null, h("h3", null, "Rules and their conditions"), h("ul", { class: "findings" }, near.map((row) => h("li", null, badge(row.applies ? row.effect : "disabled", row.applies ? undefined : "Does not apply"),
    h("div", { class: "finding" }, foreign(row.rule, "strong"), row.applies ? h("p", { class: "muted" }, "Every condition is met.") : h("ul", { class: "plain" }, row.unmet.map((text) => h("li", null, "Not met: ", foreign(text))))))))) : null;
}

function explain(keys, wrappers, profiles, query) {
  const names = h("datalist", { id: "explain-names" }, wrappers.slice(0, 1000).map((row) => h("option", { value: row.name })));
  const people = h("datalist", { id: "explain-people" }, ["local", ...new Set(keys.map((key) => key.name))].map((name) => h("option", { value: name })));
  const principal = h("input", { type: "text", list: "explain-people", required: true, autocomplete: "off", value: query.get("principal") ?? "local" });
  const name = h("input", { type: "text", list: "explain-names", required: true, autocomplete: "off", value: query.get("name") ?? "" });
  const profile = select(profiles.map((one) => [one.name, one.name]), query.get("profile") ?? "default");
  const given = h("textarea", { class: "code", rows: 2, spellcheck: "false", placeholder: "{}" });
  const groups = h("input", { type: "text", autocomplete: "off" });
  const scopes = h("input", { type: "text", autocomplete: "off", placeholder: "openid tools:read" });
  const claims = h("input", { type: "text", autocomplete: "off", placeholder: "tenant=acme" });
  const answer = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "stack wide" },
    h("p", { class: "muted" }, "Enter a caller and a tool to see whether the call is allowed, and which rules decide."),
    h("div", { class: "fields" }, field("Caller", principal, "The name of a key, or SUBJECT@ISSUER."), field("Tool, prompt or address", name), field("Profile", profile)),
    h("details", null, h("summary", null, "Arguments, or the content of a token"), field("Arguments, as JSON", given), field("Groups, separated by commas", groups),
      field("Scopes of the token, separated by spaces", scopes), field("Claims of the token as NAME=VALUE, separated by commas", claims)),
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Explain")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = new URLSearchParams({ principal: principal.value.trim(), name: name.value.trim(), profile: profile.value });
    if (given.value.trim()) words.set("arguments", given.value.trim());
    for (const group of groups.value.split(",").map((one) => one.trim()).filter(Boolean)) words.append("group", group);
    for (const scope of scopes.value.split(/\s+/).filter(Boolean)) words.append("scope", scope);
    for (const claim of claims.value.split(",").map((one) => one.trim()).filter(Boolean)) words.append("claim", claim);
    try {
      const found = await get(`policy/explain?${words}`);
      put(answer, h("div", { class: "verdict" },
        h("p", { class: "state-line" }, badge(found.decision), foreign(`${found.principal} and ${found.name}`, "strong")),
        h("p", null, foreign(found.reason)),
        facts([
          ["Decided by", found.rule ? foreign(found.rule) : "no rule"],
          ["Listed for the caller", found.visible ? "yes" : "no"],
          ["Applicable rules", found.rules.length ? foreign(found.rules.join(", ")) : "none"],
          ["Groups", found.groups.join(", ") || "none"],
          ["Scopes", found.scopes.join(", ") || "everything"],
        ]),
        conditions(found.conditions ?? []),
        h("p", null, h("a", { href: `#/activity?principal=${encodeURIComponent(found.principal)}&tool=${encodeURIComponent(found.name)}` }, "Audit entries"))));
    } catch (error) {
      put(answer, problemText(error.message));
    }
  });
  // As after a link from a refused call: the question is complete.
  if (query.get("principal") && query.get("name")) setTimeout(() => {
    form.requestSubmit();
    answer.scrollIntoView({ block: "nearest" });
  });
  return section("Explain a decision", form, names, people, answer);
}
