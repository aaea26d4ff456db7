"""Rank tools for a query: BM25 over weighted fields, with stems, synonyms and a say for each word of a tool's name.

The index is plain Python values, so that it can be shared by threads, needs nothing compiled into an interpreter, and
lets a synonym count less than the word itself. A word of the query and all that may stand for it count once for
each tool, by what fits best. In the end a tool whose name is wholly in the query goes before one whose name says
more than was asked for, since siblings differ in one word; and so do the tools of a server that the query names.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, islice, pairwise
from math import log
from typing import Any, Final, Protocol

from registry.catalog.names import SEPARATOR
from registry.search.stemming import stem
from registry.search.terms import STOP_WORDS, folded, terms, words
from registry.search.thesaurus import Expansions, configured, general, merged

_QUERY_CHARS: Final = 4_096
_QUERY_WORDS: Final = 48
_DESCRIPTION_CHARS: Final = 4_000
_LEAD_CHARS: Final = 240
_ARGUMENTS: Final = 100
_ARGUMENT_CHARS: Final = 200
_VALUES: Final = 20
_VALUE_CHARS: Final = 40
_FIELD_TERMS: Final = 400
_HIT_LIMIT: Final = 1_000

# How much one mention in each field counts, and how much a long field lessens it: the name, the title, the server,
# the beginning of the description, its rest, the names of arguments, what is said about them. Tuned over half of
# the queries of `tests/bench/bench_search.py`, where none of them matters much.
_WEIGHTS: Final = (4.0, 1.5, 4.0, 6.0, 0.3, 1.0, 0.7)
_LENGTHS: Final = (0.7, 0.3, 0.5, 0.7, 0.3, 0.5, 0.5)
_SERVER: Final = 2
_SATURATION: Final = 3.0
# A tool's score grows by so much when all words of its name are asked for.
_COVERAGE: Final = 1.2
# To read is meant where nothing is said of what to do.
_READING: Final = 0.2
_ASSUMED: Final = dict.fromkeys(("get", "list", "retriev", "read", "fetch"), _READING)
# A tool's score grows by so much when the query has a word that is the name of its server and nothing else.
_HOME: Final = 1.0
# What counts for a word that no tool has: its beginning, its halves, a word one letter away.
_COMPLETED: Final = 0.4
_MISSPELT: Final = 0.5
_COMPLETIONS: Final = 8
_GUESSES: Final = 12
_SHORTEST_GUESS: Final = 4
_COMPOUND: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_LAST: Final = chr(0x10FFFF)


class Described(Protocol):
    """What has a definition: a tool of a server."""

    @property
    def server(self) -> str:
        """The alias of its server."""

    @property
    def tool(self) -> str:
        """The name that its upstream gave it."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition as it is shown."""


class Tool(Described, Protocol):
    """What is searched: a wrapper, or whatever else has a name and a definition."""

    @property
    def name(self) -> str:
        """The name that a caller would call."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer; a greater score is a better one, and scores of different queries cannot be compared."""

    name: str
    score: float


