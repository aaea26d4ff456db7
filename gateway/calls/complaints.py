"""Finds out of an upstream's error text which arguments it misses, or does not know.

Only bounded windows around known names are searched, so the time is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from registry.arguments.coercion import normalized_parameter
from registry.catalog.catalog import ToolWrapper
from registry.schema.json_paths import declared_properties

MAX_READ_CHARS: Final = 8_192
"""Of a text: validators put the complaint first and stack traces after it."""
# Keys that a caller sent; no call that a model writes has more.
_MAX_SENT: Final = 50
# Of one name in one text: it may be mentioned a few times before the sentence that complains.
_MAX_OCCURRENCES: Final = 20
# Characters on each side of a name: the longest phrase of the corpus between a name and what is said of it is shorter.
_WINDOW_CHARS: Final = 90
# Schemas of generated tools reach hundreds of properties; each name is searched for in the text.
_MAX_NAMES: Final = 500

_QUOTES: Final = "'\"`‘’“”"
_NOUN_WORDS: Final = (
    "argument arguments field fields key keys member members option options param parameter parameters params "
    "properties property attribute attributes element elements input inputs name"
)
_FILLER_WORDS: Final = (
    "a an the and or for of value values following required positional keyword keyword-only named request "
    "query json including includes include 1 2 3 4 5"
)
_NOUNS: Final = frozenset(_NOUN_WORDS.split())
_FILLERS: Final = _NOUNS | frozenset(_FILLER_WORDS.split())
_TRIGGERS: Final = frozenset({"missing", "required", "requires", "lacks", "lacking"})
_SEPARATORS = re.compile(r"[\s:,;()\[\]]+")
_SAYS_MISSING = re.compile(
    r"[\s:)\]]{0,3}"
    r"(?:this\s)?(?:(?:field|parameter|param|argument|property|key|option|value|input)\s)?"
    r"(?:(?:is|are|was|were)\s(?:a\s|an\s)?"
    r"(?:required|missing|mandatory|undefined|absent|null|none\b|not\s(?:provided|specified|supplied|set\b|given|defined|present))"
    r"|(?:must|should|needs\sto|has\sto)\s(?:be\s(?:provided|specified|supplied|set\b|given|defined|present|included|non-empty)"
    r"|not\sbe\s(?:null|undefined|none\b|empty|blank|missing|omitted))"
    r"|(?:cannot|can\snot|can't|may\snot)\sbe\s(?:null|undefined|none\b|empty|blank|missing|omitted)"
    r"|not\s(?:provided|specified|supplied)"
    r"|field\srequired|missing\srequired|(?:required|missing)[\s.!,;)]{0,3}(?:\n|$|\[)"
    r"|invalid\sinput:\sexpected\s\w{1,20},\sreceived\sundefined)",
    re.IGNORECASE,
)
# What is said before a name: that somebody has to give it, or has not.
_ASKS_FOR = re.compile(
    r"(?:(?:must|should|need\sto|have\sto|please)\s(?:specify|provide|supply|include|pass)"
    r"|no\svalue\s(?:was\s)?(?:given|provided|supplied|specified|set)\sfor)"
    r"\s(?:an?\s|the\s)?(?:value\sfor\s)?(?:the\s)?(?:required\s)?(?:parameter\s|argument\s|field\s|property\s)?$",
    re.IGNORECASE,
)
# A colon, and names that it announces: `are required: to, subject`.
_LIST_BEGINS = re.compile(
    r":\s{0,3}(?:['\"`‘“]?[\w.$-]{1,64}['\"`’”]?(?:\s{0,2},\s{0,2}(?:and\s|or\s)?|\s(?:and|or|&)\s)){0,20}['\"`‘“]?$"
)
# ASP.NET and Laravel put a label there: `The Start Date field is required.`
_LABEL = re.compile(r"\bThe ([A-Za-z][\w .-]{0,60}?) field is required\b")
# What is said of a person or a thing, and not of a parameter: `user is required to log in`, `user is missing a role`.
_SAYS_OTHER = re.compile(
    r"\s(?:is|are|was|were)\s(?:required\sto\s|missing\s(?!(?:in|from|or|and|but|for|on|at|when|if)\b)\w)",
    re.IGNORECASE,
)
# Names that a complaint may be about although the schema has none of them: quoted, alone in a line, or spelt as names
# of parameters are.
_MAY_BE_NAME = re.compile(
    r"['\"`‘“]([A-Za-z_]\w{0,63})['\"`’”]|^[ \t]{0,4}([A-Za-z_]\w{0,63})[ \t]{0,4}$"
    r"|\b([a-z]{1,32}(?:_[a-z0-9]{1,32}){1,4}|[a-z]{1,32}[A-Z][A-Za-z0-9]{0,32})\b",
    re.MULTILINE,
)
_MAX_STRANGERS: Final = 20
_ENDS_NAME = re.compile(r"\s{0,2}(?:$|[\n.,;:!?)\]])")
_CSHARP = re.compile(r"(?:null|empty|missing|required)[^()]{0,40}(?:\(parameter |parameter name: )$", re.IGNORECASE)
_AT_PLACE = re.compile(
    r"(?:required|undefined|invalid input[^\n]{0,50})[^\n]{0,12}\n?\s{0,6}(?:→\s)?at\s$", re.IGNORECASE
)
_IS_MISSING = re.compile(r"required|missing|undefined", re.IGNORECASE)
# Members that hold the parameter in a list of issues: those of zod, pydantic and common web services.
_PATH_MEMBERS: Final = ("path", "loc", "field", "param", "parameter", "property")
# What FastAPI puts before the place in such a path.
_PARTS_OF_REQUEST: Final = frozenset({"body", "query", "path", "header", "cookie"})
_JSON_BEGINS = re.compile(r"\{\s{0,80}[\"}]|\[\s{0,80}\{")
# Values of such a list that are visited: an issue has about ten, so this is fifty issues.
_MAX_NODES: Final = 500
_ONLY_A_KEY = re.compile(r"(?:[^\n'\"]{0,120}: )?'([^'\n]{1,64})'")
_SAYS_UNKNOWN = re.compile(
    r"unexpected|unrecogni[sz]ed|unknown|unsupported|not allowed|not permitted|not a valid|does not exist|no such"
    r"|additional propert|extra (?:input|field|key)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What an upstream says is wrong with arguments.

    Attributes:
        missing: Declared parameters that it misses, and that were not sent.
        disputed: Declared parameters that it misses although they were sent.
        unknown: Keys that were sent and that neither it nor the schema knows.
        undeclared: Whether it misses what the schema does not have: the tool has changed, or its schema is wrong. A
            complaint of this alone is none that a hint could be added to.
    """

    missing: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    undeclared: bool = False

    def __bool__(self) -> bool:
        return bool(self.missing or self.disputed or self.unknown)

    def renamed(self, names: Mapping[str, str]) -> Complaint:
        """Return the same with the names that the caller knows."""
        missing, disputed, unknown = (
            tuple(names.get(name, name) for name in found) for found in (self.missing, self.disputed, self.unknown)
        )
        return replace(self, missing=missing, disputed=disputed, unknown=unknown)


