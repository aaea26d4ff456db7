"""Items whose texts seem to instruct a model, over the listings of all servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from registry.catalog.listing import ServerListing
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.intake.injection import THRESHOLD, Suspicion, suspicion_of, texts_of
from registry.intake.prompts_and_resources import ITEM_KEYS

# Where one word of a name is a common one, only a whole name of some length is taken for another tool's.
_SHORTEST_NAME: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Flagged:
    """One item.

    Attributes:
        kind: The kind of item, as its list is called on the wire; `instructions` for those of the server.
        name: What identifies it.
    """

    server: ServerName
    kind: str
    name: str
    suspicion: Suspicion


def flagged_items(listings: Mapping[ServerName, ServerListing]) -> Iterator[Flagged]:
    """Yield every item whose score reaches the threshold; it takes a while, so not where calls wait."""
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

        items = [("tools", str(one.get("name")), one) for one in listing.tools]
        kinds = {"prompts": listing.prompts, "resources": listing.resources, "resourceTemplates": listing.templates}
        items += [(kind, str(one.get(ITEM_KEYS[kind])), one) for kind in ITEM_KEYS for one in kinds[kind]]
        if listing.instructions:
            items.append(("instructions", "", {"instructions": listing.instructions}))
        for kind, name, definition in items:
            suspicion = suspicion_of(texts_of(definition), is_of_others)
            if suspicion.score >= THRESHOLD:
                yield Flagged(server=server, kind=kind, name=name, suspicion=suspicion)
