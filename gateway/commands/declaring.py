"""The argument parser, and options that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn

# Maximum number of suggestions for a misspelt command. For a misspelt option, only the closest option is suggested,
# because option names are long and rarely similar.
_MAX_SUGGESTIONS: Final = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line, with suggestions."""

    rest: str | None = None
    """The attribute of the namespace that receives everything after `--`."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (`{self.prog} --help` shows how)\n")

    def parse_known_args(  # type: ignore[override]  # only this overload is used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments, and report unknown options.

        argparse would report them from the main parser, which does not know the options of the command.
        """
        words = sys.argv[1:] if args is None else [*args]
        after_separator: list[str] = []
        if self.rest is not None and "--" in words:
            at = words.index("--")
            words, after_separator = words[:at], words[at + 1 :]
        if self._subparsers is None:
            # Report unknown options before argparse reports missing ones: a missing option may be a misspelt one.
            until = words.index("--") if "--" in words else len(words)
            self._refuse_unknown_options([word for word in words[:until] if word.startswith("--") and " " not in word])
        parsed, unknown = super().parse_known_args(words, namespace)
        if self.rest is not None:
            setattr(parsed, self.rest, after_separator)
        extra = self._assign_optional(parsed, [word for word in unknown if word != "--"])
        if extra:
            self._refuse_unknown_options(extra)
            self.error(self._too_many(extra[0]))
        return parsed, []

    def _assign_optional(self, parsed: argparse.Namespace, extra: list[str]) -> list[str]:
        """Assign words to optional positional arguments that argparse left empty, and return the other words.

        argparse treats an optional positional argument as absent if an option precedes it. In `call NAME --url URL
        JSON`, it would report the JSON as an unknown argument.
        """
        empty = [
            action
            for action in self._get_positional_actions()
            if action.nargs == argparse.OPTIONAL and getattr(parsed, action.dest, None) == action.default
        ]
        while empty and extra and not extra[0].startswith("-"):
            action, word = empty.pop(0), extra.pop(0)
            try:
                setattr(parsed, action.dest, self._get_values(action, [word]))
            except argparse.ArgumentError as error:
                self.error(str(error))
        return extra

    def _refuse_unknown_options(self, arguments: Sequence[str]) -> None:
        for argument in arguments:
            option = argument.partition("=")[0]
            if argument.startswith("-") and argument != "-" and option not in self._option_string_actions:
                self.error(f"there is no option {option}{_suggest(option, self._option_string_actions, most=1)}")

    def _too_many(self, extra: str) -> str:
        takes_file = "--config" in self._option_string_actions and Path(extra).is_file()
        return f"one argument too many: {extra}" + (f"; did you mean --config {extra}?" if takes_file else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and action.metavar in _WORDS and value not in action.choices:
            near = _suggest(str(value), action.choices)
            raise argparse.ArgumentError(None, f"there is no {_WORDS[str(action.metavar)]} {value}{near}")
        super()._check_value(action, value)


# Arguments with many choices, by placeholder: an error suggests similar choices instead of listing all of them.
_WORDS: Final[dict[Any, str]] = {"COMMAND": "command", "ACTION": "action"}


def _suggest(word: str, known_words: Iterable[str], *, most: int = _MAX_SUGGESTIONS) -> str:
    near = get_close_matches(word, [*known_words], n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class Commands:
    """The commands of a program. Handlers are imported by name when a command runs, so that `stdio` starts quickly."""

    def __init__(self, root: Parser) -> None:
        self._commands = root.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser, required=True)

    def add(self, name: str, about: str, handler: str) -> Parser:
        """Declare a command.

        Args:
            about: The help text; its first sentence is shown in the list of commands.
            handler: The module below `gateway.commands` and the function, such as `serve:stdio`.
        """
        command = self._add(name, about)
        command.set_defaults(handler=handler)
        return command

    def with_actions(self, name: str, about: str) -> CommandActions:
        """Declare a command with subcommands."""
        return CommandActions(self._add(name, about))

    def _add(self, name: str, about: str) -> Parser:
        form = argparse.RawDescriptionHelpFormatter
        # Use the first sentence, which may continue on the next line.
        summary = " ".join(about.split("\n\n", 1)[0].split()).partition(". ")[0].rstrip(".") + "."
        return self._commands.add_parser(
            name, help=summary, description=about, formatter_class=form, allow_abbrev=False
        )


class CommandActions:
    """The subcommands of a command."""

    def __init__(self, command: Parser) -> None:
        self._actions = command.add_subparsers(title="actions", metavar="ACTION", parser_class=Parser, required=True)

    def add(self, name: str, about: str, handler: str) -> argparse.ArgumentParser:
        """Declare a subcommand."""
        action = self._actions.add_parser(name, help=about, description=about, allow_abbrev=False)
        action.set_defaults(handler=handler)
        return action


# Each worker connects to every upstream itself; beyond 64, the load on the upstreams outweighs the benefit.
MAX_WORKERS: Final = 64
# One day is also the limit of all durations in the configuration.
_MAX_TIMEOUT_S: Final = 86_400
# A million audit entries fit into the memory of any machine.
_MAX_LINES: Final = 1_000_000


def add_config_option(group: argparse._ActionsContainer, *, uses_default: bool = False) -> None:
    """Add `--config`.

    Args:
        uses_default: True to use the configuration in the working directory if the option is absent. False for
            commands that ask a running gateway in this case.
    """
    about = "JSON or YAML file"
    if uses_default:
        about += " (default: mcp.yaml, mcp.json or .mcp.json in the working directory)"
        group.set_defaults(uses_default_config=True)
    group.add_argument("--config", type=Path, metavar="FILE", help=about)


def add_state_dir_option(command: argparse.ArgumentParser) -> None:
    """Add `--state-dir`."""
    about = "the directory for tokens and snapshots (default: TYPEGATE_STATE_DIR, ~/.local/state/typegate)"
    command.add_argument("--state-dir", type=Path, metavar="DIR", help=about)


def add_log_options(command: argparse.ArgumentParser) -> None:
    """Add `--verbose` and `--log-format`."""
    about = "log one line for each call, with caller, tool, route and outcome, but never its content"
    command.add_argument("-v", "--verbose", action="store_true", help=about)
    about = "plain text, or JSON for log collectors (default: text)"
    command.add_argument("--log-format", choices=("text", "json"), default="text", help=about)


def add_strict_option(command: argparse.ArgumentParser) -> None:
    """Add `--strict`."""
    about = "reject the file if the entry of any server is invalid; by default only that server is left out"
    command.add_argument("--strict", action="store_true", help=about)


def add_row_options(command: argparse.ArgumentParser) -> None:
    """Add the name filter and `--header`."""
    about = "only rows whose name contains this text or matches this pattern"
    command.add_argument("filter", nargs="?", metavar="FILTER", help=about)
    command.add_argument("--header", action="store_true", help="print the column names in a pipe, too")


def add_gateway_options(command: argparse.ArgumentParser) -> None:
    """Add `--url` and `--state-dir`, which select a running gateway."""
    command.add_argument("--url", help="the address of the running gateway (default: http://127.0.0.1:8765)")
    add_state_dir_option(command)


def parse_port(text: str) -> int:
    """Parse a port number."""
    # int() alone would also accept signs, spaces, underscores and the digits of every script.
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; expected a number from 0 to 65535")
    return int(text)


def parse_workers(text: str) -> int:
    """Parse a number of workers."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of workers; expected a number from 1 to {MAX_WORKERS}"
        )
    return int(text)


def parse_line_count(text: str) -> int:
    """Parse a number of lines."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_LINES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines; expected a number from 1 to {_MAX_LINES}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a duration in seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; expected seconds, such as 30")
    return seconds
