/** Decisions to make: calls that wait for approval, and changed definitions. */

import { at, get, has, may, post, remove } from "./api.js";
import { changedLines, diffView } from "./difference.js";
import { foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, confirm, dialog, empty, list, load, plural, problemNote, problemText, section, time } from "./parts.js";

export function render(place, { signal }) {
  const calls = h("div");
  const definitions = h("div");
  const history = h("div");
  put(place, calls, definitions, history);
  const draw = () => {
    load(calls, () => get("approvals"), ({ approvals }) => waiting(approvals, draw));
    if (has("get", "changes")) load(definitions, () => get("changes"), (found) => changed(found, draw));
    if (has("get", "decisions")) load(history, () => get("decisions"), (found) => decided(found, draw));
  };
  draw();
  listen(["approval", "catalog", "changed", "state"], signal, draw);
}

function waiting(rows, draw) {
  const asked = rows.filter((row) => row.state === "waiting");
  const granted = rows.filter((row) => row.state !== "waiting");
  const decide = (row, text, body, said, options) => button(text, async () => {
    await post(at`approvals/${row.id}`, body);
    say(said);
    draw();
  }, { "aria-label": `${text}: ${row.wrapper} for ${row.principal}`, ...options });
  return [
    section("Calls waiting for approval", asked.length ? h("ul", { class: "findings" }, asked.map((row) => h("li", { class: "tall" },
      h("div", { class: "finding" },
        h("p", null, foreign(row.principal, "strong"), " wants to call ", foreign(row.wrapper, "code")),
        row.arguments ? foreign(row.arguments, "pre") : null,
        h("p", { class: "muted" }, `Rule ${row.rule} · asked `, time(row.asked), " · until ", time(row.expires))),
      may("post", "approvals/{id}") ? h("div", { class: "actions" },
        decide(row, "Allow once", { decision: "allow", for: "once" }, "Allowed once", { kind: "primary" }),
        decide(row, "For this session", { decision: "allow", for: "session" }, "Allowed for this session"),
        decide(row, "This tool from now on", { decision: "allow", for: "tool" }, "Allowed for this caller from now on"),
        decide(row, "Deny", { decision: "deny" }, "Denied", { kind: "danger" })) : null)))
      : empty("No call is waiting", "A call appears here when a rule requires approval.")),
    granted.length ? section("Standing approvals", h("ul", { class: "findings" }, granted.map((row) => h("li", null, badge("allowed"),
      h("div", { class: "finding" }, h("p", null, foreign(row.principal, "strong"), " may call ", foreign(row.wrapper, "code")), h("p", { class: "muted" }, row.for === "tool" ? "this tool, until " : "in this session, until ", time(row.expires))),
      may("post", "approvals/{id}") ? decide(row, "Revoke", { decision: "deny" }, "Revoked") : null)))) : null,
  ];
}

function changed({ file, changes }, draw) {
  return section("Changed definitions",
    h("p", { class: "muted" }, file ? ["Compared with the lock file ", foreign(file, "code"), "."] : ["There is no lock file: changes are reported, and held only where the policy says hold. To create one, run ", h("code", null, "typegate lock"), "."]),
    changes.length ? byServer(changes).map(([server, rows]) => {
      const open = may("post", "changes") ? rows.filter((row) => isHeld(row) || (file && row.state !== "accepted")) : [];
      return [
        h("div", { class: "group" }, h("h3", null, foreign(server)),
          open.length > 1 ? button(`Approve all of ${server} (${open.length})`, async () => {
            const flagged = open.filter((row) => row.flagged);
            const agreed = flagged.length ? await confirmFlagged(`Approve everything of ${server}?`, flagged, "Approve all")
              : await confirm(`Approve everything of ${server}?`, `${plural(open.length, "definition")} can then be used as listed now.`, "Approve all");
            if (!agreed) return;
            await approve({ server, digests: rows.map((row) => row.digest) }, draw);
            say(`Everything of ${server} is approved`);
          }) : null),
        h("ul", { class: "findings" }, rows.map((row) => definition(row, open.includes(row), draw))),
      ];
    }) : empty("Nothing has changed", file ? "Every definition is as approved." : "Every definition is as first listed."));
}

const isHeld = (row) => row.state === "held" || row.state === "rejected";

/** Approve the shown changes. If the server lists something else by now, nothing is approved (412), and that is shown. */
async function approve(what, draw) {
  try {
    await post("changes", what);
  } finally {
    draw();
  }
}

/** Quote texts that seem to instruct the model; resolves with true only if a person ticks that they were read. */
function confirmFlagged(title, rows, action) {
  return dialog(title, (close) => {
    const read = h("input", { type: "checkbox" });
    const problem = h("div", { "aria-live": "polite" });
    return [
      h("p", null, rows.length === 1 ? "This text seems to instruct the model. Models follow such texts once you approve it." : `${plural(rows.length, "definition")} contain text that seems to instruct the model. Models follow such texts once you approve them.`),
      rows.map((row) => [rows.length > 1 ? h("h3", null, foreign(row.name || row.kind)) : null, quotes(row)]),
      h("label", { class: "tick" }, read, "I have read the quoted text, and models may read it"),
      problem,
      h("div", { class: "actions" }, button(action, () => {
        if (read.checked) return close(true);
        put(problem, problemText("Confirm first that you have read the quoted text."));
        return read.focus();
      }, { kind: "danger" }), button("Cancel", () => close(false), { autofocus: true })),
    ];
  }, { wide: true });
}

