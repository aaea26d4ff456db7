/** Activity: the audit log with live updates; the slowest, failing and repaired tools; stored results. */

import { get } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { listen } from "./live.js";
import { mistakeList } from "./mistakes.js";
import { badge, button, bytes, empty, field, list, load, milliseconds, plural, problemText, section, select, time } from "./parts.js";
import { tree } from "./result.js";
import { traceLink } from "./traces.js";

const MAX_SHOWN = 200;
const DEEDS = [
  [/^POST \/admin\/session$/, "Signed in to this page"],
  [/^DELETE \/admin\/session$/, "Signed out of this page"],
  [/^POST \/admin\/session\/links$/, "Sign-in link created"],
  [/^POST \/admin\/servers$/, "Server added"],
  [/^DELETE \/admin\/servers\/([^/]+)$/, "Server removed"],
  [/^POST \/admin\/servers\/([^/]+)\/disable$/, "Server disabled"],
  [/^POST \/admin\/servers\/([^/]+)\/enable$/, "Server enabled"],
  [/^POST \/admin\/servers\/([^/]+)\/refresh$/, "Server listed again"],
  [/^POST \/admin\/servers\/([^/]+)\/sign-in$/, "Sign-in started"],
  [/^DELETE \/admin\/servers\/([^/]+)\/sign-in$/, "Sign-in revoked"],
  [/^POST \/admin\/wrappers\/([^/]+)\/disable$/, "Tool disabled"],
  [/^POST \/admin\/wrappers\/([^/]+)\/enable$/, "Tool enabled"],
  [/^POST \/admin\/try$/, "Tool tried"],
  [/^POST \/admin\/keys$/, "Key issued"],
  [/^DELETE \/admin\/keys\/([^/]+)$/, "Key revoked"],
  [/^POST \/admin\/changes$/, "Change approved"],
  [/^POST \/admin\/approvals\/[^/]+$/, "Call decided"],
  [/^POST \/admin\/notes$/, "Note written"],
  [/^DELETE \/admin\/notes\/[^/]+$/, "Note removed"],
  [/^DELETE \/admin\/overlay(?:\/[^/]+)?$/, "Change reverted"],
  [/^POST \/admin\/hosts\/([^/]+)$/, "Host file written"],
  [/^DELETE \/admin\/hosts\/([^/]+)$/, "Host file restored"],
];
const EVENTS = [["", "Everything"], ["call", "Calls"], ["refused", "Refused"], ["changed", "Changes"], ["approval", "Approvals"], ["sign_in", "Sign-ins"], ["credentials_refused", "Wrong credentials"]];
const OUTCOMES = [["", "Any outcome"], ["ok", "Succeeded"], ["failed", "Failed"], ["refused", "Refused"]];
const VIEWS = [["", "Latest"], ["slowest", "Slowest"], ["failing", "Failing"], ["mistakes", "Mistakes"], ["repaired", "Repaired"], ["unknown", "Unknown tools"], ["callers", "Callers"], ["results", "Results"]];

export function render(place, { signal, part, query }) {
  const view = part[0] ?? "";
  const tabs = h("nav", { class: "tabs", "aria-label": "Views" }, VIEWS.map(([name, text]) => h("a", { href: `#/activity${name ? `/${name}` : ""}`, "aria-current": name === view ? "page" : null }, text)));
  const body = h("div");
  put(place, tabs, body);
  if (!view) return latest(body, signal, query);
  if (view === "mistakes") return wrong(body, signal);
  if (view === "results") return load(body, () => get("results"), ({ results }) => stored(results));
  const draw = () => load(body, () => Promise.all([get("activity"), get("failures")]), ([activity, failures]) => figures(view, activity, failures));
  draw();
  let late = 0;
  listen(["call", "refused"], signal, () => {
    clearTimeout(late);
    late = setTimeout(() => signal.aborted || draw(), 3000);
  });
  return undefined;
}

