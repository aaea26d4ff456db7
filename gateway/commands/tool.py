"""`typegate tool set` and `unset`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gateway.commands import output
from gateway.commands.admin_client import UsageError
from gateway.config.file_edits import Entry, edit_tool, literal
from registry.catalog.overrides import ARGUMENT_TYPES, OverrideRejected, parse_arguments

_FORM = "NAME:TYPE:DESCRIPTION, such as 'date:string:format: YYYY-MM-DD'"


def set_tool(args: Namespace) -> int:
    """Write documentation and overrides of a tool to the file.

    Raises:
        UsageError: There is nothing to set, or an argument is malformed.
        ConfigError: The file cannot be used.
    """
    documented = [_argument(literal(text)) for text in args.argument]
    names = [argument["name"] for argument in documented]
    for name in args.required:
        if name not in names:
            raise UsageError(
                f"--required {name} does not match any --argument; expected one of: {', '.join(names) or 'none'}"
            )
    flags = {
        "name": args.name,
        "description": args.description,
        "supplement": args.supplement,
        "mode": args.mode,
        "hidden": args.hidden,
        "pinned": args.pinned,
    }
    # None means that the flag was not given; False means --no-hidden.
    overrides = {
        key: literal(value) if isinstance(value, str) else value for key, value in flags.items() if value is not None
    }
    if not documented and not overrides:
        raise UsageError(f"nothing to set; expected --argument {_FORM}, or an override such as --description TEXT")

    def change(entry: Entry) -> None:
        entry.update(overrides)
        if documented:
            _document(entry, documented, set(args.required))

    changed = edit_tool(args.config, args.server, args.tool, change)
    output.say(f"{args.config}: {args.server}.{args.tool} {'written' if changed else 'unchanged: already set'}")
    return 0


def unset_tool(args: Namespace) -> int:
    """Remove documentation and overrides of a tool from the file.

    Raises:
        UsageError: The file does not document the argument to remove.
        ConfigError: The file cannot be used.
    """

    def change(entry: Entry) -> None:
        if not args.argument and not args.key:
            # edit_tool removes an entry that is left empty.
            entry.clear()
            return
        for key in args.key:
            entry.pop(key, None)
        documented_arguments = entry.get("arguments")
        documented_arguments = documented_arguments if isinstance(documented_arguments, list) else []
        for name in args.argument:
            positions = [
                at
                for at, argument in enumerate(documented_arguments)
                if isinstance(argument, dict) and argument.get("name") == name
            ]
            if not positions:
                listed = (
                    ", ".join(
                        str(argument.get("name")) for argument in documented_arguments if isinstance(argument, dict)
                    )
                    or "none"
                )
                raise UsageError(f"the file documents no argument '{name}' of this tool; expected one of: {listed}")
            # Delete from the end, so that the remaining positions stay valid.
            for at in reversed(positions):
                del documented_arguments[at]
        # An empty list means the same as no key.
        if "arguments" in entry and not documented_arguments:
            del entry["arguments"]

    changed = edit_tool(args.config, args.server, args.tool, change)
    output.say(f"{args.config}: {args.server}.{args.tool} {'written' if changed else 'unchanged: not set'}")
    return 0


def _argument(text: str) -> dict[str, Any]:
    # The description comes last, because it may contain colons, as in "format: YYYY-MM-DD".
    name, _, kind_and_description = text.partition(":")
    kind, _, description = kind_and_description.partition(":")
    if not name.strip() or kind not in ARGUMENT_TYPES:
        raise UsageError(f"{text!r} is not an argument; expected {_FORM}, with TYPE one of {', '.join(ARGUMENT_TYPES)}")
    argument = {"name": name.strip(), "type": kind}
    if description.strip():
        argument["description"] = description.strip()
    return argument


def _document(entry: Entry, documented: list[dict[str, Any]], required: set[str]) -> None:
    documented_arguments = entry.get("arguments")
    if not isinstance(documented_arguments, list):
        documented_arguments = entry["arguments"] = []
    positions = {
        argument.get("name"): at for at, argument in enumerate(documented_arguments) if isinstance(argument, dict)
    }
    for argument in documented:
        if argument["name"] in required:
            argument["required"] = True
        at = positions.get(argument["name"])
        if at is None:
            documented_arguments.append(argument)
        else:
            documented_arguments[at].update(argument)
    # Parse the result like the gateway, so that the command writes nothing that the next start would reject.
    try:
        parse_arguments(documented_arguments)
    except OverrideRejected as error:
        raise UsageError(f"the result would be invalid: {error}") from None
