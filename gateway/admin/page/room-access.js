/** Who may call: keys, rules, and why somebody may or may not. */

import { at, get, may, post, remove } from "./api.js";
import { copy, foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, confirm, dialog, empty, facts, field, list, load, plural, problemText, section, select } from "./parts.js";

const SCOPES = ["tools", "tools:read", "prompts", "prompts:read", "resources", "resources:read", "metrics"];

export function render(place, { signal, query }) {
  const keys = h("div");
  const rules = h("div");
  const why = h("div");
  put(place, keys, why, rules);
  const draw = () => {
    load(keys, () => Promise.all([get("keys"), get("profiles")]), ([found, { profiles }]) => keyList(found.keys, profiles, draw));
    load(rules, () => get("policy"), ruleList);
  };
  draw();
  load(why, () => Promise.all([get("keys"), get("wrappers"), get("profiles")]), ([found, { wrappers }, { profiles }]) => explain(found.keys, wrappers, profiles, query));
  listen(["changed"], signal, draw);
}

function keyList(rows, profiles, draw) {
  return section("Keys of callers",
    h("p", { class: "muted" }, rows.length ? ["A caller sends its key as ", h("code", null, "Authorization: Bearer KEY"), "."] : "Without any key, everybody who reaches the port may call."),
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
        { title: "Good until", cell: (row) => h("span", { class: "nowrap" }, (row.expires ?? "no end").replace(/T23:59:59(?:Z|\+00:00)$/, "")) },
        { title: "Where", cell: (row) => h("span", { class: "nowrap" }, row.origin === "overlay" ? "issued here" : "in the file") },
        { title: "Actions", deed: true, cell: (row) => (may("delete", "keys/{key}") && row.state !== "expired" ? button("Revoke", async () => {
          if (!(await confirm(`Revoke the key of ${row.name}?`, "Whoever has it can call nothing from now on; its open streams end within seconds.", "Revoke"))) return;
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
      field("Name of the caller", name, "It stands in logs and rules."),
      field("Opens", opens),
      h("fieldset", { class: "choice" }, h("legend", null, "May use (nothing chosen: everything)"), boxes),
      field("Groups", groups, "Separated by commas."),
      field("Good until", expires, "To the end of that day, UTC. Empty for no end."),
      isFirst ? h("p", { class: "note" }, "It is the first key: from now on, callers without one are refused.") : null,
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
    h("p", null, "It is shown this once. Copy it to its caller now."),
    h("pre", { class: "code secret", tabindex: "0", "data-secret": "" }, made.key),
    h("div", { class: "actions" }, button("Copy", () => copy(made.key), { kind: "primary", autofocus: true }), button("Done", () => close())),
  ]);
}

function ruleList(found) {
  return section("Rules",
    facts([["Where no rule covers a tool", badge(found.default)]]),
    found.warnings.map((text) => h("p", { class: "note" }, text)),
    found.rules.length ? list({
      caption: "Rules, in their order", plain: true, rows: found.rules, search: (row) => [row.name],
      columns: [
        { title: "Rule", cell: (row) => foreign(row.name) },
        { title: "Effect", cell: (row) => badge(row.effect) },
        { title: "Covers", number: true, cell: (row) => plural(row.tools, "tool") },
      ],
    }).node : empty("There is no rule", "Rules stand in the configuration, under gateway.policy."));
}

function explain(keys, wrappers, profiles, query) {
  const names = h("datalist", { id: "explain-names" }, wrappers.slice(0, 1000).map((row) => h("option", { value: row.name })));
  const people = h("datalist", { id: "explain-people" }, ["local", ...new Set(keys.map((key) => key.name))].map((name) => h("option", { value: name })));
  const principal = h("input", { type: "text", list: "explain-people", required: true, autocomplete: "off", value: query.get("principal") ?? "local" });
  const name = h("input", { type: "text", list: "explain-names", required: true, autocomplete: "off", value: query.get("name") ?? "" });
  const profile = select(profiles.map((one) => [one.name, one.name]), "default");
  const given = h("textarea", { class: "code", rows: 2, spellcheck: "false", placeholder: "{}" });
  const groups = h("input", { type: "text", autocomplete: "off" });
  const scopes = h("input", { type: "text", autocomplete: "off", placeholder: "openid tools:read" });
  const claims = h("input", { type: "text", autocomplete: "off", placeholder: "tenant=acme" });
  const answer = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "stack wide" },
    h("p", { class: "muted" }, "Ask for a caller and a tool: the rules that decide are named, whether it may be called or not."),
    h("div", { class: "fields" }, field("Caller", principal, "The name of a key, or SUBJECT@ISSUER."), field("Tool, prompt or address", name), field("Profile", profile)),
    h("details", null, h("summary", null, "With certain arguments, or what a token says"), field("Arguments, as JSON", given), field("Groups, separated by commas", groups),
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
          ["Sees it in lists", found.visible ? "yes" : "no"],
          ["Rules that concern it", found.rules.length ? foreign(found.rules.join(", ")) : "none"],
          ["Groups", found.groups.join(", ") || "none"],
          ["Scopes", found.scopes.join(", ") || "everything"],
        ]),
        h("p", null, h("a", { href: `#/activity?principal=${encodeURIComponent(found.principal)}&tool=${encodeURIComponent(found.name)}` }, "What was recorded of it"))));
    } catch (error) {
      put(answer, problemText(error.message));
    }
  });
  return section("Why does somebody see, lack or get refused something?", form, names, people, answer);
}
