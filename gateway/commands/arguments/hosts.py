"""The arguments of `typegate add`, `import`, `install` and `uninstall`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.commands.arguments import options
from gateway.commands.arguments.declaring import Commands

_NAMES: Final = "claude-desktop, claude-code, cursor, windsurf, vscode, codex, gemini, qwen, opencode"

_IMPORT: Final = f"""\
Take the servers of a host's file into the configuration. What it holds already stays as it is.
Secrets are kept in files that only you can read, and the configuration refers to them.

hosts: {_NAMES}

examples:
  typegate import cursor --config mcp.json --dry-run
  typegate import claude-desktop --config mcp.yaml
  typegate import ./somebody/mcp.json --config mcp.json
"""

_INSTALL: Final = f"""\
Put the gateway into a host's file, in place of the servers that the configuration has.
What the file was is kept, and `typegate uninstall` restores it to the byte.

hosts: {_NAMES}

examples:
  typegate install cursor --config mcp.json --dry-run
  typegate install vscode --config mcp.json --project .
  typegate install claude-code --url http://127.0.0.1:8765/mcp
"""

_ADD: Final = """\
Add a server with an exact version: what will run is shown, it is started once without being exposed, and locked where
there is a lock file. Secrets that it asks for are kept in files that only you can read.

WHAT is a name in the MCP registry, npm:PACKAGE[@VERSION], pypi:PACKAGE[==VERSION], a .mcpb file or its address, or the
address of a server.

examples:
  typegate add com.example/server --config mcp.json --set API_KEY=...
  typegate add npm:@modelcontextprotocol/server-memory --config mcp.json
  typegate add pypi:mcp-server-time --config mcp.json --name clock -- --local-timezone UTC
  typegate add ./server.mcpb --sha256 DIGEST --config mcp.json
  typegate add https://example.test/mcp --config mcp.json
"""

_UNINSTALL: Final = """\
Give a host its file back as it was before `typegate install`.

examples:
  typegate uninstall cursor
  typegate uninstall cursor --force           also if the file has changed since: only our entry is taken out
"""


def add_host_commands(commands: Commands) -> None:
    """Declare the commands."""
    added = commands.add("add", _ADD, "add:add")
    added.add_argument("what", metavar="WHAT", help="a name, npm:…, pypi:…, a .mcpb file, or a URL")
    added.rest = "arguments"
    added.epilog = "Everything after -- is given to the server's program as further arguments."
    added.add_argument("--name", metavar="ALIAS", help="its name here (default: made from its own)")
    added.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a value that it asks for; may be repeated"
    )
    about = "the MCP registry (default: TYPEGATE_REGISTRY_URL, or the public one)"
    added.add_argument("--registry", metavar="URL", help=about)
    added.add_argument("--sha256", metavar="DIGEST", help="the digest that a bundle has to have")
    added.add_argument("--no-check", action="store_true", help="do not start it before it is written")
    imported = commands.add("import", _IMPORT, "hosts:import_servers")
    imported.add_argument("source", metavar="HOST|FILE", help="a host, or a file in the form of one")
    install = commands.add("install", _INSTALL, "hosts:install")
    uninstall = commands.add("uninstall", _UNINSTALL, "hosts:uninstall")
    for each in (install, uninstall):
        each.add_argument("host", metavar="HOST", help="the host")
        each.add_argument("--file", type=Path, metavar="FILE", help="its file, where it is not in its usual place")
    install.add_argument("--url", help="connect to a running gateway at this /mcp address, instead of starting one")
    install.add_argument("--name", default="typegate", metavar="NAME", help="the name of the entry (default: typegate)")
    install.add_argument("--keep", action="store_true", help="leave the servers that are there beside the gateway")
    uninstall.add_argument("--force", action="store_true", help="also if the file has changed since")
    for each in (added, imported, install):
        options.config(each, uses_default=True)
        each.add_argument("--dry-run", action="store_true", help="only show what would change")
        each.add_argument("-y", "--yes", action="store_true", help="do not ask")
    options.state(added)
    about = "do not start the servers once, so that the first list is whole"
    for each in (imported, install):
        each.add_argument("--no-check", action="store_true", help=about)
    for each in (imported, install, uninstall):
        each.add_argument("--project", type=Path, metavar="DIR", help="the file in the folder of this project")
        options.state(each)
