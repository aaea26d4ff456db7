"""The command line: parse arguments, refuse wrong ones in one line. The commands are in `gateway.commands`."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from gateway import __version__
from gateway.commands.arguments.declaring import Commands, Parser
from gateway.commands.arguments.hosts import add_host_commands
from gateway.commands.arguments.inspect import add_inspecting_commands
from gateway.commands.arguments.lock import add_lock_commands
from gateway.commands.arguments.operate import add_operating_commands
from gateway.commands.arguments.serve import add_serving_commands
from gateway.errors import ConfigError, GatewayError

_ABOUT: Final = """\
An MCP gateway that gives every upstream tool its own typed name, SERVER__TOOL.

examples:
  typegate demo                                  two bundled servers, to try it
  typegate check --config mcp.json               would this configuration work?
  typegate serve --config mcp.json               serve it over HTTP
  typegate call calendar-mcp__list_accounts      call one tool of a running gateway
"""

_COMPLETION: Final = """\
Print the completion of commands and options for a shell.

examples:
  typegate completion bash > ~/.local/share/bash-completion/completions/typegate
  typegate completion zsh > ~/.zfunc/_typegate
  typegate completion fish > ~/.config/fish/completions/typegate.fish
"""

# As shells report a program that SIGINT ended: 128 + 2.
_INTERRUPTED: Final = 130
# New objects before the youngest are looked through. Modules leave next to no garbage, and with the usual 700 a tenth
# of the start of a gateway is spent on looking for it.
_YOUNG: Final = 10_000


def parser() -> argparse.ArgumentParser:
    """The parser of every command, in the order in which `--help` shows them."""
    root = Parser(prog="typegate", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    root.add_argument("--version", action="version", version=f"typegate {__version__}")
    commands = Commands(root)
    add_serving_commands(commands)
    add_inspecting_commands(commands)
    add_operating_commands(commands)
    add_lock_commands(commands)
    add_host_commands(commands)
    completion = commands.add("completion", _COMPLETION, "completion:completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    completion.set_defaults(parser=root)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    gc.set_threshold(_YOUNG)
    _fill_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Upstreams choose their texts. A character that the terminal cannot show is escaped, and is no error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        given = sys.argv[1:] if argv is None else argv
        if not given:
            parser().print_help()
            return 0
        args = parser().parse_args(given)
        if getattr(args, "config", None) is None and getattr(args, "uses_default_config", False):
            from gateway.commands.locations import default_config

            args.config = default_config(args)
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
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - as above


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
