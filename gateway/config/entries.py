"""Read the block of servers, each entry by itself: a fault in one leaves out that server, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from gateway.config.host_entries import in_common_words, is_local_or_remote
from gateway.config.model import LeftOut
from gateway.config.section import suggestion
from gateway.config.server import ServerConfig
from gateway.config.source import join
from gateway.config.upstream_types.registration import all_keys, read_server, unknown_keys
from gateway.config.wording import refusal
from gateway.errors import ConfigError, together
from registry.catalog.names import check_aliases
from registry.errors import AliasError
from registry.schema.display_text import strip_accents

LEFT_OUT: Final = "left out: "
"""What the reason of a faulty entry begins with."""
Expand = Callable[..., dict[str, Any]]
"""Puts in what placeholders stand for; see `variables.expand`."""
VariablesIn = Callable[..., dict[str, str]]
"""Reads a file of variables; see `variables.variables_in`."""
_ALIAS_FORM: Final = "letters and digits joined by single - or _, unlike every other alias"
# Keys that narrow what a server shows: whoever misspells one believes that something is hidden.
_NARROWING: Final = ("allow", "deny", "tools", "excludeMutations", "disabled", "validation")
# Close enough to be a slip, far enough from keys that hosts really have.
_SLIP: Final = 0.75
_HIDES: Final = re.compile(r"(?:deny|denied|disallow|exclu|hid(?:e|den)|block|forbid)", re.IGNORECASE)
_SWITCH: Final[TypeAdapter[bool]] = TypeAdapter(bool)


@dataclass(slots=True, kw_only=True)
class Entries:
    """What the block of servers says.

    Attributes:
        servers: Those that are served, by alias, in the order of the file.
        left_out: Those that are not, and why.
        problems: Every fault in an entry.
        warnings: What is ignored, or read as something else.
    """

    servers: dict[str, ServerConfig] = field(default_factory=dict)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    problems: list[ConfigError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_entries(
    block: str, entries: Mapping[str, Any], *, file: str, expand: Expand, variables_in: VariablesIn
) -> Entries:
    """Read every entry.

    Args:
        block: The key of the block.
        entries: The block.
        file: How messages name the file.
        expand: Puts in what placeholders stand for; raises `ConfigError`.
        variables_in: Reads a file of variables; raises `ConfigError`.
    """
    found = Entries()
    aliases = _aliases(block, entries, found, file)
    for written, alias in aliases.items():
        where = join(block, written)
        try:
            server, warnings = _read_entry(where, entries[written], file, expand, variables_in)
        except ConfigError as error:
            _leave_out(found, alias, error)
            continue
        found.warnings += warnings
        if server is None:
            found.left_out[alias] = LeftOut(reason="switched off in the configuration (disabled)", faulty=False)
        else:
            found.servers[alias] = server
    return found


def _leave_out(found: Entries, alias: str, error: ConfigError) -> None:
    found.problems.append(error)
    lines = str(error).splitlines()
    reason = "; ".join(line.removeprefix(f"{error.file}: ") for line in lines)
    found.left_out[alias] = LeftOut(reason=f"{LEFT_OUT}{reason}", faulty=True)


def _aliases(block: str, entries: Mapping[str, Any], found: Entries, file: str) -> dict[str, str]:
    """The alias of each entry: as it is written, or the nearest one that can be part of a name."""
    sound = {written: sound_alias(written) for written in entries}
    aliases: dict[str, str] = {}
    # Those that need no change come first: they keep their names, whatever looks like them.
    for written in sorted(entries, key=lambda one: sound[one] != one):
        alias = sound[written]
        try:
            check_aliases([*aliases.values(), alias])
        except AliasError as error:
            what = f"{error}; expected {_ALIAS_FORM}"
            _leave_out(found, written, ConfigError(what, file=file, key=join(block, written)))
            continue
        aliases[written] = alias
        if alias != written:
            found.warnings.append(f"{file}: {join(block, written)}: is served as '{alias}'; expected {_ALIAS_FORM}")
    return {written: aliases[written] for written in entries if written in aliases}


def sound_alias(written: str) -> str:
    """The nearest text that can be an alias; the same one where nothing of it can."""
    plain = re.sub(r"__+", "_", strip_accents(written))
    plain = re.sub(r"[^A-Za-z0-9_-]+|[-_]{2,}", "-", plain)
    plain = re.sub(r"[-_]{2,}", "-", plain).strip("-_")
    # What is empty now is refused as it was written.
    return plain or written


def _read_entry(
    where: str, entry: Any, file: str, expand: Expand, variables_in: VariablesIn
) -> tuple[ServerConfig | None, list[str]]:
    if not isinstance(entry, dict):
        return _checked(where, entry, file), []
    try:
        common = in_common_words(entry)
    except PydanticCustomError as error:
        told = error.context or {}
        raise ConfigError(error.message(), file=file, key=join(where, told.get("key"))) from None
    if _switched_off(common, expand):
        # Nothing else of it matters: people switch off what does not work.
        return None, []
    problems: list[ConfigError] = []
    warnings: list[str] = []
    config = None
    try:
        warnings += _unknown_keys(where, common, file)
    except ConfigError as error:
        problems.append(error)
    try:
        [expanded] = expand({where: common}, braces=is_local_or_remote(entry)).values()
        if "command" in expanded and isinstance(name := expanded.get("envFile"), str):
            variables = variables_in(name, file=file, key=join(where, "envFile"))
            if isinstance(named := expanded.get("env", {}), dict):
                expanded["env"] = {**variables, **named}
            del expanded["envFile"]
        config = _checked(where, expanded, file)
    except ConfigError as error:
        problems.append(error)
    if problems:
        raise together(problems)
    return config, warnings


def _checked(where: str, entry: Any, file: str) -> ServerConfig:
    try:
        return read_server(entry)
    except ValidationError as error:
        raise refusal(error, file, within=where) from None


def _switched_off(entry: Mapping[str, Any], expand: Expand) -> bool:
    if "disabled" not in entry:
        return False
    try:
        return _SWITCH.validate_python(expand({"disabled": entry["disabled"]})["disabled"])
    except (ConfigError, ValidationError):
        return False  # a fault, which is told with all others


def _unknown_keys(where: str, entry: dict[str, Any], file: str) -> Iterator[str]:
    """Warnings about keys that mean nothing.

    Raises:
        ConfigError: Some may be meant to hide something.
    """
    known = all_keys()
    hiding: list[ConfigError] = []
    for key in unknown_keys(entry):
        if key in known:
            yield f"{file}: {join(where, key)}: unknown key, ignored"
            continue
        meant = get_close_matches(key, _NARROWING, n=1, cutoff=_SLIP)
        if meant or _HIDES.match(key):
            expected = f"{meant[0]} (did you mean it?)" if meant else "allow, deny, or tools.NAME.hidden"
            what = f"unknown key, by which something may be meant to be hidden; expected {expected}"
            hiding.append(ConfigError(what, file=file, key=join(where, key)))
            continue
        guess = suggestion(key, known).split(", or")[0]
        hint = f"; expected {guess}" if "did you mean" in guess else ""
        yield f"{file}: {join(where, key)}: unknown key, ignored{hint}"
    if hiding:
        raise together(hiding)