/** Redrawn by a button only, because an open example would close while it is read. */
function wrong(place, signal) {
  const found = h("div");
  const draw = () => load(found, () => get("mistakes"), ({ tools }) => mistakeList(tools, draw));
  const fresh = h("p", { class: "note", hidden: true }, "There are new calls. ", button("Show them", () => {
    fresh.hidden = true;
    return draw();
  }));
  put(place, section("What did the model get wrong?", h("p", { class: "muted" }, "Since the start of the gateway. Values are not stored."), fresh, found));
  draw();
  listen(["call", "refused"], signal, (events) => {
    if (events.some((event) => event.ending !== "ok")) fresh.hidden = false;
  });
}

/** Whose results are stored for `read_result`, and for handles in arguments. */
function stored(rows) {
  return list({
    caption: "Stored results, the largest first",
    plain: true,
    columns: [
      { title: "Caller", cell: (row) => h("a", { href: `#/activity?principal=${encodeURIComponent(row.caller)}` }, foreign(row.caller)) },
      { title: "Profile", cell: (row) => foreign(row.profile) },
      { title: "Tool", cell: (row) => foreign(row.wrapper, "code") },
      { title: "Results", number: true, cell: (row) => String(row.results) },
      { title: "Memory", number: true, cell: (row) => bytes(row.bytes) },
      { title: "Stored until", cell: (row) => new Date(row.until * 1000).toLocaleString() },
    ],
    rows,
    search: (row) => [row.caller, row.profile, row.wrapper],
    key: (row) => `${row.caller} ${row.profile} ${row.wrapper}`,
    none: () => empty("No result is stored", "A result is stored if it is cut, or if a selection finds nothing in it."),
  }).node;
}

function figures(view, activity, failures) {
  const columns = [
    { title: view === "callers" ? "Caller" : "Tool", cell: (row) => (view === "callers" ? h("a", { href: `#/activity?principal=${encodeURIComponent(row.name)}` }, foreign(row.name)) : h("a", { href: `#/activity?tool=${encodeURIComponent(row.name)}` }, foreign(row.name, "code"))) },
    { title: "Calls", number: true, cell: (row) => String(row.calls) },
    { title: "Failed", number: true, cell: (row) => (row.calls ? `${row.errors} (${Math.round((row.errors / row.calls) * 100)} %)` : "0") },
    { title: "Refused", number: true, cell: (row) => String(row.denied) },
    { title: "p50", number: true, cell: (row) => milliseconds(row.p50Ms) },
    { title: "p95", number: true, cell: (row) => milliseconds(row.p95Ms) },
    { title: "Longest", number: true, cell: (row) => milliseconds(row.maxMs) },
  ];
  const table = (caption, rows, none) => list({ caption, plain: true, columns, rows, search: (row) => [row.name], key: (row) => row.name, none: () => empty(none, "Only calls since the start of the gateway are counted.") }).node;
  if (view === "slowest") return table("Slowest tools first", [...activity.tools].sort((a, b) => b.p95Ms - a.p95Ms || b.maxMs - a.maxMs), "No calls yet");
  if (view === "callers") return table("Callers with the most calls first", [...activity.callers].sort((a, b) => b.calls - a.calls), "No calls yet");
  if (view === "unknown") {
    return list({
      caption: "Names in calls that belong to no tool",
      plain: true,
      columns: [
        { title: "Name", cell: (row) => foreign(row.name, "code") },
        { title: "Calls", number: true, cell: (row) => String(row.calls) },
        { title: "Last call", cell: (row) => new Date(row.at * 1000).toLocaleString() },
        { title: "Suggestion", cell: (row) => (row.suggestion ? h("a", { href: `#/try/${encodeURIComponent(row.suggestion)}` }, foreign(row.suggestion, "code")) : "–") },
      ],
      rows: activity.unknownTools,
      search: (row) => [row.name, row.suggestion ?? ""],
      key: (row) => row.name,
      none: () => empty("No unknown tool was called", "The most common mistake of a model: a tool that no server has."),
    }).node;
  }
  if (view === "failing") {
    return [
      table("Tools with failed calls", activity.tools.filter((row) => row.errors).sort((a, b) => b.errors / b.calls - a.errors / a.calls), "No call has failed"),
      section("Recurring failures (24 hours)", failures.failures.length ? h("ul", { class: "findings" }, failures.failures.map((row) => h("li", null, badge(row.flagged ? "error" : "warning", row.flagged ? "Keeps failing" : "Has failed"),
        h("div", { class: "finding" }, foreign(row.wrapper, "code"), h("p", { class: "muted" }, foreign(failure(row)), ` – ${plural(row.recent, "time")}, in ${plural(row.sessions, "session")}`))))) : h("p", null, "Nothing.")),
    ];
  }
  return section("Calls with repaired arguments", failures.repaired.length ? h("ul", { class: "findings" }, failures.repaired.map((row) => h("li", null, badge("repaired", plural(row.calls, "call")),
    h("div", { class: "finding" }, foreign(row.wrapper, "code"), h("p", { class: "muted" }, Object.entries(row.repairs).map(([name, count]) => `${name.replaceAll("_", " ")} ${count}×`).join(", ")))))) : empty("No call was repaired", "Unambiguous mistakes in arguments are corrected and counted here."));
}

