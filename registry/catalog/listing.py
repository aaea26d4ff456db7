"""The items that one server listed on one connection, their suspicious texts, and configured names without a match."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.overrides import Hints
from registry.catalog.shape import NameFilter, ServerShape
from registry.catalog.uris import denies_uri
from registry.intake.issues import THRESHOLD, ItemIssue, Suspicion, suspicion_of, texts_of
from registry.intake.item_intake import ITEM_KEYS, ItemKind
from registry.schema.json_paths import declared_properties

WHOLE_SERVER: Final = "server"
"""The key in `ServerListing.held` for a reason that concerns the whole server."""

# Fields that may have thousands of items.
_ITEMS: Final = frozenset(
    {"tools", "prompts", "resources", "templates", "skills", "quarantined", "repaired", "first_hints"}
)
# Tools, which make up most of a listing, are stored as `PackedDefinition`.
ListedItems = tuple[Mapping[str, Any], ...]
# `unstated`: the upstream's protocol version has no cache scopes (all versions with the `initialize` handshake). Shared
# caches treat `unstated` as `private`.
CacheScope = Literal["public", "private", "unstated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerListing:
    """The items that one upstream listed on one connection, as checked and repaired by `registry.intake`. Immutable.

    Attributes:
        epoch: The number of the connection; later connections have higher numbers.
        ttl_ms: How long the lists stay fresh according to the upstream, in milliseconds.
        scope: Whether the upstream allows its lists to be shared between callers.
        origin: `snapshot` until the server has answered for the first time since the gateway started.
        stale: True if the connection is lost. The tools stay listed until the next connection.
        instructions: The server's instructions to models.
        held: By kind and upstream name, why an item cannot be used until an operator approves it. Such a held item is
            listed with its last approved definition, or not at all if there is none. The kind `WHOLE_SERVER` holds the
            reason why no item of the server can be used.
        first_hints: The hints with which each tool was first listed or approved. Access rules use these hints if the
            current hints promise more, such as `readOnlyHint`.
    """

    server: ServerName
    epoch: int
    tools: ListedItems
    prompts: ListedItems = ()
    resources: ListedItems = ()
    templates: ListedItems = ()
    skills: ListedItems = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    quarantined: tuple[ItemIssue, ...] = ()
    repaired: tuple[ItemIssue, ...] = ()
    ttl_ms: int | None = None
    scope: CacheScope = "public"
    origin: Literal["live", "snapshot"] = "live"
    stale: bool = False
    transport: Literal["stdio", "http"] = "stdio"
    instructions: str | None = None
    held: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    first_hints: Mapping[str, Hints] = field(default_factory=dict)

    def is_equal_to(self, other: ServerListing) -> bool:
        """Return whether two listings are equal; large fields are compared by identity."""
        if self is other:
            return True
        return all(
            mine is theirs or (name not in _ITEMS and mine == theirs)
            for name in self.__slots__
            for mine, theirs in ((getattr(self, name), getattr(other, name)),)
        )

    def listing_key(self, other: ServerListing) -> bool:
        """Return whether two listings contain the same item objects; their other fields may differ."""
        return all(
            getattr(self, name) is getattr(other, name)
            for name in ("tools", "prompts", "resources", "templates", "skills")
        )


# A shorter tool name may be a common word, so it is not reported as a mention of another server's tool.
_SHORTEST_NAME: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Flagged:
    """One suspicious item.

    Attributes:
        kind: The kind of item, named like its list in the protocol; `instructions` for the server's instructions.
        name: The name or URI of the item.
    """

    server: ServerName
    kind: str
    name: str
    suspicion: Suspicion


def flagged_items(listings: Mapping[ServerName, ServerListing]) -> Iterator[Flagged]:
    """Yield every item whose suspicion score reaches the threshold. This is slow, so calls must not wait for it."""
    owners: dict[str, set[str]] = {}
    for server, listing in listings.items():
        for tool in listing.tools:
            name = str(tool.get("name"))
            if len(name) >= _SHORTEST_NAME:
                owners.setdefault(name, set()).add(server)
            owners.setdefault(f"{server}{NAME_SEPARATOR}{name}", set()).add(server)
    for server, listing in listings.items():

        def is_of_others(word: str, server: str = server) -> bool:
            having = owners.get(word)
            return having is not None and server not in having

        items = [("tools", str(tool.get("name")), tool) for tool in listing.tools]
        kinds: dict[ItemKind, ListedItems] = {
            "prompts": listing.prompts,
            "resources": listing.resources,
            "resourceTemplates": listing.templates,
            "skills": listing.skills,
        }
        items += [(kind, str(item.get(ITEM_KEYS[kind])), item) for kind in ITEM_KEYS for item in kinds[kind]]
        if listing.instructions:
            items.append(("instructions", "", {"instructions": listing.instructions}))
        harmless: set[str] = set()
        for kind, name, definition in items:
            suspicion = suspicion_of(texts_of(definition), is_of_others, harmless)
            if suspicion.score >= THRESHOLD:
                yield Flagged(server=server, kind=kind, name=name, suspicion=suspicion)


HIDES_NOTHING: Final = "hides_nothing"
"""The code for a name that should hide an item but matches none, so the intended item may be visible."""
NO_SUCH_TOOL: Final = "no_such_tool"
SELECTS_NOTHING: Final = "selects_nothing"
CODES: Final = frozenset({HIDES_NOTHING, NO_SUCH_TOOL, SELECTS_NOTHING})
# Similarity that tolerates one or two wrong letters in a typical name; the same value is used for misspelt
# configuration keys.
_NEAR: Final = 0.6
_WILD: Final = frozenset("*?[")


def suggestion_for(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean …?` with the most similar known name, or an empty string."""
    by_folded = {name.casefold(): name for name in names}
    close = get_close_matches(word.casefold(), by_folded, n=1, cutoff=_NEAR)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def unmatched_names(listing: ServerListing, shape: ServerShape) -> tuple[ItemIssue, ...]:
    """Return an issue for each configured name or pattern that matches no item of its server.

    A listing from a snapshot gives no issues, because the snapshot may be older than a configured tool.
    """
    if listing.origin != "live":
        return ()
    if (
        not shape.named
        and not shape.defaults
        and shape.tools.is_open
        and shape.prompts.is_open
        and shape.resources.is_open
    ):
        return ()  # fast path: most servers have no such configuration
    # The server also has the tools that the gateway left out of the listing as unusable (quarantined).
    tools = [*_texts(listing.tools, "name"), *(issue.tool for issue in listing.quarantined)]
    tool_names = set(tools)
    issues = [
        ItemIssue(
            tool=tool,
            code=HIDES_NOTHING if tool in shape.hidden else NO_SUCH_TOOL,
            detail="the configuration names a tool that this server does not have" + suggestion_for(tool, tools),
        )
        for tool in sorted(shape.named - tool_names)
    ]
    issues += _unmatched_patterns(listing, shape, tools)
    issues += _unmatched_defaults(listing, shape)
    return tuple(issues)


