"""Names and patterns of the configuration that nothing of a server answers to: most are slips."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final

from registry.catalog.filters import NameFilter
from registry.catalog.listing import ServerListing
from registry.catalog.shape import ServerShape
from registry.catalog.uri_spellings import denies_uri
from registry.intake.issues import ItemIssue
from registry.schema.json_paths import declared_properties

HIDES_NOTHING: Final = "hides_nothing"
"""The code of a name that was meant to hide something, and hides nothing: what it meant may be in view."""
NO_SUCH_TOOL: Final = "no_such_tool"
SELECTS_NOTHING: Final = "selects_nothing"
CODES: Final = frozenset({HIDES_NOTHING, NO_SUCH_TOOL, SELECTS_NOTHING})
# One or two wrong letters in a usual name, as elsewhere for misspelt keys.
_NEAR: Final = 0.6
_WILD: Final = frozenset("*?[")


def near_miss(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the most similar known name, or nothing."""
    by_folded = {one.casefold(): one for one in known}
    close = get_close_matches(word.casefold(), by_folded, n=1, cutoff=_NEAR)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def unmatched_names(listing: ServerListing, shape: ServerShape) -> tuple[ItemIssue, ...]:
    """Return an issue for each name or pattern that is configured for a server and matches nothing of it.

    Nothing is said before the server itself has listed: a snapshot may be older than a tool.
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
        return ()  # most servers
    # One that is held back exists all the same.
    tools = [*_texts(listing.tools, "name"), *(one.tool for one in listing.quarantined)]
    known = set(tools)
    issues = [
        ItemIssue(
            tool=tool,
            code=HIDES_NOTHING if tool in shape.hidden else NO_SUCH_TOOL,
            detail="the configuration names a tool that this server does not have" + near_miss(tool, tools),
        )
        for tool in sorted(shape.named - known)
    ]
    issues += _unmatched_patterns(listing, shape, tools)
    issues += _unmatched_defaults(listing, shape)
    return tuple(issues)


def _unmatched_patterns(listing: ServerListing, shape: ServerShape, tools: Collection[str]) -> Iterator[ItemIssue]:
    prompts = _texts(listing.prompts, "name")
    uris = [*_texts(listing.resources, "uri"), *_texts(listing.templates, "uriTemplate")]
    kinds: tuple[tuple[NameFilter, Collection[str], bool], ...] = (
        (shape.tools, tools, False),
        (shape.prompts, prompts, False),
        (shape.resources, uris, True),
    )
    for pattern in dict.fromkeys(pattern for filters, _, _ in kinds for pattern in filters.deny):
        # What is not listed can be read all the same: a pattern of URIs says nothing in vain for sure.
        if pattern in shape.resources.deny and ":" in pattern:
            continue
        meant = [(names, of_uris) for filters, names, of_uris in kinds if pattern in filters.deny]
        if any(_matches(pattern, names, of_uris) for names, of_uris in meant):
            continue
        near = near_miss(pattern, [name for names, _ in meant for name in names])
        # A pattern may be there for what a server may have one day; a name was meant for something that it has.
        code = SELECTS_NOTHING if _WILD & set(pattern) else HIDES_NOTHING
        yield ItemIssue(tool=pattern, code=code, detail=f"deny: {pattern} matches nothing of this server{near}")
    for pattern in shape.tools.allow:
        if pattern != "*" and not _matches(pattern, tools, False):
            detail = f"allow: {pattern} matches no tool of this server{near_miss(pattern, tools)}"
            yield ItemIssue(tool=pattern, code=SELECTS_NOTHING, detail=detail)


def _unmatched_defaults(listing: ServerListing, shape: ServerShape) -> Iterator[ItemIssue]:
    # One that is held back may have any.
    if not shape.defaults or listing.quarantined:
        return
    parameters = {
        name for tool in listing.tools for name in declared_properties(tool.get("inputSchema"), tool.get("inputSchema"))
    }
    parameters |= {argument.name for override in shape.overrides.values() for argument in override.arguments}
    for name in shape.defaults:
        if name not in parameters:
            detail = f"defaults: no tool of this server has a parameter {name}{near_miss(name, parameters)}"
            yield ItemIssue(tool=name, code=SELECTS_NOTHING, detail=detail)


def _matches(pattern: str, names: Collection[str], uris: bool) -> bool:
    if uris:
        return any(denies_uri(name, (pattern,)) for name in names)
    return any(fnmatchcase(name, pattern) for name in names)


def _texts(items: Iterable[Any], member: str) -> list[str]:
    return [text for item in items if isinstance(text := item.get(member), str)]
