"""Serialize and cache the results of `tools/list` and the other list methods.

MCP versions form two eras: the handshake era, up to 2025-11-25, and the modern version 2026-07-28. A tool definition
may have to be changed for callers of the handshake era.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final, Literal, NamedTuple

from cachetools import LRUCache

from gateway import __version__
from gateway.calls.builtin_tools import BUILTIN_PROMPTS, GATEWAY_TOOLS
from gateway.process.memory import return_memory
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.versions import SERVER_INFO_KEY
from registry.catalog.catalog import handshake_definition
from registry.intake.item_intake import ItemKind
from registry.views.view import View

SERVER_INFO: Final = {"name": "typegate", "title": "typegate", "version": __version__}
DEFAULT_TTL_MS: Final = 60_000
"""How long callers may cache a list if no upstream sets a time. It may be long, because changes are announced."""

# The maximum number of cached lists, enough for dozens of profiles and groups of callers with equal permissions. A list
# of a thousand tools takes 1 MiB.
_MAX_LISTS: Final = 256

# Lists with more items are serialized in a thread, because this takes more than a few milliseconds.
_MAX_WRITTEN_INLINE: Final = 200


class _RenderedList(NamedTuple):
    """The serialized beginning of a result, up to the end of its items.

    Attributes:
        starts, ends: The position of each item in `text`.
        serves_both_eras: True if the list is equal in both protocol eras.
    """

    text: bytes
    items: tuple[object, ...]
    starts: array[int]
    ends: array[int]
    serves_both_eras: bool

    def texts(self) -> dict[int, tuple[object, memoryview]]:
        """Return each item object with its serialized form, by the `id()` of the object."""
        # The item is included so that callers can compare it: an `id()` may be reused after its object is freed.
        full_text, places = memoryview(self.text), zip(self.items, self.starts, self.ends, strict=True)
        return {id(item): (item, full_text[start:end]) for item, start, end in places}


ListedKind = Literal["tools"] | ItemKind
LIST_METHODS: Final[dict[str, ListedKind]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "skills/list": "skills",
}


class ListResults:
    """Cache of list results, by view, kind and protocol era.

    A view is what callers with the same profile and permissions see. Nearly every list is equal in both eras, and such
    a list is stored once.
    """

    def __init__(self) -> None:
        # By view, kind and era: the state that the list was serialized from, and the list. After a change, only changed
        # items are serialized again.
        self._lists: LRUCache[object, tuple[object, _RenderedList]] = LRUCache(_MAX_LISTS)

    async def render_result(
        self, view: View, kind: ListedKind, *, modern: bool, shared: bool, found_names: tuple[str, ...] = ()
    ) -> json_bytes.Pieces:
        """Return the whole serialized result, which is a single page; a long list is serialized in a thread.

        Args:
            modern: Whether the caller uses MCP 2026-07-28.
            shared: Whether callers need no credentials, so that caches may share the list between callers.
            found_names: Names of unlisted tools that searches of this session have found; appended to the list.
        """
        listed = await self._cached_list(view, kind, modern, found_names if kind == "tools" else ())
        if not modern:
            return listed, b"}"
        listings = view.catalog.servers.values()
        envelope = {
            "resultType": "complete",
            "ttlMs": min(
                (listing.ttl_ms for listing in listings if listing.ttl_ms is not None), default=DEFAULT_TTL_MS
            ),
            "cacheScope": "public" if shared and all(listing.scope == "public" for listing in listings) else "private",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        return listed, b"," + json_bytes.dumps(envelope)[1:]

    async def _cached_list(self, view: View, kind: ListedKind, modern: bool, found_names: tuple[str, ...]) -> bytes:
        # Compare the digest, not the catalog object, which is replaced even if none of these items has changed.
        digest = view.digest if kind == "tools" else view.catalog.prompts_and_resources.digests.get(kind)
        name, key = (view.key, kind, modern), (digest, found_names)
        cached, of_other_era = self._lists.get(name), self._lists.get((view.key, kind, not modern))
        if cached is not None and cached[0] == key:
            return cached[1].text
        if of_other_era is not None and of_other_era[0] == key and of_other_era[1].serves_both_eras:
            self._lists[name] = of_other_era
            return of_other_era[1].text
        write = partial(_write_list, view, kind, modern, found_names, cached[1] if cached is not None else None)
        size = len(view.entries) if kind == "tools" else len(view.catalog.prompts_and_resources.items(kind))
        rendered = write() if size <= _MAX_WRITTEN_INLINE else await run_in_thread(partial(_write_and_trim, write))
        if not found_names:  # search results of one session are not cached
            self._lists[name] = key, rendered
        return rendered.text


def _write_and_trim(write: Callable[[], _RenderedList]) -> _RenderedList:
    """Serialize a long list, then return the freed memory to the system, which is as much as the list takes."""
    rendered = write()
    return_memory()
    return rendered


def _write_list(
    view: View, kind: ListedKind, modern: bool, found_names: tuple[str, ...], before: _RenderedList | None
) -> _RenderedList:
    earlier_texts = before.texts() if before is not None else {}
    items = tuple(_items(view, kind, found_names))
    starts, ends = array("Q"), array("Q")
    # Write to a buffer instead of joining strings: ten thousand strings and other allocations would fragment the heap.
    text = BytesIO()
    text.write(b'{"%b":[' % kind.encode())
    serves_both_eras = True
    for item in items:
        older = handshake_definition(item) if kind == "tools" else item
        serves_both_eras &= older is item
        entry = earlier_texts.get(id(item))
        if entry is None or entry[0] is not item:
            entry = item, memoryview(json_bytes.dumps(item if modern else older))
        if starts:
            text.write(b",")
        starts.append(text.tell())
        text.write(entry[1])
        ends.append(text.tell())
    text.write(b"]")
    return _RenderedList(text.getvalue(), items, starts, ends, serves_both_eras)


def _items(view: View, kind: ListedKind, found_names: tuple[str, ...]) -> Iterable[Mapping[str, Any]]:
    if kind != "tools":
        if kind == "prompts":
            yield from BUILTIN_PROMPTS if view.grant.opens("prompts") else ()
        yield from (
            item.definition
            for item in view.catalog.prompts_and_resources.items(kind)
            if item.key != GATEWAY_TOOLS["name"]
        )
        return
    yield from view.builtin_tools
    for entry in view.entries:
        if entry.listed:
            yield entry.definition
    # Append these tools, so that the earlier part of the list stays the same and a host's prompt cache remains valid.
    for name in found_names:
        if (found_entry := view.entry(name)) is not None:
            yield found_entry.definition
