"""The arguments of every command, importable without the commands' dependencies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gateway.commands import declaring
from gateway.commands.declaring import CommandActions, Commands

_NAMES: Final = "claude-desktop, claude-code, cursor, windsurf, vscode, codex, gemini, qwen, opencode"

_IMPORT: Final = f"""\
Import the servers of a host's configuration file. Existing entries of the configuration are not changed.
Secrets are stored in files that only you can read, and the configuration refers to these files.

hosts: {_NAMES}

examples:
  typegate import cursor --config mcp.json --dry-run
  typegate import claude-desktop --config mcp.yaml
  typegate import ./project/mcp.json --config mcp.json
"""

_INSTALL: Final = f"""\
Add the gateway to a host's configuration file, replacing the servers that the gateway serves.
The original file is backed up, and `typegate uninstall` restores it byte for byte.

hosts: {_NAMES}

examples:
  typegate install cursor --config mcp.json --dry-run
  typegate install vscode --config mcp.json --project .
  typegate install claude-code --url http://127.0.0.1:8765/mcp
"""

_ADD: Final = """\
Add a server to the configuration, pinned to an exact version. The command to run is shown first, then the server is
started once without being exposed, and its tools are locked if there is a lock file. Secrets that the server asks for
are stored in files that only you can read.

WHAT is a name in the MCP registry, npm:PACKAGE[@VERSION], pypi:PACKAGE[==VERSION], the path or URL of a .mcpb bundle,
or the URL of a server.

examples:
  typegate add com.example/server --config mcp.json --set API_KEY=...
  typegate add npm:@modelcontextprotocol/server-memory --config mcp.json
  typegate add pypi:mcp-server-time --config mcp.json --name clock -- --local-timezone UTC
  typegate add ./server.mcpb --sha256 DIGEST --config mcp.json
  typegate add https://example.test/mcp --config mcp.json
"""

_UNINSTALL: Final = """\
Restore a host's configuration file as it was before `typegate install`.

examples:
  typegate uninstall cursor
  typegate uninstall cursor --force           if the file has changed since: remove only the gateway's entry
"""


def add_host_commands(commands: Commands) -> None:
    """Declare `add`, `import`, `install` and `uninstall`."""
    added = commands.add("add", _ADD, "add:add")
    added.add_argument(
        "what", metavar="WHAT", help="a registry name, npm:…, pypi:…, openapi:FILE_OR_URL, a .mcpb bundle, or a URL"
    )
    added.rest = "arguments"
    added.epilog = "Everything after -- is passed to the program that the entry starts, as additional arguments."
    added.add_argument(
        "--name", metavar="ALIAS", help="the server's name in the configuration (default: derived from WHAT)"
    )
    added.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a value that the server asks for; can be repeated",
    )
    about = "the MCP registry (default: TYPEGATE_REGISTRY_URL, or the public registry)"
    added.add_argument("--registry", metavar="URL", help=about)
    added.add_argument("--sha256", metavar="DIGEST", help="the expected SHA-256 digest of the bundle")
    added.add_argument("--sandbox", action="store_true", help="confine the program to what it needs")
    added.add_argument("--no-check", action="store_true", help="write the entry without starting the server first")
    imported = commands.add("import", _IMPORT, "hosts:import_servers")
    imported.add_argument("source", metavar="HOST|FILE", help="a host, or a file in a host's format")
    install = commands.add("install", _INSTALL, "hosts:install")
    uninstall = commands.add("uninstall", _UNINSTALL, "hosts:uninstall")
    for each in (install, uninstall):
        each.add_argument("host", metavar="HOST", help="the host")
        each.add_argument("--file", type=Path, metavar="FILE", help="the host's file, if it is not in the usual place")
    install.add_argument("--url", help="connect the host to a running gateway at this /mcp address")
    install.add_argument("--name", default="typegate", metavar="NAME", help="the name of the entry (default: typegate)")
    install.add_argument("--keep", action="store_true", help="keep the host's own servers next to the gateway")
    uninstall.add_argument("--force", action="store_true", help="even if the file has changed since")
    for each in (added, imported, install):
        declaring.add_config_option(each, uses_default=True)
        each.add_argument("--dry-run", action="store_true", help="show what would change, and write nothing")
        each.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    declaring.add_state_dir_option(added)
    about = "do not start the servers once to store what they list for the first tools/list"
    for each in (imported, install):
        each.add_argument("--no-check", action="store_true", help=about)
    for each in (imported, install, uninstall):
        each.add_argument("--project", type=Path, metavar="DIR", help="use the host's file in this project directory")
        declaring.add_state_dir_option(each)


_CHECK: Final = """\
Connect to every server once, and show the resulting tools and every warning.
Tools whose definition would break a host's tool list are quarantined; the table gives the reason.
Exit code: 0 success, 1 a server or a tool failed, 2 invalid configuration, 3 with --frozen: a definition has changed.

