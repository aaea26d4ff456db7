/** Who has called what, as it happens and as it was recorded; slowest, failing and repaired tools. */

import { get } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, empty, field, list, load, milliseconds, plural, problemText, section, select, time } from "./parts.js";
import { tree } from "./result.js";

const MAX_SHOWN = 200;
const DEEDS = [
  [/^POST \/admin\/session$/, "Signed in to this page"],
  [/^DELETE \/admin\/session$/, "Signed out of this page"],
  [/^POST \/admin\/session\/links$/, "Link to this page made"],
  [/^POST \/admin\/servers$/, "Server added"],
  [/^DELETE \/admin\/servers\/([^/]+)$/, "Server removed"],
  [/^POST \/admin\/servers\/([^/]+)\/disable$/, "Server disabled"],
  [/^POST \/admin\/servers\/([^/]+)\/enable$/, "Server enabled"],
  [/^POST \/admin\/servers\/([^/]+)\/refresh$/, "Server listed again"],
  [/^POST \/admin\/servers\/([^/]+)\/sign-in$/, "Sign-in begun"],
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
  [/^DELETE \/admin\/overlay(?:\/[^/]+)?$/, "Change taken back"],
  [/^POST \/admin\/hosts\/([^/]+)$/, "Host's file written"],
  [/^DELETE \/admin\/hosts\/([^/]+)$/, "Host's file restored"],
];
const EVENTS = [["", "Everything"], ["call", "Calls"], ["refused", "Refused"], ["changed", "Changes"], ["approval", "Approvals"], ["sign_in", "Sign-ins"], ["credentials_refused", "Wrong credentials"]];
const VIEWS = [["", "Latest"], ["slowest", "Slowest"], ["failing", "Failing"], ["repaired", "Repaired"], ["callers", "Callers"]];

export function render(place, { signal, part, query }) {
  const view = part[0] ?? "";
  const tabs = h("nav", { class: "tabs", "aria-label": "Views" }, VIEWS.map(([name, text]) => h("a", { href: `#/activity${name ? `/${name}` : ""}`, "aria-current": name === view ? "page" : null }, text)));
  const body = h("div");
  put(place, tabs, body);
  if (!view) return latest(body, signal, query);
  const draw = () => load(body, () => Promise.all([get("activity"), get("failures")]), ([activity, failures]) => figures(view, activity, failures));
  draw();
  let late = 0;
  listen(["call"], signal, () => {
    clearTimeout(late);
    late = setTimeout(() => signal.aborted || draw(), 3000);
  });
  return undefined;
}

function figures(view, activity, failures) {
  const columns = [
    { title: view === "callers" ? "Caller" : "Tool", cell: (row) => (view === "callers" ? h("a", { href: `#/activity?principal=${encodeURIComponent(row.name)}` }, foreign(row.name)) : h("a", { href: `#/activity?tool=${encodeURIComponent(row.name)}` }, foreign(row.name, "code"))) },
    { title: "Calls", number: true, cell: (row) => String(row.calls) },
    { title: "Failed", number: true, cell: (row) => `${row.errors} (${Math.round((row.errors / row.calls) * 100)} %)` },
    { title: "Refused", number: true, cell: (row) => String(row.denied) },
    { title: "Half within", number: true, cell: (row) => milliseconds(row.p50Ms) },
    { title: "95 % within", number: true, cell: (row) => milliseconds(row.p95Ms) },
    { title: "Longest", number: true, cell: (row) => milliseconds(row.maxMs) },
  ];
  const table = (caption, rows, none) => list({ caption, plain: true, columns, rows, search: (row) => [row.name], key: (row) => row.name, none: () => empty(none, "Figures are of the calls since this gateway started.") }).node;
  if (view === "slowest") return table("Slowest tools first", [...activity.tools].sort((a, b) => b.p95Ms - a.p95Ms || b.maxMs - a.maxMs), "There was no call yet");
  if (view === "callers") return table("Callers, those with the most calls first", [...activity.callers].sort((a, b) => b.calls - a.calls), "There was no call yet");
  if (view === "failing") {
    return [
      table("Tools with failed calls", activity.tools.filter((row) => row.errors).sort((a, b) => b.errors / b.calls - a.errors / a.calls), "No call has failed"),
      section("What fails again and again (24 hours)", failures.failures.length ? h("ul", { class: "findings" }, failures.failures.map((row) => h("li", null, badge(row.flagged ? "error" : "warning", row.flagged ? "Keeps failing" : "Has failed"),
        h("div", { class: "finding" }, foreign(row.wrapper, "code"), h("p", { class: "muted" }, foreign(failure(row)), ` – ${plural(row.recent, "time")}, in ${plural(row.sessions, "session")}`))))) : h("p", null, "Nothing.")),
    ];
  }
  return section("Calls with repaired arguments", failures.repaired.length ? h("ul", { class: "findings" }, failures.repaired.map((row) => h("li", null, badge("repaired", plural(row.calls, "call")),
    h("div", { class: "finding" }, foreign(row.wrapper, "code"), h("p", { class: "muted" }, Object.entries(row.repairs).map(([name, count]) => `${name.replaceAll("_", " ")} ${count}×`).join(", ")))))) : empty("No call was repaired", "Wrong arguments with only one possible reading are corrected, and counted here."));
}

