/** Overview: problems with their causes, and calls over time: all of them, or those of one tool or caller. */

import { get, has, may } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { failedShare, perMinute, rangeWords, renderHistory, serverFigures } from "./history.js";
import { listen } from "./live.js";
import { badge, heldBy, load, milliseconds, plural, section } from "./parts.js";

export function render(place, room) {
  const kind = ["tool", "caller"].find((each) => room.query.get(each));
  return kind ? renderOne(place, room, kind, room.query.get(kind)) : renderAll(place, room);
}

function renderOne(place, { signal, title, actions }, kind, name) {
  title(name);
  put(actions,
    kind === "tool" && may("post", "try") ? h("a", { class: "button", href: `#/try/${encodeURIComponent(name)}` }, "Try it") : null,
    h("a", { class: "button", href: "#/overview" }, "All calls"));
  const figures = h("div");
  put(place, figures);
  renderHistory(figures, { signal, title: kind === "tool" ? "Calls of this tool" : "Calls of this caller", subject: [kind, name] });
}

function renderAll(place, { signal }) {
  const problems = h("div");
  const figures = h("div");
  const servers = h("div");
  place.classList.add("wall");
  put(place, h("section", { class: "card attention", "aria-labelledby": "attention" }, h("h2", { id: "attention" }, "Needs attention"), problems), figures, servers);
  const draw = () => {
    load(problems, findings, attention);
    load(servers, () => Promise.all([get("servers"), optional("changes"), optionalFigures()]), ([{ servers: rows }, changes, calls]) => {
      // Without servers there is no activity yet: show the first steps on top instead.
      figures.hidden = !rows.length;
      if (!rows.length !== (place.firstChild === servers)) rows.length ? place.append(servers) : place.prepend(servers);
      return rows.length ? section("Servers", states(rows, heldBy(changes?.changes ?? []), new Map(calls))) : firstSteps();
    });
  };
  draw();
  renderHistory(figures, { signal, title: "Calls over time", chosen: draw });
  let late = 0;
  listen(["state", "catalog", "approval", "changed", "sign_in"], signal, draw);
  listen(["call", "refused"], signal, () => {
    late ||= setTimeout(() => {
      late = 0;
      if (!signal.aborted) draw();
    }, 5000);
  });
  const minute = setInterval(draw, 60000);
  signal.addEventListener("abort", () => {
    clearInterval(minute);
    clearTimeout(late);
  });
}

/** Pairs of a server and its figures: `load` compares data as JSON, which has no maps. */
const optionalFigures = () => serverFigures().then((found) => [...found], () => []);

const optional = (path) => (has("get", path) ? get(path).catch(() => null) : null);

