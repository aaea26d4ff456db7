/** The configuration as it is in use, what was changed over it, and how this page looks. */

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
    if (has("get", "cluster")) load(cluster, () => get("cluster"), together);
    load(profiles, () => Promise.all([get("budget"), get("hooks"), get("notes")]), rest);
  };
  draw();
  listen(["changed", "catalog", "state"], signal, draw);
}

function configuration(found) {
  return section("Configuration",
    found.error ? problemText(foreign(found.error)) : h("p", null, badge("ok", "The file is in use as it is")),
    facts([
      ["File", found.file ? foreign(found.file, "code") : "none"],
      ["Read", time(found.loadedAt * 1000)],
      ["Changes taken while running", String(found.reloads)],
    ]),
    found.warnings.length ? h("ul", { class: "findings" }, found.warnings.map((text) => h("li", null, badge("warning"), foreign(text, "p")))) : null);
}

function changes({ document: found, etag }, draw) {
  const match = { "if-match": etag };
  return section("Changed here, over the configuration",
    found.error ? problemText(foreign(found.error)) : null,
    h("p", { class: "muted" }, found.lasts ? "These changes last over restarts and edits of the file, until they are reverted." : "These changes end with the gateway: it cannot keep them."),
    found.changes.length ? [
      h("ul", { class: "findings" }, found.changes.map((one) => h("li", { class: "tall" },
        h("div", { class: "finding" },
          h("p", null, h("strong", null, changeWord(one.kind)), " ", foreign(one.target, "code")),
          h("p", { class: "muted" }, `by ${one.by || "nobody known"}, `, time(one.at)),
          difference(one)),
        may("delete", "overlay/{id}") ? button("Revert", async () => {
          await remove(at`overlay/${one.id}`, match);
          say("Taken back");
          draw();
        }, { "aria-label": `Revert: ${changeWord(one.kind)} ${one.target}` }) : null))),
      may("delete", "overlay") && found.changes.length > 1 ? button("Revert all", async () => {
        if (!(await confirm("Revert all changes?", "Servers and keys that were added here are removed, and what was disabled or revoked is in use again.", "Revert all"))) return;
        await remove("overlay", match);
        say("Everything is as the configuration says");
        draw();
      }, { kind: "danger" }) : null,
    ] : empty("Nothing was changed", "What is in use is what the configuration file says."));
}

/** This gateway beside the others that serve the same. */
function together(found) {
  const { store, peers } = found;
  return section("Cluster",
    store ? h("p", { class: "state-line" }, badge(store.state === "up" ? "ok" : store.state === "starting" ? "connecting" : "error", `The shared store is ${store.state}`), store.lastError ? foreign(store.lastError) : null) : null,
    facts([
      ["This gateway", foreign(found.name)],
      ["Gateways that are alive", found.replicas === null ? null : String(found.replicas)],
      ["Changes that the store lacks", String(found.pendingChanges)],
      ["Calls a minute are counted", found.limits === "shared" ? "by all together" : "by each alone"],
      ["Requests carried to others", peers ? Object.entries(peers).map(([outcome, count]) => `${count} ${outcome}`).join(", ") : null],
    ]));
}

/** Beside each other; a state alone is one line. */
function difference({ before, after }) {
  if (before?.state && after?.state) return h("p", null, `${before.state} → ${after.state}`);
  return h("details", null, h("summary", null, "Difference"), h("div", { class: "two" },
    h("div", null, h("h3", null, "The configuration says"), before ? tree(before) : h("p", null, "nothing")),
    h("div", null, h("h3", null, "In use"), after ? tree(after) : h("p", null, "nothing"))));
}

function rest([budget, hooks, notes]) {
  return [
    section("Profiles", list({
      caption: "What each profile's list costs a model, with the gateway's own tools in it", plain: true, rows: budget.profiles, search: (row) => [row.profile],
      columns: [
        { title: "Profile", cell: (row) => foreign(row.profile) },
        { title: "Listed", number: true, cell: (row) => plural(row.tools, "tool") },
        { title: "Tokens", number: true, cell: (row) => (row.maxTokens ? `${row.tokens} of ${row.maxTokens}` : String(row.tokens)) },
        { title: "Of servers", number: true, cell: (row) => String(row.wrappers.length) },
      ],
    }).node),
    hooks.hooks.length ? section("Hooks", list({
      caption: "What looks at calls on their way", plain: true, rows: hooks.hooks, search: (row) => [row.name],
      columns: [
        { title: "Hook", cell: (row) => foreign(row.name) },
        { title: "State", cell: (row) => badge(row.lastError ? "error" : "ok", row.lastError ? row.lastError : undefined) },
        { title: "Breaker", cell: (row) => row.breaker },
      ],
    }).node) : null,
    notes.notes.length ? section("Notes of operators", h("ul", { class: "findings" }, notes.notes.map((one) => h("li", null,
      h("div", { class: "finding" }, foreign(`${one.server}__${one.tool}`, "code"), foreign(one.text, "p")),
      may("delete", "notes/{id}") ? button("Remove", async () => {
        await remove(at`notes/${one.id}`);
        say("The note is removed");
      }, { "aria-label": `Remove the note about ${one.tool}` }) : null)))) : null,
  ];
}

function looks() {
  const chosen = select([["", "As the system"], ["light", "Light"], ["dark", "Dark"]], theme());
  chosen.addEventListener("change", () => theme(chosen.value));
  return section("This page",
    h("div", { class: "stack" }, field("Colours", chosen)),
    facts([
      ["Signed in as", state.session.name === state.session.role ? state.session.name : `${state.session.name} (${state.session.role})`],
      ["Until", state.session.expires ? time(state.session.expires) : null],
      ["The same for programs", h("a", { href: "openapi.json", target: "_blank", rel: "noopener" }, "openapi.json")],
    ]));
}