examples:
  typegate check --config mcp.json
  typegate check --config mcp.json --frozen
  typegate check --config mcp.json --json | jq .wrappers
  typegate check --schema > typegate.schema.json
"""

_SERVERS: Final = """\
List the servers of a running gateway or of a configuration.
The admin token is read from TYPEGATE_ADMIN_TOKEN or from the file admin-token in the state directory.

examples:
  typegate servers
  typegate servers --url http://127.0.0.1:9000 --json
  typegate servers --config mcp.json
  typegate servers --header | column -t -s "$(printf '\\t')"
"""

_TOOLS: Final = """\
List the wrappers of a running gateway or of a configuration. A wrapper is a tool as the gateway exposes it.

examples:
  typegate tools
  typegate tools --format json
  typegate tools 'bank__*'
  typegate tools --format prompt --config mcp.json
"""

_HOOKS: Final = """\
List the hooks of a running gateway or of a configuration, in the order in which they run on each wrapper.

examples:
  typegate hooks
  typegate hooks --config mcp.json --json
"""

_CALL: Final = """\
Call a wrapper of a running gateway and print the result.
If the arguments are invalid, the error says what is missing and shows a valid call.
Exit code: 0 success, 1 the tool failed or no gateway answers, 2 usage error.

examples:
  typegate call bank__get_bank_balance '{"account_id": "1"}'
  typegate call bank__get_bank_balance -a account_id=1
  typegate call calendar-mcp__send_email -a to='["a@example.test"]' -a subject=Hello -a body=Hi
  echo '{}' | typegate call calendar-mcp__list_accounts -
"""

_SCORECARD: Final = """\
Measure a configuration: latency added to a call, calls per second, cold start, tokens of each tool list in each
dialect, and the state of the servers. The servers are connected to, but none of their tools is called. The report has
only names and numbers, so that it can be shared.

examples:
  typegate scorecard --config mcp.json
  typegate scorecard --config mcp.json --json > scorecard.json
"""

# This exceeds the default `callTimeout` of a server (60 s), so that the gateway reports its own timeout first.
_CALL_TIMEOUT_S: Final = 300.0


def add_inspecting_commands(commands: Commands) -> None:
    """Declare `check`, `servers`, `tools`, `hooks`, `call` and `scorecard`."""
    check = commands.add("check", _CHECK, "inspect:check")
    declaring.add_config_option(check, uses_default=True)
    declaring.add_strict_option(check)
    check.add_argument("--json", action="store_true", help="print JSON")
    frozen = "compare with the lock file; exit code 3 if there are changes that the policy does not accept"
    declaring.add_state_dir_option(check)
    check.add_argument("--frozen", action="store_true", help=frozen)
    check.add_argument("--schema", action="store_true", help="print the JSON Schema of the configuration file")
    check.add_argument("--reference", action="store_true", help="print the reference of all configuration keys")

    servers = commands.add("servers", _SERVERS, "inspect:servers")
    declaring.add_row_options(servers)
    declaring.add_config_option(servers)
    declaring.add_gateway_options(servers)
    servers.add_argument("--json", action="store_true", help="print JSON")

    tools = commands.add("tools", _TOOLS, "inspect:tools")
    declaring.add_row_options(tools)
    declaring.add_config_option(tools)
    declaring.add_gateway_options(tools)
    tools.add_argument("--profile", metavar="P", help="the wrappers of this profile")
    tools.add_argument("--explain", action="store_true", help="show why each wrapper is listed or found only by search")
    tools.add_argument(
        "--format", choices=("table", "json", "prompt"), default="table", help="the output format (default: table)"
    )
    tools.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")

    hooks = commands.add("hooks", _HOOKS, "inspect:hooks")
    declaring.add_config_option(hooks)
    declaring.add_gateway_options(hooks)
    hooks.add_argument("--json", action="store_true", help="print JSON")

    call = commands.add("call", _CALL, "call:call")
    call.add_argument("name", metavar="NAME", help="the wrapper, as shown by `typegate tools`")
    call.add_argument("json_arguments", metavar="JSON", nargs="?", help="the arguments; - reads them from stdin")
    call.add_argument(
        "-a",
        "--argument",
        action="append",
        default=[],
        metavar="key=value",
        help="one argument, read as text or as JSON according to the tool's schema; can be repeated",
    )
    call.add_argument("--url", help="the /mcp address of the gateway (default: http://127.0.0.1:8765/mcp)")
    call.add_argument("--api-key", metavar="KEY", help="the API key (default: TYPEGATE_API_KEY)")
    about = f"seconds to wait for an answer (default: {_CALL_TIMEOUT_S:.0f})"
    call.add_argument("--timeout", type=declaring.parse_seconds, default=_CALL_TIMEOUT_S, metavar="SECONDS", help=about)
    call.add_argument("--json", action="store_true", help="print the whole result as JSON")

    scorecard = commands.add("scorecard", _SCORECARD, "scorecard:scorecard")
    declaring.add_config_option(scorecard, uses_default=True)
    scorecard.add_argument("--json", action="store_true", help="print JSON")


_LOCK: Final = """\
Write the current definitions of every server to typegate.lock as approved.
With --config the command connects to the servers; without it, it asks the running gateway. While there is a lock file,
a new tool, or a tool whose description, power or package has changed, is held until an administrator approves it.

