/** Connecting a host: the configuration to copy into its file. */

import { gatewayUrl, get } from "./api.js";
import { h, put } from "./dom.js";
import { HOSTS, INSTALLABLE, PLACEHOLDER } from "./hosts.js";
import { field, load, section, select } from "./parts.js";
import { code } from "./result.js";

export function render(place, { part }) {
  load(place, () => Promise.all([get("profiles"), get("keys"), get("servers")]), ([{ profiles }, { keys }, { servers }]) => {
    const host = select(Object.entries(HOSTS).map(([name, [text]]) => [name, text]), HOSTS[part[0]] ? part[0] : "claude-code");
    const profile = select(profiles.map((one) => [one.name, `${one.name} – ${one.tools} tools`]), "default");
    const key = h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: PLACEHOLDER });
    const shown = h("div", { "aria-live": "polite", class: "stack wide" });
    const draw = () => {
      const [text, where, make] = HOSTS[host.value];
      const url = gatewayUrl(profiles.find((one) => one.name === profile.value));
      const command = !keys.length && INSTALLABLE.has(host.value) ? `typegate install ${host.value} --url ${url}` : null;
      put(shown, h("h3", null, text), h("p", null, where), code(make(url, key.value.trim() || (keys.length ? PLACEHOLDER : ""))),
        command ? h("p", null, "Or run ", h("code", null, command), " on the machine of the host: it shows the difference, asks for confirmation, and keeps the old file.") : null);
    };
    for (const control of [host, profile]) control.addEventListener("change", draw);
    key.addEventListener("input", draw);
    draw();
    return [
      section("Choose a host",
        h("div", { class: "fields" }, field("Host", host), field("Profile", profile, "The tools that the host sees."), keys.length ? field("API key", key, "Stays in this tab. Keys are issued under Access.") : null),
        servers.length ? null : h("p", { class: "note" }, "There are no servers yet, so the host will see only the gateway's own tools. ", h("a", { href: "#/servers/add" }, "Add a server"))),
      section("Configuration", shown, h("p", { class: "muted" }, "Restart the host or make it reload its file; its first call appears under ", h("a", { href: "#/activity" }, "Activity"), ".")),
    ];
  });
}
