/** How each host is connected: what to put into its file, ready to copy. */

import { gatewayUrl, get, may } from "./api.js";
import { h, put } from "./dom.js";
import { writing } from "./host-file.js";
import { field, load, section, select } from "./parts.js";
import { code } from "./result.js";

const bearer = "Authorization";
const json = (value) => JSON.stringify(value, null, 2);
const headers = (key) => (key ? { headers: { [bearer]: `Bearer ${key}` } } : {});

const HOSTS = {
  "claude-code": ["Claude Code", "Run this in a terminal.", (url, key) => `claude mcp add --transport http typegate ${url}${key ? ` --header "${bearer}: Bearer ${key}"` : ""}`],
  "claude-desktop": ["Claude Desktop", "Settings › Developer › Edit Config: claude_desktop_config.json. It starts a bridge, which needs typegate on the same machine.", (url, key) => json({ mcpServers: { typegate: { command: "typegate", args: ["stdio", "--url", url, ...(key ? ["--header", `${bearer}: Bearer ${key}`] : [])] } } })],
  cursor: ["Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json of a project.", (url, key) => json({ mcpServers: { typegate: { url, ...headers(key) } } })],
  vscode: ["VS Code", ".vscode/mcp.json of a workspace, or mcp.json of the user.", (url, key) => json({ servers: { typegate: { type: "http", url, ...headers(key) } } })],
  windsurf: ["Windsurf", "~/.codeium/windsurf/mcp_config.json", (url, key) => json({ mcpServers: { typegate: { serverUrl: url, ...headers(key) } } })],
  codex: ["Codex", "~/.codex/config.toml. The key is taken from the environment variable TYPEGATE_API_KEY.", (url, key) => `[mcp_servers.typegate]\nurl = "${url}"${key ? '\nbearer_token_env_var = "TYPEGATE_API_KEY"' : ""}`],
  gemini: ["Gemini CLI", "~/.gemini/settings.json", (url, key) => json({ mcpServers: { typegate: { httpUrl: url, ...headers(key) } } })],
  qwen: ["Qwen Code", "~/.qwen/settings.json", (url, key) => json({ mcpServers: { typegate: { httpUrl: url, ...headers(key) } } })],
  opencode: ["OpenCode", "~/.config/opencode/opencode.json", (url, key) => json({ mcp: { typegate: { type: "remote", url, enabled: true, ...headers(key) } } })],
  other: ["Another host, over HTTP", "The address of the MCP endpoint.", (url, key) => (key ? `${url}\n${bearer}: Bearer ${key}` : url)],
  stdio: ["Another host, as a command", "For hosts that only start processes.", (url, key) => `typegate stdio --url ${url}${key ? ` --header "${bearer}: Bearer ${key}"` : ""}`],
};
const PLACEHOLDER = "YOUR_KEY";

export function render(place, { part }) {
  const hosts = may("get", "hosts") ? get("hosts") : { offered: false };
  load(place, () => Promise.all([get("profiles"), get("keys"), get("servers"), hosts]), ([{ profiles }, { keys }, { servers }, files]) => {
    const host = select(Object.entries(HOSTS).map(([name, [text]]) => [name, text]), HOSTS[part[0]] ? part[0] : "claude-code");
    const profile = select(profiles.map((one) => [one.name, `${one.name} – ${one.tools} tools`]), "default");
    const key = h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: PLACEHOLDER });
    const shown = h("div", { "aria-live": "polite", class: "stack wide" });
    const written = h("div");
    const draw = () => {
      const [text, where, make] = HOSTS[host.value];
      const url = gatewayUrl(profiles.find((one) => one.name === profile.value));
      put(shown, h("h3", null, text), h("p", null, where), code(make(url, key.value.trim() || (keys.length ? PLACEHOLDER : ""))));
      const file = files.offered ? files.hosts.find((one) => one.name === host.value) : null;
      put(written, file ? writing(file, files.machine, () => ({ profile: profile.value, key: key.value.trim() }), () => (keys.length && !key.value.trim() ? "Give the host its key first: without one it would be refused." : null)) : null);
    };
    for (const control of [host, profile]) control.addEventListener("change", draw);
    key.addEventListener("input", draw);
    draw();
    return [
      section("Which host",
        h("div", { class: "fields" }, field("Host", host), field("Profile", profile, "What the host is to see."), keys.length ? field("Its key", key, "Stays in this tab until it is written. Keys are issued under Access.") : null),
        servers.length ? null : h("p", { class: "note" }, "There is no server yet, so the host will see only the tools of the gateway itself. ", h("a", { href: "#/servers/add" }, "Add a server"))),
      section("What to do there", shown, h("p", { class: "muted" }, "Restart the host, or have it read its file again; its first call appears under ", h("a", { href: "#/activity" }, "Activity"), ".")),
      written,
    ];
  });
}
