/** Tools: every wrapper, what is listed and what is not, and switching one off. */

import { at, get, has, may, post } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { listen } from "./live.js";
import { badge, button, empty, list, load, plural, section } from "./parts.js";

export function render(place, { signal, query }) {
  const tools = h("div");
  const off = h("div");
  const hidden = h("div");
  const held = h("div");
  put(place, held, tools, off, hidden);
  let shown = null;
  const draw = async () => {
    if (shown) shown.replace((await get("wrappers")).wrappers);
    else {
      await load(tools, () => get("wrappers"), ({ wrappers }) => {
        const servers = [...new Set(wrappers.map((row) => row.server))];
        shown = list({
          caption: "Tools",
          titled: true,
          rows: wrappers,
          key: (row) => row.name,
          search: (row) => [row.name, row.server, row.tool],
          initial: { q: query.get("q") ?? "", server: query.get("server") ?? "" },
          filters: [
            { name: "server", label: "Server", all: "Every server", options: () => servers.map((name) => [name, name]), test: (row, value) => row.server === value },
            { name: "listed", label: "Listed", all: "All", options: () => [["yes", "In the list of hosts"], ["no", "Found by search"]], test: (row, value) => row.listed === (value === "yes") },
          ],
          none: () => empty("There is no tool yet", "Tools appear as soon as a server has listed them.", h("a", { class: "button", href: "#/servers" }, "Look at the servers")),
          columns: [
            { title: "Tool", cell: (row) => foreign(row.name, "code") },
            { title: "Server", cell: (row) => h("a", { href: `#/servers/${encodeURIComponent(row.server)}` }, foreign(row.server)) },
            { title: "State", beside: true, cell: (row) => badge(row.status) },
            { title: "Listed", cell: (row) => (row.listed ? "yes" : "by search") },
            { title: "Tokens", number: true, cell: (row) => String(row.tokens) },
            { title: "Actions", deed: true, cell: (row) => h("div", { class: "actions" },
              may("post", "try") ? h("a", { class: "button", href: `#/try/${encodeURIComponent(row.name)}`, "aria-label": `Try ${row.name}` }, "Try") : null,
              may("post", "wrappers/{name}/disable") ? button("Disable", async () => {
                await post(at`wrappers/${row.name}/disable`);
                say(`${row.name} is disabled: it is neither listed nor callable`);
                await draw();
              }, { "aria-label": `Disable ${row.name}` }) : null) },
          ],
        });
        return shown.node;
      });
    }
    if (has("get", "changes")) {
      await load(held, () => get("changes?status=held"), ({ changes }) => (changes.length ? h("p", { class: "note" },
        `${plural(changes.length, "definition is", "definitions are")} held until somebody approves ${changes.length === 1 ? "it" : "them"}: what is new is not listed, and what has changed is listed as it was. `,
        h("a", { href: "#/changes" }, "Review")) : []));
    }
    await load(off, () => get("overlay"), ({ changes }) => {
      const rows = changes.filter((one) => one.kind === "tool_disabled");
      return rows.length ? section("Disabled here", h("ul", { class: "findings" }, rows.map((one) => h("li", null, badge("disabled"),
        h("div", { class: "finding" }, foreign(one.target, "code")),
        may("post", "wrappers/{name}/enable") ? button("Enable", async () => {
          await post(at`wrappers/${one.target}/enable`);
          say(`${one.target} is in use again`);
          await draw();
        }, { "aria-label": `Enable ${one.target}` }) : null)))) : [];
    });
    await load(hidden, () => get("quarantine"), ({ quarantine }) => quarantine.length ? section("Not shown, repaired, or configured in vain",
      h("p", { class: "muted" }, "What servers list is looked at before any host sees it. What is wrong with an item stands beside it; its siblings are not touched."),
      h("ul", { class: "findings" }, quarantine.slice(0, 200).map((one) => h("li", null, badge(one.status),
        h("div", { class: "finding" }, foreign(`${one.server}: ${one.tool}`, "strong"), foreign(one.detail, "p"))))),
      quarantine.length > 200 ? h("p", { class: "muted" }, `${quarantine.length - 200} more`) : null) : []);
    if (query.get("show") === "quarantine") hidden.scrollIntoView();
  };
  draw();
  listen(["catalog", "changed"], signal, () => draw().catch(() => {}));
}