/** Describe a failure, without the hash that identifies texts which differ only in numbers. */
export function failure(row) {
  return `${row.kind.replaceAll("_", " ")} ${row.detail.replace(/ ?text [0-9a-f]{8}$/, "")}`.trim();
}

function latest(place, signal, query) {
  const principal = h("input", { type: "text", autocomplete: "off", value: query.get("principal") ?? "" });
  const tool = h("input", { type: "text", autocomplete: "off", placeholder: "bank__*", value: query.get("tool") ?? "" });
  const event = select(EVENTS, query.get("event") ?? "");
  // A plot leads here with the period of one of its bars.
  const chosen = query.get("until") ? { since: query.get("since") ?? "", until: query.get("until") } : null;
  const since = select([...(chosen ? [["chosen", chosenWords(chosen)]] : []), ["", "At any time"], ["15m", "15 minutes"], ["1h", "The last hour"], ["24h", "The last day"], ["7d", "The last week"]], chosen ? "chosen" : query.get("since") ?? "");
  const outcome = select(OUTCOMES, query.get("outcome") ?? "");
  const server = select([["", "All servers"], ...[query.get("server")].filter(Boolean).map((name) => [name, name])], query.get("server") ?? "");
  const session = h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: query.get("session") ?? "" });
  const client = h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: query.get("client") ?? "", placeholder: "claude-code" });
  get("servers").then(({ servers }) => {
    for (const { name } of servers) if (![...server.options].some((option) => option.value === name)) server.append(h("option", { value: name }, name));
  }).catch(() => {});
  const rows = h("tbody", { role: "rowgroup" });
  const note = h("div");
  const more = h("div", { class: "pager" });
  const controls = { principal, tool, event, outcome, server, session, client, since };
  let running = true;
  let asked = 0;
  let next = null;
  let known = new Set();
  const wants = (row) => (since.value !== "chosen" || row.time < chosen.until) && (!principal.value || row.principal === principal.value) && (!event.value || row.event === event.value) && matches(row, tool.value) && (!outcome.value || outcomeOf(row) === outcome.value)
    && [["server", server], ["session", session], ["client", client]].every(([name, control]) => !control.value.trim() || row[name] === control.value.trim());
  const identity = (row) => `${row.time}|${row.event}|${row.principal}|${row.wrapper ?? row.name ?? row.action}|${row.ms ?? ""}`;
  const add = (found, first) => {
    const fresh = found.filter((row) => !known.has(identity(row)));
    for (const row of fresh) known.add(identity(row));
    if (first) rows.prepend(...fresh.map(entry));
    else rows.append(...fresh.map(entry));
    while (first && rows.rows.length > MAX_SHOWN) rows.lastElementChild.remove();
    put(note, rows.rows.length ? [] : empty("No entries", "Calls, refusals and changes appear here as they happen."));
  };
  const fetchEntries = async (before) => {
    const words = new URLSearchParams({ limit: "50" });
    for (const [name, control] of Object.entries(controls)) if (control.value.trim()) words.set(name, control.value.trim());
    if (since.value === "chosen") for (const name of ["since", "until"]) words.set(name, chosen[name]);
    if (before) words.set("before", before);
    const turn = ++asked;
    const found = await get(`audit?${words}`);
    if (turn !== asked) return;
    next = found.next;
    if (!found.state.on) put(note, h("p", { class: "note" }, "The audit log is off (gateway.audit), so calls are not shown."));
    put(more, next ? button("Earlier entries", () => fetchEntries(next)) : []);
    if (before) add(found.audit, false);
    else {
      known = new Set();
      rows.replaceChildren();
      add(found.audit, false);
    }
  };
  const again = () => fetchEntries(null).catch((error) => put(note, problemText(error.message)));
  for (const control of Object.values(controls)) control.addEventListener("change", again);
  const clear = button("Clear filters", () => {
    for (const control of Object.values(controls)) control.value = "";
    return again();
  });
  const pause = button("Pause", () => {
    running = !running;
    pause.textContent = running ? "Pause" : "Resume";
    if (running) again();
  });
  put(place,
    h("div", { class: "bar" }, field("Caller", principal), field("Tool (* for anything)", tool), field("Outcome", outcome), field("Server", server), field("Kind", event), field("Session", session), field("Client", client), field("Since", since), h("div", { class: "actions" }, pause, clear)),
    h("table", { class: "list feed", role: "table" }, h("caption", null, "Latest first"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["What", "When", "Caller", "Result", "Duration"].map((text) => h("th", { scope: "col", role: "columnheader" }, text)))), rows),
    note, more);
  again();
  listen(["call", "request", "refused", "changed", "approval", "sign_in", "credentials_refused", "missed"], signal, (events) => {
    if (!running) return;
    if (events.some((one) => one.event === "resync" || one.event === "missed")) again();
    else add(events.filter((row) => row.time && wants(row)).reverse(), true);
  });
}

