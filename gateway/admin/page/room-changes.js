/** What waits for a person: calls that a rule asks about, and definitions that have changed. */

import { at, get, has, may, post } from "./api.js";
import { changedLines, diffView } from "./difference.js";
import { foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, confirm, empty, load, plural, problemNote, section, time } from "./parts.js";

export function render(place, { signal }) {
  const calls = h("div");
  const definitions = h("div");
  put(place, calls, definitions);
  const draw = () => {
    load(calls, () => get("approvals"), ({ approvals }) => waiting(approvals, draw));
    if (has("get", "changes")) load(definitions, () => get("changes"), (found) => changed(found, draw));
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
    section("Calls that wait for a person", asked.length ? h("ul", { class: "findings" }, asked.map((row) => h("li", { class: "tall" },
      h("div", { class: "finding" },
        h("p", null, foreign(row.principal, "strong"), " wants to call ", foreign(row.wrapper, "code")),
        row.arguments ? foreign(row.arguments, "pre") : null,
        h("p", { class: "muted" }, `Rule ${row.rule} · asked `, time(row.asked), " · until ", time(row.expires))),
      may("post", "approvals/{id}") ? h("div", { class: "actions" },
        decide(row, "Allow once", { decision: "allow", for: "once" }, "Allowed, once", { kind: "primary" }),
        decide(row, "For its session", { decision: "allow", for: "session" }, "Allowed for its session"),
        decide(row, "This tool from now on", { decision: "allow", for: "tool" }, "Allowed for this caller from now on"),
        decide(row, "Deny", { decision: "deny" }, "Denied", { kind: "danger" })) : null)))
      : empty("No call waits", "Calls appear here when a rule that asks a person covers them.")),
    granted.length ? section("Allowed for longer than once", h("ul", { class: "findings" }, granted.map((row) => h("li", null, badge("allowed"),
      h("div", { class: "finding" }, h("p", null, foreign(row.principal, "strong"), " may call ", foreign(row.wrapper, "code")), h("p", { class: "muted" }, row.for === "tool" ? "this tool, until " : "in its session, until ", time(row.expires))),
      may("post", "approvals/{id}") ? decide(row, "Take back", { decision: "deny" }, "Taken back") : null)))) : null,
  ];
}

function changed({ file, changes }, draw) {
  return section("Changed definitions",
    h("p", { class: "muted" }, file ? ["Compared with the lock file ", foreign(file, "code"), "."] : ["There is no lock file: changes are told, and nothing is held. ", h("code", null, "typegate lock"), " writes one."]),
    changes.length ? byServer(changes).map(([server, rows]) => {
      const open = file && may("post", "changes") ? rows.filter((row) => row.state !== "accepted") : [];
      return [
        h("div", { class: "group" }, h("h3", null, foreign(server)),
          open.length > 1 ? button(`Approve all of ${server} (${open.length})`, async () => {
            if (!(await confirm(`Approve everything of ${server}?`, `${plural(open.length, "definition", "definitions")} of it can be used as they are listed now.`, "Approve all"))) return;
            await post("changes", { server, digests: rows.map((row) => row.digest) });
            say(`Everything of ${server} is approved`);
            draw();
          }) : null),
        h("ul", { class: "findings" }, rows.map((row) => definition(row, open.includes(row), draw))),
      ];
    }) : empty("Nothing has changed", file ? "Every definition is as it was approved." : "Every definition is as it was first listed."));
}

const KINDS = { tools: "tool", prompts: "prompt", resourceTemplates: "template" };

function byServer(changes) {
  const groups = new Map();
  for (const row of changes) groups.set(row.server, [...(groups.get(row.server) ?? []), row]);
  return [...groups];
}

function definition(row, open, draw) {
  const kind = KINDS[row.kind] ?? row.kind;
  return h("li", { class: "tall" },
    h("div", { class: "finding" },
      h("p", { class: "state-line" }, badge(row.state), foreign(row.name || kind, "strong"), h("span", { class: "muted" }, [...new Set([row.name ? kind : null, ...(row.classes ?? [])])].filter(Boolean).join(" · "))),
      row.suspicion >= 0.5 ? problemNote("Its new text seems to instruct the model.") : null,
      row.advice ? h("p", null, String(row.advice)) : null,
      difference(row),
      row.since ? h("p", { class: "muted" }, "since ", time(typeof row.since === "number" ? row.since * 1000 : row.since)) : null),
    open ? h("div", { class: "actions" }, button("Approve", async () => {
      await post("changes", { server: row.server, kind: row.kind, ...(row.name ? { name: row.name } : {}), digests: [row.digest] });
      say(`${row.server}: ${row.name || kind} is approved`);
      draw();
    }, { "aria-label": `Approve ${row.server}: ${row.name || kind}` })) : null);
}

/** What was there and what is there now, line by line. */
function difference(row) {
  const lines = changedLines(lined(row.before), lined(row.after));
  if (!lines.length) return Array.isArray(row.difference) && row.difference.length ? h("ul", null, row.difference.map((one) => h("li", null, foreign(typeof one === "string" ? one : JSON.stringify(one))))) : null;
  const isNew = row.before === null || row.before === undefined;
  return h("details", { open: !isNew && lines.length < 40 }, h("summary", null, isNew ? `What is new (${plural(lines.length, "line")})` : plural(lines.filter((line) => line[0] !== " ").length, "changed line")),
    diffView(lines, `Difference of ${row.name}`));
}

function lined(value) {
  if (value === null || value === undefined) return [];
  return (typeof value === "string" ? value : JSON.stringify(ordered(value), null, 2)).split("\n");
}

/** The same with its members by name: their order says nothing, and would look like a change. */
function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, ordered(value[name])]));
}
