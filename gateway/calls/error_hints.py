"""Adds a hint to an upstream's complaint about arguments; the complaint itself stays byte for byte.

An upstream may check more than its schema says, and its message is often all that a model sees: `'to' was not
provided` has made models believe that arguments are lost on the way. Where a message names a declared parameter as
missing, or a key that was sent as unknown, one text is added: what is missing, what was sent, the most similar name,
a ready call and the schema. Every other result is returned as it is, the same object.

Only bounded windows around known names are searched, so the time is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from gateway.errors import INVALID_PARAMS, UPSTREAM_ERROR_KEY
from registry.arguments import problems
from registry.arguments.coercion import normalized_parameter
from registry.arguments.diagnosis import ArgumentProblem, NameSuggester, describe_type
from registry.arguments.problems import CallRoute
from registry.catalog.catalog import ToolWrapper
from registry.dialects.definitions import LoweredDefinition
from registry.schema.display_text import excerpt, listed
from registry.schema.json_paths import MAX_SHOWN_KEY, JsonPath, declared_properties

# A body that is an error although its result is not: error objects are short, and every good result is looked at.
MAX_BODY_CHARS: Final = 4_096
# About 600 tokens: room for the schema of a usual parameter, and less than the list of tools would cost again.
MAX_HINT_CHARS: Final = 2_500
# Validators put the complaint first and stack traces after it.
_MAX_READ_CHARS: Final = 8_192
# Text items of a result that are read; validators write one.
_MAX_ITEMS: Final = 4
# Schemas of generated tools reach hundreds of properties; each name is searched for in the text.
_MAX_NAMES: Final = 500
# Keys that a caller sent; no call that a model writes has more.
_MAX_SENT: Final = 50
# Of one name in one text: it may be mentioned a few times before the sentence that complains.
_MAX_OCCURRENCES: Final = 20
# Characters on each side of a name: the longest phrase of the corpus between a name and what is said of it is shorter.
_WINDOW_CHARS: Final = 90
# Names that are listed in a hint before "and N more".
_MAX_LISTED: Final = 20
# Keys that get a sentence of their own; a call with more wrong keys needs the schema, not sentences.
_MAX_SENTENCES: Final = 5
# Less of a schema than this says nothing.
_MIN_SCHEMA_CHARS: Final = 100

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
_JSON_BEGINS = re.compile(r"\{\s{0,80}[\"}]|\[\s{0,80}\{")
# Values of such a list that are visited: an issue has about ten, so this is fifty issues.
_MAX_NODES: Final = 500
_ONLY_A_KEY = re.compile(r"(?:[^\n'\"]{0,120}: )?'([^'\n]{1,64})'")
_SAYS_UNKNOWN = re.compile(
    r"unexpected|unrecogni[sz]ed|unknown|unsupported|not allowed|not permitted|not a valid|does not exist|no such"
    r"|additional propert|extra (?:input|field|key)",
    re.IGNORECASE,
)
_NO_SUCH_TOOL = re.compile(r"(?:unknown|no such) tool\b|\btool\b[^\n]{0,140}\bnot found", re.IGNORECASE)
_INVALID_PARAMS = re.compile(r"\s{0,4}(?:MCP error )?-32602\b")


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


def with_hint(
    result: dict[str, Any],
    wrapper: ToolWrapper,
    arguments: dict[str, Any],
    *,
    via: CallRoute = "wrapper",
    lowered: LoweredDefinition | None = None,
    on_undeclared: Callable[[str], None] = lambda server: None,
) -> dict[str, Any]:
    """Return a result with a hint added as its last text, or the same object if there is nothing to add.

    Error results are read, among them relayed protocol errors, and short bodies that are a JSON object with an
    `error`. A protocol error −32602 always gets a ready call, unless it is about the tool itself.

    Args:
        result: What the caller would get.
        wrapper: The tool.
        arguments: What was sent to the upstream.
        via: The route by which the call came.
        lowered: How the caller was shown the tool, if not as it is. The complaint has the upstream's names, the hint
            those that the caller knows.
        on_undeclared: Called with the server where it misses a parameter that the schema does not declare.
    """
    content = result.get("content")
    if not isinstance(content, list):
        return result
    texts = [item["text"] for item in content if isinstance(item, dict) and isinstance(item.get("text"), str)]
    if result.get("isError") is True:
        message = "\n".join(text[:_MAX_READ_CHARS] for text in texts[:_MAX_ITEMS])[:_MAX_READ_CHARS]
        code, data = _protocol_error(result)
        complaint = find_complaint(f"{message}\n{data}" if data else message, wrapper, arguments)
        wanted = code == INVALID_PARAMS or _INVALID_PARAMS.match(message) is not None
        wanted = wanted and not _NO_SUCH_TOOL.search(message)
    else:
        message = "\n".join(_complaints_in(texts))
        complaint = find_complaint(message, wrapper, arguments, slips=False) if message else Complaint()
        wanted = False
    if complaint.undeclared:
        on_undeclared(wrapper.server)
    if not complaint and not wanted:
        return result
    if lowered is not None:
        wrapper = problems.as_advertised(wrapper, lowered)
        complaint, arguments = (
            complaint.renamed(lowered.shown_names),
            problems.rename_members(arguments, lowered.shown_names),
        )
    as_text = lowered is not None and lowered.null_means_omitted
    hint = _hint(complaint, wrapper, arguments, via, as_text=as_text)
    return {**result, "content": [*content, {"type": "text", "text": hint}]}


def with_changes_by_hooks(result: dict[str, Any], hooks: Sequence[str]) -> dict[str, Any]:
    """Return an error result that says who has changed the arguments, so that the caller does not correct its own.

    Args:
        result: What the caller would get.
        hooks: The hooks that have changed them.
    """
    content = result.get("content")
    if result.get("isError") is not True or not isinstance(content, list):
        return result
    names = ", ".join(dict.fromkeys(hooks))
    text = f"Added by the gateway: the arguments that were sent are not yours alone; hook '{names}' has changed them."
    return {**result, "content": [*content, {"type": "text", "text": text}]}


def find_complaint(text: str, wrapper: ToolWrapper, arguments: dict[str, Any], *, slips: bool = True) -> Complaint:
    """Return what a text says about declared parameters and about sent keys.

    Args:
        text: The complaint.
        wrapper: The tool.
        arguments: What was sent to the upstream.
        slips: Whatever the text says, a key counts as unknown if it differs from an absent parameter only in case
            and separators.
    """
    text = text[:_MAX_READ_CHARS]
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


def _protocol_error(result: dict[str, Any]) -> tuple[int | None, str]:
    """Return the code of a relayed protocol error, and its data as text."""
    meta = result.get("_meta")
    error = meta.get(UPSTREAM_ERROR_KEY) if isinstance(meta, dict) else None
    if not isinstance(error, dict):
        return None, ""
    code, data = error.get("code"), error.get("data")
    try:
        text = "" if data is None else data if isinstance(data, str) else json.dumps(data)
    except (ValueError, RecursionError):
        text = ""
    return (code if isinstance(code, int) else None), text[:_MAX_READ_CHARS]


def _complaints_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield the messages of bodies that are errors in results that are not."""
    for text in texts:
        if len(text) > MAX_BODY_CHARS or '"error"' not in text or not text.lstrip().startswith("{"):
            continue
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            continue
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str):
            yield message


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
        if _announced(before, names, quoted) and (quoted or _ENDS_NAME.match(after)):
            return True
    return False


