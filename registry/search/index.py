"""Rank tools for a query: by words (BM25 over weighted fields, with stems and synonyms) and by vector similarity.

The index consists of plain Python values, so threads can share it and no database engine is needed. For each tool, only
the best match among a query word and its synonyms counts, and a synonym counts less than the word itself. A tool whose
whole name is in the query ranks above a tool whose name has an additional word. Tools of a server that the query names
rank higher. The vector similarity between the query and the tool as a whole is added to the score.

A vector is stored as a single large integer that is divided into *lanes*: groups of bits, one for each dimension.
Adding or multiplying such integers is hundreds of times as fast as the same operation on lists of numbers, and needs no
additional package.
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_base64
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from importlib import resources
from itertools import chain, islice, pairwise
from math import isqrt, log
from operator import mul
from typing import Any, Final, Protocol

from registry.catalog.names import NAME_SEPARATOR
from registry.schema.display_text import name_as_words, strip_accents
from registry.schema.packed_definition import members_of
from registry.search.terms import (
    MAX_PHRASE_WORDS,
    STOP_WORDS,
    Expansions,
    configured_expansions,
    general_expansions,
    split_words,
    stem,
    terms,
)

DIMENSIONS: Final = 128
# This is added to each value (from -127 to 127), because a negative value would change the next lane.
OFFSET: Final = 128
# The size of a lane. The dot product of two vectors (at most 128 x 255 x 255) needs 23 bits; `struct` reads 32 bits.
_LANE_BYTES: Final = 4


def word_vector(term: str) -> int | None:
    """Return the vector of a stem in lanes, with `OFFSET` added to each value; None if the table lacks the stem."""
    lines = read_word_vectors()
    place = bisect_left(lines, f"{term} ")
    if place == len(lines) or not lines[place].startswith(f"{term} "):
        return None
    return pack_lanes(a2b_base64(lines[place][len(term) + 1 :]))


def pack_lanes(values: bytes) -> int:
    """Pack values from 0 to 255 into one integer, each into its own lane."""
    spread = bytearray(len(values) * _LANE_BYTES)
    spread[::_LANE_BYTES] = values
    return int.from_bytes(spread, "little")


def unpack_lanes(lanes: int, count: int) -> tuple[int, ...]:
    """Return the values of the `count` lanes of an integer."""
    return struct.unpack(f"<{count}I", lanes.to_bytes(count * _LANE_BYTES, "little"))


@cache  # `word_vector` parses single lines on demand
def read_word_vectors() -> list[str]:
    """Return the sorted lines of the word vector table. Reading the file takes some milliseconds."""
    table = resources.files("registry.search").joinpath("word_vectors.txt").read_text(encoding="ascii")
    return [line for line in table.splitlines() if not line.startswith("#")]


# The weight of a word in each field, trained together with the vectors. The fields are: name, title, server, beginning
# of the description, rest of the description, argument names, argument descriptions.
_FIELD_SHARES: Final = (17, 9, 15, 13, 4, 4, 4)
# Maximum number of distinct words to use from each field, the same as in training. More words make the vector less
# specific.
FIELD_WORDS: Final = (16, 12, 8, 48, 48, 32, 32)
# The length to which vectors are scaled, so that their values are integers. Few values are so large that they have to
# be clipped to the range of a byte.
_LENGTH: Final = 256
_GREATEST: Final = 255


class WordSimilarity:
    """The word vectors of a fixed set of tools, which are compared with the vector of a query."""

    __slots__ = ("_columns", "_count", "_offsets")

    def __init__(self, tools: Iterable[Sequence[Sequence[str]]]) -> None:
        """Compute the vector of each tool from the terms of its fields."""
        vectors: dict[str, int | None] = {}
        rows = [_tool_vector(fields, vectors) for fields in tools]
        self._count = len(rows)
        # Use one integer per dimension, with a lane for each tool, to compare a query with all tools at once.
        joined = b"".join(rows)
        self._columns = tuple(pack_lanes(joined[dimension::DIMENSIONS]) for dimension in range(DIMENSIONS))
        # Because of the offsets, the dot product of a row and a query is too high by OFFSET * (sum(row) + sum(query)) -
        # OFFSET**2 * DIMENSIONS. `_offsets` contains the part of this difference that does not depend on the query.
        self._offsets = tuple(OFFSET * sum(row) - OFFSET * OFFSET * DIMENSIONS for row in rows)

    def similarities_to(self, terms: Iterable[str]) -> list[float]:
        """Return the similarity of each tool to the terms, from -1 to 1; 0 for all if no term has a vector."""
        total, count = 0, 0
        for term in terms:
            vector = word_vector(term)
            if vector is not None:
                total, count = total + vector, count + 1
        query = _normalize(total, count)
        products = sum(column * value for column, value in zip(self._columns, query, strict=True))
        mine = OFFSET * sum(query)
        unit = _LENGTH * _LENGTH
        products_and_offsets = zip(unpack_lanes(products, self._count), self._offsets, strict=True)
        return [(product - offset - mine) / unit for product, offset in products_and_offsets]


def _tool_vector(fields: Sequence[Sequence[str]], vectors: dict[str, int | None]) -> bytes:
    """Return the vector of a tool, with `OFFSET` added to each value."""
    total, weight = 0, 0
    for words, share, most in zip(fields, _FIELD_SHARES, FIELD_WORDS, strict=True):
        field_sum, count = 0, 0
        for term in islice(dict.fromkeys(words), most):
            if term not in vectors:
                vectors[term] = word_vector(term)
            vector = vectors[term]
            if vector is not None:
                field_sum, count = field_sum + vector, count + 1
        total, weight = total + share * field_sum, weight + share * count
    return _normalize(total, weight)


def _normalize(total: int, weight: int) -> bytes:
    """Scale a sum of vectors to `_LENGTH`, and add `OFFSET` to each value."""
    added = OFFSET * weight
    values = [value - added for value in unpack_lanes(total, DIMENSIONS)]
    length = isqrt(sum(map(mul, values, values))) or 1
    scaled = [_LENGTH * value // length + OFFSET for value in values]
    if min(scaled) < 0 or max(scaled) > _GREATEST:
        scaled = [max(0, min(_GREATEST, value)) for value in scaled]
    return bytes(scaled)


@dataclass(frozen=True, slots=True)
class Fusion:
    """The influence of vector similarity on a ranking by words. `tests/bench/README.md` compares several values.

    Attributes:
        power: The exponent to which a similarity is raised, after division by the highest similarity. A higher power
            separates the most similar tools from the many tools that are almost as similar.
        weight: The score that the most similar tool gets for its similarity if it also matches by words. The best match
            by words gets the score 1 for its words.
    """

    power: int
    weight: float


BY_WORD_VECTORS: Final = Fusion(power=2, weight=2.0)
BY_SENTENCES: Final = Fusion(power=3, weight=1.0)
# Minimum similarity at which a tool is found without matching words.
_MIN_SIMILARITY: Final = 0.25


def fuse_scores(scores: Mapping[int, float], similarities: Sequence[float], fusion: Fusion) -> dict[int, float]:
    """Combine the scores by words with similarities, after dividing both by their respective maximum.

    A tool that does not match by words gets a score of at most 1, so it never ranks above the best match by words.

    Args:
        scores: The scores by words, by the position of the tool.
        similarities: The similarity of each tool to the query, from -1 to 1.
        fusion: The influence of the similarities.
    """
    best, closest = max(scores.values(), default=0.0), max(similarities, default=0.0)
    if closest < _MIN_SIMILARITY:
        return dict(scores)
    fused = {tool: score / (best or 1.0) for tool, score in scores.items()}
    for tool, similarity in enumerate(similarities):
        if tool in fused:
            if similarity > 0:
                fused[tool] += fusion.weight * (similarity / closest) ** fusion.power
        elif similarity >= _MIN_SIMILARITY:
            fused[tool] = (similarity / closest) ** fusion.power
    return fused


# Limits of a query. Most queries are a sentence or two. The beginning of a longer, pasted text states its topic.
_MAX_QUERY_CHARS: Final = 4_096
_MAX_QUERY_WORDS: Final = 48
# Limits of the text that is indexed for each tool. In `tests/corpus`, the longest description has 6,549 characters, and
# a tool has at most 55 arguments. More text would take memory and add unspecific terms.
_MAX_DESCRIPTION: Final = 4_000
_LEAD_CHARS: Final = 240  # the beginning: about two sentences, which say what a tool is for
_MAX_ARGUMENTS: Final = 100
_MAX_ARGUMENT_TEXT: Final = 200
_MAX_VALUES: Final = 20
_MAX_VALUE: Final = 40
_MAX_FIELD_TERMS: Final = 400
# Maximum number of hits: more than any caller needs, and few enough to sort in memory.
_MAX_HITS: Final = 1_000

# All weights below were tuned with half of the queries in `tests/bench/bench_search.py`. Small changes of a single
# weight have little effect. The next two lines contain the weight of each field, and how much the length of a field
# reduces this weight (`b` of BM25). The fields are: name, title, server, beginning of the description, rest of the
# description, argument names, argument descriptions.
_FIELD_WEIGHTS: Final = (4.0, 1.5, 4.0, 6.0, 0.3, 1.0, 0.7)
_LENGTH_WEIGHTS: Final = (0.7, 0.3, 0.5, 0.7, 0.3, 0.5, 0.5)
_SERVER_FIELD: Final = 2
# Digits to which scores are rounded, so that scores do not depend on the order of additions.
_SCORE_DIGITS: Final = 6
# How quickly repetitions of a term stop counting (`k1` of BM25).
_SATURATION: Final = 3.0
# How much a score grows, as a fraction of the score, if the query contains all words of the tool's name.
_NAME_BONUS: Final = 1.2
# Queries often have no verb, and are then usually about reading. When the words of a tool's name are compared with a
# query, these terms count as part of the query, with a small weight.
_READING_WEIGHT: Final = 0.2
_ASSUMED_TERMS: Final = dict.fromkeys(("get", "list", "retriev", "read", "fetch"), _READING_WEIGHT)
# How much a score grows, as a fraction of the score, if the query contains a word that occurs only in the name of the
# tool's server.
_SERVER_BONUS: Final = 1.0
# Weights of the terms that are guessed for a query word that no tool contains. The first weight is for terms that begin
# with the word and for its two halves. The second weight is for terms that differ from the word in one letter.
_COMPLETION_WEIGHT: Final = 0.4
_CORRECTION_WEIGHT: Final = 0.5
# Maximum number of guesses for one word, and of guessed words in one query. They are limited because guessing scans a
# part of the vocabulary.
_MAX_GUESSES: Final = 8
_MAX_GUESSED_WORDS: Final = 12
# Shorter words are not guessed, because too many terms differ from them in one letter.
_MIN_GUESSED_LENGTH: Final = 4
# Minimum length of each half of a compound word.
_MIN_HALF: Final = 3
_COMPOUND: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_LAST_CHARACTER: Final = chr(0x10FFFF)


class SearchableTool(Protocol):
    """An indexed item: a wrapper, or an entry of a view."""

    @property
    def name(self) -> str:
        """The wrapper name that callers use."""

    @property
    def server(self) -> str:
        """The alias of the server."""

    @property
    def tool(self) -> str:
        """The name that the upstream gave the tool."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition as callers see it."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A tool that matches a query. A higher score is better. Scores of different queries are not comparable."""

    name: str
    score: float


class SearchIndex:
    """An immutable search index over the tools of one view."""

    __slots__ = (
        "_expansions",
        "_name_terms",
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
            tools: The tools to index.
            synonyms: Words with their synonyms, which apply in both directions.
            aliases: Additional words for a server, such as its display name, by server alias.
            thesaurus: Whether to use the built-in synonyms as well.
            similar_words: Whether to use word vectors, which find tools that are similar to the query as a whole.
        """
        self._expansions: Expansions = general_expansions() if thesaurus else {}
        if synonyms:
            self._expansions = configured_expansions(synonyms, general=thesaurus)
        fields_by_tool = [read_fields(tool, aliases or {}) for tool in tools]
        self._tool_names = tuple(name for name, _, _ in fields_by_tool)
        self._name_terms = tuple(tuple(dict.fromkeys(name_stems)) for _, name_stems, _ in fields_by_tool)
        self._postings = _postings([fields for _, _, fields in fields_by_tool])
        self._server_terms = tuple(tuple(fields[_SERVER_FIELD]) for _, _, fields in fields_by_tool)
        server_counts = Counter(chain.from_iterable(self._server_terms))
        self._server_shares = {term: count / len(self._postings[term]) for term, count in server_counts.items()}
        self._vocabulary = sorted(self._postings)
        self._similarity = WordSimilarity(fields for _, _, fields in fields_by_tool) if similar_words else None

    def __len__(self) -> int:
        return len(self._tool_names)

    def search(
        self, query: str, limit: int = 10, *, similarities: Mapping[str, float] | None = None
    ) -> list[SearchHit]:
        """Return the best matches for a query, best first. Never raises.

        Args:
            query: Plain words, without a query syntax.
            limit: Maximum number of hits.
            similarities: The similarity of each tool to the query, as computed by an embedding model, by wrapper name;
                None without such a model.
        """
        words = list(islice(self._query_words(query[:_MAX_QUERY_CHARS]), _MAX_QUERY_WORDS))
        if not words or limit < 1:
            return []
        stems = [stem(word) for word in words]
        # Stop words are ignored unless the query contains nothing else.
        ignored = STOP_WORDS if not STOP_WORDS.issuperset(words) else frozenset()
        scores = self._scores(self._term_groups(words, stems, ignored))
        if self._similarity is not None:
            query_terms = dict.fromkeys(term for word, term in zip(words, stems, strict=True) if word not in ignored)
            scores = fuse_scores(scores, self._similarity.similarities_to(query_terms), BY_WORD_VECTORS)
        if similarities is not None:
            by_model = [similarities.get(name, 0.0) for name in self._tool_names]
            scores = fuse_scores(scores, by_model, BY_SENTENCES)
        hits = (SearchHit(self._tool_names[tool], round(score, _SCORE_DIGITS)) for tool, score in scores.items())
        return nsmallest(min(limit, _MAX_HITS), hits, key=lambda hit: (-hit.score, hit.name))

    def _scores(self, groups: Sequence[Mapping[str, float]]) -> dict[int, float]:
        """Return the score by words of each tool that matches at least one group.

        Args:
            groups: For each word or phrase of the query, the terms that match it, with their weights.
        """
        count = len(self._tool_names)
        scores: dict[int, float] = {}
        for group in groups:
            best_values: dict[int, float] = {}
            matching_tools = 0.0
            for term, weight in group.items():
                postings = self._postings.get(term, ())
                matching_tools += weight * len(postings)
                for tool, impact in postings:
                    value = weight * impact
                    if value > best_values.get(tool, 0.0):
                        best_values[tool] = value
            # Compute the rarity of the whole group, because a rare synonym of a common word must not count as rare.
            rarity = log(1 + (count + 1) / (min(matching_tools, count) + 0.5))
            for tool, value in best_values.items():
                scores[tool] = scores.get(tool, 0.0) + rarity * value
        term_weights = dict(_ASSUMED_TERMS)
        for group in groups:
            for term, weight in group.items():
                term_weights[term] = max(term_weights.get(term, 0.0), weight)
        return {tool: score * self._bonus(tool, term_weights) for tool, score in scores.items()}

    def _bonus(self, tool: int, term_weights: Mapping[str, float]) -> float:
        """Return the factor by which the score of a tool grows if the query contains its name or its server."""
        names = self._name_terms[tool]
        covered = sum(term_weights.get(term, 0.0) for term in names) / max(len(names), 1)
        shares = (self._server_shares[term] for term in self._server_terms[tool] if term_weights.get(term) == 1.0)
        by_server = max(shares, default=0.0)
        return (1.0 + _NAME_BONUS * covered) * (1.0 + _SERVER_BONUS * by_server)

    def _term_groups(
        self, words: Sequence[str], stems: Sequence[str], ignored: frozenset[str]
    ) -> list[dict[str, float]]:
        """Return, for each word or phrase of a query, the terms that match it, with their weights."""
        groups: dict[tuple[str, ...], dict[str, float]] = {}
        guesses = 0
        for start, (word, term) in enumerate(zip(words, stems, strict=True)):
            for end in range(start + 2, start + MAX_PHRASE_WORDS + 1):
                phrase = tuple(stems[start:end])
                group = dict(self._expansions.get(phrase, {}))
                joined = stem("".join(words[start:end]))
                if joined in self._postings and not ignored.issuperset(words[start:end]):
                    group[joined] = 1.0
                if group and end <= len(stems):
                    groups[phrase] = group
            if word in ignored:
                continue
            groups[(term,)] = {term: 1.0, **self._expansions.get((term,), {})}
            is_indexed = term in self._postings or (term,) in self._expansions
            if not is_indexed and guesses < _MAX_GUESSED_WORDS:
                guesses += 1
                groups[(term,)] |= self._guess_terms(word, term)
        return list(groups.values())

    def _query_words(self, query: str) -> Iterator[str]:
        """Yield the words of a query. A hyphenated word is not split if a tool or a synonym contains it as one word."""
        for compound in _COMPOUND.findall(strip_accents(query)):
            parts = [part for run in split_words(compound) for part in run]
            joined = "".join(parts)
            term = stem(joined)
            if len(parts) > 1 and term not in self._postings and (term,) not in self._expansions:
                yield from parts
            elif joined:
                yield joined

    def _guess_terms(self, word: str, term: str) -> dict[str, float]:
        """Return indexed terms that may be meant by a word that no tool contains, with their weights.

        Return terms that begin with the word. If none exist, return its two halves, or else terms one letter away.
        """
        if len(word) < _MIN_GUESSED_LENGTH:
            return {}
        completions = self._terms_with_prefix(term)
        if completions:
            shortest = nsmallest(_MAX_GUESSES, completions, key=lambda candidate: (len(candidate), candidate))
            return dict.fromkeys(shortest, _COMPLETION_WEIGHT)
        for end in range(_MIN_HALF, len(word) - _MIN_HALF + 1):
            halves = stem(word[:end]), stem(word[end:])
            if all(half in self._postings for half in halves):
                return dict.fromkeys(halves, _COMPLETION_WEIGHT)
        if len(word) == _MIN_GUESSED_LENGTH:
            return {}
        # Scan only terms with the same first letter, because most typing errors do not affect the first letter.
        near = (candidate for candidate in self._terms_with_prefix(term[0]) if _is_one_letter_away(term, candidate))
        return dict.fromkeys(islice(near, _MAX_GUESSES), _CORRECTION_WEIGHT)

    def _terms_with_prefix(self, start: str) -> list[str]:
        """Return the terms that start with a prefix, in alphabetical order."""
        first = bisect_left(self._vocabulary, start)
        return self._vocabulary[first : bisect_left(self._vocabulary, start + _LAST_CHARACTER, first)]


