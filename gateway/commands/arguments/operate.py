"""The arguments of the commands of operators: rights, records, sign-ins, documentation of tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gateway.commands.arguments import options
from gateway.commands.arguments.declaring import CommandActions, Commands

_TOOL: Final = """Document the arguments of a tool, or override what its server says, in the configuration file.

The file's comments and order stay as they are.

examples:
  typegate tool set --config FILE --server bank --tool get_bank_balance \\
      --argument 'account_id:string:Bank account identifier' --required account_id
  typegate tool set --config FILE --server bank --tool get_bank_balance --argument 'date:string:format: YYYY-MM-DD'
  typegate tool unset --config FILE --server bank --tool get_bank_balance --argument date
"""

_KEY: Final = """\
Make, list and revoke keys of callers.

`key new NAME` prints a key once, and the entry for gateway.auth.apiKeys with its SHA-256: the file holds no secret.
While a caller changes over to a new key, both may stand there under one name.
"""

_POLICY: Final = """\
Explain rules, and test them.

`policy explain` says whether a caller may use a tool, a prompt or a resource, and which rule decides. `policy test`
compares a table with that: lines of PRINCIPAL WRAPPER allow|deny|ask, or YAML rows that may also have profile,
arguments, groups, scopes and claims. Without --config they ask the running gateway.

examples:
  typegate policy explain --principal ci --name bank__wire_money --arguments '{"amount": 2000}'
  typegate policy explain --config mcp.json --principal ann@id.example.test --group interns --name bank__wire_money
  typegate policy test expected.txt --config mcp.json
"""

_APPROVALS: Final = """\
Calls of a running gateway that wait for a person, where a rule of its policy asks for one.

examples:
  typegate approvals list
  typegate approvals allow 3f2a9c01b4d7
  typegate approvals allow 3f2a9c01b4d7 --for tool
  typegate approvals deny 3f2a9c01b4d7
"""

_AUDIT: Final = """\
Read the record of calls, refusals and changes, which a gateway keeps in its state directory; or verify it.
Exit code of `audit verify`: 0 the record is whole, 1 lines are missing, altered, moved or cut short.

examples:
  typegate audit --since 2h
  typegate audit --principal ci --tool 'bank__*' --json
  typegate audit --url http://127.0.0.1:8765        of a running gateway on another machine
  typegate audit verify
  typegate audit verify --anchor 1234:DIGEST        as `audit log anchored` in the gateway's log says
"""

_LOGIN: Final = """\
Sign in to a server that wants it: opens the browser, and waits until somebody has signed in.
Without a browser here, open the link elsewhere and paste the address that it ends at. With --config it does so for a
gateway that is not running over HTTP, as `typegate stdio` is.

examples:
  typegate login linear
  typegate login linear --no-browser
  typegate login linear --status
  typegate login linear --config mcp.json
"""

_USER_HELP: Final = "for this caller alone, where each signs in for itself: the name of a key, or SUBJECT@ISSUER"

_LOGOUT: Final = """\
Sign out of a server: the tokens are revoked at their issuer, and forgotten here.

examples:
  typegate logout linear
"""

_ADMIN: Final = """\
Open the web page of a running gateway: what runs and what does not, tools to try, calls, keys and approvals.
Prints a link that signs a browser in once, within a minute; on a terminal the browser is opened, too.

examples:
  typegate admin
  typegate admin --no-browser --url http://127.0.0.1:9000