/** The parts of a text that seem to instruct a model, each with its place. */
export function quotes(row) {
  return h("ul", { class: "quotes" }, row.flags.map((flag) => h("li", null,
    h("p", { class: "muted" }, FLAGS[flag.code] ?? flag.code.replaceAll("_", " "), " · in ", foreign(flag.where, "code")),
    foreign(flag.quoted, "blockquote"))));
}

const FLAGS = {
  overrides_instructions: "Overrides other instructions", hides_from_user: "Hides something from the user", poses_as_system: "Poses as the system", wants_secrets: "Asks for secrets",
};

function decided({ decisions }, draw) {
  const undo = (row) => button("Undo", async () => {
    try {
      await remove(at`decisions/${row.id}`);
      say(row.action === "approved" ? "Undone: the definition is compared with the earlier one again" : "Undone: the change waits for a decision again");
    } finally {
      draw();
    }
  }, { "aria-label": `Undo: ${row.server}: ${namesOf(row)} ${row.action}` });
  return section("Decisions",
    h("p", { class: "muted" }, "The latest decisions about definitions. Decisions about calls are under ", h("a", { href: "#/activity?event=approval" }, "Activity"), "."),
    decisions.length ? list({
      caption: "Decisions, latest first", titled: true, plain: true, pageSize: 20, rows: decisions, key: (row) => row.id, search: (row) => [row.server, row.by, row.action, namesOf(row)],
      columns: [
        { title: "What", cell: (row) => foreign(`${row.server}: ${namesOf(row)}`) },
        { title: "Decision", beside: true, cell: (row) => (row.undone ? badge("undone") : badge(row.action)) },
        { title: "By", cell: (row) => foreign(row.by || "–") },
        { title: "When", cell: (row) => [time(row.at * 1000), row.undone ? h("span", { class: "muted" }, " · undone by ", foreign(row.undone.by || "–"), " ", time(row.undone.at * 1000)) : null] },
        { title: "Actions", deed: true, cell: (row) => (row.canUndo && may("delete", "decisions/{id}") ? undo(row) : "") },
      ],
    }).node : h("p", null, "No decisions yet."));
}

function namesOf(row) {
  const names = row.items.map((one) => one.name || KINDS[one.kind] || one.kind);
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
}

const KINDS = { tools: "tool", prompts: "prompt", resourceTemplates: "template" };

function byServer(changes) {
  const groups = new Map();
  for (const row of changes) groups.set(row.server, [...(groups.get(row.server) ?? []), row]);
  return [...groups];
}

function definition(row, open, draw) {
  const kind = KINDS[row.kind] ?? row.kind;
  const named = `${row.server}: ${row.name || kind}`;
  return h("li", { class: "tall" },
    h("div", { class: "finding" },
      h("p", { class: "state-line" }, badge(row.state), foreign(row.name || kind, "strong"), h("span", { class: "muted" }, [...new Set([row.name ? kind : null, ...(row.classes ?? [])])].filter(Boolean).join(" · "))),
      row.flagged ? [problemNote(isHeld(row) ? "The new text seems to instruct the model." : "This text is in use, and seems to instruct the model."), quotes(row)] : null,
      row.advice ? h("p", null, String(row.advice)) : null,
      difference(row),
      row.rejected ? h("p", { class: "muted" }, "Rejected by ", foreign(row.rejected.by || "–"), ", ", time(row.rejected.at * 1000), ". It stays held.") : null,
      row.since ? h("p", { class: "muted" }, "since ", time(typeof row.since === "number" ? row.since * 1000 : row.since)) : null),
    open ? h("div", { class: "actions" },
      button("Approve", async () => {
        if (row.flagged && !(await confirmFlagged(`Approve ${named}?`, [row], "Approve"))) return;
        await approve({ server: row.server, kind: row.kind, ...(row.name ? { name: row.name } : {}), digests: [row.digest] }, draw);
        say(`${named} is approved`);
      }, { "aria-label": `Approve ${named}` }),
      row.state === "held" && may("post", "changes/reject") ? button("Reject", async () => {
        try {
          await post("changes/reject", { server: row.server, digests: [row.digest] });
          say(`${named} is rejected: it stays held. Undo it under Decisions.`);
        } finally {
          draw();
        }
      }, { kind: "danger", "aria-label": `Reject ${named}` }) : null) : null);
}

/** The difference between the earlier and the current definition, line by line. */
function difference(row) {
  const lines = changedLines(lined(row.before), lined(row.after));
  if (!lines.length) return Array.isArray(row.difference) && row.difference.length ? h("ul", null, row.difference.map((each) => h("li", null, foreign(typeof each === "string" ? each : JSON.stringify(each))))) : null;
  const isNew = row.before === null || row.before === undefined;
  return h("details", { open: !isNew && lines.length < 40 }, h("summary", null, isNew ? `Definition (${plural(lines.length, "line")})` : plural(lines.filter((line) => line[0] !== " ").length, "changed line")),
    diffView(lines, `Difference of ${row.name}`));
}

function lined(value) {
  if (value === null || value === undefined) return [];
  return (typeof value === "string" ? value : JSON.stringify(ordered(value), null, 2)).split("\n");
}

/** Sort the members of objects by name, so that a different order does not look like a change. */
function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, ordered(value[name])]));
}