def find_complaint(text: str, wrapper: ToolWrapper, arguments: dict[str, Any], *, slips: bool = True) -> Complaint:
    """Return what a text says about declared parameters and about sent keys.

    Args:
        text: The complaint.
        wrapper: The tool.
        arguments: What was sent to the upstream.
        slips: Whatever the text says, a key counts as unknown if it differs from an absent parameter only in case
            and separators.
    """
    text = text[:MAX_READ_CHARS]
    names = declared_properties(wrapper.input_schema, wrapper.input_schema)
    known = [name for name in list(names)[:_MAX_NAMES] if name and name in text]
    prose, reported = _issues(text)
    labels = {normalized_parameter(label[1]) for label in islice(_LABEL.finditer(prose), _MAX_OCCURRENCES)}
    found = [
        name
        for name in (list(names)[:_MAX_NAMES] if labels else known)
        if name in reported or normalized_parameter(name) in labels or _says_missing(prose, name, known)
    ]
    stray = [key for key in list(arguments)[:_MAX_SENT] if key and key not in names]
    rejects = bool(stray) and _SAYS_UNKNOWN.search(text) is not None
    spellings = {normalized_parameter(name) for name in names if name not in arguments} if stray and slips else set()
    return Complaint(
        missing=tuple(name for name in found if name not in arguments),
        disputed=tuple(name for name in found if name in arguments),
        undeclared=not found and _misses_others(prose, reported, names),
        unknown=tuple(
            key
            for key in stray
            if normalized_parameter(key) in spellings or (rejects and next(_occurrences(text, key), None))
        ),
    )


