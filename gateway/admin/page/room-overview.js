/** What is broken and why, and what has happened in the last hour. */

import { get, has, may } from "./api.js";
import { bars, byMinute, line } from "./charts.js";
import { foreign, h, put } from "./dom.js";
import { listen } from "./live.js";
import { badge, heldBy, load, milliseconds, plural, section } from "./parts.js";

export function render(place, { signal }) {
  const problems = h("div");
  const figures = h("div");
  const servers = h("div");
  place.classList.add("wall");
  put(place, h("section", { class: "card attention", "aria-labelledby": "attention" }, h("h2", { id: "attention" }, "Needs attention"), problems), figures, servers);
  const draw = () => {
    load(problems, findings, attention);
    load(servers, () => Promise.all([get("servers"), optional("changes")]), ([{ servers: rows }, changes]) => {
      // Nothing has happened where nothing is: what to do first comes first.
      figures.hidden = !rows.length;
      if (!rows.length !== (place.firstChild === servers)) rows.length ? place.append(servers) : place.prepend(servers);
      return rows.length ? section("Servers", states(rows, heldBy(changes?.changes ?? []))) : firstSteps();
    });
  };
  const plot = () => load(figures, () => get("activity"), plots);
  draw();
  plot();
  let late = 0;
  const soon = () => {
    clearTimeout(late);
    late = setTimeout(() => signal.aborted || plot(), 1500);
  };
  listen(["state", "catalog", "approval", "changed", "sign_in"], signal, draw);
  listen(["call"], signal, soon);
  const minute = setInterval(() => {
    plot();
    draw();
  }, 60000);
  signal.addEventListener("abort", () => {
    clearInterval(minute);
    clearTimeout(late);
  });
}

const optional = (path) => (has("get", path) ? get(path).catch(() => null) : null);

async function findings() {
  const [servers, config, approvals, quarantine, failures, changes, cluster] = await Promise.all([
    get("servers"), get("config"), get("approvals"), get("quarantine"), get("failures"), optional("changes"), optional("cluster"),
  ]);
  const found = [];
  const add = (state, title, detail, href, action, word) => found.push({ state, title, detail, href, action, word });
  if (config.error) add("error", "The changed configuration is not used", config.error, "#/settings", "Look at it");
  if (config.overlay?.error) add("error", "Changes made here will be lost", config.overlay.error, "#/settings", "Look at it");
  if (cluster?.store && !["up", "starting"].includes(cluster.store.state)) {
    add("error", `The store that the gateways share is ${cluster.store.state}`, cluster.store.lastError ?? "Calls go on; limits are counted by each gateway alone, and sign-ins wait.", "#/settings", "Look at it");
  }
  for (const one of approvals.approvals.filter((row) => row.state === "waiting")) {
    add("held", `${one.principal} waits for approval of ${one.wrapper}`, String(one.arguments ?? "").replace(/\s+/g, " ").slice(0, 200), "#/changes", "Decide", "Waits");
  }
  for (const server of servers.servers) {
    const href = `#/servers/${encodeURIComponent(server.name)}`;
    if (server.state === "signInNeeded") add("signInNeeded", `${server.name} wants somebody to sign in`, server.lastError, href, "Sign in");
    else if (server.state === "waiting" || server.state === "faulty") add(server.state, `${server.name} is not available`, server.lastError, href, "Look at it");
    else if (server.state === "ready" && server.stale) add("stale", `${server.name} shows tools from before`, server.lastError, href, "Look at it");
  }
  const held = (changes?.changes ?? []).filter((row) => row.state === "held");
  if (held.length) add("held", `${plural(held.length, "changed definition is", "changed definitions are")} held`, [...new Set(held.map((row) => row.server))].join(", "), "#/changes", "Review");
  const hidden = quarantine.quarantine.filter((row) => row.status === "quarantined");
  if (hidden.length) add("quarantined", `${plural(hidden.length, "item is", "items are")} not shown to hosts`, `${hidden[0].server}: ${hidden[0].detail}`, "#/tools?show=quarantine", "See why");
  for (const one of failures.failures.filter((row) => row.flagged).slice(0, 5)) {
    add("error", `${one.wrapper} keeps failing`, `${one.kind.replaceAll("_", " ")}, ${plural(one.recent, "time")} in 24 hours`, "#/activity/failing", "See calls");
  }
  for (const text of config.warnings.slice(0, 5)) add("warning", "Configuration", text, "#/settings", "Look at it");
  return found;
}

