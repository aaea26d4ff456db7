"""How commands are declared: each by its name, what is said of it, and the function that carries it out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn

# Commands named for a misspelt one; of options the nearest, since most are long and few are alike.
_MAX_NEAR: Final = 2


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with what was probably meant.

    Attributes:
        rest: The name of the value that takes everything after `--`, wherever options and arguments stand before it.
    """

    rest: str | None = None

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (`{self.prog} --help` shows how)\n")

    def parse_known_args(  # type: ignore[override]  # of its overloads no other is used here
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a command refuses what it does not know itself, since the program does not know its options."""
        given = sys.argv[1:] if args is None else [*args]
        rest: list[str] = []
        if self.rest is not None and "--" in given:
            at = given.index("--")
            given, rest = given[:at], given[at + 1 :]
        if self._subparsers is None:
            # Before what is missing, for which a misspelt option may have been meant.
            until = given.index("--") if "--" in given else len(given)
            self._refuse_unknown_options([one for one in given[:until] if one.startswith("--") and " " not in one])
        parsed, unknown = super().parse_known_args(given, namespace)
        if self.rest is not None:
            setattr(parsed, self.rest, rest)
        extra = [one for one in unknown if one != "--"]
        if extra:
            self._refuse_unknown_options(extra)
            self.error(self._too_many(extra[0]))
        return parsed, []

    def _refuse_unknown_options(self, arguments: Sequence[str]) -> None:
        for argument in arguments:
            option = argument.partition("=")[0]
            if argument.startswith("-") and argument != "-" and option not in self._option_string_actions:
                self.error(f"there is no option {option}{_meant(option, self._option_string_actions, most=1)}")

    def _too_many(self, extra: str) -> str:
        takes_file = "--config" in self._option_string_actions and Path(extra).is_file()
        return f"one argument too many: {extra}" + (f"; did you mean --config {extra}?" if takes_file else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and action.metavar in _WORDS and value not in action.choices:
            near = _meant(str(value), action.choices)
            raise argparse.ArgumentError(None, f"there is no {_WORDS[str(action.metavar)]} {value}{near}")
        super()._check_value(action, value)


# What is said of an argument that selects what to do: of all others the choices are few, and listed.
_WORDS: Final[dict[Any, str]] = {"COMMAND": "command", "ACTION": "action"}


def _meant(word: str, known: Iterable[str], *, most: int = _MAX_NEAR) -> str:
    near = get_close_matches(word, [*known], n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class Commands:
    """The commands of a program. Handlers are named, not imported: `stdio` must start quickly.

    Args:
        root: The parser of the program.
    """

    def __init__(self, root: Parser) -> None:
        self._commands = root.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser, required=True)

    def add(self, name: str, about: str, handler: str) -> Parser:
        """Declare a command.

        Args:
            name: Its name.
            about: What it does: a line, and more with examples.
            handler: Module and function below `gateway.commands`, as `serve:stdio`.
        """
        made = self._add(name, about)
        made.set_defaults(handler=handler)
        return made

    def with_actions(self, name: str, about: str) -> CommandActions:
        """Declare a command whose first argument says what to do."""
        return CommandActions(self._add(name, about))

    def _add(self, name: str, about: str) -> Parser:
        form = argparse.RawDescriptionHelpFormatter
        # The first sentence, which may go on in the next line.
        summary = " ".join(about.split("\n\n", 1)[0].split()).partition(". ")[0].rstrip(".") + "."
        return self._commands.add_parser(
            name, help=summary, description=about, formatter_class=form, allow_abbrev=False
        )


class CommandActions:
    """What a command can do.

    Args:
        command: The command.
    """

    def __init__(self, command: Parser) -> None:
        self._actions = command.add_subparsers(title="actions", metavar="ACTION", parser_class=Parser, required=True)

    def add(self, name: str, about: str, handler: str) -> argparse.ArgumentParser:
        """Declare one; see `Commands.add`."""
        made = self._actions.add_parser(name, help=about, description=about, allow_abbrev=False)
        made.set_defaults(handler=handler)
        return made
