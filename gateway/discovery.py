"""An upstream's answer becomes a listing: each item is checked alone, lists that it leaves out stay as they were."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any, Final

import anyio

from gateway import wire
from gateway.secrets import SECRETS
from gateway.upstream.session import RawListing
from gateway.worker_thread import run_in_thread
from registry.catalog.hints import Hints, first_hints
from registry.catalog.listing import ListedItems, ServerListing
from registry.catalog.names import ServerName
from registry.catalog.store import Registry
from registry.catalog.unmatched import CODES as UNMATCHED
from registry.catalog.unmatched import HIDES_NOTHING
from registry.intake.issues import ItemIssue
from registry.intake.prompts_and_resources import ITEM_KEYS, admit_items
from registry.intake.tools import Transport, admit_tools
from registry.schema.display_text import clean
from registry.schema.packed_definition import PackedDefinition

log = logging.getLogger(__name__)

# Checking so many schemas takes some milliseconds; more is work for a thread: the loop has callers to serve.
INLINE_TOOLS: Final = 8
# Prompts and resources have no schemas: each takes some microseconds.
INLINE_ITEMS: Final = 200
# At a start all servers list at once, and a rule is often about several of them.
_SETTLED_S: Final = 1.0
# Of the items that one listing adds to the quarantine; `/admin/quarantine` has all of them.
_MAX_LOGGED: Final = 20


def listing_of(
    raw: RawListing,
    *,
    server: ServerName,
    epoch: int,
    transport: Transport,
    before: ServerListing | None,
    strict: bool = False,
    hints: Mapping[str, Hints] | None = None,
) -> ServerListing:
    """The listing that this answer makes of the one before it.

    Args:
        raw: The answer, unchecked; lists that it leaves out stay, unless the server no longer has such things. Long
            lists are used up.
        server: Whose.
        epoch: The number of the connection that it came on.
        transport: How it came; it decides what is done with unsound header annotations.
        before: The last listing of this server.
        strict: Whether tools are quarantined whose arguments cannot be checked.
        hints: Those that its tools were first listed with, where there is no listing before.
    """
    quarantined: list[ItemIssue] = []
    repaired: list[ItemIssue] = []
    items: dict[str, ListedItems] = {}
    # What was not asked for this time is taken from the listing before.
    if before is not None:
        items = {"prompts": before.prompts, "resources": before.resources, "resourceTemplates": before.templates}
    tools: ListedItems = before.tools if before else ()
    renewed = {"tools"} if raw.tools is not None else set()
    if raw.tools is not None:
        kept = _Kept(tools)
        intake = admit_tools(_one_by_one(raw.tools), transport=transport, strict=strict, keep=kept.keep)
        tools = kept.all_of(intake.items)
        quarantined += [*raw.refused, *intake.quarantined]
        repaired += [*raw.noted, *intake.repaired]
    for kind in ITEM_KEYS:
        if kind in raw.prompts_and_resources:
            admission = admit_items(_one_by_one(raw.prompts_and_resources[kind]), kind)
            quarantined += admission.quarantined
            repaired += admission.repaired
            # Equal items stay the same objects: what is memoised for them stays too.
            if admission.items != items.get(kind, ()):
                items[kind] = admission.items
        # Its request failed: the last good ones are better than none, as long as the server declares that it has some.
        elif ("prompts" if kind == "prompts" else "resources") in raw.capabilities:
            continue
        else:
            items[kind] = ()
        renewed.add(kind)
    _log_quarantined(quarantined, before, epoch=epoch, server=server)
    if before is not None:
        quarantined += [one for one in before.quarantined if one.kind not in renewed]
        repaired += [one for one in before.repaired if one.kind not in renewed]
    known = before.first_hints if before is not None else hints or {}
    # The same object where nothing changed, as for the items.
    same = before is not None and before.capabilities == raw.capabilities
    return ServerListing(
        server=server,
        epoch=epoch,
        tools=tools,
        prompts=items.get("prompts", ()),
        resources=items.get("resources", ()),
        templates=items.get("resourceTemplates", ()),
        capabilities=before.capabilities if before is not None and same else raw.capabilities,
        quarantined=tuple(quarantined),
        repaired=tuple(repaired),
        ttl_ms=raw.ttl_ms if raw.confirmed or before is None else before.ttl_ms,
        scope=raw.scope if raw.confirmed or before is None else before.scope,
        origin="live",
        stale=not raw.confirmed,
        transport=transport,
        instructions=_instructions(raw, before),
        first_hints=first_hints(tools, known),
    )


class _Kept:
    """What stays of definitions: the very objects of the listing before where they are written in the same way.

    What is built of a tool, or kept of it, then stays: most listings change nothing, or one tool of many.
    """

    def __init__(self, before: ListedItems) -> None:
        self._before = before
        self._known = {tool["name"]: tool for tool in before}

    def keep(self, tool: dict[str, Any]) -> Mapping[str, Any]:
        was, packed = self._known.get(tool["name"]), PackedDefinition.of(tool)
        return was if was is not None and PackedDefinition.of(was) == packed else packed

    def all_of(self, tools: ListedItems) -> ListedItems:
        before = self._before
        return before if len(tools) == len(before) and all(map(is_, tools, before)) else tools


def _log_quarantined(
    quarantined: list[ItemIssue], before: ServerListing | None, *, epoch: int, server: ServerName
) -> None:
    """Log what was not in quarantine before; a listing may be asked for every second."""
    known = frozenset(before.quarantined) if before is not None else frozenset()
    new = [finding for finding in quarantined if finding not in known]
    for finding in new[:_MAX_LOGGED]:
        extra = {"server": server, "tool": finding.tool, "epoch": epoch}
        log.warning("%s quarantined: %s", finding.kind, finding.code, extra=extra)
    if len(new) > _MAX_LOGGED:
        log.warning("%d more items quarantined", len(new) - _MAX_LOGGED, extra={"server": server, "epoch": epoch})


def is_short(raw: RawListing) -> bool:
    """Return whether an answer is checked within some milliseconds; a longer one is work for a thread."""
    others = [item for items in raw.prompts_and_resources.values() for item in items]
    return (
        (raw.tools is None or len(raw.tools) <= INLINE_TOOLS)
        and len(others) <= INLINE_ITEMS
        and wire.Unparsed not in map(type, others)
    )


def _one_by_one(items: list[Any]) -> Iterator[Any]:
    """Yield items without secrets. A long list is used up.

    Each is read when it is wanted, so that what stays of ten thousand definitions takes the room of those that are
    gone, and not as much again.
    """
    if len(items) <= INLINE_TOOLS:
        yield from SECRETS.scrub_descriptions(list(map(_read, items)))
        return
    written = wire.unparsed_each(items)
    written.reverse()
    while written:
        yield from SECRETS.scrub_descriptions([_read(written.pop())])


def _read(tool: Any) -> Any:
    try:
        return wire.parsed(tool)
    except wire.MalformedJson:
        # A number that no float can hold, in a list that was taken apart: infinite, for intake to refuse this tool.
        return json.loads(bytes(tool.text))


def _instructions(raw: RawListing, before: ServerListing | None) -> str | None:
    if not raw.confirmed and before is not None:
        return before.instructions
    return clean(raw.instructions) or None if raw.instructions else None


class VainSettings:
    """Logs once what is configured for a server and matches nothing of what it has listed."""

    def __init__(self) -> None:
        self._told: dict[str, set[ItemIssue]] = {}

    def tell(self, server: str, warnings: Iterable[ItemIssue]) -> None:
        """Log those of the warnings about a server that are new."""
        found = {one for one in warnings if one.code in UNMATCHED}
        for one in sorted(found - self._told.get(server, set()), key=lambda one: one.tool):
            # Whoever hides something believes from then on that it is hidden.
            level = logging.ERROR if one.code == HIDES_NOTHING else logging.WARNING
            log.log(level, "%s", one.detail, extra={"server": server, "tool": one.tool})
        self._told[server] = found


class VainRules:
    """Logs once what of the rules can never apply to what servers list, again after every change of a list."""

    def __init__(self, registry: Registry, unmatched: Callable[[], list[str]]) -> None:
        """Watch a registry.

        Args:
            registry: What servers list.
            unmatched: Returns a text for each rule, pattern and condition that nothing answers to.
        """
        self._unmatched = unmatched
        self._changed = anyio.Event()
        self._told: frozenset[str] = frozenset()
        registry.subscribe(lambda change: self.notice_change(), always=True)

    def notice_change(self) -> None:
        """Look again soon."""
        self._changed.set()

    async def run(self) -> None:
        """Log until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_SETTLED_S)
            self._changed = anyio.Event()
            found = await run_in_thread(self._unmatched)
            for text in found:
                if text not in self._told:
                    log.warning("policy: %s", text)
            self._told = frozenset(found)
