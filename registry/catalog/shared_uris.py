"""The URIs that several servers have: how each is told apart, and where else a server names its own.

`ui://` URIs are those of apps, which hosts draw only under that scheme: they become `ui://ALIAS/rest`. All others
become `typegate://ALIAS/URI`. Both can be taken apart again, because an alias contains no slash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from registry.catalog.names import ServerName
from registry.catalog.uri_spellings import normalize_uri
from registry.intake.prompts_and_resources import MAX_KEY_LENGTH, OWN_URI_PREFIX, is_own_uri
from registry.schema.json_values import containers, map_items, map_members
from registry.schema.packed_definition import PackedDefinition, members_of

UI_PREFIX: Final = "ui://"
"""What the URIs of apps begin with (MCP Apps, "UI Resource Format")."""
# `ui.resourceUri`, and the flat forms `ui/resourceUri` and `openai/outputTemplate`.
_URI_MEMBERS: Final = ("resourceUri", "outputTemplate")
# URLs that every parser takes, which are nearly all; the others are given to one.
_USUAL_URL: Final = re.compile(r"(?!https?:|wss?:|ftp:)[a-z][a-z0-9+.-]*:(?://[A-Za-z0-9._~-]*(?:[/?#].*)?|[^/].*)")


def qualified_uri(server: str, uri: str) -> str:
    """Return the URI that names a server's URI among those of all servers."""
    if uri.startswith(UI_PREFIX):
        return f"{UI_PREFIX}{server}/{uri.removeprefix(UI_PREFIX)}"
    return f"{OWN_URI_PREFIX}{server}/{uri}"


def taken_apart(uri: str, servers: Collection[str]) -> tuple[ServerName, str] | None:
    """Return the server and the URI that a qualified `ui://` URI may stand for; None if it names no server."""
    if not uri.startswith(UI_PREFIX):
        return None
    alias, slash, rest = uri.removeprefix(UI_PREFIX).partition("/")
    return (ServerName(alias), UI_PREFIX + rest) if slash and alias in servers else None


def is_url(uri: str) -> bool:
    """Return whether the Python SDK 1.x, whose models parse URLs, accepts a URI; if not, it refuses the whole list."""
    return _USUAL_URL.fullmatch(uri) is not None or normalize_uri(uri) is not None


def shared_uris(claims: Mapping[str, Collection[ServerName]]) -> frozenset[str]:
    """Return the URIs that have to be qualified: those of several servers, and those that a qualified one would equal.

    Args:
        claims: The servers that list or name each URI.
    """
    shared = {uri for uri, servers in claims.items() if len(servers) > 1}
    latest = shared
    while latest:
        taken = {qualified_uri(server, uri) for uri in latest for server in claims[uri]}
        latest = {uri for uri in taken if uri in claims} - shared
        shared |= latest
    return frozenset(shared)


def uris_named_by(tools: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the URIs in the `_meta` of tools: of apps anywhere, and of all else in the members that hosts know."""
    named: dict[str, None] = {}
    for tool in tools:
        if isinstance(tool, PackedDefinition) and not any(map(tool.holds, (UI_PREFIX, *_URI_MEMBERS))):
            continue  # nearly all
        for container in containers(members_of(tool).get("_meta")):
            members = container.items() if isinstance(container, dict) else (("", value) for value in container)
            named.update(
                (value, None)
                for name, value in members
                if isinstance(value, str) and (value.startswith(UI_PREFIX) or (value and name.endswith(_URI_MEMBERS)))
            )
    return tuple(uri for uri in named if not is_own_uri(uri) and len(uri) <= MAX_KEY_LENGTH)


def with_renamed(value: Any, rename: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it renamed; the same object if nothing changed."""
    if isinstance(value, str):
        renamed = rename(value)
        return value if renamed == value else renamed
    if isinstance(value, list):
        return map_items(value, lambda item: with_renamed(item, rename))
    if isinstance(value, dict):
        return map_members(value, lambda member: with_renamed(member, rename))
    return value


def with_renamed_meta(definition: Mapping[str, Any], keys: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a definition whose `_meta` names URIs as callers know them; the same object if it names none.

    Args:
        definition: Of a tool, a prompt, a resource or a template.
        keys: By the server's URI, ours.
    """
    if not keys or (isinstance(definition, PackedDefinition) and not definition.may_have("_meta")):
        return definition
    members = members_of(definition)
    meta = members.get("_meta")
    renamed = with_renamed(meta, lambda text: keys.get(text, text))
    return definition if renamed is meta else {**members, "_meta": renamed}