def read_fields(tool: SearchableTool, aliases: Mapping[str, str]) -> tuple[str, list[str], list[list[str]]]:
    """Return the wrapper name of a tool, the stems of its name without server words, and the terms of each field."""
    definition = members_of(tool.definition)
    server_terms = list(dict.fromkeys(terms(f"{tool.server} {aliases.get(tool.server, '')}", _MAX_FIELD_TERMS)))
    short_name = tool.name.removeprefix(tool.server + NAME_SEPARATOR)
    name_words = [word for parts in split_words(short_name) for word in parts]
    name_stems = [stem(word) for word in name_words if word not in STOP_WORDS] or [stem(word) for word in name_words]
    distinct = [word for word in name_stems if word not in server_terms] or name_stems
    joined = [stem(first + second) for first, second in pairwise(name_words)]
    compounds = [stem("".join(parts)) for parts in split_words(short_name) if len(parts) > 1]
    if short_name != tool.tool:
        joined += terms(tool.tool, _MAX_FIELD_TERMS)
    description = _text(definition.get("description"))[:_MAX_DESCRIPTION]
    names, texts = _arguments(definition.get("inputSchema"))
    annotations = definition.get("annotations")
    title = _text(definition.get("title")) or _text(annotations.get("title") if isinstance(annotations, dict) else "")
    return (
        tool.name,
        distinct,
        [
            list(dict.fromkeys(distinct + joined + compounds)),
            terms(title[:_LEAD_CHARS], _MAX_FIELD_TERMS, prose=True),
            server_terms,
            terms(description[:_LEAD_CHARS], _MAX_FIELD_TERMS, prose=True),
            terms(description[_LEAD_CHARS:], _MAX_FIELD_TERMS, prose=True),
            terms(names, _MAX_FIELD_TERMS),
            terms(texts, _MAX_FIELD_TERMS, prose=True),
        ],
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(schema: object) -> tuple[str, str]:
    """Return two texts: the argument names of a schema, and the descriptions and `enum` options of the arguments."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return "", ""
    names: list[str] = []
    texts: list[str] = []
    for name, argument_schema in list(properties.items())[:_MAX_ARGUMENTS]:
        names.append(str(name)[:_MAX_ARGUMENT_TEXT])
        if isinstance(argument_schema, dict):
            texts.append(_text(argument_schema.get("description"))[:_MAX_ARGUMENT_TEXT])
            values = argument_schema.get("enum")
            if isinstance(values, list):
                texts += [value[:_MAX_VALUE] for value in values[:_MAX_VALUES] if isinstance(value, str)]
    return " ".join(names), " ".join(texts)[:_MAX_DESCRIPTION]


def _postings(fields_by_tool: list[list[list[str]]]) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return, for each term, the tools that contain the term, each with the impact of the term from 0 to 1."""
    count = max(len(fields_by_tool), 1)
    means = [
        sum(len(fields[field]) for fields in fields_by_tool) / count or 1.0 for field in range(len(_FIELD_WEIGHTS))
    ]
    postings: dict[str, list[tuple[int, float]]] = {}
    for tool, fields in enumerate(fields_by_tool):
        total: dict[str, float] = {}
        for field, field_terms in enumerate(fields):
            if not field_terms:
                continue
            reduction = _LENGTH_WEIGHTS[field]
            unit = _FIELD_WEIGHTS[field] / (1 - reduction + reduction * len(field_terms) / means[field])
            for term in field_terms:
                total[term] = total.get(term, 0.0) + unit
        for term, value in total.items():
            postings.setdefault(term, []).append((tool, value / (_SATURATION + value)))
    return {term: tuple(tools) for term, tools in postings.items()}


def _is_one_letter_away(word: str, other: str) -> bool:
    """Return whether inserting, deleting, replacing or swapping one letter turns one word into the other."""
    if abs(len(word) - len(other)) > 1 or word[:1] != other[:1] or word == other:
        return False
    start = 0
    while start < min(len(word), len(other)) and word[start] == other[start]:
        start += 1
    if len(word) == len(other):
        swapped = word[start : start + 2] == other[start : start + 2][::-1] and word[start + 2 :] == other[start + 2 :]
        return swapped or word[start + 1 :] == other[start + 1 :]
    return word[start + 1 :] == other[start:] if len(word) > len(other) else word[start:] == other[start + 1 :]


# Maximum length of the sentence to embed. Small embedding models read about 250 tokens, and the vector of a shorter
# text is more specific.
_SENTENCE_CHARS: Final = 240
# Length of the beginning of a description in which to look for the end of the first sentence.
_READ_CHARS: Final = _SENTENCE_CHARS * 4
# Maximum length of a name in the embedded text. Names may have up to a thousand characters.
_NAME_CHARS: Final = 200
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")


def embedding_text(tool: SearchableTool) -> str:
    """Return the text to embed for a tool: server and name as words, and the first sentence of the description."""
    description = tool.definition.get("description")
    first = _SENTENCE_END.split(description[:_READ_CHARS].strip(), 1)[0] if isinstance(description, str) else ""
    names = f"{name_as_words(tool.server[:_NAME_CHARS])}: {name_as_words(tool.tool[:_NAME_CHARS])}".lower()
    text = f"{names}. {first[:_SENTENCE_CHARS]}"
    # Tokenizers refuse lone surrogates.
    return text.encode("utf-8", "replace").decode("utf-8")
