"""`typegate tool set` and `unset`: edit the entry of one tool in the configuration file."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gateway.commands import output
from gateway.commands.locations import UsageError
from gateway.config.edit import Entry, edit_tool, literal
from registry.catalog.overrides import ARGUMENT_TYPES, OverrideRejected, parse_arguments

_FORM = "NAME:TYPE:DESCRIPTION, as 'date:string:format: YYYY-MM-DD'"


def set_tool(args: Namespace) -> int:
    """Write documentation and overrides of one tool.

    Raises:
        UsageError: Nothing is to be set, or an argument is not in its form.
        ConfigError: The file cannot be used.
    """
    documented = [_argument(literal(text)) for text in args.argument]
    names = [argument["name"] for argument in documented]
    for name in args.required:
        if name not in names:
            raise UsageError(f"--required {name} names no --argument; expected one of: {', '.join(names) or 'none'}")
    given = {
        "name": args.name,
        "description": args.description,
        "supplement": args.supplement,
        "mode": args.mode,
        "hidden": args.hidden,
        "pinned": args.pinned,
    }
    # None is a flag that was not given; False is --no-hidden.
    overrides = {
        key: literal(value) if isinstance(value, str) else value for key, value in given.items() if value is not None
    }
    if not documented and not overrides:
        raise UsageError(f"nothing to set; expected --argument {_FORM}, or an override such as --description TEXT")

    def change(entry: Entry) -> None:
        entry.update(overrides)
        if documented:
            _document(entry, documented, set(args.required))

    changed = edit_tool(args.config, args.server, args.tool, change)
    output.say(f"{args.config}: {args.server}.{args.tool} {'written' if changed else 'unchanged: it says so already'}")
    return 0


def unset_tool(args: Namespace) -> int:
    """Take documentation and overrides of one tool out of the file.

    Raises:
        UsageError: There is no such argument to take out.
        ConfigError: The file cannot be used.
    """

    def change(entry: Entry) -> None:
        if not args.argument and not args.key:
            # edit_tool removes an entry that is left empty.
            entry.clear()
            return
        for key in args.key:
            entry.pop(key, None)
        known = entry.get("arguments")
        known = known if isinstance(known, list) else []
        for name in args.argument:
            found = [
                at for at, argument in enumerate(known) if isinstance(argument, dict) and argument.get("name") == name
            ]
            if not found:
                listed = (
                    ", ".join(str(argument.get("name")) for argument in known if isinstance(argument, dict)) or "none"
                )
                raise UsageError(f"the file documents no argument '{name}' of this tool; expected one of: {listed}")
            # From the end, so that the remaining positions stay valid.
            for at in reversed(found):
                del known[at]
        # An empty list would remain as noise in the file; it means the same as no key.
        if "arguments" in entry and not known:
            del entry["arguments"]

    changed = edit_tool(args.config, args.server, args.tool, change)
    output.say(
        f"{args.config}: {args.server}.{args.tool} {'written' if changed else 'unchanged: it says nothing of this'}"
    )
    return 0


def _argument(text: str) -> dict[str, Any]:
    # The description comes last because it may hold colons, as in "format: YYYY-MM-DD".
    name, _, rest = text.partition(":")
    kind, _, description = rest.partition(":")
    if not name.strip() or kind not in ARGUMENT_TYPES:
        raise UsageError(f"{text!r} is no argument; expected {_FORM}, TYPE one of {', '.join(ARGUMENT_TYPES)}")
    argument = {"name": name.strip(), "type": kind}
    if description.strip():
        argument["description"] = description.strip()
    return argument


def _document(entry: Entry, documented: list[dict[str, Any]], required: set[str]) -> None:
    known = entry.get("arguments")
    if not isinstance(known, list):
        known = entry["arguments"] = []
    positions = {argument.get("name"): at for at, argument in enumerate(known) if isinstance(argument, dict)}
    for argument in documented:
        if argument["name"] in required:
            argument["required"] = True
        at = positions.get(argument["name"])
        if at is None:
            known.append(argument)
        else:
            known[at].update(argument)
    # As the gateway reads them: nothing is written that it would reject at its next start.
    try:
        parse_arguments(known)
    except OverrideRejected as error:
        raise UsageError(f"the result would be invalid: {error}") from None
