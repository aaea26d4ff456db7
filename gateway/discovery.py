"""An upstream's answer becomes a listing: each item is checked alone, lists that it leaves out stay as they were."""

from __future__ import annotations

import logging
from typing import Final

from gateway.secrets import SECRETS
from gateway.upstream.session import RawListing
from registry.catalog.listing import ListedItems, ServerListing
from registry.catalog.names import ServerName
from registry.intake.issues import ItemIssue
from registry.intake.prompts_and_resources import ITEM_KEYS, admit_items
from registry.intake.tools import Transport, admit_tools

log = logging.getLogger(__name__)

# Checking so many schemas takes some milliseconds; more is work for a thread: the loop has callers to serve.
INLINE_TOOLS: Final = 8


def listing_of(
    raw: RawListing, *, server: ServerName, epoch: int, transport: Transport, before: ServerListing | None
) -> ServerListing:
    """The listing that this answer makes of the one before it.

    Args:
        raw: The answer, unchecked; lists that it leaves out stay, unless the server no longer has such things.
        server: Whose.
        epoch: The number of the connection that it came on.
        transport: How it came; it decides what is done with unsound header annotations.
        before: The last listing of this server.
    """
    quarantined: list[ItemIssue] = []
    repaired: list[ItemIssue] = []
    items: dict[str, ListedItems] = {}
    # What was not asked for this time is taken from the listing before.
    if before is not None:
        items = {"prompts": before.prompts, "resources": before.resources, "resourceTemplates": before.templates}
    tools = before.tools if before else ()
    renewed = {"tools"} if raw.tools is not None else set()
    if raw.tools is not None:
        intake = admit_tools(SECRETS.scrub_descriptions(raw.tools), transport=transport)
        tools = intake.items
        quarantined += [*raw.refused, *intake.quarantined]
        repaired += [*raw.noted, *intake.repaired]
    for kind in ITEM_KEYS:
        if kind in raw.prompts_and_resources:
            admission = admit_items(SECRETS.scrub_descriptions(raw.prompts_and_resources[kind]), kind)
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
    for finding in quarantined:
        extra = {"server": server, "tool": finding.tool, "epoch": epoch}
        log.warning("%s quarantined: %s", finding.kind, finding.code, extra=extra)
    if before is not None:
        quarantined += [one for one in before.quarantined if one.kind not in renewed]
        repaired += [one for one in before.repaired if one.kind not in renewed]
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
        ttl_ms=raw.ttl_ms if raw.tools is not None or before is None else before.ttl_ms,
        scope=raw.scope if raw.tools is not None or before is None else before.scope,
        origin="live",
        stale=not raw.confirmed,
        transport=transport,
    )
