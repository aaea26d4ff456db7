"""Known names that an unknown one may be meant for, found within a bound however many there are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from heapq import nlargest
from typing import Final

from gateway.errors import MAX_QUOTED_CHARS
from registry.catalog.names import NAME_SEPARATOR, normalized_name
from registry.schema.display_text import listed
from registry.views.view import View

# Suggestions for a misspelt name: a model picks among three; more would be the list that it already has.
MAX_SUGGESTIONS: Final = 3
# A configuration of more servers is rare, and their aliases are short.
_MAX_SERVERS: Final = 50
# Comparing two names takes some 30 us, on the event loop: 5 ms in all.
_MAX_COMPARED: Final = 150
# What difflib suggests itself.
_SIMILAR: Final = 0.6
# Hosts put a label of their own before each name, and some models keep it.
_LABELS: Final = re.compile(r"[^_.:/-]+")


def near_tools(view: View, name: str) -> list[str]:
    """Return the names of tools that an unknown name may be meant for, the nearest first."""
    if len(name) > MAX_QUOTED_CHARS:
        return []
    plain = _joined(name)
    names: list[str] = [wrapper.name for wrapper in view.catalog.wrappers]
    # The same but for case, separators and what a host has put before it.
    alike = [known for known in names if plain.endswith(_joined(known))]
    return alike[:MAX_SUGGESTIONS] or nearest(name, names)


def no_such_server(view: View, name: str) -> str:
    """Return that there is no server of this name, the one that may be meant, and all there are, as sentences."""
    servers = sorted(view.servers)
    by_plain = {normalized_name(server): server for server in servers}
    # Of a tool's whole name the part that says whose it is.
    near = nearest(normalized_name(name.partition(NAME_SEPARATOR)[0]), list(by_plain))
    hint = f" Did you mean '{by_plain[near[0]]}'?" if near else ""
    return f"there is no server '{name[:MAX_QUOTED_CHARS]}'.{hint} {named_servers(view)}"


def named_servers(view: View) -> str:
    """Return the servers that a caller has, as a sentence."""
    return f"Servers: {listed(sorted(view.servers), _MAX_SERVERS) or 'none'}."


def nearest(word: str, names: Sequence[str], *, cutoff: float = _SIMILAR) -> list[str]:
    """Return the most similar names, at most three; of many only those are compared that share parts with the word."""
    if len(word) > MAX_QUOTED_CHARS:
        return []
    if len(names) > _MAX_COMPARED:
        parts = list(dict.fromkeys(part for part in _LABELS.findall(word.casefold()) if len(part) > 1))
        first, length = word[:1], len(word)

        def likeness(name: str) -> int:
            shared = sum(len(part) for part in parts if part in name)
            return 2 * shared - abs(len(name) - length) + (2 if name[:1] == first else 0)

        names = nlargest(_MAX_COMPARED, names, key=likeness)
    return difflib.get_close_matches(word, names, n=MAX_SUGGESTIONS, cutoff=cutoff)


def _joined(name: str) -> str:
    return normalized_name(name).replace("_", "").replace(".", "")
