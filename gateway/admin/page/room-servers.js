/** Servers: the state of each with its cause, and the available actions. */

import { at, get, getTagged, has, may, post, remove } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { failedShare, perMinute, rangeWords, renderHistory, serverFigures } from "./history.js";
import { listen } from "./live.js";
import { badge, button, changeWord, confirm, empty, facts, heldBy, list, load, milliseconds, plural, section, stateWord, time } from "./parts.js";
import { renderAdd } from "./server-add.js";
import { editServer, renderLog } from "./server-process.js";

const MEANING = {
  ready: "Connected: its tools can be called.",
  connecting: "The gateway is connecting to it.",
  starting: "Its process has been started and does not respond yet.",
  idle: "Its process is not running. Its tools stay listed, and a call starts it.",
  waiting: "The gateway retries automatically, with increasing delays.",
  signInNeeded: "Its tools stay listed, and can be called after a sign-in.",
  disabled: "Its tools are neither listed nor callable until it is enabled again.",
  faulty: "Its configuration entry has an error; other servers are not affected.",
};
const NAMES_SHOWN = 60;

export function render(place, room) {
  if (room.part[0] === "add") return renderAdd(place, room);
  return room.part.length ? renderOne(place, room, room.part[0]) : renderAll(place, room);
}

function renderAll(place, { signal, actions, query }) {
  if (may("post", "servers")) put(actions, h("a", { class: "button primary", href: "#/servers/add" }, "Add a server"));
  let shown = null;
  const rows = async () => {
    const [{ servers }, changes, calls] = await Promise.all([get("servers"), has("get", "changes") ? get("changes?status=held") : { changes: [] }, serverFigures().catch(() => new Map())]);
    const held = heldBy(changes.changes);
    return servers.map((row) => ({ ...row, held: held.get(row.name) ?? 0, figures: calls.get(row.name) ?? null }));
  };
  const draw = async () => {
    if (shown) return shown.replace(await rows());
    await load(place, rows, (servers) => {
      shown = list({
        caption: `Figures of ${rangeWords()}`,
        rows: servers,
        key: (row) => row.name,
        search: (row) => [row.name, row.displayName, row.lastError ?? "", stateWord(row.state), ...row.tags],
        filters: [{ name: "state", label: "State", all: "All states", options: () => ["ready", "connecting", "starting", "idle", "waiting", "signInNeeded", "disabled", "faulty"].map((name) => [name, stateWord(name)]), test: (row, value) => row.state === value }],
        initial: { q: query.get("q") ?? "" },
        none: () => empty("There are no servers yet", "Add one by its address, from a host's file, or as a command.", may("post", "servers") ? h("a", { class: "button primary", href: "#/servers/add" }, "Add a server") : null),
        columns: [
          { title: "Server", cell: (row) => h("a", { href: `#/servers/${encodeURIComponent(row.name)}` }, foreign(row.displayName ?? row.name)) },
          { title: "State", beside: true, cell: (row) => badge(row.state) },
          { title: "Kind", cell: (row) => row.type ?? "–" },
          { title: "Tools", number: true, cell: (row) => h("a", { href: `#/tools?server=${encodeURIComponent(row.name)}` }, String(row.tools), h("span", { class: "hidden" }, ` tools of ${row.name}`)) },
          { title: "Calls/min", number: true, cell: (row) => (row.figures ? perMinute(row.figures.perMinute) : "–") },
          { title: "Failed", number: true, cell: (row) => (row.figures ? failedShare(row.figures) : "–") },
          { title: "p95", number: true, cell: (row) => (row.figures?.calls ? milliseconds(row.figures.p95Ms) : "–") },
          { title: "Reason", wide: true, cell: (row) => [row.lastError ? foreign(row.lastError) : "", row.held ? h("a", { href: "#/changes" }, `${plural(row.held, "definition is", "definitions are")} held`) : ""] },
        ],
      });
      return shown.node;
    });
  };
  draw();
  listen(["state", "catalog", "changed", "sign_in"], signal, () => draw().catch(() => {}));
  const minute = setInterval(() => draw().catch(() => {}), 30000);
  signal.addEventListener("abort", () => clearInterval(minute));
}