examples:
  typegate lock --config mcp.json
  typegate check --config mcp.json --frozen        for CI: exit code 3 if a definition has changed
"""

_DIFF: Final = """\
Show how the servers' definitions differ from the approved ones, by class: added, removed, renamed, text, narrowing,
widening, identity.

examples:
  typegate diff
  typegate diff --config mcp.json --json | jq '.changes[] | .wrapper'
"""

_APPROVE: Final = """\
Approve a server's current definitions: show them, write them to the lock file, and expose the tools that were held.

examples:
  typegate approve bank
  typegate approve bank__wire_money --config mcp.json
  typegate approve bank --class narrowing --class text
  typegate approve bank__wire_money --digest 5f0c3a9be1d27740       only the change that `typegate diff` has shown
"""

# A copy of `CHANGE_CLASSES`. An import of `registry.lock.review` here would slow down every command.
_CLASSES: Final = ("added", "removed", "renamed", "text", "narrowing", "widening", "identity")


def add_lock_commands(commands: Commands) -> None:
    """Declare `lock`, `diff` and `approve`."""
    lock = commands.add("lock", _LOCK, "lock:lock")
    diff = commands.add("diff", _DIFF, "lock:diff")
    diff.add_argument("server", nargs="?", metavar="SERVER", help="only the changes of this server")
    approve = commands.add("approve", _APPROVE, "lock:approve")
    approve.add_argument(
        "name", metavar="SERVER[__TOOL]", help="a server, or one of its tools, prompts or resource templates"
    )
    about = "approve only items whose changes all have the given classes; can be repeated"
    approve.add_argument("--class", dest="classes", action="append", choices=_CLASSES, metavar="CLASS", help=about)
    about = "approve only the change with this digest, as shown by `typegate diff`; can be repeated"
    approve.add_argument("--digest", dest="digests", action="append", metavar="DIGEST", help=about)
    for each in (lock, diff, approve):
        declaring.add_config_option(each)
        declaring.add_gateway_options(each)
        each.add_argument("--json", action="store_true", help="print JSON")


_TOOL: Final = """\
Document the arguments of a tool, or override its upstream definition, in the configuration file.

Comments and the order of the file are preserved.

examples:
  typegate tool set --config FILE --server bank --tool get_bank_balance \\
      --argument 'account_id:string:Bank account identifier' --required account_id
  typegate tool set --config FILE --server bank --tool get_bank_balance --argument 'date:string:format: YYYY-MM-DD'
  typegate tool unset --config FILE --server bank --tool get_bank_balance --argument date
"""

_KEY: Final = """\
Create, list and revoke the API keys of callers.

`key new NAME` prints a key once, together with the entry for gateway.auth.apiKeys. The entry has the SHA-256 of the
key, so that the file contains no secret. To rotate a key, keep the old and the new entry under the same name until the
caller uses the new key.
"""

_POLICY: Final = """\
Explain and test the rules of the policy.

