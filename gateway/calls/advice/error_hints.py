"""Add a hint to an upstream's error about arguments, leaving the error itself unchanged.

An upstream may check more than its schema says, and a model often sees only the upstream's message: `'to' was not
provided` has made models believe that arguments are lost in transit. A hint is added if a message says that a declared
parameter is missing, or that a sent key is unknown. The hint names the missing parameters, the keys that were sent and
the most similar names, and contains an example call and the schema. Every other result is returned unchanged, as the
same object.

Only a limited number of characters around known names is searched, so the time is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from gateway.protocol.gateway_errors import INVALID_PARAMS, UPSTREAM_ERROR_KEY, RpcError
from registry.arguments import problems
from registry.arguments.coercion import normalized_parameter
from registry.arguments.diagnosis import ArgumentProblem, NameSuggester, describe_type
from registry.arguments.problems import CallRoute
from registry.catalog.catalog import ToolWrapper
from registry.dialects.definitions import LoweredDefinition
from registry.schema.display_text import excerpt, join_names
from registry.schema.json_paths import MAX_SHOWN_KEY, JsonPath, declared_properties

MAX_READ_CHARS: Final = 8_192
"""Maximum number of characters to read from a text. Validators write the complaint before any stack trace."""
# Maximum number of sent keys to examine; calls that models write do not have more.
_MAX_SENT: Final = 50
# Maximum occurrences of a name to examine. A text may mention a name a few times before the relevant sentence.
_MAX_OCCURRENCES: Final = 20
# Characters to read on each side of a name: longer than the longest phrase about a name in the test corpus.
_WINDOW_CHARS: Final = 90
# Maximum number of parameters to search for; generated schemas have hundreds of properties.
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
# Phrases before a name that ask for the parameter, or say that the parameter has no value.
_ASKS_FOR = re.compile(
    r"(?:(?:must|should|need\sto|have\sto|please)\s(?:specify|provide|supply|include|pass)"
    r"|no\svalue\s(?:was\s)?(?:given|provided|supplied|specified|set)\sfor)"
    r"\s(?:an?\s|the\s)?(?:value\sfor\s)?(?:the\s)?(?:required\s)?(?:parameter\s|argument\s|field\s|property\s)?$",
    re.IGNORECASE,
)
# A colon and the names before the examined name, as in `are required: to, subject`.
_LIST_BEGINS = re.compile(
    r":\s{0,3}(?:['\"`‘“]?[\w.$-]{1,64}['\"`’”]?(?:\s{0,2},\s{0,2}(?:and\s|or\s)?|\s(?:and|or|&)\s)){0,20}['\"`‘“]?$"
)
# ASP.NET and Laravel write a label instead of the parameter's name: `The Start Date field is required.`
_LABEL = re.compile(r"\bThe ([A-Za-z][\w .-]{0,60}?) field is required\b")
# Phrases about a person or thing rather than a parameter: `user is required to log in`, `user is missing a role`.
_SAYS_OTHER = re.compile(
    r"\s(?:is|are|was|were)\s(?:required\sto\s|missing\s(?!(?:in|from|or|and|but|for|on|at|when|if)\b)\w)",
    re.IGNORECASE,
)
# Possible names of undeclared parameters: quoted, alone on a line, or spelled like a parameter.
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
# Members that contain a parameter's name or path in the error objects of zod, pydantic and common web services.
_PATH_MEMBERS: Final = ("path", "loc", "field", "param", "parameter", "property")
# Possible first elements of a path in FastAPI's errors.
_PARTS_OF_REQUEST: Final = frozenset({"body", "query", "path", "header", "cookie"})
_JSON_BEGINS = re.compile(r"\{\s{0,80}[\"}]|\[\s{0,80}\{")
# Maximum number of JSON values to visit in a list of error objects: an object has about ten, so this is fifty objects.
_MAX_NODES: Final = 500
_ONLY_A_KEY = re.compile(r"(?:[^\n'\"]{0,120}: )?'([^'\n]{1,64})'")
_SAYS_UNKNOWN = re.compile(
    r"unexpected|unrecogni[sz]ed|unknown|unsupported|not allowed|not permitted|not a valid|does not exist|no such"
    r"|additional propert|extra (?:input|field|key)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """The problems with arguments that an upstream reports.

    Attributes:
        missing: Declared parameters that are reported missing and were not sent.
        disputed: Declared parameters that are reported missing although they were sent.
        unknown: Sent keys that the schema does not declare. Each is reported as unknown, or equals the name of an
            unsent parameter except for case and separators.
        undeclared: True if the text reports a missing parameter that the schema does not declare. In that case, the
            tool has changed or its schema is wrong. This alone is not enough for a hint.
    """

    missing: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    undeclared: bool = False

    def __bool__(self) -> bool:
        return bool(self.missing or self.disputed or self.unknown)

    def renamed(self, names: Mapping[str, str]) -> Complaint:
        """Return the complaint with the parameter names that the caller uses.

        Args:
            names: The names that the caller uses, by the upstream's names.
        """
        missing, disputed, unknown = (
            tuple(names.get(name, name) for name in parameters)
            for parameters in (self.missing, self.disputed, self.unknown)
        )
        return replace(self, missing=missing, disputed=disputed, unknown=unknown)


def find_complaint(text: str, wrapper: ToolWrapper, arguments: dict[str, Any], *, slips: bool = True) -> Complaint:
    """Return what a text reports about declared parameters and sent keys.

    Args:
        text: The upstream's message.
        arguments: The arguments that were sent to the upstream.
        slips: True to report undeclared keys that equal the name of an unsent parameter except for case and separators,
            even if the text does not mention these keys.
    """
    text = text[:MAX_READ_CHARS]
    names = declared_properties(wrapper.input_schema, wrapper.input_schema)
    occurring = [name for name in list(names)[:_MAX_NAMES] if name and name in text]
    prose, reported = _split_json(text)
    labels = {normalized_parameter(label[1]) for label in islice(_LABEL.finditer(prose), _MAX_OCCURRENCES)}
    mentioned = [
        name
        for name in (list(names)[:_MAX_NAMES] if labels else occurring)
        if name in reported or normalized_parameter(name) in labels or _says_missing(prose, name, occurring)
    ]
    stray = [key for key in list(arguments)[:_MAX_SENT] if key and key not in names]
    rejects = bool(stray) and _SAYS_UNKNOWN.search(text) is not None
    spellings = {normalized_parameter(name) for name in names if name not in arguments} if stray and slips else set()
    return Complaint(
        missing=tuple(name for name in mentioned if name not in arguments),
        disputed=tuple(name for name in mentioned if name in arguments),
        undeclared=not mentioned and _reports_undeclared(prose, reported, names),
        unknown=tuple(
            key
            for key in stray
            if normalized_parameter(key) in spellings or (rejects and next(_occurrences(text, key), None))
        ),
    )


def _reports_undeclared(text: str, reported: set[str], names: Collection[str]) -> bool:
    """Return whether the text reports that an undeclared parameter is missing."""
    if any(name not in names for name in reported):
        return True
    strangers = {name for match in _MAY_BE_NAME.finditer(text) for name in match.groups() if name and name not in names}
    return any(_says_missing(text, name, names) for name in islice(strangers, _MAX_STRANGERS))


def _occurrences(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each occurrence of a name as a separate word, without quotes."""
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
        return True  # the text of a Python KeyError
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
        if _is_announced_missing(before, names, quoted) and (quoted or _ENDS_NAME.match(after)):
            return True
    return False


