"""Read the server entries one by one; the server of an invalid entry is left out, all others are served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from gateway.config.host_entries import is_opencode_entry, misread_restriction, translate_entry
from gateway.config.host_settings import HostSettings
from gateway.config.model import LeftOut
from gateway.config.section import refusal, suggestion
from gateway.config.server import ServerConfig
from gateway.config.source import join
from gateway.config.upstream_types.registration import all_keys, read_server, unknown_keys
from gateway.config.variables import expand_entry
from gateway.protocol.gateway_errors import ConfigError, combine_errors
from registry.catalog.names import check_aliases
from registry.errors import AliasError
from registry.schema.display_text import strip_accents


def check_per_user(servers: Mapping[str, ServerConfig], *, file: str, block: str = "mcpServers") -> None:
    """Reject servers with `perUser`, because the gateway does not authenticate callers.

    Raises:
        ConfigError: A server has `perUser`.
    """
    for alias, server in servers.items():
        if server.per_user and not server.exchanges_callers:
            raise ConfigError(
                "requires authenticated callers: gateway.auth, or a loopback address for a gateway with a single user; "
                "otherwise all callers would share one sign-in. Remove perUser if that is intended",
                file=file,
                key=f"{block}.{alias}.auth.perUser",
            )


def check_exchanges(
    servers: Mapping[str, ServerConfig], *, has_issuers: bool, file: str, block: str = "mcpServers"
) -> None:
    """Reject servers that exchange the tokens of callers if callers do not present tokens.

    Raises:
        ConfigError: A server exchanges tokens and there are no issuers.
    """
    for alias, server in servers.items():
        if server.exchanges_callers and not has_issuers:
            raise ConfigError(
                "exchanges the tokens of callers, but callers have no tokens; expected gateway.auth.oauth, or a token "
                "to exchange (subjectToken, idToken)",
                file=file,
                key=f"{block}.{alias}.auth",
            )


LEFT_OUT: Final = "left out: "
"""The prefix of the reason why an invalid entry is left out."""
Expand = Callable[..., dict[str, Any]]
"""A function that replaces placeholders, such as `variables.expand`."""
VariablesIn = Callable[..., dict[str, str]]
"""A function that reads a file of variables, such as `variables.variables_in`."""
_ALIAS_FORM: Final = "a unique alias of letters and digits, joined by single - or _"
_SWITCH: Final[TypeAdapter[bool]] = TypeAdapter(bool)


@dataclass(slots=True, kw_only=True)
class Entries:
    """The result of reading the servers of a file.

    Attributes:
        servers: The valid servers by alias, in the order of the file.
        left_out: The servers that are not served, with the reason.
        problems: The errors in entries.
        warnings: Warnings about ignored keys and changed aliases.
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
    """Read the server entries.

    Args:
        block: The key of the entries in the file.
        entries: The entries, by alias.
        file: The name of the file in messages.
        expand: Replaces placeholders; raises `ConfigError`.
        variables_in: Reads a file of variables; raises `ConfigError`.
        settings: The settings of the host outside the entries.
    """
    result = Entries()
    aliases = _aliases(block, entries, result, file)
    for key, alias in aliases.items():
        where = join(block, key)
        try:
            common = _translate_entry(where, entries[key], file, key)
            off = settings.apply(common, key) if isinstance(common, dict) else ""
            server, warnings = _read_entry(where, entries[key], common, file, (expand, variables_in))
        except ConfigError as error:
            _leave_out(result, alias, error)
            continue
        result.warnings += warnings
        if server is None:
            result.left_out[alias] = LeftOut(
                reason=f"disabled in the configuration ({off or 'disabled'})", faulty=False
            )
        else:
            result.servers[alias] = server
    return result


def _leave_out(result: Entries, alias: str, error: ConfigError) -> None:
    result.problems.append(error)
    lines = str(error).splitlines()
    reason = "; ".join(line.removeprefix(f"{error.file}: ") for line in lines)
    result.left_out[alias] = LeftOut(reason=f"{LEFT_OUT}{reason}", faulty=True)


