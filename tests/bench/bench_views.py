"""Measure the tokens of lists by the number of tools, the disclosure and the dialect; run it as a program.

    python tests/bench/bench_views.py

The tools are those of real servers, in a fixed order; tokens are estimated (`registry.views.disclosure`).
"""

from __future__ import annotations

import sys
from itertools import chain, islice
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from corpus.further import all_listings

from gateway.calls.builtin_tools import SEARCH_TOOLS, always_listed
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import ServerShape, Shape
from registry.dialects.client_profiles import DIALECTS
from registry.intake.tool_intake import admit_tools
from registry.schema.schemas import compact_json
from registry.views.disclosure import estimate_tokens
from registry.views.profile import Disclosure, Profile
from registry.views.view import View, build_view

SIZES = (10, 50, 150, 600)
DISCLOSURES: tuple[Disclosure, ...] = ("eager", "auto", "lazy")


def view_of(size: int, profile: Profile) -> View:
    """Return the view of a profile on the first tools, taken from the servers in turn."""
    listings = {name: admit_tools(tools, transport="stdio").items for name, tools in all_listings().items()}
    longest = max(map(len, listings.values()))
    turns = ((name, tools[at]) for at in range(longest) for name, tools in sorted(listings.items()) if at < len(tools))
    chosen: dict[str, list[dict[str, object]]] = {}
    for name, tool in islice(turns, size):
        chosen.setdefault(name, []).append(tool)
    shape = Shape(servers={ServerName(name): ServerShape() for name in chosen})
    catalog = build_catalog(
        {ServerName(n): ServerListing(server=ServerName(n), epoch=1, tools=tuple(ts)) for n, ts in chosen.items()},
        shape,
        version=1,
    )
    return build_view(catalog, shape, profile, always_listed=always_listed(profile.dialect), search_tools=SEARCH_TOOLS)


def tokens(view: View) -> tuple[int, int]:
    """Return how many tools are listed, and what the list costs."""
    listed = list(chain(view.builtin_tools, (entry.definition for entry in view.entries if entry.listed)))
    return len(listed), sum(estimate_tokens(compact_json(one)) for one in listed)


def main() -> None:
    """Print one row for each dialect and disclosure, and one for what is narrower in each dialect."""
    print("tokens of a list (tools in it)" + "".join(f"{size:>18} tools" for size in SIZES))
    narrower: dict[str, list[int]] = {}
    for dialect in DIALECTS:
        for disclosure in DISCLOSURES:
            views = [view_of(size, Profile(dialect=dialect, disclosure=disclosure)) for size in SIZES]
            cells = map(tokens, views)
            print(f"{dialect:18}{disclosure:12}" + "".join(f"{cost:>17,} ({count:>3})" for count, cost in cells))
            narrower[dialect] = [sum(entry.lowered.narrower for entry in view.entries) for view in views]
    print("\ntools whose schema is narrower than the original" + "".join(f"{size:>10}" for size in SIZES))
    for dialect, counts in narrower.items():
        print(f"{dialect:48}" + "".join(f"{count:>10}" for count in counts))


if __name__ == "__main__":
    main()
