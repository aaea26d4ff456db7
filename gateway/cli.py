"""The command line: parse arguments, refuse wrong ones in one line. The commands are in `gateway.commands`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from gateway.errors import ConfigError, GatewayError

_ABOUT = """\
An MCP gateway that gives every upstream tool its own typed name, SERVER__TOOL.

examples:
  typegate demo                                  two bundled servers, to try it
  typegate check --config mcp.json               would this configuration work?
  typegate serve --config mcp.json               serve it over HTTP
  typegate call calendar-mcp__list_accounts      call one tool of a running gateway
"""

_SERVE = """\
Serve a configuration over Streamable HTTP until SIGINT or SIGTERM.
A changed file is applied while it runs; SIGHUP applies it at once.

examples:
  typegate serve --config mcp.json
  typegate serve --config mcp.yaml --port 9000 --state-dir /var/lib/typegate
  typegate serve --config mcp.json --workers 4
"""

_STDIO = """\
The same gateway over stdin and stdout, for hosts that only start processes; or a bridge to a running one.
With --config it connects to the servers itself; with --url it passes everything to a gateway that runs already.

examples:
  typegate stdio --config mcp.json
  typegate stdio --url http://127.0.0.1:8765/mcp --header 'Authorization: Bearer KEY'
"""

_DEMO = """\
Serve two bundled servers, a calendar and a bank, and show how to call them.

examples:
  typegate demo
  typegate demo --port 9000
"""

_CHECK = """\
Connect to every server once; show what would be registered and every warning.
Quarantined tools are those that would break a host's list; the reason stands beside each.
Exit code: 0 all well, 1 something failed, 2 the configuration is wrong.

examples:
  typegate check --config mcp.json
  typegate check --config mcp.json --json | jq .wrappers
  typegate check --schema > typegate.schema.json
"""

_SERVERS = """\
The servers of a running gateway, or those of a configuration.
The admin token is TYPEGATE_ADMIN_TOKEN, or the file admin-token in the state directory.

examples:
  typegate servers
  typegate servers --url http://127.0.0.1:9000 --json
  typegate servers --config mcp.json
  typegate servers --header | column -t -s "$(printf '\\t')"
"""

_TOOLS = """\
The wrappers of a running gateway, or those of a configuration. A wrapper is a tool under its own name here.

examples:
  typegate tools
  typegate tools --format json
  typegate tools 'bank__*'
  typegate tools --format prompt --config mcp.json
"""

_HOOKS = """\
The hooks of a running gateway, or those of a configuration: what runs on which wrapper, in order.

examples:
  typegate hooks
  typegate hooks --config mcp.json --json
"""

_TOOL = """Document the arguments of a tool, or override what its server says, in the configuration file.

The file's comments and order stay as they are.

examples:
  typegate tool set --config FILE --server bank --tool get_bank_balance \\
      --argument 'account_id:string:Bank account identifier' --required account_id
  typegate tool set --config FILE --server bank --tool get_bank_balance --argument 'date:string:format: YYYY-MM-DD'
  typegate tool unset --config FILE --server bank --tool get_bank_balance --argument date
"""

_KEY = """\
make and list keys of callers

`key new NAME` prints a key once, and the entry for gateway.auth.apiKeys with its SHA-256: the file holds no secret.
While a caller changes over to a new key, both may stand there under one name.
"""
_CALL = """\
Call one wrapper of a running gateway and print its result.
Wrong arguments are answered with what is missing and an example of a call that works.
Exit code: 0 a result, 1 an error result or no gateway, 2 wrong usage.

examples:
  typegate call bank__get_bank_balance '{"account_id": "1"}'
  typegate call bank__get_bank_balance -a account_id=1
  typegate call calendar-mcp__send_email -a to='["a@example.test"]' -a subject=Hello -a body=Hi
  echo '{}' | typegate call calendar-mcp__list_accounts -
"""

_COMPLETION = """\
Print the completion of commands and options for a shell.

examples:
  typegate completion bash > ~/.local/share/bash-completion/completions/typegate
  typegate completion zsh > ~/.zfunc/_typegate
  typegate completion fish > ~/.config/fish/completions/typegate.fish