def _unmatched_patterns(listing: ServerListing, shape: ServerShape, tools: Collection[str]) -> Iterator[ItemIssue]:
    prompts = _texts(listing.prompts, "name")
    uris = [*_texts((*listing.resources, *listing.skills), "uri"), *_texts(listing.templates, "uriTemplate")]
    kinds: tuple[tuple[NameFilter, Collection[str], bool], ...] = (
        (shape.tools, tools, False),
        (shape.prompts, prompts, False),
        (shape.resources, uris, True),
    )
    for pattern in dict.fromkeys(pattern for filters, _, _ in kinds for pattern in filters.deny):
        # Unlisted URIs can be read too, so a URI pattern without a match is not necessarily a mistake.
        if pattern in shape.resources.deny and ":" in pattern:
            continue
        concerned = [(names, of_uris) for filters, names, of_uris in kinds if pattern in filters.deny]
        if any(_matches(pattern, names, of_uris) for names, of_uris in concerned):
            continue
        near = suggestion_for(pattern, [name for names, _ in concerned for name in names])
        # A pattern may be meant for future items, but a name is meant for an existing item.
        code = SELECTS_NOTHING if _WILD & set(pattern) else HIDES_NOTHING
        yield ItemIssue(tool=pattern, code=code, detail=f"deny: {pattern} matches nothing of this server{near}")
    for pattern in shape.tools.allow:
        if pattern != "*" and not _matches(pattern, tools, False):
            detail = f"allow: {pattern} matches no tool of this server{suggestion_for(pattern, tools)}"
            yield ItemIssue(tool=pattern, code=SELECTS_NOTHING, detail=detail)


def _unmatched_defaults(listing: ServerListing, shape: ServerShape) -> Iterator[ItemIssue]:
    # The parameters of quarantined tools are not known here.
    if not shape.defaults or listing.quarantined:
        return
    parameters = {
        name for tool in listing.tools for name in declared_properties(tool.get("inputSchema"), tool.get("inputSchema"))
    }
    parameters |= {argument.name for override in shape.overrides.values() for argument in override.arguments}
    for name in shape.defaults:
        if name not in parameters:
            detail = f"defaults: no tool of this server has a parameter {name}{suggestion_for(name, parameters)}"
            yield ItemIssue(tool=name, code=SELECTS_NOTHING, detail=detail)


def _matches(pattern: str, names: Collection[str], uris: bool) -> bool:
    if uris:
        return any(denies_uri(name, (pattern,)) for name in names)
    return any(fnmatchcase(name, pattern) for name in names)


def _texts(items: Iterable[Any], member: str) -> list[str]:
    return [text for item in items if isinstance(text := item.get(member), str)]
