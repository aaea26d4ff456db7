"""Results of the list methods as bytes: serialised once for each view and protocol era."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final, Literal, NamedTuple

from cachetools import LRUCache

from gateway import __version__, wire
from gateway.calls.builtin_tools import BUILTIN_PROMPTS, GATEWAY_TOOLS
from gateway.memory import give_back
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
    """The beginning of a result up to the end of its items, and where in it each of them is written."""

    text: bytes
    items: tuple[object, ...]
    starts: array[int]
    ends: array[int]
    serves_both_eras: bool

    def texts(self) -> dict[int, tuple[object, memoryview]]:
        """Each item with its text, by its id."""
        # An id is used again after its object is gone, so the object itself stands beside the text.
        whole, places = memoryview(self.text), zip(self.items, self.starts, self.ends, strict=True)
        return {id(item): (item, whole[start:end]) for item, start, end in places}


ListedKind = Literal["tools"] | ItemKind
LIST_METHODS: Final[dict[str, ListedKind]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


class ListResults:
    """Cached results of the list methods for the current views: one for each view, kind and era.

    What is listed is kept once where it is the same in both eras, which nearly every list is.
    """

    def __init__(self) -> None:
        # After a change only changed items are serialised.
        self._lists: LRUCache[object, tuple[object, _Written]] = LRUCache(_MAX_LISTS)

    async def prepared(
        self, view: View, kind: ListedKind, *, modern: bool, shared: bool, found: tuple[str, ...] = ()
    ) -> wire.Pieces:
        """The whole result object, in one page; a long one is written aside, while calls go on.

        Args:
            view: What to list.
            kind: Which list.
            modern: For 2026-07-28; otherwise for the handshake era.
            shared: No key is asked for, so that caches may share the list between callers.
            found: Tools that a search of this session has found; they are listed after the others.
        """
        listed = await self._listed(view, kind, modern, found if kind == "tools" else ())
        if not modern:
            return listed, b"}"
        listings = view.catalog.servers.values()
        rest = {
            "resultType": "complete",
            "ttlMs": min((one.ttl_ms for one in listings if one.ttl_ms is not None), default=DEFAULT_TTL_MS),
            "cacheScope": "public" if shared and all(one.scope == "public" for one in listings) else "private",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        return listed, b"," + wire.dumps(rest)[1:]

    async def _listed(self, view: View, kind: ListedKind, modern: bool, found: tuple[str, ...]) -> bytes:
        # The digest and not the catalog: each re-listing replaces that, also where nothing listed has changed.
        digest = view.digest if kind == "tools" else view.catalog.prompts_and_resources.digests.get(kind)
        name, key = (view.key, kind, modern), (digest, found)
        cached, of_other_era = self._lists.get(name), self._lists.get((view.key, kind, not modern))
        if cached is not None and cached[0] == key:
            return cached[1].text
        if of_other_era is not None and of_other_era[0] == key and of_other_era[1].serves_both_eras:
            self._lists[name] = of_other_era
            return of_other_era[1].text
        write = partial(_written, view, kind, modern, found, cached[1] if cached is not None else None)
        size = len(view.entries) if kind == "tools" else len(view.catalog.prompts_and_resources.items(kind))
        written = write() if size <= _MAX_WRITTEN_INLINE else await run_in_thread(partial(_with_room, write))
        if not found:  # what one session has searched for is no list of others
            self._lists[name] = key, written
        return written.text


def _with_room(write: Callable[[], _Written]) -> _Written:
    """Write a long list, which leaves as much free behind it as it takes in the end."""
    written = write()
    give_back()
    return written


def _written(view: View, kind: ListedKind, modern: bool, found: tuple[str, ...], before: _Written | None) -> _Written:
    known = before.texts() if before is not None else {}
    items = tuple(_items(view, kind, found))
    starts, ends = array("Q"), array("Q")
    # Not joined from single texts: between ten thousand of them, what comes meanwhile and stays would leave holes.
    text = BytesIO()
    text.write(b'{"%b":[' % kind.encode())
    serves_both_eras = True
    for item in items:
        older = handshake_definition(item) if kind == "tools" else item
        serves_both_eras &= older is item
        entry = known.get(id(item))
        if entry is None or entry[0] is not item:
            entry = item, memoryview(wire.dumps(item if modern else older))
        if starts:
            text.write(b",")
        starts.append(text.tell())
        text.write(entry[1])
        ends.append(text.tell())
    text.write(b"]")
    return _Written(text.getvalue(), items, starts, ends, serves_both_eras)


def _items(view: View, kind: ListedKind, found: tuple[str, ...]) -> Iterable[Mapping[str, Any]]:
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