function renderOne(place, { signal, title, actions }, name) {
  title(name);
  put(actions, h("a", { class: "button", href: "#/servers" }, "All servers"));
  const facts_ = h("div");
  const figures = h("div");
  const log = h("div");
  put(place, facts_, figures, log);
  renderHistory(figures, { signal, title: "Calls over time", subject: ["server", name] });
  const draw = () => load(facts_, async () => {
    const [{ document: row, etag }, overlay, quarantine, { wrappers }, held] = await Promise.all([
      getTagged(at`servers/${name}`), get("overlay"), get("quarantine"), get(at`wrappers?server=${name}`), has("get", "changes") ? get(at`changes?status=held&server=${name}`) : { changes: [] },
    ]);
    if (row.type === "stdio" && !log.firstChild) renderLog(log, name, signal);
    return { row, held: held.changes, etag, tools: wrappers.map((each) => each.name), changes: overlay.changes.filter((each) => each.target === name), hidden: quarantine.quarantine.filter((each) => each.server === name) };
  }, (found) => details(found, draw));
  draw();
  const tick = setInterval(() => {
    for (const one of facts_.querySelectorAll("[data-since]")) one.textContent = lasting((Date.now() - Number(one.dataset.since)) / 1000);
  }, 1000);
  signal.addEventListener("abort", () => clearInterval(tick));
  listen(["state", "catalog", "changed", "sign_in"], signal, draw);
}

