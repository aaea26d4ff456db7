"""Rank tools for a query: BM25 over weighted fields, with stems, synonyms, and a bonus for matching names.

The index is made of plain Python values, so that threads can share it, no database engine is needed, and a synonym can
count less than the word itself. A word of the query and everything that may stand for it count once for each tool, by
the best match. A tool whose whole name is in the query ranks above one whose name says more than was asked for, since
siblings differ in one word; tools of a server that the query names rank higher as well. Beside the words stands how
similar the query is to a tool as a whole.
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

from registry.catalog.names import NAME_SEPARATOR
from registry.schema.display_text import strip_accents
from registry.schema.packed_definition import members_of
from registry.search.fusion import BY_SENTENCES, BY_WORD_VECTORS, fuse_scores
from registry.search.neighbours import neighbours, read_neighbours
from registry.search.similarity import WordSimilarity
from registry.search.stemming import stem
from registry.search.terms import STOP_WORDS, split_words, terms
from registry.search.thesaurus import MAX_PHRASE_WORDS, Expansions, configured_expansions, general_expansions

# A query is a sentence or two; what is longer was pasted, and its beginning says what it is about.
_MAX_QUERY_CHARS: Final = 4_096
_MAX_QUERY_WORDS: Final = 48
# What is indexed of one tool. The longest description in `tests/corpus` has 6,549 characters and the most arguments
# are 55; further text adds terms that are about anything, and memory.
_MAX_DESCRIPTION: Final = 4_000
_LEAD_CHARS: Final = 240  # about the first two sentences, which say what a tool is for
_MAX_ARGUMENTS: Final = 100
_MAX_ARGUMENT_TEXT: Final = 200
_MAX_VALUES: Final = 20
_MAX_VALUE: Final = 40
_MAX_FIELD_TERMS: Final = 400
# More than any caller asks for: the list is sorted and held in memory.
_MAX_HITS: Final = 1_000

# All weights below were tuned with half of the queries of `tests/bench/bench_search.py`, where none matters much.
# The weight of a field, and how much the length of a field reduces it (`b` of BM25), for: name, title, server, the
# beginning of the description, its rest, names of arguments, their descriptions.
_FIELD_WEIGHTS: Final = (4.0, 1.5, 4.0, 6.0, 0.3, 1.0, 0.7)
_LENGTH_WEIGHTS: Final = (0.7, 0.3, 0.5, 0.7, 0.3, 0.5, 0.5)
_SERVER_FIELD: Final = 2
# Digits of a score: equal scores must be equal on every machine, whatever the order of additions.
_SCORE_DIGITS: Final = 6
# How soon repeating a term stops counting (`k1` of BM25).
_SATURATION: Final = 3.0
# A tool's score grows by this share if all words of its name are in the query.
_NAME_BONUS: Final = 1.2
# A query without a verb means reading, a little.
_READING_WEIGHT: Final = 0.2
_ASSUMED_TERMS: Final = dict.fromkeys(("get", "list", "retriev", "read", "fetch"), _READING_WEIGHT)
# A tool's score grows by this share if the query has a word that occurs in the name of its server only.
_SERVER_BONUS: Final = 1.0
# Weights of what is tried for a word that no tool has: words that begin with it, its halves, words one letter away.
_COMPLETION_WEIGHT: Final = 0.4
_CORRECTION_WEIGHT: Final = 0.5
# How many of these are tried for one word, and for how many words of a query: each scans a part of the vocabulary.
_MAX_GUESSES: Final = 8
_MAX_GUESSED_WORDS: Final = 12
# Shorter words have too many neighbours; each half of a compound has at least three letters.
_MIN_GUESSED_LENGTH: Final = 4
_MIN_HALF: Final = 3
_COMPOUND: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_LAST_CHARACTER: Final = chr(0x10FFFF)


class SearchableTool(Protocol):
    """What can be searched: a wrapper, or an entry of a view."""

    @property
    def name(self) -> str:
        """The name that callers use."""

    @property
    def server(self) -> str:
        """The alias of its server."""

    @property
    def tool(self) -> str:
        """The name that its upstream gave it."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition as it is shown."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One tool that was found. A greater score is better; scores of different queries cannot be compared."""

    name: str
    score: float


class SearchIndex:
    """An index over the tools of one view. It never changes; another view has another index."""

    __slots__ = (
        "_expansions",
        "_name_terms",
        "_neighbours",
        "_postings",
        "_server_shares",
        "_server_terms",
        "_similarity",
        "_tool_names",
        "_vocabulary",
    )

    def __init__(
        self,
        tools: Iterable[SearchableTool],
        *,
        synonyms: Mapping[str, Sequence[str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        thesaurus: bool = True,
        similar_words: bool = True,
    ) -> None:
        """Index the tools.

        Args:
            tools: The tools that can be found.
            synonyms: Words with their synonyms, in both directions.
            aliases: Further words for a server, such as its display name.
            thesaurus: Whether general synonyms are used as well.
            similar_words: Whether words that are similar to those of a query are looked for, and tools whose words
                are similar as a whole.
        """
        self._neighbours = neighbours if similar_words else _no_neighbours
        if similar_words:
            read_neighbours()  # here, where the caller may be in a thread, and not at the first query
        self._expansions: Expansions = general_expansions() if thesaurus else {}
        if synonyms:
            self._expansions = configured_expansions(synonyms, general=thesaurus)
        read = [read_fields(tool, aliases or {}) for tool in tools]
        self._tool_names = tuple(name for name, _, _ in read)
        self._name_terms = tuple(tuple(dict.fromkeys(of_name)) for _, of_name, _ in read)
        self._postings = _postings([fields for _, _, fields in read])
        self._server_terms = tuple(tuple(fields[_SERVER_FIELD]) for _, _, fields in read)
        server_counts = Counter(chain.from_iterable(self._server_terms))
        self._server_shares = {term: count / len(self._postings[term]) for term, count in server_counts.items()}
        self._vocabulary = sorted(self._postings)
        self._similarity = WordSimilarity(fields for _, _, fields in read) if similar_words else None

    def __len__(self) -> int:
        return len(self._tool_names)

    def search(
        self, query: str, limit: int = 10, *, similarities: Mapping[str, float] | None = None
    ) -> list[SearchHit]:
        """Return the best tools for a query, best first. Never raises.

        Args:
            query: Plain words in any form; there is no query syntax.
            limit: The most hits to return.
            similarities: How similar tools are to the query by a model of sentences, by name.
        """
        asked = list(islice(self._query_words(query[:_MAX_QUERY_CHARS]), _MAX_QUERY_WORDS))
        if not asked or limit < 1:
            return []
        stems = [stem(word) for word in asked]
        # A query of nothing but stop words still means something.
        silent = STOP_WORDS if not STOP_WORDS.issuperset(asked) else frozenset()
        scores = self._scores(self._groups(asked, stems, silent))
        if self._similarity is not None:
            said = dict.fromkeys(term for word, term in zip(asked, stems, strict=True) if word not in silent)
            scores = fuse_scores(scores, self._similarity.to(said), BY_WORD_VECTORS)
        if similarities is not None:
            by_model = [similarities.get(name, 0.0) for name in self._tool_names]
            scores = fuse_scores(scores, by_model, BY_SENTENCES)
        hits = (SearchHit(self._tool_names[tool], round(score, _SCORE_DIGITS)) for tool, score in scores.items())
        return nsmallest(min(limit, _MAX_HITS), hits, key=lambda hit: (-hit.score, hit.name))

    def _scores(self, groups: Sequence[Mapping[str, float]]) -> dict[int, float]:
        """Return the score of each tool that has any of the words."""
        count = len(self._tool_names)
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
            # By all that stand for the word together: a rare synonym of a common word is no rare word.
            rarity = log(1 + (count + 1) / (min(reach, count) + 0.5))
            for tool, value in fits.items():
                scores[tool] = scores.get(tool, 0.0) + rarity * value
        wanted = dict(_ASSUMED_TERMS)
        for group in groups:
            for term, weight in group.items():
                wanted[term] = max(wanted.get(term, 0.0), weight)
        return {tool: score * self._bonus(tool, wanted) for tool, score in scores.items()}

    def _bonus(self, tool: int, wanted: Mapping[str, float]) -> float:
        """Return the factor for a tool whose name or server is in the query."""
        names = self._name_terms[tool]
        covered = sum(wanted.get(term, 0.0) for term in names) / max(len(names), 1)
        named = (self._server_shares[term] for term in self._server_terms[tool] if wanted.get(term) == 1.0)
        by_server = max(named, default=0.0)
        return (1.0 + _NAME_BONUS * covered) * (1.0 + _SERVER_BONUS * by_server)

    def _groups(self, asked: Sequence[str], stems: Sequence[str], silent: frozenset[str]) -> list[dict[str, float]]:
        """Return for each word or phrase of a query the terms that may stand for it, with their weights."""
        groups: dict[tuple[str, ...], dict[str, float]] = {}
        guesses = 0
        for start, (word, term) in enumerate(zip(asked, stems, strict=True)):
            for end in range(start + 2, start + MAX_PHRASE_WORDS + 1):
                phrase = tuple(stems[start:end])
                group = dict(self._expansions.get(phrase, {}))
                joined = stem("".join(asked[start:end]))
                if joined in self._postings and not silent.issuperset(asked[start:end]):
                    group[joined] = 1.0
                if group and end <= len(stems):
                    groups[phrase] = group
            if word in silent:
                continue
            near = self._neighbours(term)
            groups[(term,)] = {**near, term: 1.0, **self._expansions.get((term,), {})}
            known = term in self._postings or (term,) in self._expansions or bool(near)
            if not known and guesses < _MAX_GUESSED_WORDS:
                guesses += 1
                groups[(term,)] |= self._guesses(word, term)
        return list(groups.values())

    def _query_words(self, query: str) -> Iterator[str]:
        """Yield the words of a query. A hyphenated word stays whole if some tool has it as a whole."""
        for compound in _COMPOUND.findall(strip_accents(query)):
            parts = [part for run in split_words(compound) for part in run]
            whole = "".join(parts)
            term = stem(whole)
            if len(parts) > 1 and term not in self._postings and (term,) not in self._expansions:
                yield from parts
            elif whole:
                yield whole

    def _guesses(self, word: str, term: str) -> dict[str, float]:
        """Return terms that may be meant by a word that no tool has: longer ones, its halves, or similar ones."""
        if len(word) < _MIN_GUESSED_LENGTH:
            return {}
        begun = self._beginning(term)
        if begun:
            shortest = nsmallest(_MAX_GUESSES, begun, key=lambda known: (len(known), known))
            return dict.fromkeys(shortest, _COMPLETION_WEIGHT)
        for end in range(_MIN_HALF, len(word) - _MIN_HALF + 1):
            halves = stem(word[:end]), stem(word[end:])
            if all(half in self._postings for half in halves):
                return dict.fromkeys(halves, _COMPLETION_WEIGHT)
        if len(word) == _MIN_GUESSED_LENGTH:
            return {}
        # Most slips leave the first letter alone, which bounds the scan.
        near = (known for known in self._beginning(term[0]) if _one_letter_away(term, known))
        return dict.fromkeys(islice(near, _MAX_GUESSES), _CORRECTION_WEIGHT)

    def _beginning(self, start: str) -> list[str]:
        """Return the terms that begin like this, in order."""
        first = bisect_left(self._vocabulary, start)
        return self._vocabulary[first : bisect_left(self._vocabulary, start + _LAST_CHARACTER, first)]


def read_fields(tool: SearchableTool, aliases: Mapping[str, str]) -> tuple[str, list[str], list[list[str]]]:
    """Return a tool's name, the words of its name, and the terms of each of its fields."""
    definition = members_of(tool.definition)
    of_server = list(dict.fromkeys(terms(f"{tool.server} {aliases.get(tool.server, '')}", _MAX_FIELD_TERMS)))
    called = tool.name.removeprefix(tool.server + NAME_SEPARATOR)
    plain = [word for parts in split_words(called) for word in parts]
    of_name = [stem(word) for word in plain if word not in STOP_WORDS] or [stem(word) for word in plain]
    distinct = [word for word in of_name if word not in of_server] or of_name
    joined = [stem(first + second) for first, second in pairwise(plain)]
    whole = [stem("".join(parts)) for parts in split_words(called) if len(parts) > 1]
    if called != tool.tool:
        joined += terms(tool.tool, _MAX_FIELD_TERMS)
    description = _text(definition.get("description"))[:_MAX_DESCRIPTION]
    names, texts = _arguments(definition.get("inputSchema"))
    annotations = definition.get("annotations")
    title = _text(definition.get("title")) or _text(annotations.get("title") if isinstance(annotations, dict) else "")
    return (
        tool.name,
        distinct,
        [
            list(dict.fromkeys(distinct + joined + whole)),
            terms(title[:_LEAD_CHARS], _MAX_FIELD_TERMS, prose=True),
            of_server,
            terms(description[:_LEAD_CHARS], _MAX_FIELD_TERMS, prose=True),
            terms(description[_LEAD_CHARS:], _MAX_FIELD_TERMS, prose=True),
            terms(names, _MAX_FIELD_TERMS),
            terms(texts, _MAX_FIELD_TERMS, prose=True),
        ],
    )