class SearchIndex:
    """An index over the tools of one view, which never changes; another view has another index."""

    __slots__ = ("_expansions", "_homes", "_named", "_names", "_owned", "_postings", "_vocabulary")

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        synonyms: Mapping[str, Sequence[str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        thesaurus: bool = True,
    ) -> None:
        """Read every tool once.

        Args:
            tools: What can be found, as it is shown.
            synonyms: Words, and what else they are called here, both ways.
            aliases: Further words for a server, such as its display name.
            thesaurus: Whether the general synonyms count besides those given.
        """
        table: Expansions = general() if thesaurus else {}
        self._expansions = merged(table, configured(synonyms)) if synonyms else table
        read = [_fields(tool, aliases or {}) for tool in tools]
        self._names = tuple(name for name, _, _ in read)
        self._named = tuple(tuple(dict.fromkeys(of_name)) for _, of_name, _ in read)
        self._postings = _postings([fields for _, _, fields in read])
        self._homes = tuple(tuple(fields[_SERVER]) for _, _, fields in read)
        homes = Counter(chain.from_iterable(self._homes))
        self._owned = {term: count / len(self._postings[term]) for term, count in homes.items()}
        self._vocabulary = sorted(self._postings)

    def __len__(self) -> int:
        return len(self._names)

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """Return the best tools for a query, best first; no query is wrong, some find nothing.

        Args:
            query: Plain words, in any form; nothing in it is syntax. What is longer than anyone asks is cut.
            limit: How many at most.
        """
        groups = self._groups(query)
        if not groups or limit < 1:
            return []
        count = len(self._names)
        scores: dict[int, float] = {}
        for group in groups:
            fits: dict[int, float] = {}
            reach = 0.0
            for term, weight in group.items():
                found = self._postings.get(term, ())
                reach += weight * len(found)
                for tool, impact in found:
                    value = weight * impact
                    if value > fits.get(tool, 0.0):
                        fits[tool] = value
            rarity = log(1 + (count + 1) / (min(reach, count) + 0.5))
            for tool, value in fits.items():
                scores[tool] = scores.get(tool, 0.0) + rarity * value
        wanted = dict(_ASSUMED)
        for group in groups:
            for term, weight in group.items():
                wanted[term] = max(wanted.get(term, 0.0), weight)
        hits = (Hit(self._names[tool], round(score * self._meant(tool, wanted), 6)) for tool, score in scores.items())
        return nsmallest(min(limit, _HIT_LIMIT), hits, key=lambda hit: (-hit.score, hit.name))

    def _meant(self, tool: int, wanted: Mapping[str, float]) -> float:
        """Return what it is worth that the name's words were asked for, and that the server was named."""
        named = self._named[tool]
        covered = sum(wanted.get(word, 0.0) for word in named) / max(len(named), 1)
        at_home = max((self._owned[term] for term in self._homes[tool] if wanted.get(term) == 1.0), default=0.0)
        return (1.0 + _COVERAGE * covered) * (1.0 + _HOME * at_home)

    def _groups(self, query: str) -> list[dict[str, float]]:
        """Return for each word or phrase of a query the terms that may stand for it, and how much each counts."""
        asked = list(islice(self._asked(query[:_QUERY_CHARS]), _QUERY_WORDS))
        said = [stem(word) for word in asked]
        groups: dict[tuple[str, ...], dict[str, float]] = {}
        silent = STOP_WORDS if not STOP_WORDS.issuperset(asked) else frozenset()
        guesses = 0
        for at, (word, term) in enumerate(zip(asked, said, strict=True)):
            for end in (at + 2, at + 3):
                phrase = tuple(said[at:end])
                group = dict(self._expansions.get(phrase, {}))
                joined = stem("".join(asked[at:end]))
                if joined in self._postings and not silent.issuperset(asked[at:end]):
                    group[joined] = 1.0
                if group and end <= len(said):
                    groups[phrase] = group
            if word in silent:
                continue
            groups[(term,)] = {term: 1.0, **self._expansions.get((term,), {})}
            if term not in self._postings and (term,) not in self._expansions and guesses < _GUESSES:
                guesses += 1
                groups[(term,)] |= self._guessed(word, term)
        return list(groups.values())

    def _asked(self, query: str) -> Iterator[str]:
        """Give the words of a query; what was written as one stays one where a tool writes it so too."""
        for compound in _COMPOUND.findall(folded(query)):
            parts = [part for run in words(compound) for part in run]
            whole = "".join(parts)
            term = stem(whole)
            if len(parts) > 1 and term not in self._postings and (term,) not in self._expansions:
                yield from parts
            elif whole:
                yield whole

    def _guessed(self, word: str, term: str) -> dict[str, float]:
        """Return what may have been meant by a word that no tool has: its ends, its halves, or one like it."""
        if len(word) < _SHORTEST_GUESS:
            return {}
        begun = self._beginning(term)
        if begun:
            return dict.fromkeys(nsmallest(_COMPLETIONS, begun, key=lambda known: (len(known), known)), _COMPLETED)
        for at in range(3, len(word) - 2):
            halves = stem(word[:at]), stem(word[at:])
            if all(half in self._postings for half in halves):
                return dict.fromkeys(halves, _COMPLETED)
        if len(word) == _SHORTEST_GUESS:
            return {}
        near = (known for known in self._beginning(term[0]) if _one_letter_away(term, known))
        return dict.fromkeys(islice(near, _COMPLETIONS), _MISSPELT)

    def _beginning(self, start: str) -> list[str]:
        """Return the terms that begin so, in order."""
        first = bisect_left(self._vocabulary, start)
        return self._vocabulary[first : bisect_left(self._vocabulary, start + _LAST, first)]


def _fields(tool: Tool, aliases: Mapping[str, str]) -> tuple[str, list[str], list[list[str]]]:
    """Return a tool's name, the words of its name, and the terms of each of its fields."""
    definition = tool.definition
    of_server = list(dict.fromkeys(terms(f"{tool.server} {aliases.get(tool.server, '')}", _FIELD_TERMS)))
    called = tool.name.removeprefix(tool.server + SEPARATOR)
    plain = [word for parts in words(called) for word in parts]
    of_name = [stem(word) for word in plain if word not in STOP_WORDS] or [stem(word) for word in plain]
    distinct = [word for word in of_name if word not in of_server] or of_name
    joined = [stem(first + second) for first, second in pairwise(plain)]
    whole = [stem("".join(parts)) for parts in words(called) if len(parts) > 1]
    if called != tool.tool:
        joined += terms(tool.tool, _FIELD_TERMS)
    description = _text(definition.get("description"))[:_DESCRIPTION_CHARS]
    names, texts = _arguments(definition.get("inputSchema"))
    annotations = definition.get("annotations")
    title = _text(definition.get("title")) or _text(annotations.get("title") if isinstance(annotations, dict) else "")
    return (
        tool.name,
        distinct,
        [
            list(dict.fromkeys(distinct + joined + whole)),
            terms(title[:_LEAD_CHARS], _FIELD_TERMS, prose=True),
            of_server,
            terms(description[:_LEAD_CHARS], _FIELD_TERMS, prose=True),
            terms(description[_LEAD_CHARS:], _FIELD_TERMS, prose=True),
            terms(names, _FIELD_TERMS),
            terms(texts, _FIELD_TERMS, prose=True),
        ],
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(schema: object) -> tuple[str, str]:
    """Return the names of a schema's arguments, and what is said about them with the values they may have."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return "", ""
    names: list[str] = []
    texts: list[str] = []
    for name, one in list(properties.items())[:_ARGUMENTS]:
        names.append(str(name)[:_ARGUMENT_CHARS])
        if isinstance(one, dict):
            texts.append(_text(one.get("description"))[:_ARGUMENT_CHARS])
            values = one.get("enum")
            if isinstance(values, list):
                texts += [value[:_VALUE_CHARS] for value in values[:_VALUES] if isinstance(value, str)]
    return " ".join(names), " ".join(texts)[:_DESCRIPTION_CHARS]


def _postings(read: list[list[list[str]]]) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return for each term the tools that have it, and how much they are about it, from 0 to 1."""
    count = max(len(read), 1)
    means = [sum(len(fields[field]) for fields in read) / count or 1.0 for field in range(len(_WEIGHTS))]
    found: dict[str, list[tuple[int, float]]] = {}
    for tool, fields in enumerate(read):
        total: dict[str, float] = {}
        for field, of_field in enumerate(fields):
            if not of_field:
                continue
            long = _LENGTHS[field]
            unit = _WEIGHTS[field] / (1 - long + long * len(of_field) / means[field])
            for term in of_field:
                total[term] = total.get(term, 0.0) + unit
        for term, value in total.items():
            found.setdefault(term, []).append((tool, value / (_SATURATION + value)))
    return {term: tuple(tools) for term, tools in found.items()}


def _one_letter_away(one: str, other: str) -> bool:
    """Return whether one letter more, less, other or in its neighbour's place makes the one the other."""
    if abs(len(one) - len(other)) > 1 or one[:1] != other[:1] or one == other:
        return False
    at = 0
    while at < min(len(one), len(other)) and one[at] == other[at]:
        at += 1
    if len(one) == len(other):
        swapped = one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
        return swapped or one[at + 1 :] == other[at + 1 :]
    return one[at + 1 :] == other[at:] if len(one) > len(other) else one[at:] == other[at + 1 :]
