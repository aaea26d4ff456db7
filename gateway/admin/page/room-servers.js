/** Servers: what state each is in and why, and what can be done about it. */

import { at, get, getTagged, has, may, post, remove } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, changeWord, confirm, empty, facts, heldBy, list, load, plural, section, stateWord, time } from "./parts.js";
import { renderAdd } from "./server-add.js";

const MEANING = {
  ready: "Connected: its tools can be called.",
  connecting: "It is being connected.",
  starting: "Its process has been started and does not answer yet. It is given the time that it needs.",
  waiting: "The gateway tries again by itself, after growing pauses.",
  signInNeeded: "Its tools stay listed, and can be called once somebody has signed in.",
  disabled: "Its tools are neither listed nor callable, until it is enabled again.",
  faulty: "Its entry has to be mended in the configuration; the other servers are not touched.",
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
    const [{ servers }, changes] = await Promise.all([get("servers"), has("get", "changes") ? get("changes?status=held") : { changes: [] }]);
    const held = heldBy(changes.changes);
    return servers.map((row) => ({ ...row, held: held.get(row.name) ?? 0 }));
  };
  const draw = async () => {
    if (shown) return shown.replace(await rows());
    await load(place, rows, (servers) => {
      shown = list({
        caption: "Servers",
        titled: true,
        rows: servers,
        key: (row) => row.name,
        search: (row) => [row.name, row.displayName, row.lastError ?? "", stateWord(row.state), ...row.tags],
        filters: [{ name: "state", label: "State", all: "Every state", options: () => ["ready", "connecting", "starting", "waiting", "signInNeeded", "disabled", "faulty"].map((name) => [name, stateWord(name)]), test: (row, value) => row.state === value }],
        initial: { q: query.get("q") ?? "" },
        none: () => empty("There is no server yet", "Add one by its address, from the file of a host, or as a command.", may("post", "servers") ? h("a", { class: "button primary", href: "#/servers/add" }, "Add a server") : null),
        columns: [
          { title: "Server", cell: (row) => h("a", { href: `#/servers/${encodeURIComponent(row.name)}` }, foreign(row.displayName ?? row.name)) },
          { title: "State", beside: true, cell: (row) => badge(row.state) },
          { title: "Kind", cell: (row) => row.type ?? "–" },
          { title: "Tools", number: true, cell: (row) => h("a", { href: `#/tools?server=${encodeURIComponent(row.name)}` }, String(row.tools), h("span", { class: "hidden" }, ` tools of ${row.name}`)) },
          { title: "Why", wide: true, cell: (row) => [row.lastError ? foreign(row.lastError) : "", row.held ? h("a", { href: "#/changes" }, `${plural(row.held, "definition is", "definitions are")} held`) : ""] },
        ],
      });
      return shown.node;
    });
  };
  draw();
  listen(["state", "catalog", "changed", "sign_in"], signal, () => draw().catch(() => {}));
}

function renderOne(place, { signal, title, actions }, name) {
  title(name);
  put(actions, h("a", { class: "button", href: "#/servers" }, "All servers"));
  const draw = () => load(place, async () => {
    const [{ document: row, etag }, overlay, quarantine, { wrappers }] = await Promise.all([getTagged(at`servers/${name}`), get("overlay"), get("quarantine"), get(at`wrappers?server=${name}`)]);
    return { row, etag, tools: wrappers.map((one) => one.name), changes: overlay.changes.filter((one) => one.target === name), hidden: quarantine.quarantine.filter((one) => one.server === name) };
  }, (found) => one(found, draw));
  draw();
  listen(["state", "catalog", "changed", "sign_in"], signal, draw);
}