`policy explain` says whether a caller may use a tool, a prompt or a resource, and which rule decides. `policy test`
compares the decisions with a table: lines of PRINCIPAL WRAPPER allow|deny|ask, or YAML rows that can also have profile,
arguments, groups, scopes and claims. Without --config the commands ask the running gateway.

examples:
  typegate policy explain --principal ci --name bank__wire_money --arguments '{"amount": 2000}'
  typegate policy explain --config mcp.json --principal ann@id.example.test --group interns --name bank__wire_money
  typegate policy test expected.txt --config mcp.json
"""

_APPROVALS: Final = """\
List, allow or deny the calls of a running gateway that wait for an approval required by the policy.

examples:
  typegate approvals list
  typegate approvals allow 3f2a9c01b4d7
  typegate approvals allow 3f2a9c01b4d7 --for tool
  typegate approvals deny 3f2a9c01b4d7
"""

_AUDIT: Final = """\
Show or verify the audit log of calls, refusals and changes, which a gateway writes to its state directory.
Exit code of `audit verify`: 0 the log is intact, 1 entries are missing, altered, moved or truncated.

examples:
  typegate audit --since 2h
  typegate audit --principal ci --tool 'bank__*' --json
  typegate audit --url http://127.0.0.1:8765        a running gateway on another machine
  typegate audit verify
  typegate audit verify --anchor 1234:DIGEST        from `audit log anchored` in the gateway's log
"""

_LOGIN: Final = """\
Sign in to a server that requires it: open the browser and wait until the sign-in is complete.
Without a browser on this machine, open the link elsewhere and paste the address at which the sign-in ends. Use --config
for a gateway that does not run over HTTP, as with `typegate stdio`.

examples:
  typegate login linear
  typegate login linear --no-browser
  typegate login linear --status
  typegate login linear --config mcp.json
"""

_USER_HELP: Final = "the caller, if each caller has its own sign-in: the name of a key, or SUBJECT@ISSUER"

_LOGOUT: Final = """\
Sign out of a server: revoke the tokens at their issuer and delete the stored copies.

examples:
  typegate logout linear
"""

_ADMIN: Final = """\
Open the admin page of a running gateway, with the state of its servers, tools to try, calls, keys and approvals.
Prints a link that is valid for one sign-in within a minute; on a terminal, the browser is opened as well.

examples:
  typegate admin
  typegate admin --no-browser --url http://127.0.0.1:9000