def _is_announced_missing(before: str, names: Collection[str], quoted: bool) -> bool:
    """Return whether the words before a name say that the following parameter is missing."""
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


def _split_json(text: str) -> tuple[str, set[str]]:
    """Separate a text into prose and JSON.

    Returns:
        The prose, with the strings of the JSON appended; and the parameters that error objects in the JSON report
        missing.
    """
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


# Maximum length of a text in a successful result to examine for an error object. Error objects are short.
MAX_BODY_CHARS: Final = 4_096
# Maximum length of a hint. About 600 tokens: enough for the schema of a typical parameter, and less than the cost of
# listing the tools again.
MAX_HINT_CHARS: Final = 2_500
# Maximum number of text items to read; validators write one.
_MAX_ITEMS: Final = 4
# Maximum number of names to list in a hint before "and N more".
_MAX_LISTED: Final = 20
# Maximum number of keys to describe individually; a call with more wrong keys needs the schema instead.
_MAX_SENTENCES: Final = 5
# Minimum space for a schema in a hint; a shorter part of a schema would not be useful.
_MIN_SCHEMA_CHARS: Final = 100

_NO_SUCH_TOOL = re.compile(r"(?:unknown|no such) tool\b|\btool\b[^\n]{0,140}\bnot found", re.IGNORECASE)
_INVALID_PARAMS = re.compile(r"\s{0,4}(?:MCP error )?-32602\b")


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

    This function examines error results (including relayed protocol errors), and short JSON objects with an `error`
    member in successful results. A protocol error -32602 always gets a hint with an example call, unless the error says
    that the tool does not exist.

    Args:
        arguments: The arguments that were sent to the upstream.
        via: How the tool was called: by its wrapper name or through `invoke_tool`.
        lowered: The tool's definition as rewritten for the caller's JSON Schema dialect; None if it was not rewritten.
            The upstream's message uses the upstream's parameter names, and the hint uses the names in this definition.
        on_undeclared: Called with the server if it reports an undeclared parameter missing.
    """
    content = result.get("content")
    if not isinstance(content, list):
        return result
    texts = [text for item in content if isinstance(item, dict) and isinstance(text := item.get("text"), str)]
    if result.get("isError") is True:
        code, own, data = _protocol_error(result)
        # Prefer the upstream's own message to the result's text, to which the gateway has added words. Some patterns
        # match only a complete message.
        message = own or "\n".join(text[:MAX_READ_CHARS] for text in texts[:_MAX_ITEMS])[:MAX_READ_CHARS]
        complaint = find_complaint(f"{message}\n{data}" if data else message, wrapper, arguments)
        is_invalid_params = code == INVALID_PARAMS or _INVALID_PARAMS.match(message) is not None
        is_invalid_params = is_invalid_params and not _NO_SUCH_TOOL.search(message)
    else:
        bodies = [text for text in texts if '"error"' in text]
        if not bodies or not (message := "\n".join(_complaints_in(bodies))):
            return result
        complaint, is_invalid_params = find_complaint(message, wrapper, arguments, slips=False), False
    if complaint.undeclared:
        on_undeclared(wrapper.server)
    if not complaint and not is_invalid_params:
        return result
    if lowered is not None:
        wrapper = problems.as_advertised(wrapper, lowered)
        complaint, arguments = (
            complaint.renamed(lowered.shown_names),
            problems.rename_members(arguments, lowered.shown_names),
        )
    hint = _hint_text(complaint, wrapper, arguments, problems.form_of(via, lowered))
    return {**result, "content": [*content, {"type": "text", "text": hint}]}


def with_changes_by_hooks(result: dict[str, Any], hooks: Sequence[str]) -> dict[str, Any]:
    """Add the names of the hooks that changed the arguments to an error result.

    The text tells the caller that its own arguments may be right.
    """
    content = result.get("content")
    if result.get("isError") is not True or not isinstance(content, list):
        return result
    text = f"Added by the gateway: {' '.join(changes_by_hooks(hooks))}"
    return {**result, "content": [*content, {"type": "text", "text": text}]}


def naming_hooks(error: RpcError, hooks: Sequence[str]) -> RpcError:
    """Add the names of the hooks that changed the arguments to the message of a protocol error."""
    if not hooks:
        return error
    return RpcError(error.code, " ".join((error.message, *changes_by_hooks(hooks))), error.data)


def changes_by_hooks(hooks: Sequence[str]) -> list[str]:
    """Return sentences that name the hooks that changed the arguments; empty without hooks."""
    if not hooks:
        return []
    names = ", ".join(dict.fromkeys(hooks))
    return [
        f"Hook '{names}' of this gateway has changed the arguments that you sent, so the error may not be yours:"
        " if what you sent was right, the operator of the gateway has to look at the hook."
    ]


def _protocol_error(result: dict[str, Any]) -> tuple[int | None, str, str]:
    """Return the code, the message and the data (as text) of the protocol error from which a result was made.

    Without such an error, return None and two empty texts.
    """
    meta = result.get("_meta")
    error = meta.get(UPSTREAM_ERROR_KEY) if isinstance(meta, dict) else None
    if not isinstance(error, dict):
        return None, "", ""
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    try:
        text = "" if data is None else data if isinstance(data, str) else json.dumps(data)
    except (ValueError, RecursionError):
        text = ""
    message = message[:MAX_READ_CHARS] if isinstance(message, str) else ""
    return (code if isinstance(code, int) else None), message, text[:MAX_READ_CHARS]


def _complaints_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield the error message in each text that is a JSON object with an `error` member."""
    for text in texts:
        if len(text) > MAX_BODY_CHARS or not text.lstrip().startswith("{"):
            continue
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            continue
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str):
            yield message