"""

# Each worker has connections of its own to every upstream; more than 64 would burden those before they help.
_MAX_WORKERS: Final = 64
# A day, as for every time in the configuration.
_MAX_TIMEOUT_S: Final = 86_400
# Longer than the gateway waits for an upstream by default, so that its own answer comes first.
_CALL_TIMEOUT_S: Final = 300.0
# As shells report a program that SIGINT ended: 128 + 2.
_INTERRUPTED: Final = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (`{self.prog} --help` shows how)\n")


def parser() -> argparse.ArgumentParser:
    """The parser of every command. Handlers are named, not imported: `stdio` must start quickly."""
    root = _Parser(prog="typegate", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    root.add_argument("--version", action="version", version=f"typegate {_version()}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser, required=True)

    def command(name: str, about: str, handler: str) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        summary = about.split("\n", 1)[0]
        made = commands.add_parser(name, help=summary, description=about, formatter_class=form, allow_abbrev=False)
        made.set_defaults(handler=handler)
        return made

    serve = command("serve", _SERVE, "serve:serve")
    _config(serve, required=True)
    serve.add_argument("--host", help="address to listen on (default: the configuration's, 127.0.0.1)")
    serve.add_argument("--port", type=_port, help="port to listen on, 0 for any (default: 8765)")
    about = f"processes that share the port, one for each core to use; 1 to {_MAX_WORKERS} (default: 1)"
    serve.add_argument("--workers", type=_workers, default=1, metavar="N", help=about)
    _state(serve)
    _verbose(serve)
    _strict(serve)
    serve.add_argument("--insecure", action="store_true", help="allow other machines to call without an API key")

    stdio = command("stdio", _STDIO, "serve:stdio")
    source = stdio.add_mutually_exclusive_group(required=True)
    _config(source)
    source.add_argument("--url", help="the /mcp address of a running gateway")
    stdio.add_argument("--header", action="append", default=[], metavar="'K: V'", help="sent to --url; may be repeated")
    _verbose(stdio)
    _strict(stdio)
    stdio.add_argument("--profile", metavar="P", help="the profile to serve")
    _state(stdio)

    demo = command("demo", _DEMO, "serve:demo")
    demo.add_argument("--port", type=_port, help="port to listen on (default: 8765, or a free one)")
    _state(demo)

    check = command("check", _CHECK, "inspect:check")
    _config(check)
    _strict(check)
    check.add_argument("--json", action="store_true", help="print JSON")
    check.add_argument("--schema", action="store_true", help="print the JSON Schema of the file instead")

    servers = command("servers", _SERVERS, "inspect:servers")
    _shown(servers)
    _config(servers)
    _running(servers)
    servers.add_argument("--json", action="store_true", help="print JSON")

    tools = command("tools", _TOOLS, "inspect:tools")
    _shown(tools)
    _config(tools)
    _running(tools)
    tools.add_argument("--profile", metavar="P", help="as this profile sees them")
    tools.add_argument("--explain", action="store_true", help="why each wrapper is listed, or left to search")
    tools.add_argument("--format", choices=("table", "json", "prompt"), default="table", help="default: table")
    tools.add_argument("--json", action="store_const", const="json", dest="format", help="--format json")

    hooks = command("hooks", _HOOKS, "inspect:hooks")
    _config(hooks)
    _running(hooks)
    hooks.add_argument("--json", action="store_true", help="print JSON")

    tool = commands.add_parser(
        "tool",
        help=_TOOL.split("\n", 1)[0],
        description=_TOOL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = tool.add_subparsers(title="actions", metavar="ACTION", parser_class=_Parser, required=True)
    _tool_action(actions, "set")
    _tool_action(actions, "unset")

    key = commands.add_parser(
        "key",
        help=_KEY.split("\n", 1)[0],
        description=_KEY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _key_actions(key.add_subparsers(title="actions", metavar="ACTION", parser_class=_Parser, required=True))

    call = command("call", _CALL, "call:call")
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
    call.add_argument("--timeout", type=_seconds, default=_CALL_TIMEOUT_S, metavar="SECONDS", help=about)
    call.add_argument("--json", action="store_true", help="print the whole result as JSON")

    completion = command("completion", _COMPLETION, "completion:completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    completion.set_defaults(parser=root)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _fill_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Upstreams choose their texts. A character that the terminal cannot show is escaped, and is no error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = parser().parse_args(argv)
        module, _, function = args.handler.partition(":")
        handler: Callable[[argparse.Namespace], int]
        handler = getattr(import_module(f"gateway.commands.{module}"), function)
        code = handler(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse: --help, --version, wrong usage
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, as with `| head`. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Whoever wanted ten lines has got them.
        return 0
    except (GatewayError, BaseExceptionGroup, OSError) as error:
        return _refuse(error)


def _fill_closed_streams() -> None:
    """Open nothing in place of a standard stream that is closed: a file or socket would take its number."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, flags)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _refuse(error: BaseException) -> int:
    """Print an error that the user can fix, and return the exit code. A bug keeps its traceback."""
    from gateway.commands.locations import UsageError
    from gateway.commands.output import say

    cause = error
    while isinstance(cause, BaseExceptionGroup):
        # A task group wraps the errors of its tasks; ours explains more than what it caused in others.
        cause = next((e for e in cause.exceptions if isinstance(e, GatewayError)), cause.exceptions[0])
    if isinstance(cause, KeyboardInterrupt):
        return _INTERRUPTED
    if not isinstance(cause, GatewayError | OSError):
        raise error
    say(str(cause))
    return 2 if isinstance(cause, ConfigError | UsageError | OSError) else 1