def _no_neighbours(_term: str) -> Mapping[str, float]:
    return {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(schema: object) -> tuple[str, str]:
    """Return the names of a schema's arguments, and their descriptions with the options of enumerations."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return "", ""
    names: list[str] = []
    texts: list[str] = []
    for name, schema_of in list(properties.items())[:_MAX_ARGUMENTS]:
        names.append(str(name)[:_MAX_ARGUMENT_TEXT])
        if isinstance(schema_of, dict):
            texts.append(_text(schema_of.get("description"))[:_MAX_ARGUMENT_TEXT])
            values = schema_of.get("enum")
            if isinstance(values, list):
                texts += [value[:_MAX_VALUE] for value in values[:_MAX_VALUES] if isinstance(value, str)]
    return " ".join(names), " ".join(texts)[:_MAX_DESCRIPTION]


def _postings(read: list[list[list[str]]]) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return for each term the tools that have it, each with its impact from 0 to 1."""
    count = max(len(read), 1)
    means = [sum(len(fields[field]) for fields in read) / count or 1.0 for field in range(len(_FIELD_WEIGHTS))]
    found: dict[str, list[tuple[int, float]]] = {}
    for tool, fields in enumerate(read):
        total: dict[str, float] = {}
        for field, of_field in enumerate(fields):
            if not of_field:
                continue
            reduction = _LENGTH_WEIGHTS[field]
            unit = _FIELD_WEIGHTS[field] / (1 - reduction + reduction * len(of_field) / means[field])
            for term in of_field:
                total[term] = total.get(term, 0.0) + unit
        for term, value in total.items():
            found.setdefault(term, []).append((tool, value / (_SATURATION + value)))
    return {term: tuple(tools) for term, tools in found.items()}


def _one_letter_away(one: str, other: str) -> bool:
    """Return whether adding, removing, replacing or swapping one letter turns one word into the other."""
    if abs(len(one) - len(other)) > 1 or one[:1] != other[:1] or one == other:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    if len(one) == len(other):
        swapped = one[start : start + 2] == other[start : start + 2][::-1] and one[start + 2 :] == other[start + 2 :]
        return swapped or one[start + 1 :] == other[start + 1 :]
    return one[start + 1 :] == other[start:] if len(one) > len(other) else one[start:] == other[start + 1 :]