function attention(found) {
  if (!found.length) return h("p", { class: "fine" }, badge("ok", "Nothing is broken"));
  return h("ul", { class: "findings" }, found.map((one) => h("li", null,
    badge(one.state, one.word),
    h("div", { class: "finding" }, foreign(one.title, "strong"), one.detail ? foreign(one.detail, "p") : null),
    h("a", { class: "button", href: one.href, "aria-label": `${one.action}: ${one.title}` }, one.action))));
}

function plots(activity) {
  const minutes = byMinute(activity);
  const sum = (name) => activity.buckets.reduce((total, bucket) => total + bucket[name], 0);
  const calls = sum("calls");
  const errors = sum("errors");
  const slow = minutes.filter((minute) => minute.p95 !== null).map((minute) => minute.p95);
  const tile = (name, value, note, kind = "") => h("div", { class: `tile ${kind}` }, h("dt", null, name), h("dd", null, h("strong", null, value), note ? h("span", { class: "muted" }, note) : null));
  return section("The last hour",
    h("dl", { class: "tiles" },
      tile("Calls", String(calls), calls ? `${(calls / 60).toFixed(1)} a minute` : "none yet"),
      tile("Failed", String(errors), calls ? `${((errors / calls) * 100).toFixed(1)} % of calls` : "none so far", errors ? "bad" : ""),
      tile("Refused", String(sum("denied")), "by rules, persons or hooks", sum("denied") ? "warn" : ""),
      tile("95 % within", slow.length ? milliseconds(slow.at(-1)) : "–", slow.length ? "in the latest minute with calls" : "no calls yet")),
    h("div", { class: "plots" },
      bars("Calls", minutes.map((minute) => ({ value: minute.calls, part: minute.errors })), { part: "failed" }),
      line("95 % within", minutes.map((minute) => ({ value: minute.p95 })), milliseconds),
      bars("Failures", minutes.map((minute) => ({ value: minute.errors })), { kind: "bad" })));
}

const WORST_FIRST = ["faulty", "waiting", "signInNeeded", "connecting", "ready", "disabled"];

function states(rows, held) {
  const sorted = [...rows].sort((a, b) => WORST_FIRST.indexOf(a.state) - WORST_FIRST.indexOf(b.state));
  return h("ul", { class: "states" }, sorted.map((row) => h("li", null,
    h("a", { href: `#/servers/${encodeURIComponent(row.name)}` }, foreign(row.displayName ?? row.name)),
    badge(row.state),
    h("span", { class: "muted" }, row.state === "disabled" ? "not in use" : `${plural(row.tools, "tool")}${held.has(row.name) ? `, ${held.get(row.name)} held` : ""}${row.inFlight ? `, ${plural(row.inFlight, "call")} running` : ""}`))));
}

function firstSteps() {
  const step = (title, text, ...actions) => h("li", null, h("div", { class: "finding" }, h("strong", null, title), h("p", null, text)), actions);
  return section("Get started", h("ol", { class: "findings steps" },
    step("Add a server", "By its address, from the file of a host, or from the MCP registry. What will run is shown before anything does.",
      may("post", "servers") ? h("a", { class: "button primary", href: "#/servers/add" }, "Add a server") : null),
    step("Connect a host", "Claude, Cursor, VS Code and others: copy a few lines, or have them written where the host is on this machine.",
      h("a", { class: "button", href: "#/connect" }, "Connect a host")),
    step("Watch its first call", "Who called what, how long it took and how it ended.",
      h("a", { class: "button", href: "#/activity" }, "Activity"))));
}
