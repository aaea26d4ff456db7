"""Results of the list methods as bytes: serialised once for each view and protocol era."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from cachetools import LRUCache

from gateway import __version__, wire
from gateway.calls.builtin_tools import BUILTIN_PROMPTS, GATEWAY_TOOLS
from gateway.protocol import SERVER_INFO_KEY
from gateway.worker_thread import run_in_thread
from registry.catalog.catalog import handshake_definition
from registry.intake.prompts_and_resources import ItemKind
from registry.views.view import View

SERVER_INFO: Final = {"name": "typegate", "title": "typegate", "version": __version__}
DEFAULT_TTL_MS: Final = 60_000
"""How long a list may be cached where no upstream says: a minute, since changes are announced anyway."""

# For some dozens of profiles and groups of callers with the same rights; a list of a thousand tools takes a MiB.
_MAX_LISTS: Final = 256

# Definitions that are written within some milliseconds.
_MAX_WRITTEN_INLINE: Final = 200


class _Written(NamedTuple):
    """A result, and where in it each of its items is written."""

    result: bytes
    items: tuple[object, ...]
    starts: array[int]
    ends: array[int]

    def texts(self) -> dict[int, tuple[object, memoryview]]:
        """Each item with its text, by its id."""
        # An id is used again after its object is gone, so the object itself stands beside the text.
        whole, places = memoryview(self.result), zip(self.items, self.starts, self.ends, strict=True)
        return {id(item): (item, whole[start:end]) for item, start, end in places}


ListedKind = Literal["tools"] | ItemKind
LIST_METHODS: Final[dict[str, ListedKind]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


class ListResults:
    """Cached results of the list methods for the current views: one for each view, kind and era."""

    def __init__(self) -> None:
        # After a change only changed items are serialised.
        self._results: LRUCache[object, tuple[object, _Written]] = LRUCache(_MAX_LISTS)

    async def prepared(
        self, view: View, kind: ListedKind, *, modern: bool, shared: bool, found: tuple[str, ...] = ()
    ) -> bytes:
        """The whole result object, in one page; a long one is written aside, while calls go on.

        Args:
            view: What to list.
            kind: Which list.
            modern: For 2026-07-28; otherwise for the handshake era.
            shared: No key is asked for, so that caches may share the list between callers.
            found: Tools that a search of this session has found; they are listed after the others.
        """
        catalog = view.catalog
        listings = catalog.servers.values()
        ttl_ms = min((one.ttl_ms for one in listings if one.ttl_ms is not None), default=DEFAULT_TTL_MS)
        public = shared and all(one.scope == "public" for one in listings)
        # The digest and not the catalog: each re-listing replaces that, also where nothing listed has changed.
        digest = view.digest if kind == "tools" else catalog.prompts_and_resources.digests.get(kind)
        key = (digest, ttl_ms, public, found if kind == "tools" else None)
        name = (view.key, kind, modern)
        cached = self._results.get(name)
        if cached is not None and cached[0] == key:
            return cached[1].result
        rest: dict[str, Any] = {}
        if modern:
            rest = {
                "resultType": "complete",
                "ttlMs": ttl_ms,
                "cacheScope": "public" if public else "private",
                "_meta": {SERVER_INFO_KEY: SERVER_INFO},
            }
        write = partial(_written, view, kind, modern, found, cached[1] if cached is not None else None, rest)
        size = len(view.entries) if kind == "tools" else len(catalog.prompts_and_resources.items(kind))
        written = write() if size <= _MAX_WRITTEN_INLINE else await run_in_thread(write)
        if not found:  # what one session has searched for is no list of others
            self._results[name] = key, written
        return written.result


def _written(
    view: View,
    kind: ListedKind,
    modern: bool,
    found: tuple[str, ...],
    before: _Written | None,
    rest: dict[str, Any],
) -> _Written:
    known = before.texts() if before is not None else {}
    items = tuple(_items(view, kind, found))
    texts: list[bytes | memoryview] = []
    starts, ends = array("Q"), array("Q")
    head = b'{"%b":[' % kind.encode()
    at = len(head)
    for item in items:
        entry = known.get(id(item))
        if entry is None or entry[0] is not item:
            text = wire.fitted(wire.dumps(item if modern or kind != "tools" else handshake_definition(item)))
            entry = known[id(item)] = item, memoryview(text)
        texts.append(entry[1])
        starts.append(at)
        ends.append(at + len(entry[1]))
        at = ends[-1] + 1
    tail = b"," + wire.dumps(rest)[1:] if rest else b"}"
    return _Written(b"".join((head, b",".join(texts), b"]", tail)), items, starts, ends)


def _items(view: View, kind: ListedKind, found: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    if kind != "tools":
        if kind == "prompts":
            yield from BUILTIN_PROMPTS if view.grant.opens("prompts") else ()
        yield from (
            one.definition for one in view.catalog.prompts_and_resources.items(kind) if one.key != GATEWAY_TOOLS["name"]
        )
        return
    yield from view.builtin_tools
    for entry in view.entries:
        if entry.listed:
            yield entry.definition
    # At the end: what was listed before stays where it was, so that a host's cache of it holds.
    for name in found:
        if (found_entry := view.entry(name)) is not None:
            yield found_entry.definition