function chosenWords({ since, until }) {
  const [from, to] = [new Date(since), new Date(until)];
  const day = from.toDateString() === new Date().toDateString() ? "" : `${from.toLocaleDateString()}, `;
  return `${day}${from.toLocaleTimeString()} to ${to.toLocaleTimeString()}`;
}

function matches(row, pattern) {
  if (!pattern.trim()) return true;
  const made = new RegExp(`^${pattern.trim().replace(/[.+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*")}$`);
  return [row.wrapper, row.tool, row.name].some((name) => typeof name === "string" && made.test(name));
}

/** The outcome of an entry, as the filter of the audit log has it; null for other events. */
function outcomeOf(row) {
  if (row.event === "refused" || row.event === "credentials_refused") return "refused";
  if (row.event === "changed") return row.status >= 400 ? "failed" : "ok";
  if (row.event !== "call" && row.event !== "request") return null;
  if (REFUSALS.has(row.reason) || row.hook) return "refused";
  const outcome = row.outcome ?? {};
  if (row.event === "request") return outcome.jsonrpc === "ok" ? "ok" : "failed";
  if (outcome.tool) return outcome.tool === "error" ? "failed" : "ok";
  return outcome.transport || outcome.jsonrpc || row.reason ? "failed" : "ok";
}

const REFUSALS = new Set(["policy", "asked", "denied", "expired", "unknown"]);