"""


def add_operating_commands(commands: Commands) -> None:
    """Declare the commands."""
    _key_actions(commands.with_actions("key", _KEY))
    _policy_actions(commands.with_actions("policy", _POLICY))
    _approval_actions(commands.with_actions("approvals", _APPROVALS))
    actions = commands.with_actions("tool", _TOOL)
    _tool_action(actions, "set")
    _tool_action(actions, "unset")
    audit = commands.add("audit", _AUDIT, "audit:audit")
    audit.add_argument("action", nargs="?", choices=["verify"], help="whether every line is there, as it was written")
    about = "verify: a line and its digest, as the gateway logs them each hour and at its end; can be repeated"
    audit.add_argument("--anchor", metavar="LINE:DIGEST", action="append", default=[], help=about)
    about = "only lines of this caller"
    audit.add_argument("--principal", metavar="P", default="", help=about)
    about = "only lines about wrappers or tools that match this pattern"
    audit.add_argument("--tool", metavar="T", default="", help=about)
    about = "only lines of this kind, as call, refused or changed"
    audit.add_argument("--event", metavar="E", default="", help=about)
    audit.add_argument("--since", metavar="TIME", default="", help="not before this time, as 2h, 7d or 2027-01-31")
    audit.add_argument(
        "--limit", type=options.lines, default=1_000, metavar="N", help="the latest lines (default: 1000)"
    )
    audit.add_argument("--json", action="store_true", help="print JSON")
    audit.add_argument("--file", type=Path, metavar="FILE", help="the record (default: that of the configuration)")
    options.config(audit)
    options.running(audit)
    login = commands.add("login", _LOGIN, "login:login")
    login.add_argument("server", metavar="SERVER", help="the server's alias")
    login.add_argument("--user", metavar="NAME", default="", help=_USER_HELP)
    login.add_argument("--no-browser", action="store_true", help="print the link, and open nothing")
    login.add_argument("--status", action="store_true", help="tell whether somebody is signed in; exit 0 if so")
    login.add_argument("--json", action="store_true", help="with --status: print JSON")
    options.config(login)
    options.running(login)

    logout = commands.add("logout", _LOGOUT, "login:logout")
    logout.add_argument("server", metavar="SERVER", help="the server's alias")
    logout.add_argument("--user", metavar="NAME", default="", help=_USER_HELP)
    options.config(logout)
    options.running(logout)

    admin = commands.add("admin", _ADMIN, "admin:admin")
    admin.add_argument("--no-browser", action="store_true", help="only print the link")
    options.running(admin)


def _key_actions(actions: CommandActions) -> None:
    about = "make a key and the entry that makes it good"
    new = actions.add("new", about, "key:new_key")
    new.add_argument("name", metavar="NAME", help="the caller's name, in logs and quotas")
    new.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="P",
        help="a profile that it opens; may be repeated (default: all)",
    )
    new.add_argument(
        "--scope",
        action="append",
        default=[],
        metavar="S",
        help="what it is good for, as tools:read; may be repeated (default: everything)",
    )
    new.add_argument("--group", action="append", default=[], metavar="G", help="a group of its caller; may be repeated")
    new.add_argument("--expires", metavar="TIME", help="after this time, as 12h, 90d or 4w (default: never)")
    new.add_argument("--json", action="store_true", help="print JSON")
    about = "list the keys of a configuration, or of a running gateway, and which of them have expired"
    listed = actions.add("list", about, "key:list_keys")
    about = "take a key out of a configuration file, or have a running gateway do so; its streams end within seconds"
    revoke = actions.add("revoke", about, "key:revoke_key")
    revoke.add_argument(
        "key", metavar="NAME|HASH", help="its name, for all keys of that name; or the first digits of its SHA-256"
    )
    for made in (listed, revoke):
        options.config(made)
        options.running(made)
        made.add_argument("--json", action="store_true", help="print JSON")


def _policy_actions(actions: CommandActions) -> None:
    about = "say whether a caller may use something, and which rule decides; exit code 0 if it may"
    explain = actions.add("explain", about, "policy:explain_policy")
    explain.add_argument("--principal", required=True, metavar="P", help="the name of a key, SUBJECT@ISSUER, or local")
    explain.add_argument("--name", required=True, metavar="W", help="a wrapper, a prompt or a URI")
    explain.add_argument("--profile", metavar="P", help="through which profile (default: default)")
    explain.add_argument("--arguments", metavar="JSON", help="the arguments of a call (default: any)")
    beside = "beside those of its key; may be repeated"
    explain.add_argument("--group", action="append", default=[], metavar="G", help=f"a group of the caller {beside}")
    explain.add_argument("--scope", action="append", default=[], metavar="S", help=f"a scope of the caller {beside}")
    claim = "a claim of its token; may be repeated"
    explain.add_argument("--claim", action="append", default=[], metavar="NAME=VALUE", help=claim)
    about = "compare a table of callers, wrappers and expected decisions with the rules; exit code 1 if one differs"
    test = actions.add("test", about, "policy:check_policy")
    test.add_argument("file", type=Path, metavar="FILE", help="the table")
    for each in (explain, test):
        options.config(each)
        options.running(each)
        each.add_argument("--json", action="store_true", help="print JSON")


def _approval_actions(actions: CommandActions) -> None:
    for name, about in (
        ("list", "show what waits, and what was allowed for longer than once"),
        ("allow", "allow a call"),
        ("deny", "deny a call, or take back what was allowed"),
    ):
        made = actions.add(name, about, f"approvals:{'list_approvals' if name == 'list' else name}")
        if name == "list":
            made.add_argument("--json", action="store_true", help="print JSON")
        else:
            made.add_argument("id", metavar="ID", help="as `approvals list` shows it")
        if name == "allow":
            about = "this call, its caller's session, or the tool for this caller (default: once)"
            made.add_argument("--for", dest="lasts", choices=("once", "session", "tool"), default="once", help=about)
        options.running(made)


def _tool_action(actions: CommandActions, name: str) -> None:
    about = "write documentation and overrides" if name == "set" else "take documentation and overrides out"
    made = actions.add(name, about, f"tool:{name}_tool")
    options.config(made, uses_default=True)
    made.add_argument("--server", required=True, metavar="S", help="the server's alias")
    made.add_argument("--tool", required=True, metavar="T", help="the tool, as its server names it")
    if name == "unset":
        made.add_argument(
            "--argument", action="append", default=[], metavar="NAME", help="only this argument; may be repeated"
        )
        keys = ("name", "description", "supplement", "mode", "hidden", "pinned", "arguments", "examples")
        made.add_argument("--key", action="append", default=[], choices=keys, help="only this key; may be repeated")
        return
    form = "NAME:TYPE:DESCRIPTION"
    made.add_argument("--argument", action="append", default=[], metavar=form, help="document it; may be repeated")
    made.add_argument("--required", action="append", default=[], metavar="NAME", help="this argument is required")
    made.add_argument("--description", help="replaces the upstream's description")
    made.add_argument("--supplement", help="appended to the description")
    made.add_argument("--name", help="the tool part of the name it is exposed under")
    made.add_argument("--mode", choices=["replace"], help="the arguments win over the upstream's schema")
    for flag, meaning in (("hidden", "neither listed nor callable"), ("pinned", "listed in every disclosure")):
        made.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, default=None, help=meaning)
