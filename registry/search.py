"""Rank wrappers for a query."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.texts import words


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One match: its wrapper's name and how well it fits; more is better."""

    name: str
    score: float


class SearchIndex:
    """An index over definitions as they are shown; never changed after it is built."""

    def __init__(
        self, definitions: Iterable[Mapping[str, Any]], *, synonyms: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE VIRTUAL TABLE tools USING fts5(name UNINDEXED, words, text, tokenize='porter')")
        rows = [(str(one.get("name")), words(str(one.get("name"))), str(one.get("description"))) for one in definitions]
        self._database.executemany("INSERT INTO tools VALUES (?, ?, ?)", rows)

    def search(self, query: str, limit: int) -> list[Hit]:
        """The best matches, best first."""
        terms = [word for word in words(query[:1000]).split() if word.isalnum()][:32]
        if not terms:
            return []
        match = " OR ".join(f'"{term}"' for term in terms)
        rows = self._database.execute(
            "SELECT name, bm25(tools, 0, 4, 1) FROM tools WHERE tools MATCH ? ORDER BY 2, 1 LIMIT ?", (match, limit)
        )
        return [Hit(name=name, score=-score) for name, score in rows]
