"""Convert a server's response into a listing, and check each item separately.

A listing is the tools, prompts, resources and skills that a server lists. An invalid item is quarantined: it is not
exposed, and the reason is recorded. Hints are the `annotations` of a tool, such as `readOnlyHint`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.protocol.extensions import SKILLS
from gateway.upstream.session import RawListing
from registry.catalog.listing import ListedItems, ServerListing
from registry.catalog.names import ServerName
from registry.catalog.overrides import Hints, first_hints, hints_of
from registry.intake.issues import ItemIssue
from registry.intake.item_intake import ITEM_KEYS, ItemKind, admit_items
from registry.intake.tool_intake import Transport, admit_tools
from registry.schema.display_text import clean
from registry.schema.packed_definition import PackedDefinition

log = logging.getLogger(__name__)

# Checking the schemas of this many tools takes a few milliseconds. More schemas are checked in a thread, so that the
# event loop stays responsive.
INLINE_TOOLS: Final = 8
# The same limit for prompts and resources, which have no schemas and take a few microseconds each.
INLINE_ITEMS: Final = 200
# How many quarantined items of a listing are logged; `/admin/quarantine` shows all of them.
_MAX_LOGGED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingSource:
    """The server and connection from which a listing was received.

    Attributes:
        epoch: The number of the connection. Each new connection of the server gets the next number.
        transport: The transport, which decides how invalid `x-mcp-header` annotations are handled.
        strict: Whether to quarantine tools whose arguments cannot be checked.
    """

    server: ServerName
    epoch: int
    transport: Transport
    strict: bool = False


def listing_of(
    raw: RawListing,
    source: ListingSource,
    *,
    before: ServerListing | None,
    hints: Mapping[str, Hints] | None = None,
) -> ServerListing:
    """Return the new listing of a server, based on its response and the previous listing.

    Args:
        raw: The unchecked response. Lists that it omits are copied from `before`, as long as the server declares them.
            This function empties long lists in it to free memory.
        before: The previous listing of this server.
        hints: The hints that tools had when they were first listed; used if there is no previous listing.
    """
    server, transport, strict = source.server, source.transport, source.strict
    quarantined: list[ItemIssue] = []
    repaired: list[ItemIssue] = []
    items: dict[str, ListedItems] = {}
    # Lists that were not requested this time come from the previous listing.
    if before is not None:
        items = {
            "prompts": before.prompts,
            "resources": before.resources,
            "resourceTemplates": before.templates,
            "skills": before.skills,
        }
    tools: ListedItems = before.tools if before else ()
    renewed = {"tools"} if raw.tools is not None else set()
    read: Mapping[str, Hints] = {}
    if raw.tools is not None:
        definitions = _KnownDefinitions(tools)
        intake = admit_tools(_parsed_items(raw.tools), transport=transport, strict=strict, keep=definitions.reuse)
        tools = definitions.all_of(intake.items)
        read = definitions.hints
        quarantined += [*raw.refused, *intake.quarantined]
        repaired += [*raw.noted, *intake.repaired]
    for kind in ITEM_KEYS:
        if kind in raw.prompts_and_resources:
            admission = admit_items(_parsed_items(raw.prompts_and_resources[kind]), kind)
            quarantined += admission.quarantined
            repaired += admission.repaired
            # Equal items remain the same objects, so that values memoized for them remain valid.
            if admission.items != items.get(kind, ()):
                items[kind] = admission.items
        # The list request has failed: keep the last good items as long as the server declares the capability.
        elif _declares(raw.capabilities, kind):
            continue
        else:
            items[kind] = ()
        renewed.add(kind)
    _log_quarantined(quarantined, before, epoch=source.epoch, server=server)
    if before is not None:
        quarantined += [issue for issue in before.quarantined if issue.kind not in renewed]
        repaired += [issue for issue in before.repaired if issue.kind not in renewed]
    earlier_hints = before.first_hints if before is not None else hints or {}
    # If the capabilities are equal, keep the same object, for the same reason as above.
    same = before is not None and before.capabilities == raw.capabilities
    return ServerListing(
        server=server,
        epoch=source.epoch,
        tools=tools,
        prompts=items.get("prompts", ()),
        resources=items.get("resources", ()),
        templates=items.get("resourceTemplates", ()),
        skills=items.get("skills", ()),
        capabilities=before.capabilities if before is not None and same else raw.capabilities,
        quarantined=tuple(quarantined),
        repaired=tuple(repaired),
        ttl_ms=raw.ttl_ms if raw.confirmed or before is None else before.ttl_ms,
        scope=raw.scope if raw.confirmed or before is None else before.scope,
        origin="live",
        stale=not raw.confirmed,
        transport=transport,
        instructions=_instructions(raw, before),
        first_hints=first_hints(tools, earlier_hints, read),
    )


def _declares(capabilities: Mapping[str, Any], kind: ItemKind) -> bool:
    if kind == "skills":
        extensions = capabilities.get("extensions")
        return isinstance(extensions, dict) and SKILLS in extensions
    return ("prompts" if kind == "prompts" else "resources") in capabilities


class _KnownDefinitions:
    """Replaces unchanged definitions with the objects of the previous listing.

    Values that are cached for these objects then remain valid. Most listings change no tool or a single one.

    Attributes:
        hints: The hints of each definition in the new listing, by tool name. They are stored here, because a packed
            definition would have to be parsed again.
    """

    def __init__(self, before: ListedItems) -> None:
        self._before = before
        self._known = {tool["name"]: tool for tool in before}
        self.hints: dict[str, Hints] = {}

    def reuse(self, tool: dict[str, Any]) -> Mapping[str, Any]:
        self.hints[tool["name"]] = hints_of(tool.get("annotations"))
        previous, packed = self._known.get(tool["name"]), PackedDefinition.pack(tool)
        return previous if previous is not None and PackedDefinition.pack(previous) == packed else packed

    def all_of(self, tools: ListedItems) -> ListedItems:
        before = self._before
        return before if len(tools) == len(before) and all(map(is_, tools, before)) else tools


def _log_quarantined(
    quarantined: list[ItemIssue], before: ServerListing | None, *, epoch: int, server: ServerName
) -> None:
    """Log only items that were not in quarantine before, because a server may send a listing every second."""
    earlier = frozenset(before.quarantined) if before is not None else frozenset()
    new = [finding for finding in quarantined if finding not in earlier]
    for finding in new[:_MAX_LOGGED]:
        extra = {"server": server, "tool": finding.tool, "epoch": epoch}
        log.warning("%s quarantined: %s", finding.kind, finding.code, extra=extra)
    if len(new) > _MAX_LOGGED:
        log.warning("%d more items quarantined", len(new) - _MAX_LOGGED, extra={"server": server, "epoch": epoch})


def is_short(raw: RawListing) -> bool:
    """Return whether checking a response takes only a few milliseconds. Longer responses are checked in a thread."""
    other_items = [item for items in raw.prompts_and_resources.values() for item in items]
    return (
        (raw.tools is None or len(raw.tools) <= INLINE_TOOLS)
        and len(other_items) <= INLINE_ITEMS
        and json_bytes.UnparsedJson not in map(type, other_items)
    )


def _parsed_items(items: list[Any]) -> Iterator[Any]:
    """Yield the parsed items, with secrets in descriptions redacted. This empties a long list.

    The items of a long list are parsed one at a time, so that each can use the memory freed by earlier items.
    """
    if len(items) <= INLINE_TOOLS:
        yield from SECRETS.scrub_descriptions(list(map(_parse_item, items)))
        return
    unparsed = json_bytes.unparsed_each(items)
    unparsed.reverse()
    while unparsed:
        yield from SECRETS.scrub_descriptions([_parse_item(unparsed.pop())])


def _parse_item(tool: Any) -> Any:
    try:
        return json_bytes.parsed(tool)
    except json_bytes.MalformedJson:
        # A number does not fit into a float. The standard parser reads the number as infinity, for which `admit_tools`
        # rejects the tool.
        return json.loads(bytes(tool.text))


def _instructions(raw: RawListing, before: ServerListing | None) -> str | None:
    if not raw.confirmed and before is not None:
        return before.instructions
    return clean(raw.instructions) or None if raw.instructions else None