/** A duration in its two largest units. */
function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `for ${whole} s`;
  if (whole < 3600) return `for ${Math.floor(whole / 60)} min ${whole % 60} s`;
  return whole < 86400 ? `for ${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min` : `for ${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function details({ row, held, etag, tools, changes, hidden }, draw) {
  const name = row.name;
  const path = (action) => at`servers/${name}` + (action ? `/${action}` : "");
  const match = { "if-match": etag };
  const does = (text, action, said, options) => button(text, async () => {
    await action();
    say(said);
    draw();
  }, options);
  // If each caller signs in separately, there is no shared sign-in.
  const users = row.signIn?.perUser ? row.signIn.users : null;
  const signIn = !users && has("post", "servers/{name}/sign-in") && (row.signIn || row.state === "signInNeeded");
  const off = row.state === "disabled";
  return [
    section("State",
      h("p", { class: "state-line" }, badge(row.state), row.stateSeconds === null ? null : h("span", { class: "muted", "data-since": String(Date.now() - row.stateSeconds * 1000) }, lasting(row.stateSeconds)), row.lastError && !off ? foreign(row.lastError, "span") : null),
      MEANING[row.state] ? h("p", { class: "muted" }, MEANING[row.state]) : null,
      h("div", { class: "actions" },
        signIn && may("post", "servers/{name}/sign-in") && !row.signIn?.signedIn ? button("Sign in", async () => {
          const link = await post(path("sign-in"));
          if (/^https?:\/\//i.test(link.url)) window.open(link.url, "_blank", "noopener,noreferrer");
          say("The sign-in has opened in another tab; this page updates when it is done");
        }, { kind: "primary" }) : null,
        signIn && row.signIn?.signedIn && may("delete", "servers/{name}/sign-in") ? button("Revoke the sign-in", async () => {
          if (!(await confirm("Revoke the sign-in?", `The tokens of ${name} are revoked at their issuer and deleted here. Its tools cannot be used until the next sign-in.`, "Revoke"))) return;
          await remove(path("sign-in"));
          say("Signed out");
          draw();
        }) : null,
        !off && row.type && may("post", "servers/{name}/refresh") ? does("Refresh tools", () => post(path("refresh")), "Refreshing tools") : null,
        !off && row.type && row.state !== "idle" && may("post", "servers/{name}/restart") ? button("Restart", async () => {
          if (row.inFlight && !(await confirm(`Restart ${name}?`, `${plural(row.inFlight, "running call")} would fail.`, "Restart"))) return;
          await post(path("restart"));
          say(`${name} is restarting`);
          draw();
        }) : null,
        !off && row.type && may("post", "servers/{name}/entry") ? button("Edit", () => editServer(name).then(draw), { "aria-label": `Edit ${name}` }) : null,
        off && may("post", "servers/{name}/enable") ? does("Enable", () => post(path("enable"), {}, match), `${name} is enabled`, { kind: "primary" }) : null,
        !off && row.type && may("post", "servers/{name}/disable") ? does("Disable", () => post(path("disable"), {}, match), `${name} is disabled: its tools are neither listed nor callable`) : null,
        may("delete", "servers/{name}") ? button("Remove", async () => {
          if (!(await confirm(`Remove ${name}?`, "Running calls are finished first. The server stays removed until you revert the change under Settings.", "Remove"))) return;
          await remove(path(), match);
          say(`${name} is removed`);
          location.hash = "#/servers";
        }, { kind: "danger" }) : null)),
    row.runs ? section("What runs",
      foreign(row.runs, "pre"),
      facts([
        [row.type === "stdio" ? "Variables" : "Headers", row.sends.length ? foreign(row.sends.join(", ")) : "none"],
        ["Instances", row.type === "stdio" ? `${plural(row.processes, "process", "processes")} running` : null],
        ["When idle", row.type === "stdio" ? (row.idleSeconds ? `ended after ${plural(row.idleSeconds, "second")} without a call` : "keeps running") : null],
      ])) : null,
    held.length ? section("Held", h("p", { class: "muted" }, "New tools are not listed, and changed tools are listed as approved, until somebody decides."),
      h("ul", { class: "findings" }, held.slice(0, 20).map((one) => h("li", null, badge("held"), h("div", { class: "finding" }, foreign(one.name || one.kind, "strong"), h("p", { class: "muted" }, one.classes.join(", "))),
        h("a", { class: "button", href: "#/changes", "aria-label": `Review ${one.name || one.kind}` }, "Review"))))) : null,
    section("Details",
      facts([
        ["Tools", h("a", { href: `#/tools?server=${encodeURIComponent(name)}` }, plural(row.tools, "tool"))],
        ["Held", row.held ? h("a", { href: "#/changes" }, `${plural(row.held, "definition")} waiting for approval`) : null],
        ["Prompts", String(row.prompts)],
        ["Resources", String(row.resources)],
        ["Id", row.id],
        ["Kind", row.type],
        ["Protocol", row.protocol],
        ["Server reports", row.serverInfo ? foreign(`${row.serverInfo.name ?? ""} ${row.serverInfo.version ?? ""}`) : null],
        ["Listed", row.ageSeconds === null ? null : `${plural(Math.round(row.ageSeconds), "second")} ago${row.origin === "snapshot" ? ", before the start of the gateway" : ""}`],
        ["Running calls", row.inFlight ? String(row.inFlight) : null],
        ["Signed in", users ? plural(users.length, "caller") : row.signIn ? (row.signIn.signedIn ? `yes, at ${row.signIn.issuer ?? "its issuer"}` : "no") : null],
        ["Tags", row.tags.length ? row.tags.join(", ") : null],
      ])),
    tools.length ? section("Tools", h("div", { class: "names" }, tools.slice(0, NAMES_SHOWN).map((tool) => (may("post", "try")
      ? h("a", { href: `#/try/${encodeURIComponent(tool)}` }, foreign(tool, "code")) : h("span", null, foreign(tool, "code"))))),
    tools.length > NAMES_SHOWN ? h("p", null, h("a", { href: `#/tools?server=${encodeURIComponent(name)}` }, `All ${tools.length}`)) : null) : null,
    users?.length ? section("Signed-in callers", h("ul", { class: "findings" }, users.map((user) => h("li", null,
      h("div", { class: "finding" }, foreign(user.principal, "strong"), h("p", null, "since ", time(user.since * 1000))),
      may("delete", "servers/{name}/sign-in") ? button("Revoke", async () => {
        if (!(await confirm("Revoke this sign-in?", `The tokens of this caller for ${name} are revoked at their issuer and deleted here.`, "Revoke"))) return;
        await remove(`${path("sign-in")}?principal=${encodeURIComponent(user.principal)}`);
        say("Signed out");
        draw();
      }) : null)))) : null,
    hidden.length ? section("Quarantined or repaired", h("ul", { class: "findings" }, hidden.map((one) => h("li", null, badge(one.status), h("div", { class: "finding" }, foreign(one.tool, "strong"), foreign(one.detail, "p")))))) : null,
    changes.length ? section("Changed here", h("ul", { class: "findings" }, changes.map((one) => h("li", null, h("div", { class: "finding" }, h("strong", null, changeWord(one.kind)), h("p", { class: "muted" }, `by ${one.by || "unknown"}, `, time(one.at))))))) : null,
  ];
}
