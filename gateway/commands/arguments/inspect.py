"""The arguments of the commands that look at a configuration, or at a running gateway."""

from __future__ import annotations

from typing import Final

from gateway.commands.arguments import options
from gateway.commands.arguments.declaring import Commands

_CHECK: Final = """\
Connect to every server once; show what would be registered and every warning.
Quarantined tools are those that would break a host's list; the reason stands beside each.
Exit code: 0 all well, 1 something failed, 2 the configuration is wrong, 3 with --frozen: something has changed.

examples:
  typegate check --config mcp.json
  typegate check --config mcp.json --frozen
  typegate check --config mcp.json --json | jq .wrappers
  typegate check --schema > typegate.schema.json
"""

_SERVERS: Final = """\
The servers of a running gateway, or those of a configuration.
The admin token is TYPEGATE_ADMIN_TOKEN, or the file admin-token in the state directory.

examples:
  typegate servers
  typegate servers --url http://127.0.0.1:9000 --json
  typegate servers --config mcp.json
  typegate servers --header | column -t -s "$(printf '\\t')"
"""

_TOOLS: Final = """\
The wrappers of a running gateway, or those of a configuration. A wrapper is a tool under its own name here.

examples:
  typegate tools
  typegate tools --format json
  typegate tools 'bank__*'
  typegate tools --format prompt --config mcp.json
"""

_HOOKS: Final = """\
The hooks of a running gateway, or those of a configuration: what runs on which wrapper, in order.

examples:
  typegate hooks
  typegate hooks --config mcp.json --json
"""

_CALL: Final = """\
Call one wrapper of a running gateway and print its result.
Wrong arguments are answered with what is missing and an example of a call that works.
Exit code: 0 a result, 1 an error result or no gateway, 2 wrong usage.

examples:
  typegate call bank__get_bank_balance '{"account_id": "1"}'
  typegate call bank__get_bank_balance -a account_id=1
  typegate call calendar-mcp__send_email -a to='["a@example.test"]' -a subject=Hello -a body=Hi
  echo '{}' | typegate call calendar-mcp__list_accounts -
"""

_SCORECARD: Final = """\
Measure a configuration: what the gateway adds to a call, calls a second, the cold start, what each list costs in each
dialect, and how the servers are. It connects to the servers and calls none of them. It has names and figures only, so
that it can be shared.

examples:
  typegate scorecard --config mcp.json
  typegate scorecard --config mcp.json --json > scorecard.json
"""

# Longer than the gateway waits for an upstream by default, so that its own answer comes first.
_CALL_TIMEOUT_S: Final = 300.0


def add_inspecting_commands(commands: Commands) -> None:
    """Declare the commands."""
    check = commands.add("check", _CHECK, "inspect:check")
    options.config(check, uses_default=True)
    options.strict(check)
    check.add_argument("--json", action="store_true", help="print JSON")
    frozen = "compare with the lock file; exit code 3 if anything has changed that the policy does not accept"
    options.state(check)
    check.add_argument("--frozen", action="store_true", help=frozen)
    check.add_argument("--schema", action="store_true", help="print the JSON Schema of the file instead")

    servers = commands.add("servers", _SERVERS, "inspect:servers")
    options.shown(servers)
    options.config(servers)
    options.running(servers)
    servers.add_argument("--json", action="store_true", help="print JSON")

    tools = commands.add("tools", _TOOLS, "inspect:tools")
    options.shown(tools)
    options.config(tools)
    options.running(tools)
    tools.add_argument("--profile", metavar="P", help="as this profile sees them")
    tools.add_argument("--explain", action="store_true", help="why each wrapper is listed, or left to search")
    tools.add_argument("--format", choices=("table", "json", "prompt"), default="table", help="default: table")
    tools.add_argument("--json", action="store_const", const="json", dest="format", help="--format json")

    hooks = commands.add("hooks", _HOOKS, "inspect:hooks")
    options.config(hooks)
    options.running(hooks)
    hooks.add_argument("--json", action="store_true", help="print JSON")

    call = commands.add("call", _CALL, "call:call")
    call.add_argument("name", metavar="NAME", help="the wrapper, as `typegate tools` shows it")
    call.add_argument("json_arguments", metavar="JSON", nargs="?", help="its arguments; - reads them from stdin")
    call.add_argument(
        "-a",
        "--argument",
        action="append",
        default=[],
        metavar="key=value",
        help="one argument, read as the tool's schema wants it: as text, or as JSON; may be repeated",
    )
    call.add_argument("--url", help="the /mcp address (default: http://127.0.0.1:8765/mcp)")
    call.add_argument("--api-key", metavar="KEY", help="default: TYPEGATE_API_KEY")
    about = f"seconds without an answer before it gives up (default: {_CALL_TIMEOUT_S:.0f})"
    call.add_argument("--timeout", type=options.seconds, default=_CALL_TIMEOUT_S, metavar="SECONDS", help=about)
    call.add_argument("--json", action="store_true", help="print the whole result as JSON")

    scorecard = commands.add("scorecard", _SCORECARD, "scorecard:scorecard")
    options.config(scorecard, uses_default=True)
    scorecard.add_argument("--json", action="store_true", help="print JSON")