def _announced(before: str, names: Collection[str], quoted: bool) -> bool:
    """Return whether the words in front of a name say that what follows is missing."""
    clear = quoted or before.rstrip(" ").endswith(":")
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
                    missing.update(step for step in steps if isinstance(step, str))
            else:
                pending += [(str(name), child) for name, child in node.items()]
    return "\n".join(sentences), missing


def _hint(
    complaint: Complaint, wrapper: ToolWrapper, arguments: dict[str, Any], via: CallRoute, *, as_text: bool
) -> str:
    sentences = ["Added by the gateway:"]
    if complaint.missing:
        sentences.append(f"Missing: {_names(complaint.missing)}.")
    sentences += [
        f"{excerpt(name, MAX_SHOWN_KEY)} was sent, as {describe_type(arguments[name])}."
        for name in complaint.disputed[:_MAX_SENTENCES]
    ]
    absent = [name for name in declared_properties(wrapper.input_schema, wrapper.input_schema) if name not in arguments]
    names_near = NameSuggester()
    # The schema may not require what is missing: the call that is shown must not be the one that failed.
    shown: list[JsonPath] = [(name,) for name in (*complaint.missing, *complaint.disputed)]
    for key in complaint.unknown[:_MAX_SENTENCES]:
        near = names_near.suggest(key, absent)
        shown += [(near,)] if near is not None else []
        hint = f"; did you mean {near}?" if near is not None else "."
        sentences.append(f"{excerpt(key, MAX_SHOWN_KEY)} is not a parameter{hint}")
    sentences.append(f"Keys sent: {_names(tuple(arguments)) or '(none)'}.")
    # Where it does not say what is wrong, no argument is known to be right.
    sent = arguments if shown else None
    call = problems.example_call(wrapper, via, as_text=as_text, shown=shown, sent=sent)
    sentences.append(f"Call it like: {call}")
    text = " ".join(sentences)
    named = [ArgumentProblem(path=(name,), kind="missing", message="") for name in complaint.missing]
    room = max(MAX_HINT_CHARS - len(text) - len(" Schema: "), 0)
    return (
        f"{text} Schema: {problems.schema_text(wrapper, named, arguments, room)}" if room >= _MIN_SCHEMA_CHARS else text
    )


def _names(names: tuple[str, ...]) -> str:
    return listed([excerpt(name, MAX_SHOWN_KEY) for name in names], _MAX_LISTED)