"""


def add_operating_commands(commands: Commands) -> None:
    """Declare `key`, `policy`, `approvals`, `tool`, `audit`, `login`, `logout` and `admin`."""
    _key_actions(commands.with_actions("key", _KEY))
    _policy_actions(commands.with_actions("policy", _POLICY))
    _approval_actions(commands.with_actions("approvals", _APPROVALS))
    actions = commands.with_actions("tool", _TOOL)
    _tool_action(actions, "set")
    _tool_action(actions, "unset")
    audit = commands.add("audit", _AUDIT, "audit:audit")
    audit.add_argument("action", nargs="?", choices=["verify"], help="check that no entry is missing or altered")
    about = "verify: a line number and its digest, as logged each hour and on exit; can be repeated"
    audit.add_argument("--anchor", metavar="LINE:DIGEST", action="append", default=[], help=about)
    about = "only entries of this caller"
    audit.add_argument("--principal", metavar="P", default="", help=about)
    about = "only entries about wrappers or tools that match this pattern"
    audit.add_argument("--tool", metavar="T", default="", help=about)
    about = "only entries of this kind: call, refused, changed, ..."
    audit.add_argument("--event", metavar="E", default="", help=about)
    audit.add_argument("--since", metavar="TIME", default="", help="only entries since this time: 2h, 7d or 2027-01-31")
    audit.add_argument(
        "--limit",
        type=declaring.parse_line_count,
        default=1_000,
        metavar="N",
        help="the number of latest entries to show (default: 1000)",
    )
    audit.add_argument("--json", action="store_true", help="print JSON")
    audit.add_argument("--file", type=Path, metavar="FILE", help="the log file (default: the configured one)")
    declaring.add_config_option(audit)
    declaring.add_gateway_options(audit)
    login = commands.add("login", _LOGIN, "login:login")
    login.add_argument("server", metavar="SERVER", help="the server's alias")
    login.add_argument("--user", metavar="NAME", default="", help=_USER_HELP)
    login.add_argument("--no-browser", action="store_true", help="print the link without opening it")
    login.add_argument("--status", action="store_true", help="show whether a user is signed in; exit code 0 if so")
    login.add_argument("--json", action="store_true", help="with --status: print JSON")
    declaring.add_config_option(login)
    declaring.add_gateway_options(login)

    logout = commands.add("logout", _LOGOUT, "login:logout")
    logout.add_argument("server", metavar="SERVER", help="the server's alias")
    logout.add_argument("--user", metavar="NAME", default="", help=_USER_HELP)
    declaring.add_config_option(logout)
    declaring.add_gateway_options(logout)

    admin = commands.add("admin", _ADMIN, "administer:admin")
    admin.add_argument("--no-browser", action="store_true", help="print the link without opening it")
    declaring.add_gateway_options(admin)


def _key_actions(actions: CommandActions) -> None:
    about = "create a key and print its configuration entry"
    new = actions.add("new", about, "administer:new_key")
    new.add_argument("name", metavar="NAME", help="the caller's name, in logs and quotas")
    new.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="P",
        help="a profile that the key may use; can be repeated (default: all)",
    )
    new.add_argument(
        "--scope",
        action="append",
        default=[],
        metavar="S",
        help="a scope of the key, such as tools:read; can be repeated (default: all scopes)",
    )
    new.add_argument("--group", action="append", default=[], metavar="G", help="a group of the caller; can be repeated")
    new.add_argument("--expires", metavar="TIME", help="the lifetime: 12h, 90d or 4w (default: unlimited)")
    new.add_argument("--json", action="store_true", help="print JSON")
    about = "list the keys of a configuration or a running gateway, and whether they have expired"
    listed = actions.add("list", about, "administer:list_keys")
    about = "revoke a key in a configuration file or a running gateway; its open streams end within seconds"
    revoke = actions.add("revoke", about, "administer:revoke_key")
    revoke.add_argument(
        "key", metavar="NAME|HASH", help="the name, for all keys with this name, or the first digits of the SHA-256"
    )
    for action in (listed, revoke):
        declaring.add_config_option(action)
        declaring.add_gateway_options(action)
        action.add_argument("--json", action="store_true", help="print JSON")


def _policy_actions(actions: CommandActions) -> None:
    about = "show whether a caller may use an item, and which rule decides; exit code 0 if allowed"
    explain = actions.add("explain", about, "explain:explain_policy")
    explain.add_argument("--principal", required=True, metavar="P", help="the name of a key, SUBJECT@ISSUER, or local")
    explain.add_argument("--name", required=True, metavar="W", help="a wrapper, a prompt or a URI")
    explain.add_argument("--profile", metavar="P", help="the profile that the caller uses (default: default)")
    explain.add_argument("--arguments", metavar="JSON", help="the arguments of a call (default: any)")
    addition = "in addition to those of the key; can be repeated"
    explain.add_argument("--group", action="append", default=[], metavar="G", help=f"a group of the caller {addition}")
    explain.add_argument("--scope", action="append", default=[], metavar="S", help=f"a scope of the caller {addition}")
    claim = "a claim of the caller's token; can be repeated"
    explain.add_argument("--claim", action="append", default=[], metavar="NAME=VALUE", help=claim)
    about = "compare a table of callers, wrappers and expected decisions with the rules; exit code 1 if one differs"
    test = actions.add("test", about, "explain:check_policy")
    test.add_argument("file", type=Path, metavar="FILE", help="the table")
    for each in (explain, test):
        declaring.add_config_option(each)
        declaring.add_gateway_options(each)
        each.add_argument("--json", action="store_true", help="print JSON")


def _approval_actions(actions: CommandActions) -> None:
    for name, about in (
        ("list", "show waiting calls, and approvals that last longer than one call"),
        ("allow", "allow a call"),
        ("deny", "deny a call, or withdraw an approval"),
    ):
        action = actions.add(name, about, f"administer:{'list_approvals' if name == 'list' else name}")
        if name == "list":
            action.add_argument("--json", action="store_true", help="print JSON")
        else:
            action.add_argument("id", metavar="ID", help="the id, as shown by `approvals list`")
        if name == "allow":
            about = "this call only, the caller's session, or every call of the tool by this caller (default: once)"
            action.add_argument("--for", dest="lasts", choices=("once", "session", "tool"), default="once", help=about)
        declaring.add_gateway_options(action)


def _tool_action(actions: CommandActions, name: str) -> None:
    about = "write documentation and overrides" if name == "set" else "remove documentation and overrides"
    action = actions.add(name, about, f"tool:{name}_tool")
    declaring.add_config_option(action, uses_default=True)
    action.add_argument("--server", required=True, metavar="S", help="the server's alias")
    action.add_argument("--tool", required=True, metavar="T", help="the tool, as its upstream names it")
    if name == "unset":
        action.add_argument(
            "--argument", action="append", default=[], metavar="NAME", help="remove only this argument; can be repeated"
        )
        keys = ("name", "description", "supplement", "mode", "hidden", "pinned", "arguments", "examples")
        action.add_argument(
            "--key", action="append", default=[], choices=keys, help="remove only this key; can be repeated"
        )
        return
    form = "NAME:TYPE:DESCRIPTION"
    action.add_argument(
        "--argument", action="append", default=[], metavar=form, help="document an argument; can be repeated"
    )
    action.add_argument(
        "--required", action="append", default=[], metavar="NAME", help="mark this argument as required"
    )
    action.add_argument("--description", help="replace the upstream's description")
    action.add_argument("--supplement", help="append this text to the description")
    action.add_argument("--name", help="expose the tool under this name instead of its own")
    action.add_argument(
        "--mode", choices=["replace"], help="replace the upstream's schema with the documented arguments"
    )
    for flag, meaning in (("hidden", "neither listed nor callable"), ("pinned", "listed in every disclosure")):
        action.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, default=None, help=meaning)


_SERVE: Final = """\
Serve a configuration over Streamable HTTP until SIGINT or SIGTERM.
Changes of the file are applied without a restart; SIGHUP applies them at once.