/** What failed, without the mark by which texts that differ in numbers alone are told to be the same. */
export function failure(row) {
  return `${row.kind.replaceAll("_", " ")} ${row.detail.replace(/ ?text [0-9a-f]{8}$/, "")}`.trim();
}

function latest(place, signal, query) {
  const principal = h("input", { type: "text", autocomplete: "off", value: query.get("principal") ?? "" });
  const tool = h("input", { type: "text", autocomplete: "off", placeholder: "bank__*", value: query.get("tool") ?? "" });
  const event = select(EVENTS, query.get("event") ?? "");
  const since = select([["", "At any time"], ["15m", "15 minutes"], ["1h", "The last hour"], ["24h", "The last day"], ["7d", "The last week"]], "");
  const rows = h("tbody", { role: "rowgroup" });
  const note = h("div");
  const more = h("div", { class: "pager" });
  let running = true;
  let asked = 0;
  let next = null;
  let known = new Set();
  const wants = (row) => (!principal.value || row.principal === principal.value) && (!event.value || row.event === event.value) && matches(row, tool.value);
  const identity = (row) => `${row.time}|${row.event}|${row.principal}|${row.wrapper ?? row.name ?? row.action}|${row.ms ?? ""}`;
  const add = (found, first) => {
    const fresh = found.filter((row) => !known.has(identity(row)));
    for (const row of fresh) known.add(identity(row));
    if (first) rows.prepend(...fresh.map(entry));
    else rows.append(...fresh.map(entry));
    while (first && rows.rows.length > MAX_SHOWN) rows.lastElementChild.remove();
    put(note, rows.rows.length ? [] : empty("Nothing was recorded", "Calls, refusals and changes appear here as they happen."));
  };
  const ask = async (before) => {
    const words = new URLSearchParams({ limit: "50" });
    for (const [name, control] of [["principal", principal], ["tool", tool], ["event", event], ["since", since]]) if (control.value.trim()) words.set(name, control.value.trim());
    if (before) words.set("before", before);
    const turn = ++asked;
    const found = await get(`audit?${words}`);
    if (turn !== asked) return;
    next = found.next;
    if (!found.state.on) put(note, h("p", { class: "note" }, "The record is switched off (gateway.audit): calls are not shown."));
    put(more, next ? button("Earlier ones", () => ask(next)) : []);
    if (before) add(found.audit, false);
    else {
      known = new Set();
      rows.replaceChildren();
      add(found.audit, false);
    }
  };
  const again = () => ask(null).catch((error) => put(note, problemText(error.message)));
  for (const control of [principal, tool, event, since]) control.addEventListener("change", again);
  const pause = button("Pause", () => {
    running = !running;
    pause.textContent = running ? "Pause" : "Go on";
    if (running) again();
  });
  put(place,
    h("div", { class: "bar" }, field("Caller", principal), field("Tool (* for anything)", tool), field("Kind", event), field("Since", since), pause),
    h("table", { class: "list feed", role: "table" }, h("caption", null, "The latest first"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["What", "When", "Who", "How it ended", "Took"].map((text) => h("th", { scope: "col", role: "columnheader" }, text)))), rows),
    note, more);
  again();
  listen(["call", "request", "refused", "changed", "approval", "sign_in", "credentials_refused", "missed"], signal, (events) => {
    if (!running) return;
    if (events.some((one) => one.event === "resync" || one.event === "missed")) again();
    else add(events.filter((row) => row.time && wants(row)).reverse(), true);
  });
}

function matches(row, pattern) {
  if (!pattern.trim()) return true;
  const made = new RegExp(`^${pattern.trim().replace(/[.+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*")}$`);
  return [row.wrapper, row.tool, row.name].some((name) => typeof name === "string" && made.test(name));
}

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

const WORDS = { allowed: "Allowed by a person", arguments: "Wrong arguments", policy: "Refused by a rule", asked: "Waits for a person", denied: "Denied by a person", expired: "Nobody decided in time", tool_gone: "The tool is gone", server_gone: "The server is gone", unknown_tool: "No such tool", timeout: "No answer in time", unavailable: "Not reached", lost: "Connection lost", cancelled: "Cancelled" };

function why(row) {
  const outcome = row.outcome ?? {};
  const word = row.hook ? `hook ${row.hook}` : row.reason ?? (outcome.tool === "error" ? "The tool reports an error" : outcome.transport && outcome.transport !== "ok" ? outcome.transport : outcome.jsonrpc ? `Error ${outcome.jsonrpc}` : "");
  return WORDS[word] ?? (String(word).replaceAll("_", " ") || undefined);
}

/** What a line is about: a tool by its name, and what administrators do in words. */
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

function entry(row) {
  const cell = (title, ...children) => h("td", { role: "cell", "data-title": title, class: title === "How it ended" ? "beside" : null }, children);
  return h("tr", { role: "row" },
    h("th", { scope: "row", role: "rowheader", "data-title": "What" }, h("details", { class: "line" }, h("summary", null, subject(row)), tree(row))),
    cell("When", time(row.time)),
    cell("Who", row.principal ?? row.by ?? row.peer ? foreign(row.principal ?? row.by ?? row.peer) : ""),
    cell("How it ended", ending(row)),
    cell("Took", row.ms === undefined ? "" : milliseconds(row.ms)));
}