async function findings() {
  const [servers, config, approvals, quarantine, failures, changes, cluster] = await Promise.all([
    get("servers"), get("config"), get("approvals"), get("quarantine"), get("failures"), optional("changes"), optional("cluster"),
  ]);
  const found = [];
  const add = (state, title, detail, href, action, word) => found.push({ state, title, detail, href, action, word });
  if (config.error) add("error", "The changed configuration could not be loaded", config.error, "#/settings", "Details");
  if (config.overlay?.error) add("error", "Changes made here will be lost", config.overlay.error, "#/settings", "Details");
  if (cluster?.store && !["up", "starting"].includes(cluster.store.state)) {
    add("error", `The shared store is ${cluster.store.state}`, cluster.store.lastError ?? "Calls continue; each replica counts limits on its own, and sign-ins wait.", "#/settings", "Details");
  }
  for (const one of approvals.approvals.filter((row) => row.state === "waiting")) {
    add("held", `${one.principal} is waiting for approval of ${one.wrapper}`, String(one.arguments ?? "").replace(/\s+/g, " ").slice(0, 200), "#/changes", "Decide", "Waiting");
  }
  for (const server of servers.servers) {
    const href = `#/servers/${encodeURIComponent(server.name)}`;
    if (server.state === "signInNeeded") add("signInNeeded", `${server.name} needs a sign-in`, server.lastError, href, "Sign in");
    else if (server.state === "waiting" || server.state === "faulty") add(server.state, `${server.name} is not available`, server.lastError, href, "Details");
    else if (server.state === "ready" && server.stale) add("stale", `${server.name} shows outdated tools`, server.lastError, href, "Details");
  }
  const held = (changes?.changes ?? []).filter((row) => row.state === "held");
  if (held.length) add("held", `${plural(held.length, "changed definition is", "changed definitions are")} held`, [...new Set(held.map((row) => row.server))].join(", "), "#/changes", "Review");
  const flagged = quarantine.quarantine.filter((row) => row.status === "flagged" && row.served);
  for (const one of flagged.slice(0, 5)) {
    add("flagged", `${one.server}: ${one.tool} is in use, and its text seems to instruct the model`, one.detail, `#/tools?q=${encodeURIComponent(one.tool)}&server=${encodeURIComponent(one.server)}`, "See the text");
  }
  if (flagged.length > 5) add("flagged", `${flagged.length - 5} more items in use have such a text`, null, "#/tools?show=quarantine", "Show them");
  const hidden = quarantine.quarantine.filter((row) => row.status === "quarantined");
  if (hidden.length) add("quarantined", `${plural(hidden.length, "item is", "items are")} not shown to hosts`, `${hidden[0].server}: ${hidden[0].detail}`, "#/tools?show=quarantine", "See why");
  for (const one of failures.failures.filter((row) => row.flagged).slice(0, 5)) {
    add("error", `${one.wrapper} keeps failing`, `${one.kind.replaceAll("_", " ")}, ${plural(one.recent, "time")} in 24 hours`, "#/activity/failing", "See calls");
  }
  for (const text of config.warnings.slice(0, 5)) add("warning", "Configuration", text, "#/settings", "Details");
  return found;
}

function attention(found) {
  if (!found.length) return h("p", { class: "fine" }, badge("ok", "No problems"));
  return h("ul", { class: "findings" }, found.map((one) => h("li", null,
    badge(one.state, one.word),
    h("div", { class: "finding" }, foreign(one.title, "strong"), one.detail ? foreign(one.detail, "p") : null),
    h("a", { class: "button", href: one.href, "aria-label": `${one.action}: ${one.title}` }, one.action))));
}

const WORST_FIRST = ["faulty", "waiting", "signInNeeded", "connecting", "ready", "idle", "disabled"];

function states(rows, held, calls) {
  const sorted = [...rows].sort((a, b) => WORST_FIRST.indexOf(a.state) - WORST_FIRST.indexOf(b.state));
  return [
    h("p", { class: "muted" }, `Figures of ${rangeWords()}.`),
    h("ul", { class: "states" }, sorted.map((row) => h("li", null,
      h("a", { href: `#/servers/${encodeURIComponent(row.name)}` }, foreign(row.displayName ?? row.name)),
      badge(row.state),
      h("span", { class: "muted" }, row.state === "disabled" ? "not in use" : `${plural(row.tools, "tool")}${held.has(row.name) ? `, ${held.get(row.name)} held` : ""}${row.inFlight ? `, ${plural(row.inFlight, "call")} running` : ""}`),
      calls.has(row.name) ? h("span", { class: "muted" }, rates(calls.get(row.name))) : null))),
  ];
}

const rates = (row) => [`${perMinute(row.perMinute)} calls/min`, row.errors ? `${failedShare(row)} failed` : null, row.denied ? `${row.denied} refused` : null, row.calls ? `p95 ${milliseconds(row.p95Ms)}` : null].filter(Boolean).join(" · ");

function firstSteps() {
  const step = (title, text, ...actions) => h("li", null, h("div", { class: "finding" }, h("strong", null, title), h("p", null, text)), actions);
  return section("Get started", h("ol", { class: "findings steps" },
    step("Add a server", "By its address, from a host's file, or from the MCP registry. A preview shows what will run.",
      may("post", "servers") ? h("a", { class: "button primary", href: "#/servers/add" }, "Add a server") : null),
    step("Connect a host", "Claude, Cursor, VS Code and others: copy a few lines into the host's configuration.",
      h("a", { class: "button", href: "#/connect" }, "Connect a host")),
    step("Watch its first call", "Who called what, how long it took, and its outcome.",
      h("a", { class: "button", href: "#/activity" }, "Activity"))));
}