def _misses_others(text: str, reported: set[str], names: Collection[str]) -> bool:
    """Return whether something is said to be missing that is no declared name."""
    if any(name not in names for name in reported):
        return True
    strangers = {name for match in _MAY_BE_NAME.finditer(text) for name in match.groups() if name and name not in names}
    return any(_says_missing(text, name, names) for name in islice(strangers, _MAX_STRANGERS))


def _occurrences(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each place where a name is a word of its own in a text, without quotes."""
    start = 0
    for _time in range(_MAX_OCCURRENCES):
        begin = text.find(name, start)
        if begin < 0:
            return
        end = start = begin + len(name)
        if not _continues(text[begin - 1 : begin]) and not _continues(text[end : end + 1]):
            yield begin, end


def _continues(character: str) -> bool:
    return character.isalnum() or character in ("_", "$", "-")


def _says_missing(text: str, name: str, names: Collection[str]) -> bool:
    if (only := _ONLY_A_KEY.fullmatch(text.strip())) is not None and only[1] == name:
        return True  # the text of a KeyError in Python
    for begin, end in _occurrences(text, name):
        quoted = begin > 0 and end < len(text) and text[begin - 1] in _QUOTES and text[end] in _QUOTES
        before = text[max(0, begin - quoted - _WINDOW_CHARS) : begin - quoted]
        after = text[end + quoted : end + quoted + _WINDOW_CHARS]
        if not quoted and _SAYS_OTHER.match(after):
            continue
        if _SAYS_MISSING.match(after) or _CSHARP.search(before) or _AT_PLACE.search(before):
            return True
        if (quoted or _ENDS_NAME.match(after)) and _ASKS_FOR.search(before):
            return True
        if _announced(before, names, quoted) and (quoted or _ENDS_NAME.match(after)):
            return True
    return False


def _announced(before: str, names: Collection[str], quoted: bool) -> bool:
    """Return whether the words in front of a name say that what follows is missing."""
    clear = quoted or _LIST_BEGINS.search(before) is not None
    for word in reversed(_SEPARATORS.split(before)):
        plain = word.strip(_QUOTES)
        lower = plain.lower()
        clear = clear or lower in _NOUNS
        if lower in _TRIGGERS and clear:
            return True
        if plain and lower not in _FILLERS and plain not in names:
            return False
    return False


def _issues(text: str) -> tuple[str, set[str]]:
    """Take JSON out of a text: return the prose with the JSON's strings, and names that the JSON lists as missing."""
    begun = _JSON_BEGINS.search(text)
    if begun is None:
        return text, set()
    try:
        value, end = json.JSONDecoder().raw_decode(text, begun.start())
    except (ValueError, RecursionError):
        return text, set()
    sentences, missing = [text[: begun.start()], text[end:]], set[str]()
    pending: list[tuple[str, Any]] = [("", value)]
    for _node in range(_MAX_NODES):
        if not pending:
            break
        key, node = pending.pop()
        if isinstance(node, str):
            sentences.append(f"{key}: {node}" if key else node)
        elif isinstance(node, list):
            pending += [(key, child) for child in node]
        elif isinstance(node, dict):
            paths = [node[word] for word in _PATH_MEMBERS if isinstance(node.get(word), str | list)]
            if paths:
                if any(isinstance(word, str) and _IS_MISSING.search(word) for word in node.values()):
                    steps = paths[0] if isinstance(paths[0], list) else [paths[0]]
                    if len(steps) > 1 and steps[0] in _PARTS_OF_REQUEST:
                        steps = steps[1:]
                    missing.update(step for step in steps if isinstance(step, str))
            else:
                pending += [(str(name), child) for name, child in node.items()]
    return "\n".join(sentences), missing
