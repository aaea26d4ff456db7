"""Options that several commands have, and how the values of options are read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

# Each worker has connections of its own to every upstream; more than 64 would burden those before they help.
MAX_WORKERS: Final = 64
# A day, as for every time in the configuration.
_MAX_TIMEOUT_S: Final = 86_400
# As many as fit into the memory of any machine.
_MAX_LINES: Final = 1_000_000


def config(group: argparse._ActionsContainer, *, uses_default: bool = False) -> None:
    """Add `--config`.

    Args:
        group: The command, or a group of its options.
        uses_default: Whether the command works on the configuration in the working directory if none is named. Commands
            that ask a running gateway instead do not.
    """
    about = "JSON or YAML file"
    if uses_default:
        about += " (default: mcp.yaml, mcp.json or .mcp.json in the working directory)"
        group.set_defaults(uses_default_config=True)
    group.add_argument("--config", type=Path, metavar="FILE", help=about)


def state(command: argparse.ArgumentParser) -> None:
    """The state directory."""
    about = "where tokens and snapshots are kept (default: TYPEGATE_STATE_DIR, ~/.local/state/typegate)"
    command.add_argument("--state-dir", type=Path, metavar="DIR", help=about)


def verbose(command: argparse.ArgumentParser) -> None:
    """What is logged, and how."""
    about = "log one line for each call: who, what, which way, how it ended; never what was in it"
    command.add_argument("-v", "--verbose", action="store_true", help=about)
    about = "lines of the log for people, or JSON for whatever collects them (default: text)"
    command.add_argument("--log-format", choices=("text", "json"), default="text", help=about)


def strict(command: argparse.ArgumentParser) -> None:
    """Whether a faulty entry refuses the whole file."""
    about = "refuse the file for a fault in the entry of one server; by default that server is left out"
    command.add_argument("--strict", action="store_true", help=about)


def shown(command: argparse.ArgumentParser) -> None:
    """Which rows are shown."""
    about = "only those whose name holds this text, or matches this pattern"
    command.add_argument("filter", nargs="?", metavar="FILTER", help=about)
    command.add_argument("--header", action="store_true", help="in a pipe too, begin with the names of the columns")


def running(command: argparse.ArgumentParser) -> None:
    """The gateway that is asked."""
    command.add_argument("--url", help="the running gateway (default: http://127.0.0.1:8765)")
    state(command)


def port(text: str) -> int:
    """Read a port."""
    # int() alone would take digits of every script, signs, spaces and underscores.
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; expected a number from 0 to 65535")
    return int(text)


def workers(text: str) -> int:
    """Read a number of workers."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers; expected one from 1 to {MAX_WORKERS}")
    return int(text)


def lines(text: str) -> int:
    """Read a number of lines."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_LINES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines; expected one from 1 to {_MAX_LINES}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; expected seconds, as 30")
    return seconds
