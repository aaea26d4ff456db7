"""Of the tools of real servers hardly one is flagged as instructing a model."""

from __future__ import annotations

import pytest
from corpus.wider import wider_listings

from registry.catalog.flagged import flagged_items
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.intake.tools import admit_tools

# One in a hundred: whoever is told of more stops reading.
MOST = 0.01


@pytest.mark.heavy
def test_at_most_one_in_a_hundred_tools_of_honest_servers_is_flagged() -> None:
    listings = {
        ServerName(server): ServerListing(
            server=ServerName(server), epoch=1, tools=admit_tools(tools, transport="stdio").items
        )
        for server, tools in wider_listings().items()
    }
    number = sum(len(listing.tools) for listing in listings.values())
    flagged = list(flagged_items(listings))
    print(f"{len(flagged)} of {number} tools of {len(listings)} servers:", *flagged, sep="\n  ")
    assert len(listings) >= 40
    assert len(flagged) <= MOST * number
