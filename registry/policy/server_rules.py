"""The rules that may cover something of one server, looked up by the names of its tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from typing import Final

from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import NAME_SEPARATOR
from registry.policy.rules import Rule

_WILD: Final = re.compile(r"[*?]")
# Patterns that are tried as one: a tool that none of them matches is done with them at once.
_TOGETHER: Final = 64


class ServerRules:
    """Some rules, of which thousands may be about single tools: only those that a name leads to are looked at.

    Attributes:
        rules: All of them, in their order.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Index these rules."""
        self.rules = tuple(rules)
        self._always: list[int] = []
        self._by_name: dict[str, list[int]] = {}
        wild: list[tuple[str, int]] = []
        for at, rule in enumerate(self.rules):
            # What matches one kind of pattern has to match the other one too: either narrows.
            patterns = rule.what.wrappers if rule.what.wrappers is not None else rule.what.patterns
            parts = None if patterns is None else [pattern.rpartition(NAME_SEPARATOR)[2] for pattern in patterns]
            # In brackets a separator is none.
            if parts is None or patterns is None or "*" in parts or any("[" in pattern for pattern in patterns):
                self._always.append(at)
                continue
            for part in parts:
                if _WILD.search(part):
                    wild.append((translate(part), at))
                else:
                    self._by_name.setdefault(part, []).append(at)
        self._wild: list[tuple[re.Pattern[str], list[int]]] = [
            (re.compile("|".join(source for source, _ in some)), [at for _, at in some])
            for some in (wild[start : start + _TOGETHER] for start in range(0, len(wild), _TOGETHER))
        ]

    def __bool__(self) -> bool:
        return bool(self.rules)

    def about(self, wrapper: ToolWrapper) -> Iterator[Rule]:
        """Yield the rules that may cover a tool, in their order; each has to be asked whether it does."""
        # A pattern is about what stands behind its last separator, whichever of a tool's names that is an end of.
        names = {
            end
            for name in (wrapper.tool, wrapper.name)
            for end in (name, *(name[at + len(NAME_SEPARATOR) :] for at in _separators(name)))
        }
        found = set(self._always)
        for name in names:
            found.update(self._by_name.get(name, ()))
        for pattern, rules in self._wild:
            if any(pattern.match(name) for name in names):
                found.update(rules)
        return (self.rules[at] for at in sorted(found))


def _separators(name: str) -> Iterator[int]:
    at = name.find(NAME_SEPARATOR)
    while at >= 0:
        yield at
        at = name.find(NAME_SEPARATOR, at + 1)