function ending(row) {
  if (row.event === "call" || row.event === "request") {
    const outcome = row.outcome ?? {};
    if (row.ending) return badge(row.ending, row.ending === "ok" ? undefined : why(row));
    if (row.reason === "policy" || row.hook || row.reason === "denied" || row.reason === "expired" || row.reason === "asked") return badge("denied", why(row));
    const fine = (outcome.tool && outcome.tool !== "error") || (row.event === "request" && outcome.jsonrpc === "ok");
    return fine ? badge("ok") : badge("error", why(row));
  }
  if (row.event === "changed") return row.status && row.status >= 400 ? badge("error", `Refused (${row.status})`) : badge("ok", "Done");
  if (row.event === "approval") return badge(row.decision === "allowed" ? "allowed" : row.decision === "denied" ? "denied" : "held", WORDS[row.decision] ?? row.decision);
  if (row.event === "sign_in") return row.reason ? badge("error", row.reason) : badge("ok", row.action.replaceAll("_", " "));
  if (row.event === "refused" || row.event === "credentials_refused") return badge("denied", WORDS[row.reason] ?? row.reason ?? "Refused");
  return "";
}

const WORDS = { allowed: "Allowed by a person", arguments: "Wrong arguments", policy: "Refused by a rule", asked: "Waiting for approval", denied: "Denied by a person", expired: "Not decided in time", tool_gone: "The tool no longer exists", server_gone: "The server no longer exists", unknown_tool: "No such tool", timeout: "No answer in time", unavailable: "Not reached", lost: "Connection lost", cancelled: "Cancelled" };

function why(row) {
  const outcome = row.outcome ?? {};
  const word = row.hook ? `hook ${row.hook}` : row.reason ?? (outcome.tool === "error" ? "The tool reports an error" : outcome.transport && outcome.transport !== "ok" ? outcome.transport : outcome.jsonrpc ? `Error ${outcome.jsonrpc}` : "");
  return WORDS[word] ?? (String(word).replaceAll("_", " ") || undefined);
}

/** The subject of an entry: the name of a tool, or the action of an administrator. */
function subject(row) {
  if (row.event === "changed") {
    for (const [pattern, words] of DEEDS) {
      const found = pattern.exec(row.action ?? "");
      const named = row.target ?? found?.[1];
      if (found) return named ? [`${words}: `, foreign(unescaped(named), "code")] : words;
    }
  }
  if (row.event === "started") return "The gateway started";
  const what = row.wrapper ?? row.name ?? row.action ?? row.server ?? row.where ?? row.event;
  return [foreign(String(what), "code"), row.target ? [" ", foreign(row.target)] : null];
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Links from an entry: why it was refused, and the other entries of its session and client. */
function related(row) {
  const name = row.wrapper ?? row.name;
  const words = new URLSearchParams({ principal: row.principal ?? "", name: name ?? "", profile: row.profile ?? "default" });
  const links = [
    outcomeOf(row) === "refused" && row.principal && name ? h("a", { class: "button", href: `#/access?${words}`, "aria-label": `Explain why ${row.principal} may not use ${name}` }, "Explain") : null,
    row.session ? h("a", { class: "button", href: `#/activity?session=${encodeURIComponent(row.session)}` }, "This session") : null,
    row.client ? h("a", { class: "button", href: `#/activity?client=${encodeURIComponent(row.client)}` }, "This client") : null,
    traceLink(row.trace),
  ].filter(Boolean);
  return links.length ? h("div", { class: "actions" }, links) : null;
}

function entry(row) {
  const cell = (title, ...children) => h("td", { role: "cell", "data-title": title, class: title === "Result" ? "beside" : null }, children);
  return h("tr", { role: "row" },
    h("th", { scope: "row", role: "rowheader", "data-title": "What" }, h("details", { class: "line" }, h("summary", null, subject(row)), related(row), tree(row))),
    cell("When", time(row.time)),
    cell("Caller", row.principal ?? row.by ?? row.peer ? foreign(row.principal ?? row.by ?? row.peer) : ""),
    cell("Result", ending(row)),
    cell("Duration", row.ms === undefined ? "" : milliseconds(row.ms)));
}
