"""The command line: parse the arguments and run the command."""

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
from gateway.commands.command_tree import (
    add_host_commands,
    add_inspecting_commands,
    add_lock_commands,
    add_operating_commands,
    add_serving_commands,
)
from gateway.commands.declaring import Commands, Parser
from gateway.protocol.gateway_errors import ConfigError, GatewayError

_ABOUT: Final = """\
An MCP gateway that serves the tools of many MCP servers at one address, each as SERVER__TOOL.

examples:
  typegate demo                                  try it with two bundled servers
  typegate check --config mcp.json               check a configuration
  typegate serve --config mcp.json               serve it over HTTP
  typegate call calendar-mcp__list_accounts      call a tool of the running gateway
"""

_DOCS: Final = """\
Print a page of the manual, or list the pages.
TOPIC is the name of a page, or the beginning of one.

examples:
  typegate docs
  typegate docs hooks
  typegate docs sign-in | less
"""

_COMPLETION: Final = """\
Print a shell completion script for commands and options.

examples:
  typegate completion bash > ~/.local/share/bash-completion/completions/typegate
  typegate completion zsh > ~/.zfunc/_typegate
  typegate completion fish > ~/.config/fish/completions/typegate.fish
"""

# The exit status that shells report for a process ended by SIGINT: 128 + 2.
_INTERRUPTED: Final = 130
# Allocations before a collection of the youngest generation. Importing modules creates almost no garbage, and with the
# default of 700 the collector takes a tenth of the gateway's start-up time.
_GC_THRESHOLD: Final = 10_000


def parser() -> argparse.ArgumentParser:
    """Return the parser with every command, in the order in which `--help` lists them."""
    root = Parser(prog="typegate", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    root.add_argument("--version", action="version", version=f"typegate {__version__}")
    commands = Commands(root)
    add_serving_commands(commands)
    add_inspecting_commands(commands)
    add_operating_commands(commands)
    add_lock_commands(commands)
    add_host_commands(commands)
    docs = commands.add("docs", _DOCS, "administer:docs")
    docs.add_argument("topic", nargs="?", metavar="TOPIC", help="the page to print (default: list the pages)")
    completion = commands.add("completion", _COMPLETION, "administer:completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete for")
    completion.set_defaults(parser=root)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    gc.set_threshold(_GC_THRESHOLD)
    _fill_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Output contains upstream text: escape characters that the terminal cannot encode instead of failing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        arguments = sys.argv[1:] if argv is None else argv
        if not arguments:
            parser().print_help()
            return 0
        args = parser().parse_args(arguments)
        if getattr(args, "config", None) is None and getattr(args, "uses_default_config", False):
            from gateway.commands.admin_client import default_config

            args.config = default_config(args)
        module, _, function = args.handler.partition(":")
        handler: Callable[[argparse.Namespace], int]
        handler = getattr(import_module(f"gateway.commands.{module}"), function)
        code = handler(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse: --help, --version or a usage error
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        from gateway.commands.output import discard_output

        # The reader has closed the pipe, which is not an error.
        discard_output()
        return 0
    except (GatewayError, BaseExceptionGroup, OSError) as error:
        return _report(error)


def _fill_closed_streams() -> None:
    """Open the null device for closed standard streams, so that no other file or socket gets their descriptors."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest free descriptor, which is this one.
            os.open(os.devnull, flags)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open until the process exits
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - as above
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - as above


def _report(error: BaseException) -> int:
    """Print an error that the user can fix and return the exit code; raise any other error again."""
    from gateway.commands.admin_client import UsageError
    from gateway.commands.output import say

    cause = error
    while isinstance(cause, BaseExceptionGroup):
        # A task group wraps the errors of its tasks. Prefer a GatewayError, which names the cause.
        cause = next((e for e in cause.exceptions if isinstance(e, GatewayError)), cause.exceptions[0])
    if isinstance(cause, KeyboardInterrupt):
        return _INTERRUPTED
    if not isinstance(cause, GatewayError | OSError):
        raise error
    say(str(cause))
    return 2 if isinstance(cause, ConfigError | UsageError | OSError) else 1