def _hint_text(complaint: Complaint, wrapper: ToolWrapper, arguments: dict[str, Any], form: problems.CallForm) -> str:
    sentences = ["Added by the gateway:"]
    if complaint.missing:
        sentences.append(f"Missing: {_names(complaint.missing)}.")
    sentences += [
        f"{excerpt(name, MAX_SHOWN_KEY)} was sent, as {describe_type(arguments[name])}."
        for name in complaint.disputed[:_MAX_SENTENCES]
    ]
    absent = [name for name in declared_properties(wrapper.input_schema, wrapper.input_schema) if name not in arguments]
    names_near = NameSuggester()
    # The example shows the parameters in question even if the schema does not require them, so that the example differs
    # from the failed call.
    example_paths: list[JsonPath] = [(name,) for name in (*complaint.missing, *complaint.disputed)]
    for key in complaint.unknown[:_MAX_SENTENCES]:
        near = names_near.suggest(key, absent)
        example_paths += [(near,)] if near is not None else []
        hint = f"; did you mean {near}?" if near is not None else "."
        sentences.append(f"{excerpt(key, MAX_SHOWN_KEY)} is not a parameter{hint}")
    sentences.append(f"Keys sent: {_names(tuple(arguments)) or '(none)'}.")
    # The example repeats the sent values only if the complaint says which arguments are wrong.
    sent = arguments if example_paths else None
    call = problems.example_call(wrapper, form, shown_paths=example_paths, sent=sent)
    sentences.append(f"Call it like: {call}")
    text = " ".join(sentences)
    missing_problems = [ArgumentProblem(path=(name,), kind="missing", message="") for name in complaint.missing]
    room = max(MAX_HINT_CHARS - len(text) - len(" Schema: "), 0)
    return (
        f"{text} Schema: {problems.schema_text(wrapper, missing_problems, arguments, room)}"
        if room >= _MIN_SCHEMA_CHARS
        else text
    )


def _names(names: tuple[str, ...]) -> str:
    return join_names([excerpt(name, MAX_SHOWN_KEY) for name in names], _MAX_LISTED)
