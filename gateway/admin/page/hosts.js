/** Hosts, and the configuration with which each connects to the gateway. */

const bearer = "Authorization";
const json = (value) => JSON.stringify(value, null, 2);
const headers = (key) => (key ? { headers: { [bearer]: `Bearer ${key}` } } : {});

export const HOSTS = {
  "claude-code": ["Claude Code", "Run this in a terminal.", (url, key) => `claude mcp add --transport http typegate ${url}${key ? ` --header "${bearer}: Bearer ${key}"` : ""}`],
  "claude-desktop": ["Claude Desktop", "Settings › Developer › Edit Config: claude_desktop_config.json. The host starts a bridge, which needs typegate on the same machine.", (url, key) => json({ mcpServers: { typegate: { command: "typegate", args: ["stdio", "--url", url, ...(key ? ["--header", `${bearer}: Bearer ${key}`] : [])] } } })],
  cursor: ["Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in a project.", (url, key) => json({ mcpServers: { typegate: { url, ...headers(key) } } })],
  vscode: ["VS Code", ".vscode/mcp.json in a workspace, or the user's mcp.json.", (url, key) => json({ servers: { typegate: { type: "http", url, ...headers(key) } } })],
  windsurf: ["Windsurf", "~/.codeium/windsurf/mcp_config.json", (url, key) => json({ mcpServers: { typegate: { serverUrl: url, ...headers(key) } } })],
  codex: ["Codex", "~/.codex/config.toml. The key is read from the environment variable TYPEGATE_API_KEY.", (url, key) => `[mcp_servers.typegate]\nurl = "${url}"${key ? '\nbearer_token_env_var = "TYPEGATE_API_KEY"' : ""}`],
  gemini: ["Gemini CLI", "~/.gemini/settings.json", (url, key) => json({ mcpServers: { typegate: { httpUrl: url, ...headers(key) } } })],
  qwen: ["Qwen Code", "~/.qwen/settings.json", (url, key) => json({ mcpServers: { typegate: { httpUrl: url, ...headers(key) } } })],
  opencode: ["OpenCode", "~/.config/opencode/opencode.json", (url, key) => json({ mcp: { typegate: { type: "remote", url, enabled: true, ...headers(key) } } })],
  other: ["Another host, over HTTP", "The address of the MCP endpoint.", (url, key) => (key ? `${url}\n${bearer}: Bearer ${key}` : url)],
  stdio: ["Another host, as a command", "For hosts that only start processes.", (url, key) => `typegate stdio --url ${url}${key ? ` --header "${bearer}: Bearer ${key}"` : ""}`],
};
/** The hosts whose files `typegate install` writes. */
export const INSTALLABLE = new Set(["claude-desktop", "claude-code", "cursor", "windsurf", "vscode", "codex", "gemini", "qwen", "opencode"]);
export const PLACEHOLDER = "YOUR_KEY";