function one({ row, etag, tools, changes, hidden }, draw) {
  const name = row.name;
  const path = (action) => at`servers/${name}` + (action ? `/${action}` : "");
  const match = { "if-match": etag };
  const does = (text, action, said, options) => button(text, async () => {
    await action();
    say(said);
    draw();
  }, options);
  // Where each caller signs in for itself there is nothing to sign in to for all.
  const users = row.signIn?.perUser ? row.signIn.users : null;
  const signIn = !users && has("post", "servers/{name}/sign-in") && (row.signIn || row.state === "signInNeeded");
  const off = row.state === "disabled";
  return [
    section("State",
      h("p", { class: "state-line" }, badge(row.state), row.lastError && !off ? foreign(row.lastError, "span") : null),
      MEANING[row.state] ? h("p", { class: "muted" }, MEANING[row.state]) : null,
      h("div", { class: "actions" },
        signIn && may("post", "servers/{name}/sign-in") && !row.signIn?.signedIn ? button("Sign in", async () => {
          const link = await post(path("sign-in"));
          if (/^https?:\/\//i.test(link.url)) window.open(link.url, "_blank", "noopener,noreferrer");
          say("The sign-in has opened in another tab; this page shows when it is done");
        }, { kind: "primary" }) : null,
        signIn && row.signIn?.signedIn && may("delete", "servers/{name}/sign-in") ? button("Revoke the sign-in", async () => {
          if (!(await confirm("Revoke the sign-in?", `The tokens of ${name} are revoked at their issuer and forgotten here. Its tools cannot be used until somebody signs in again.`, "Revoke"))) return;
          await remove(path("sign-in"));
          say("Signed out");
          draw();
        }) : null,
        !off && row.type && may("post", "servers/{name}/refresh") ? does("List its tools again", () => post(path("refresh")), "Its tools are being listed again") : null,
        off && may("post", "servers/{name}/enable") ? does("Enable", () => post(path("enable"), {}, match), `${name} is in use again`, { kind: "primary" }) : null,
        !off && row.type && may("post", "servers/{name}/disable") ? does("Disable", () => post(path("disable"), {}, match), `${name} is disabled: its tools are neither listed nor callable`) : null,
        may("delete", "servers/{name}") ? button("Remove", async () => {
          if (!(await confirm(`Remove ${name}?`, "Its running calls end first. It stays away after a restart, until this is reverted under Settings.", "Remove"))) return;
          await remove(path(), match);
          say(`${name} is removed`);
          location.hash = "#/servers";
        }, { kind: "danger" }) : null)),
    section("What it has",
      facts([
        ["Tools", h("a", { href: `#/tools?server=${encodeURIComponent(name)}` }, plural(row.tools, "tool"))],
        ["Held", row.held ? h("a", { href: "#/changes" }, `${plural(row.held, "definition", "definitions")} until somebody approves them`) : null],
        ["Prompts", String(row.prompts)],
        ["Resources", String(row.resources)],
        ["Kind", row.type],
        ["Protocol", row.protocol],
        ["Server says it is", row.serverInfo ? foreign(`${row.serverInfo.name ?? ""} ${row.serverInfo.version ?? ""}`) : null],
        ["Listed", row.ageSeconds === null ? null : `${plural(Math.round(row.ageSeconds), "second")} ago${row.origin === "snapshot" ? ", from before the start" : ""}`],
        ["Running calls", row.inFlight ? String(row.inFlight) : null],
        ["Signed in", users ? plural(users.length, "caller") : row.signIn ? (row.signIn.signedIn ? `yes, at ${row.signIn.issuer ?? "its issuer"}` : "no") : null],
        ["Tags", row.tags.length ? row.tags.join(", ") : null],
      ])),
    tools.length ? section("Its tools", h("div", { class: "names" }, tools.slice(0, NAMES_SHOWN).map((tool) => (may("post", "try")
      ? h("a", { href: `#/try/${encodeURIComponent(tool)}` }, foreign(tool, "code")) : h("span", null, foreign(tool, "code"))))),
    tools.length > NAMES_SHOWN ? h("p", null, h("a", { href: `#/tools?server=${encodeURIComponent(name)}` }, `All ${tools.length}`)) : null) : null,
    users?.length ? section("Who is signed in", h("ul", { class: "findings" }, users.map((user) => h("li", null,
      h("div", { class: "finding" }, foreign(user.principal, "strong"), h("p", null, "since ", time(user.since * 1000))),
      may("delete", "servers/{name}/sign-in") ? button("Revoke", async () => {
        if (!(await confirm("Revoke this sign-in?", `The tokens of this caller for ${name} are revoked at their issuer and forgotten here.`, "Revoke"))) return;
        await remove(`${path("sign-in")}?principal=${encodeURIComponent(user.principal)}`);
        say("Signed out");
        draw();
      }) : null)))) : null,
    hidden.length ? section("Not shown, or repaired", h("ul", { class: "findings" }, hidden.map((one) => h("li", null, badge(one.status), h("div", { class: "finding" }, foreign(one.tool, "strong"), foreign(one.detail, "p")))))) : null,
    changes.length ? section("Changed here", h("ul", { class: "findings" }, changes.map((one) => h("li", null, h("div", { class: "finding" }, h("strong", null, changeWord(one.kind)), h("p", { class: "muted" }, `by ${one.by || "nobody known"}, `, time(one.at))))))) : null,
  ];
}