def _key_actions(actions: argparse._SubParsersAction[_Parser]) -> None:
    about = "make a key and the entry that makes it good"
    new = actions.add_parser("new", help=about, description=about, allow_abbrev=False)
    new.set_defaults(handler="key:new_key")
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
        help="what it is good for; so far only `metrics` is applied; may be repeated",
    )
    new.add_argument("--group", action="append", default=[], metavar="G", help="a group of its caller; may be repeated")
    new.add_argument("--expires", metavar="TIME", help="after this time, as 12h, 90d or 4w (default: never)")
    new.add_argument("--json", action="store_true", help="print JSON")
    about = "list the keys of a configuration, and which of them have expired"
    listed = actions.add_parser("list", help=about, description=about, allow_abbrev=False)
    listed.set_defaults(handler="key:list_keys")
    _config(listed, required=True)
    listed.add_argument("--json", action="store_true", help="print JSON")


def _tool_action(actions: argparse._SubParsersAction[_Parser], name: str) -> None:
    about = "write documentation and overrides" if name == "set" else "take documentation and overrides out"
    made = actions.add_parser(name, help=about, description=about, allow_abbrev=False)
    made.set_defaults(handler=f"tool:{name}_tool")
    _config(made, required=True)
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


def _config(group: argparse._ActionsContainer, *, required: bool = False) -> None:
    group.add_argument("--config", type=Path, required=required, metavar="FILE", help="JSON or YAML file")


def _state(command: argparse.ArgumentParser) -> None:
    about = "where tokens and snapshots are kept (default: TYPEGATE_STATE_DIR, ~/.local/state/typegate)"
    command.add_argument("--state-dir", type=Path, metavar="DIR", help=about)


def _verbose(command: argparse.ArgumentParser) -> None:
    about = "log one line for each call: who, what, which way, how it ended; never what was in it"
    command.add_argument("-v", "--verbose", action="store_true", help=about)


def _strict(command: argparse.ArgumentParser) -> None:
    about = "refuse the file for a fault in the entry of one server; by default that server is left out"
    command.add_argument("--strict", action="store_true", help=about)


def _shown(command: argparse.ArgumentParser) -> None:
    about = "only those whose name holds this text, or matches this pattern"
    command.add_argument("filter", nargs="?", metavar="FILTER", help=about)
    command.add_argument("--header", action="store_true", help="in a pipe too, begin with the names of the columns")


def _running(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", help="the running gateway (default: http://127.0.0.1:8765)")
    _state(command)


def _port(text: str) -> int:
    # int() alone would take digits of every script, signs, spaces and underscores.
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; expected a number from 0 to 65535")
    return int(text)


def _workers(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers; expected one from 1 to {_MAX_WORKERS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; expected seconds, as 30")
    return seconds


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("typegate")
    except PackageNotFoundError:  # a checkout that is run without being installed
        return "0.1.0"
