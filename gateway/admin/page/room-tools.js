/** Tools: every wrapper with its description, use and last error; enabling and disabling; quarantined items. */

import { at, get, has, may, post } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, empty, focusOn, list, load, milliseconds, plural, section } from "./parts.js";

const HINTS = {
  readOnlyHint: ["read-only", "may change data"], destructiveHint: ["may delete or overwrite", "does not delete"],
  idempotentHint: ["safe to repeat", null], openWorldHint: ["reaches other systems", "only this system"],
};

export function render(place, { signal, query }) {
  const tools = h("div");
  const off = h("div");
  const hidden = h("div");
  const held = h("div");
  const undone = h("div", { "aria-live": "polite" });
  put(place, held, undone, tools, off, hidden);
  const chosen = new Set();
  let shown = null;
  let bulk = null;

  /** Disable or enable tools, and offer to undo it. */
  const change = async (names, disabled) => {
    await post("wrappers", { names, disabled });
    names.forEach((name) => chosen.delete(name));
    const what = names.length === 1 ? names[0] : plural(names.length, "tool");
    say(`${what} ${names.length === 1 ? "is" : "are"} ${disabled ? "disabled: neither listed nor callable" : "enabled"}`);
    const undo = button("Undo", async () => {
      await change(names, !disabled);
      put(undone);
    }, { "aria-label": `Undo: ${disabled ? "enable" : "disable"} ${what}` });
    put(undone, h("p", { class: "note" }, foreign(what, "strong"), ` ${names.length === 1 ? "is" : "are"} ${disabled ? "disabled" : "enabled"}. `, undo));
    await draw();
    if (!document.activeElement || document.activeElement === document.body) focusOn(undone.querySelector("button") ?? tools.querySelector("h2, input"));
  };

  const draw = async () => {
    if (shown) shown.replace(await rows());
    else {
      await load(tools, rows, (found) => {
        shown = table(found, { chosen, query, change, onDraw: (matching) => bulk?.(matching) });
        bulk = bulkBar(shown, chosen, change);
        shown.draw();
        return [bulk.node, shown.node];
      });
    }
    if (has("get", "changes")) {
      await load(held, () => get("changes?status=held"), ({ changes }) => (changes.length ? h("p", { class: "note" },
        `${plural(changes.length, "definition is", "definitions are")} held for approval: new tools are not listed, and changed tools are listed as before. `,
        h("a", { href: "#/changes" }, "Review")) : []));
    }
    await load(off, () => get("overlay"), ({ changes }) => {
      const disabled = changes.filter((one) => one.kind === "tool_disabled");
      return disabled.length ? section("Disabled here",
        disabled.length > 1 && may("post", "wrappers") ? h("div", { class: "actions" }, button(`Enable all ${disabled.length}`, () => change(disabled.map((one) => one.target), false))) : null,
        h("ul", { class: "findings" }, disabled.map((one) => h("li", null, badge("disabled"),
          h("div", { class: "finding" }, foreign(one.target, "code")),
          may("post", "wrappers/{name}/enable") ? button("Enable", async () => {
            await post(at`wrappers/${one.target}/enable`);
            say(`${one.target} is enabled`);
            await draw();
          }, { "aria-label": `Enable ${one.target}` }) : null)))) : [];
    });
    await load(hidden, () => get("quarantine"), ({ quarantine }) => quarantine.length ? section("Quarantined, repaired, flagged, or misconfigured",
      h("p", { class: "muted" }, "The gateway checks every item before hosts see it. A problem affects only the item itself."),
      h("ul", { class: "findings" }, quarantine.slice(0, 200).map((one) => h("li", null, badge(one.status),
        h("div", { class: "finding" }, foreign(`${one.server}: ${one.tool}`, "strong"), foreign(one.detail, "p"))))),
      quarantine.length > 200 ? h("p", { class: "muted" }, `${quarantine.length - 200} more`) : null) : []);
    if (query.get("show") === "quarantine") hidden.scrollIntoView();
  };
  draw();
  listen(["catalog", "changed"], signal, () => draw().catch(() => {}));
}

/** The wrappers, joined with their use of the last day, their last error, and what their texts are flagged for. */
async function rows() {
  const optional = (path, fallback) => get(path).catch(() => fallback);
  const [{ wrappers }, used, { failures }, { quarantine }, mistakes] = await Promise.all([
    get("wrappers"),
    has("get", "history") ? optional("history?range=24h&by=tool", { series: [] }) : optional("activity", { tools: [] }),
    optional("failures", { failures: [] }),
    optional("quarantine?status=flagged", { quarantine: [] }),
    has("get", "mistakes") ? optional("mistakes", { tools: [] }) : { tools: [] },
  ]);
  const use = new Map((used.series ?? used.tools).map((one) => [one.name, one]));
  const last = new Map();
  for (const one of failures) if (!last.has(one.wrapper) || one.lastSecondsAgo < last.get(one.wrapper).lastSecondsAgo) last.set(one.wrapper, one);
  const texts = new Map();
  for (const one of mistakes.tools) {
    const [latest] = one.mistakes.filter((each) => !each.kind.startsWith("repaired_")).sort((a, b) => b.at - a.at);
    if (latest) texts.set(one.wrapper, latest.text || latest.meant);
  }
  const flagged = new Map(quarantine.filter((one) => one.kind === "tools").map((one) => [`${one.server} ${one.tool}`, one.detail]));
  return wrappers.map((row) => ({ ...row, use: use.get(row.name), last: last.get(row.name), lastText: texts.get(row.name), flagged: flagged.get(`${row.server} ${row.tool}`) }));
}