def _aliases(block: str, entries: Mapping[str, Any], result: Entries, file: str) -> dict[str, str]:
    """Return the alias of each entry: the key as written, or the most similar valid alias."""
    valid_aliases = {key: valid_alias(key) for key in entries}
    aliases: dict[str, str] = {}
    # Process keys that are valid aliases first, so that they win over an equal changed alias.
    for key in sorted(entries, key=lambda key: valid_aliases[key] != key):
        alias = valid_aliases[key]
        try:
            check_aliases([*aliases.values(), alias])
        except AliasError as error:
            what = f"{error}; expected {_ALIAS_FORM}"
            _leave_out(result, key, ConfigError(what, file=file, key=join(block, key)))
            continue
        aliases[key] = alias
        if alias != key:
            result.warnings.append(f"{file}: {join(block, key)}: is served as '{alias}'; expected {_ALIAS_FORM}")
    return {key: aliases[key] for key in entries if key in aliases}


def valid_alias(key: str) -> str:
    """Return the most similar valid alias, or `key` itself if no character of it is valid."""
    plain = re.sub(r"__+", "_", strip_accents(key))
    plain = re.sub(r"[^A-Za-z0-9_-]+|[-_]{2,}", "-", plain)
    plain = re.sub(r"[-_]{2,}", "-", plain).strip("-_")
    return plain or key


def _translate_entry(where: str, entry: Any, file: str, server_key: str) -> Any:
    """Translate the keys of other hosts in an entry; return values other than objects unchanged.

    Raises:
        ConfigError: A restriction in the entry cannot be read.
    """
    if not isinstance(entry, dict):
        return entry
    try:
        return translate_entry(entry, server_key)
    except PydanticCustomError as error:
        key = (error.context or {}).get("key")
        raise ConfigError(error.message(), file=file, key=f"{where}.{key}") from None


def _read_entry(
    where: str, entry: Any, common: Any, file: str, readers: tuple[Expand, VariablesIn]
) -> tuple[ServerConfig | None, list[str]]:
    if not isinstance(common, dict):
        return _check_entry(where, common, file), []
    expand, variables_in = readers
    if _is_switched_off(common, expand):
        # Errors in a disabled entry are ignored: users disable servers that do not work.
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
            expand=partial(expand, braces=is_opencode_entry(entry)),
            more=partial(variables_in, file=file, key=join(where, "envFile")),
        )
        config = _check_entry(where, expanded, file)
    except ConfigError as error:
        problems.append(error)
    if problems:
        raise combine_errors(problems)
    return config, warnings


def _check_entry(where: str, entry: Any, file: str) -> ServerConfig:
    try:
        return read_server(entry)
    except ValidationError as error:
        raise refusal(error, file, within=where) from None


def _is_switched_off(entry: Mapping[str, Any], expand: Expand) -> bool:
    if "disabled" not in entry:
        return False
    try:
        return _SWITCH.validate_python(expand({"disabled": entry["disabled"]})["disabled"])
    except (ConfigError, ValidationError):
        return False  # reported together with the other errors of the entry


def _unknown_keys(where: str, entry: dict[str, Any], file: str) -> Iterator[str]:
    """Yield a warning for each unknown key.

    Raises:
        ConfigError: An unknown key may be meant to restrict the server.
    """
    keys_of_types = all_keys()
    hiding: list[ConfigError] = []
    for key in unknown_keys(entry):
        if key in keys_of_types:
            yield f"{file}: {join(where, key)}: unknown key, ignored"
            continue
        if (expected := misread_restriction(key, entry[key])) is not None:
            what = f"unknown key that may be meant to hide something; expected {expected}"
            hiding.append(ConfigError(what, file=file, key=join(where, key)))
            continue
        guess = suggestion(key, keys_of_types).split(", or")[0]
        hint = f"; expected {guess}" if "did you mean" in guess else ""
        yield f"{file}: {join(where, key)}: unknown key, ignored{hint}"
    if hiding:
        raise combine_errors(hiding)
