/** Settings: the configuration in use, changes on top of it, and the appearance of this page. */

import { at, getTagged, get, has, may, remove, state } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, changeWord, confirm, empty, facts, field, list, load, plural, problemText, section, select, time } from "./parts.js";
import { tree } from "./result.js";
import { theme } from "./theme.js";

export function render(place, { signal }) {
  const config = h("div");
  const overlay = h("div");
  const profiles = h("div");
  const cluster = h("div");
  put(place, config, overlay, cluster, profiles, looks());
  const draw = () => {
    load(config, () => get("config"), configuration);
    load(overlay, () => getTagged("overlay"), (found) => changes(found, draw));
    if (has("get", "cluster")) load(cluster, () => get("cluster"), clusterState);
    load(profiles, () => Promise.all([get("budget"), get("hooks"), get("notes")]), rest);
  };
  draw();
  listen(["changed", "catalog", "state"], signal, draw);
}

function configuration(found) {
  return section("Configuration",
    found.error ? problemText(foreign(found.error)) : h("p", null, badge("ok", "The file is in use")),
    facts([
      ["File", found.file ? foreign(found.file, "code") : "none"],
      ["Loaded", time(found.loadedAt * 1000)],
      ["Reloads", String(found.reloads)],
    ]),
    found.warnings.length ? h("ul", { class: "findings" }, found.warnings.map((text) => h("li", null, badge("warning"), foreign(text, "p")))) : null);
}

function changes({ document: found, etag }, draw) {
  const match = { "if-match": etag };
  return section("Changes on top of the configuration",
    found.error ? problemText(foreign(found.error)) : null,
    h("p", { class: "muted" }, found.lasts ? "These changes survive restarts and edits of the file until they are reverted." : "These changes end with the gateway, because they cannot be saved."),
    found.changes.length ? [
      h("ul", { class: "findings" }, found.changes.map((one) => h("li", { class: "tall" },
        h("div", { class: "finding" },
          h("p", null, h("strong", null, changeWord(one.kind)), " ", foreign(one.target, "code")),
          h("p", { class: "muted" }, `by ${one.by || "unknown"}, `, time(one.at)),
          difference(one)),
        may("delete", "overlay/{id}") ? button("Revert", async () => {
          await remove(at`overlay/${one.id}`, match);
          say("Reverted");
          draw();
        }, { "aria-label": `Revert: ${changeWord(one.kind)} ${one.target}` }) : null))),
      may("delete", "overlay") && found.changes.length > 1 ? button("Revert all", async () => {
        if (!(await confirm("Revert all changes?", "Servers and keys added here are removed; disabled servers and tools and revoked keys are in use again.", "Revert all"))) return;
        await remove("overlay", match);
        say("All changes are reverted");
        draw();
      }, { kind: "danger" }) : null,
    ] : empty("Nothing was changed", "Only the configuration file applies."));
}

/** This replica and the others of its cluster. */
function clusterState(found) {
  const { store, peers } = found;
  return section("Cluster",
    store ? h("p", { class: "state-line" }, badge(store.state === "up" ? "ok" : store.state === "starting" ? "connecting" : "error", `The shared store is ${store.state}`), store.lastError ? foreign(store.lastError) : null) : null,
    facts([
      ["This replica", foreign(found.name)],
      ["Running replicas", found.replicas === null ? null : String(found.replicas)],
      ["Changes not yet in the store", String(found.pendingChanges)],
      ["Rate limits", found.limits === "shared" ? "shared by all replicas" : "per replica"],
      ["Forwarded requests", peers ? Object.entries(peers).map(([outcome, count]) => `${count} ${outcome}`).join(", ") : null],
    ]));
}

/** The configured and the current value side by side; a mere change of state is one line. */
function difference({ before, after }) {
  if (before?.state && after?.state) return h("p", null, `${before.state} → ${after.state}`);
  return h("details", null, h("summary", null, "Difference"), h("div", { class: "two" },
    h("div", null, h("h3", null, "Configured"), before ? tree(before) : h("p", null, "nothing")),
    h("div", null, h("h3", null, "In use"), after ? tree(after) : h("p", null, "nothing"))));
}

function rest([budget, hooks, notes]) {
  return [
    section("Profiles", list({
      caption: "Cost of each profile's list for a model, including the gateway's own tools", plain: true, rows: budget.profiles, search: (row) => [row.profile],
      columns: [
        { title: "Profile", cell: (row) => foreign(row.profile) },
        { title: "Listed", number: true, cell: (row) => plural(row.tools, "tool") },
        { title: "Tokens", number: true, cell: (row) => (row.maxTokens ? `${row.tokens} of ${row.maxTokens}` : String(row.tokens)) },
        { title: "Server tools", number: true, cell: (row) => String(row.wrappers.length) },
      ],
    }).node),
    hooks.hooks.length ? section("Hooks", list({
      caption: "Hooks that run on calls", plain: true, rows: hooks.hooks, search: (row) => [row.name],
      columns: [
        { title: "Hook", cell: (row) => foreign(row.name) },
        { title: "State", cell: (row) => badge(row.lastError ? "error" : "ok", row.lastError ? row.lastError : undefined) },
        { title: "Breaker", cell: (row) => row.breaker },
      ],
    }).node) : null,
    notes.notes.length ? section("Operator notes", h("ul", { class: "findings" }, notes.notes.map((one) => h("li", null,
      h("div", { class: "finding" }, foreign(`${one.server}__${one.tool}`, "code"), foreign(one.text, "p")),
      may("delete", "notes/{id}") ? button("Remove", async () => {
        await remove(at`notes/${one.id}`);
        say("The note is removed");
      }, { "aria-label": `Remove the note about ${one.tool}` }) : null)))) : null,
  ];
}

function looks() {
  const chosen = select([["", "System default"], ["light", "Light"], ["dark", "Dark"]], theme());
  chosen.addEventListener("change", () => theme(chosen.value));
  return section("This page",
    h("div", { class: "stack" }, field("Colour scheme", chosen)),
    facts([
      ["Signed in as", state.session.name === state.session.role ? state.session.name : `${state.session.name} (${state.session.role})`],
      ["Until", state.session.expires ? time(state.session.expires) : null],
      ["API description", h("a", { href: "openapi.json", target: "_blank", rel: "noopener" }, "openapi.json")],
    ]));
}
