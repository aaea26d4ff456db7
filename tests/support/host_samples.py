"""Files of nine hosts as their users have them: with comments where the form allows them, and keys of their own."""

from __future__ import annotations

from typing import Final

CLAUDE_DESKTOP: Final = """\
{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "files": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "/tmp/${literal}"]
    },
    "Git Hub": {
      "command": "docker",
      "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN", "ghcr.io/github/github-mcp-server:1.0"],
      "env": {"GITHUB_TOKEN": "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"}
    }
  },
  "isDxtAutoUpdatesEnabled": true
}
"""
CLAUDE_CODE: Final = """\
{
  "numStartups": 17,
  "mcpServers": {
    "docs": {
      "type": "http",
      "url": "https://docs.example.test/mcp",
      "headers": {"Authorization": "Bearer ${DOCS_TOKEN:-none}"}
    },
    "time": {"type": "stdio", "command": "uvx", "args": ["mcp-server-time==2026.10.10"], "env": {}}
  },
  "projects": {
    "/work/one": {"allowedTools": [], "mcpServers": {"local": {"command": "node", "args": ["./server.js"]}}},
    "/work/two": {"history": ["a", "b"]}
  }
}
"""
CURSOR: Final = """\
{
\t"mcpServers": {
\t\t"linear": { "url": "https://mcp.linear.example.test/sse" },
\t\t"search": {
\t\t\t"command": "npx",
\t\t\t"args": ["-y", "search-mcp@1.2.3"],
\t\t\t"env": { "SEARCH_API_KEY": "${env:SEARCH_API_KEY}" }
\t\t}
\t}
}
"""
WINDSURF: Final = """\
{
    "mcpServers": {
        "remote": {
            "serverUrl": "https://api.example.test/mcp",
            "headers": {"X-Api-Key": "k9f8e7d6c5b4a3928170"},
            "disabledTools": ["drop_table"]
        }
    }
}
"""
VSCODE: Final = """\
// Servers of this machine.
{
  "inputs": [
    // asked once
    {"type": "promptString", "id": "perplexity-key", "description": "Key", "password": true},
  ],
  "servers": {
    "perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "server-perplexity-ask@0.1.3"],
      "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"}, // not here
    },
    "github": {"type": "http", "url": "https://api.githubcopilot.example.test/mcp/"}
  }
}
"""
CODEX: Final = """\
# How the model is chosen.
model = "o4"

[mcp_servers.context]  # documentation
command = "npx"
args = ["-y", "context-mcp@2.0.0"]
startup_timeout_sec = 20

[mcp_servers.context.env]
LOG_LEVEL = "debug"

# The design tool.
[mcp_servers.figma]
url = "https://mcp.figma.example.test/mcp"
bearer_token_env_var = "FIGMA_TOKEN"
http_headers = { "X-Region" = "us-east-1" }
enabled_tools = ["read"]

[tui]
theme = "dark" # quiet
"""
GEMINI: Final = """\
{
  "theme": "GitHub",
  "mcpServers": {
    "maps": {"httpUrl": "https://maps.example.test/mcp", "timeout": 30000, "trust": false},
    "old": {"url": "https://old.example.test/sse"},
    "py": {"command": "python", "args": ["-m", "some_server"], "env": {"KEY_FILE": "$HOME/key"}, "includeTools": ["a"]}
  }
}
"""
QWEN: Final = """\
{
  "mcpServers": {
    "web": {"httpUrl": "https://web.example.test/mcp", "excludeTools": ["post"]}
  },
  "selectedAuthType": "openai"
}
"""
OPENCODE: Final = """\
{
  "$schema": "https://opencode.example.test/config.json",
  // local ones first
  "mcp": {
    "jira": {
      "type": "local",
      "command": ["uvx", "mcp-jira==1.0", "--read-only"],
      "environment": {"JIRA_TOKEN": "{env:JIRA_TOKEN}"},
      "enabled": true
    },
    "sentry": {"type": "remote", "url": "https://mcp.sentry.example.test", "enabled": false},
  },
  "theme": "system"
}
"""
# For each host: its file below the home directory on Linux, its content, and the resulting aliases.
SAMPLES: Final = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", CLAUDE_DESKTOP, {"files", "Git-Hub"}),
    "claude-code": (".claude.json", CLAUDE_CODE, {"docs", "time", "local"}),
    "cursor": (".cursor/mcp.json", CURSOR, {"linear", "search"}),
    "windsurf": (".codeium/windsurf/mcp_config.json", WINDSURF, {"remote"}),
    "vscode": (".config/Code/User/mcp.json", VSCODE, {"perplexity", "github"}),
    "codex": (".codex/config.toml", CODEX, {"context", "figma"}),
    "gemini": (".gemini/settings.json", GEMINI, {"maps", "old", "py"}),
    "qwen": (".qwen/settings.json", QWEN, {"web"}),
    "opencode": (".config/opencode/opencode.jsonc", OPENCODE, {"jira", "sentry"}),
}