examples:
  typegate serve --config mcp.json
  typegate serve --config mcp.yaml --port 9000 --state-dir /var/lib/typegate
  typegate serve --config mcp.json --workers 4
"""

_STDIO: Final = """\
Serve over stdin and stdout, for hosts that start servers as processes.
With --config the command connects to the servers itself; with --url it forwards all messages to a running gateway.

TYPEGATE_API_KEY identifies the host, like the API key of a caller over HTTP. With --config it must be one of
gateway.auth.apiKeys, and the host gets the profiles and rights of that key; without a key the host is trusted as
`local`. With --url the key is sent as `Authorization: Bearer KEY`, unless a --header sets another authorization.

examples:
  typegate stdio --config mcp.json
  typegate stdio --url http://127.0.0.1:8765/mcp --header 'Authorization: Bearer KEY'
"""

_DEMO: Final = """\
Serve two bundled servers, a calendar and a bank, and print commands that call them.

examples:
  typegate demo
  typegate demo --port 9000
"""


def add_serving_commands(commands: Commands) -> None:
    """Declare `serve`, `stdio` and `demo`."""
    serve = commands.add("serve", _SERVE, "serve:serve")
    declaring.add_config_option(serve, uses_default=True)
    serve.add_argument("--host", help="address to listen on (default: gateway.listen, or 127.0.0.1)")
    serve.add_argument(
        "--port",
        type=declaring.parse_port,
        help="port to listen on, 0 for any free port (default: gateway.listen, or 8765)",
    )
    about = f"processes that share the port, usually one for each core; 1 to {declaring.MAX_WORKERS} (default: 1)"
    serve.add_argument("--workers", type=declaring.parse_workers, default=1, metavar="N", help=about)
    declaring.add_state_dir_option(serve)
    declaring.add_log_options(serve)
    declaring.add_strict_option(serve)
    serve.add_argument("--insecure", action="store_true", help="allow other machines to call without an API key")

    stdio = commands.add("stdio", _STDIO, "serve:stdio")
    source = stdio.add_mutually_exclusive_group()
    declaring.add_config_option(source, uses_default=True)
    stdio.set_defaults(uses_default_config=True)
    source.add_argument("--url", help="the /mcp address of a running gateway")
    stdio.add_argument(
        "--header", action="append", default=[], metavar="'K: V'", help="a header to send to --url; can be repeated"
    )
    declaring.add_log_options(stdio)
    declaring.add_strict_option(stdio)
    stdio.add_argument("--profile", metavar="P", help="the profile to serve")
    declaring.add_state_dir_option(stdio)

    demo = commands.add("demo", _DEMO, "serve:demo")
    demo.add_argument("--port", type=declaring.parse_port, help="port to listen on (default: 8765, or any free port)")
    declaring.add_state_dir_option(demo)
