"""Results of the list methods as bytes: serialised once for each view and protocol era."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from gateway import __version__, wire
from gateway.calls.builtin_tools import BUILTIN_PROMPTS, GATEWAY_TOOLS
from gateway.protocol import SERVER_INFO_KEY
from registry.catalog.catalog import handshake_definition
from registry.intake.prompts_and_resources import ItemKind
from registry.views.view import View

SERVER_INFO: Final = {"name": "typegate", "title": "typegate", "version": __version__}
DEFAULT_TTL_MS: Final = 60_000
"""How long a list may be cached where no upstream says: a minute, since changes are announced anyway."""

ListedKind = Literal["tools"] | ItemKind
LIST_METHODS: Final[dict[str, ListedKind]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


class ListResults:
    """Cached results of the list methods for the current views: one for each profile, kind and era."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, ListedKind, bool], tuple[object, bytes]] = {}
        # Each item of the last list by the id of its definition: after a change only changed items are serialised.
        self._items: dict[tuple[str, ListedKind, bool], dict[int, tuple[object, bytes]]] = {}

    def result(self, view: View, kind: ListedKind, *, modern: bool, shared: bool, found: tuple[str, ...] = ()) -> bytes:
        """The whole result object, in one page.

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
        cached = self._results.get((view.profile.name, kind, modern))
        if cached is not None and cached[0] == key:
            return cached[1]
        rest: dict[str, Any] = {}
        if modern:
            rest = {
                "resultType": "complete",
                "ttlMs": ttl_ms,
                "cacheScope": "public" if public else "private",
                "_meta": {SERVER_INFO_KEY: SERVER_INFO},
            }
        items = b",".join(self._serialised_items(view, kind, modern, found))
        tail = b"," + wire.dumps(rest)[1:] if rest else b"}"
        result = b'{"' + kind.encode() + b'":[' + items + b"]" + tail
        if not found:  # what one session has searched for is no list of others
            self._results[view.profile.name, kind, modern] = (key, result)
        return result

    def _serialised_items(self, view: View, kind: ListedKind, modern: bool, found: tuple[str, ...]) -> Iterable[bytes]:
        name = (view.profile.name, kind, modern)
        before, now = self._items.get(name, {}), dict[int, tuple[object, bytes]]()
        for item in _items(view, kind, found):
            entry = before.get(id(item))
            # An id is used again after its object is gone, so the object itself is kept beside the bytes.
            if entry is None or entry[0] is not item:
                entry = (item, wire.dumps(item if modern or kind != "tools" else handshake_definition(item)))
            now[id(item)] = entry
            yield entry[1]
        if not found:
            self._items[name] = now


def _items(view: View, kind: ListedKind, found: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    if kind != "tools":
        if kind == "prompts":
            yield from BUILTIN_PROMPTS
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
