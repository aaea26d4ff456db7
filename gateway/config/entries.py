"""Read the block of servers, each entry by itself: a fault in one leaves out that server, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from gateway.config.host_entries import in_common_words, is_local_or_remote
from gateway.config.host_restrictions import misread_restriction
from gateway.config.host_settings import HostSettings
from gateway.config.model import LeftOut
from gateway.config.section import suggestion
from gateway.config.server import ServerConfig
from gateway.config.source import join
from gateway.config.upstream_types.registration import all_keys, read_server, unknown_keys
from gateway.config.variables import expand_entry
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
    block: str,
    entries: Mapping[str, Any],
    *,
    file: str,
    expand: Expand,
    variables_in: VariablesIn,
    settings: HostSettings,
) -> Entries:
    """Read every entry.

    Args:
        block: The key of the block.
        entries: The block.
        file: How messages name the file.
        expand: Puts in what placeholders stand for; raises `ConfigError`.
        variables_in: Reads a file of variables; raises `ConfigError`.
        settings: What is said of servers beside their entries.
    """
    found = Entries()
    aliases = _aliases(block, entries, found, file)
    for written, alias in aliases.items():
        where = join(block, written)
        try:
            common = _in_common_words(where, entries[written], file, written)
            off = settings.apply(common, written) if isinstance(common, dict) else ""
            server, warnings = _read_entry(where, entries[written], common, file, (expand, variables_in))
        except ConfigError as error:
            _leave_out(found, alias, error)
            continue
        found.warnings += warnings
        if server is None:
            found.left_out[alias] = LeftOut(
                reason=f"switched off in the configuration ({off or 'disabled'})", faulty=False
            )
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


def _in_common_words(where: str, entry: Any, file: str, written: str) -> Any:
    """Return the entry in common words, or as it is if it is no object.

    Raises:
        ConfigError: A restriction in it cannot be read.
    """
    if not isinstance(entry, dict):
        return entry
    try:
        return in_common_words(entry, written)
    except PydanticCustomError as error:
        key = (error.context or {}).get("key")
        raise ConfigError(error.message(), file=file, key=f"{where}.{key}") from None


def _read_entry(
    where: str, entry: Any, common: Any, file: str, readers: tuple[Expand, VariablesIn]
) -> tuple[ServerConfig | None, list[str]]:
    if not isinstance(common, dict):
        return _checked(where, common, file), []
    expand, variables_in = readers
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
        expanded = expand_entry(
            common,
            where,
            expand=partial(expand, braces=is_local_or_remote(entry)),
            more=partial(variables_in, file=file, key=join(where, "envFile")),
        )
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
        if (expected := misread_restriction(key, entry[key])) is not None:
            what = f"unknown key, by which something may be meant to be hidden; expected {expected}"
            hiding.append(ConfigError(what, file=file, key=join(where, key)))
            continue
        guess = suggestion(key, known).split(", or")[0]
        hint = f"; expected {guess}" if "did you mean" in guess else ""
        yield f"{file}: {join(where, key)}: unknown key, ignored{hint}"
    if hiding:
        raise together(hiding)