function table(wrappers, { chosen, query, change, onDraw }) {
  const servers = [...new Set(wrappers.map((row) => row.server))];
  const canDisable = may("post", "wrappers");
  return list({
    caption: "Tools",
    titled: true,
    rows: wrappers,
    key: (row) => row.name,
    search: (row) => [row.name, row.server, row.tool, row.description],
    initial: { q: query.get("q") ?? "", server: query.get("server") ?? "" },
    filters: [
      { name: "server", label: "Server", all: "All servers", options: () => servers.map((name) => [name, name]), test: (row, value) => row.server === value },
      { name: "listed", label: "Listed", all: "All", options: () => [["yes", "Listed for hosts"], ["no", "Found by search"]], test: (row, value) => row.listed === (value === "yes") },
      { name: "use", label: "Use", all: "All", options: () => [["used", "Used today"], ["unused", "Not used today"], ["failed", "Failed today"]], test: (row, value) => (value === "failed" ? Boolean(row.last || row.use?.errors) : Boolean(row.use?.calls) === (value === "used")) },
    ],
    group: { label: "Group by server", of: (row) => row.server },
    onDraw,
    none: () => empty("There are no tools yet", "Tools appear as soon as a server has listed them.", h("a", { class: "button", href: "#/servers" }, "Show servers")),
    columns: [
      { title: "Tool", cell: (row) => {
        const box = h("input", { type: "checkbox", checked: chosen.has(row.name), "aria-label": `Select ${row.name}` });
        box.addEventListener("change", () => {
          if (box.checked) chosen.add(row.name);
          else chosen.delete(row.name);
          onDraw(null);
        });
        return h("div", { class: "described" }, h("div", { class: "state-line" }, canDisable ? box : null, foreign(row.name, "code")),
          row.description ? foreign(row.description, "p") : h("p", null, "No description"),
          row.flagged ? h("p", null, badge("flagged"), " ", foreign(row.flagged)) : null,
          h("p", null, hints(row.hints)));
      } },
      { title: "Server", cell: (row) => h("a", { class: "nowrap", href: `#/servers/${encodeURIComponent(row.server)}` }, foreign(row.server)) },
      { title: "State", beside: true, cell: (row) => [badge(row.status), row.listed ? null : h("span", { class: "muted" }, " by search")] },
      { title: "Last 24 hours", cell: (row) => (row.use?.calls ? h("a", { href: `#/activity?tool=${encodeURIComponent(row.name)}` }, `${plural(row.use.calls, "call")}${row.use.errors ? `, ${row.use.errors} failed` : ""}, p95 ${milliseconds(row.use.p95Ms)}`) : "–") },
      { title: "Last error", cell: (row) => (row.last ? [foreign(row.lastText || `${row.last.kind.replaceAll("_", " ")} ${row.last.detail.replace(/ ?text [0-9a-f]{8}$/, "")}`.trim()), h("span", { class: "muted" }, ` ${ago(row.last.lastSecondsAgo)}`)] : "") },
      { title: "Tokens", number: true, cell: (row) => String(row.tokens) },
      { title: "Actions", deed: true, cell: (row) => h("div", { class: "actions" },
        may("post", "try") ? h("a", { class: "button", href: `#/try/${encodeURIComponent(row.name)}`, "aria-label": `Try ${row.name}` }, "Try") : null,
        canDisable ? button("Disable", () => change([row.name], true), { "aria-label": `Disable ${row.name}` }) : null) },
    ],
  });
}

/** The line with the number of selected tools, and what can be done with them. */
function bulkBar(shown, chosen, change) {
  let matching = [];
  const node = h("div", { class: "bulk" });
  const update = (found) => {
    if (found) matching = found;
    const focused = node.contains(document.activeElement) ? document.activeElement.dataset.deed : null;
    const all = matching.length > 0 && matching.every((row) => chosen.has(row.name));
    put(node, may("post", "wrappers") ? [
      button(all ? "Select none" : `Select all ${matching.length} shown`, () => {
        for (const row of matching) {
          if (all) chosen.delete(row.name);
          else chosen.add(row.name);
        }
        shown.draw();
      }, { kind: "quiet", "data-deed": "all" }),
      chosen.size ? [h("span", { role: "status" }, `${chosen.size} selected`), button("Disable selected", () => change([...chosen], true), { kind: "danger", "data-deed": "disable" })] : null,
    ] : []);
    if (focused) (node.querySelector(`[data-deed="${focused}"]`) ?? node.querySelector("button"))?.focus();
  };
  update.node = node;
  return update;
}

/** The hints of a tool in words; a read-only tool neither deletes nor repeats an effect, so that is not said. */
function hints(found) {
  const names = found.readOnlyHint ? ["readOnlyHint", "openWorldHint"] : Object.keys(HINTS);
  return names.map((name) => (name in found ? HINTS[name][found[name] ? 0 : 1] : null)).filter(Boolean).map((word) => h("span", { class: "hint-word" }, word));
}

function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}
