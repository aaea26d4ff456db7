"""Almost no tool of a real server is flagged as instructing a model."""

from __future__ import annotations

import pytest
from corpus.wider import wider_listings

from registry.catalog.listing import ServerListing, flagged_items
from registry.catalog.names import ServerName
from registry.intake.tool_intake import admit_tools

# One tool in a hundred: operators would ignore more frequent warnings.
MOST = 0.01


@pytest.mark.heavy
def test_at_most_one_percent_of_honest_tools_is_flagged() -> None:
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
