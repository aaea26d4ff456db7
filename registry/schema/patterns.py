"""Decide which regular expressions of a schema can be run, rewrite them, and derive the form of a schema for checks.

The engines are the two regular expression engines of `jsonschema_rs`. The time of the linear engine is proportional to
the length of the text. The backtracking engine also supports look-around and back-references.

The checked form accepts every value that the schema accepts. It differs where a check must not or cannot enforce the
schema: null is accepted where `nullable` or a default of null allows it, `format` and the `content` keywords are not
enforced, and patterns that cannot be run are left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

from registry.schema.json_values import containers
from registry.schema.references import SchemaDocument
from registry.schema.weakening import Edit, apply_edits, schema_objects

# Escapes that denote one character in ECMAScript or Python, but that the engines refuse, in and outside of classes.
_CHARACTERS: Final = {"\\0": "\\x00", "\\a": "\\x07", "\\e": "\\x1b"}
# In Python, `\Z` is the end of the text. In ECMAScript, it is an escaped letter, which does not occur in practice.
_PLACES: Final = {"\\Z": "\\z"}
_QUANTIFIER: Final = re.compile(r"\{\d+(?:,\d*)?\}")
_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_PAIR: Final = re.compile(f"({_HIGH})({_LOW})")
_CLASS_PAIR: Final = re.compile(rf"\[{_HIGH}-{_HIGH}\]\[{_LOW}-{_LOW}\]")
_HALF_RANGE: Final = re.compile(rf"(?:{_HIGH}|{_LOW})-(?:{_HIGH}|{_LOW})|{_HIGH}|{_LOW}")
_TOKEN: Final = re.compile(r"\\(?:[ux]\{[0-9a-fA-F]+\}|[pP]\{[^}]*\}|k<\w+>|.)|.", re.DOTALL)
_CLASS_ESCAPES: Final = frozenset({"\\d", "\\D", "\\s", "\\S", "\\w", "\\W"})


def to_engine_syntax(pattern: str) -> str:
    """Rewrite a pattern in the syntax of the engines.

    Constructs that cannot be rewritten stay as they are, so that no engine accepts the result.
    """
    tokens = _TOKEN.findall(_without_surrogates(pattern))
    out: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token == "[":
            text, index = _rewrite_class(tokens, index)
            out.append(text)
            continue
        out.append(_rewrite_token(token, "".join(tokens[index : index + 24]), out))
        index += 1
    return re.sub(r"\(\?#[^)]*\)", "", "".join(out))


def _rewrite_token(token: str, ahead: str, before: list[str]) -> str:
    if token in _CHARACTERS:
        return _CHARACTERS[token]
    if token in _PLACES:
        return _PLACES[token]
    if token.startswith("\\k<"):
        return f"(?P={token[3:-1]})"
    if token == "<" and before[-2:] == ["(", "?"] and ahead[1:2] not in ("=", "!"):
        return "P<"
    if token == "{" and not _QUANTIFIER.match(ahead):
        return "\\{"  # not a quantifier, so a literal brace
    if len(token) == 2 and token[0] == "\\" and ord(token[1]) > 127:
        return token[1]
    return token


def _rewrite_class(tokens: list[str], start: int) -> tuple[str, int]:
    """Rewrite one character class; return the text and the index after it."""
    index = start + 1
    negated = index < len(tokens) and tokens[index] == "^"
    index += negated
    if index < len(tokens) and tokens[index] == "]" and "]" not in tokens[index + 1 :]:
        # In ECMAScript an empty class matches nothing, and a negated empty class matches any character.
        return ("[\\s\\S]" if negated else "[^\\s\\S]"), index + 1
    members: list[str] = []
    while index < len(tokens) and tokens[index] != "]":
        token = tokens[index]
        if token == "\\b":
            token = "\\x08"
        elif token == "-" and (
            (members and members[-1] in _CLASS_ESCAPES)
            or tokens[index + 1 : index + 2] in [[c] for c in _CLASS_ESCAPES]
        ):
            token = "\\-"  # next to a class escape, a hyphen is a literal
        elif token in ("[", "&", "~"):
            token = "\\" + token  # the engines support nested classes and set operators
        elif len(token) == 2 and token[0] == "\\" and ord(token[1]) > 127:
            token = token[1]
        members.append(_CHARACTERS.get(token, token))
        index += 1
    return f"[{'^' if negated else ''}{''.join(members)}]", index + 1


def _without_surrogates(pattern: str) -> str:
    """Replace surrogate pairs with code points, and remove lone surrogates, which no valid text contains."""
    if "\\u" not in pattern:
        return pattern
    pattern = _CLASS_PAIR.sub(r"[\\u{10000}-\\u{10FFFF}]", pattern)
    pattern = _PAIR.sub(lambda pair: f"\\u{{{_code_point(pair[1], pair[2]):X}}}", pattern)
    return _HALF_RANGE.sub("", pattern)


def _code_point(high: str, low: str) -> int:
    return 0x10000 + ((int(high[2:], 16) - 0xD800) << 10) + (int(low[2:], 16) - 0xDC00)


# The longest pattern in `tests/corpus` has 166 characters. The limit leaves room for 500 words as alternatives, which
# compile in 2 ms.
MAX_PATTERN_LENGTH: Final = 4_096
# Maximum compiled size of one pattern, in bytes; the time to compile grows with the size.
PATTERN_BYTES: Final = 1 << 20
# Maximum number of backtracking steps before the engine gives up on a text, after less than a millisecond.
BACKTRACK_LIMIT: Final = 10_000
# Limit of `compile_cost` for all distinct patterns of a schema: 20 ms, or about 500 different patterns for UUIDs.
MAX_COMPILE_COST: Final = 80_000
# The highest `compile_cost` of one pattern: the engines stop compiling at PATTERN_BYTES, after at most 4 ms.
_MAX_COST_OF_PATTERN: Final = 16_000

# Weights of `compile_cost`, in characters of an ordinary pattern (0.25 us each). Every pattern has a fixed cost, a dot
# or a negated class is a small automaton over UTF-8, a Unicode class is a table of hundreds of ranges, and look-around
# needs the second engine.
_COST_OF_PATTERN: Final = 20
_COST_OF_NEGATION: Final = 12
_COST_OF_UNICODE_CLASS: Final = 500
_COST_OF_BACKTRACKING: Final = 300

_UNICODE_CLASS = re.compile(r"\\[pP]")
_LOOK_AROUND = re.compile(r"\(\?(?:<?[=!]|>)")
_BACKTRACKING = re.compile(r"\(\?[=!<>]|\\[1-9kK]")
# The tokens whose costs `compile_cost` adds: escapes, classes, counts, and any other character.
_PIECE = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\[\^?(?:\\.|[^\]\\])*\]|\{(?P<low>\d{1,9})(?:,(?P<high>\d{0,9}))?\}|.", re.DOTALL
)
_NEGATIONS: Final = (".", "[^", "\\D", "\\S", "\\W")
# An atom that matches exactly one character, and a pattern that is only such an atom with a count.
_ATOM = (
    r"(?:\\[pP]\{[^}]*\}|\\[ux]\{[^}]*\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\[\^?(?:\\.|[^\]\[\\])+\]|\\[dDsSwW]|\.)"
)
_ONE_CHARACTER = re.compile(_ATOM)
_COUNTED_ATOM = re.compile(rf"\^({_ATOM})\{{(\d{{1,9}})(?:(,)(\d{{1,9}})?)?\}}\$")
# Compiled sizes that are distinguished, in ascending order.
_WEIGHTS: Final = tuple(1 << power for power in range(10, 21))

# Up to this compiled size, the lower of the two costs below applies to a pattern.
CHEAP_PATTERN_BYTES: Final = 1024
# The time to match one character with a pattern of up to 1 KiB, and with each KiB of a larger pattern, measured on one
# core. The few states of a small pattern are built once; a large pattern may need a new state at every character.
_LIGHT_NS: Final = 5
_HEAVY_NS: Final = 200


@dataclass(frozen=True, slots=True)
class RunnablePattern:
    """A pattern in the form in which it is run.

    Attributes:
        source: The pattern in the syntax of its engine, without the count that `lengths` replaces.
        lengths: The minimum and maximum length of a matching text, if `source` does not contain the count.
        weight: The size of the compiled form in bytes, rounded up to a power of two.
        quadratic: Whether the engine may scan the whole text again from every character.
    """

    source: str
    engine: Literal["linear", "backtracking"]
    weight: int
    quadratic: bool
    lengths: tuple[int, int | None] | None = None

    def cost_ns(self, length: int) -> int:
        """Return the longest time, in nanoseconds, that matching a text of this length may take."""
        steps = length * length if self.quadratic else length
        return steps * (_LIGHT_NS if self.weight <= CHEAP_PATTERN_BYTES else self.weight * _HEAVY_NS // 1024)

    def affordable_length(self, budget_ns: int) -> int:
        """Return the length of the longest text that can be matched within a time, given in nanoseconds."""
        steps = budget_ns // self.cost_ns(1)
        return math.isqrt(steps) if self.quadratic else steps


def compile_cost(pattern: str) -> int:
    """Estimate the cost of compiling a pattern, in characters of an ordinary pattern.

    The costs of consecutive parts add up. A count multiplies the cost of the part before it, so nested counts multiply.
    """
    cost = _COST_OF_PATTERN + (_COST_OF_BACKTRACKING if _BACKTRACKING.search(pattern) else 0)
    if _COUNTED_ATOM.fullmatch(pattern):
        return cost + len(pattern)  # compiled without the count
    groups: list[int] = []
    total = last = 0  # the cost of the open group without its latest part, and of that part
    for piece in _PIECE.finditer(pattern):
        text = piece[0]
        if text == "(":
            groups.append(total + last)
            total = last = 0
        elif text == ")" and groups:
            total, last = groups.pop(), total + last
        elif piece["low"]:
            # Capped, because nested counts can multiply to a number of any size.
            last = min(last * max(int(piece["high"] or piece["low"]), 1), _MAX_COST_OF_PATTERN)
        else:
            total, last = total + last, _cost_of_atom(text)
    return min(cost + sum(groups) + total + last, _MAX_COST_OF_PATTERN)


def _cost_of_atom(text: str) -> int:
    if tables := len(_UNICODE_CLASS.findall(text)):
        return _COST_OF_UNICODE_CLASS * tables
    return _COST_OF_NEGATION if text.startswith(_NEGATIONS) else 1


# The same few patterns (dates, identifiers) occur in thousands of schemas. MAX_PATTERN_LENGTH limits the size of a key.
@lru_cache(maxsize=4096)
def runnable_pattern(pattern: str) -> RunnablePattern | None:
    """Return the form in which a pattern is run; None if neither engine accepts it within the limits."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return None
    for source in dict.fromkeys((pattern, to_engine_syntax(pattern))):
        if counted := _COUNTED_ATOM.fullmatch(source):
            # A count repeats the atom in the compiled form, which becomes large, but it only limits the length.
            atom, least, most = counted[1], int(counted[2]), int(counted[4]) if counted[4] else None
            lengths = (least, most if counted[3] else least)
            if _compiles(f"^{atom}*$", "linear", PATTERN_BYTES):
                return RunnablePattern(f"^{atom}*$", "linear", _WEIGHTS[0], quadratic=False, lengths=lengths)
        if _compiles(source, "linear", PATTERN_BYTES):
            return RunnablePattern(source, "linear", _weight(source), quadratic=False)
        if _compiles(source, "backtracking", PATTERN_BYTES):
            # The backtracking engine runs the parts between look-arounds as the linear engine does.
            plain = re.sub(r"\\[1-9kK](?:<\w+>)?", "", _LOOK_AROUND.sub("(?:", source))
            return RunnablePattern(source, "backtracking", _weight(plain), quadratic=not _is_tried_once(source))
    return None


def _weight(source: str) -> int:
    # Replace each class with a small class, because the ranges of a class add no positions to the pattern.
    plain = _ONE_CHARACTER.sub("[ab]", source)
    return next((weight for weight in _WEIGHTS if _compiles(plain, "linear", weight)), PATTERN_BYTES)


def _is_tried_once(source: str) -> bool:
    """Return whether every look-ahead can be tried only once: at the start, with nothing before it to backtrack into.

    Such a pattern is `^`, then look-aheads without nested look-around, then a rest without look-around.
    """
    # Escapes and classes cannot open a group, so they are replaced by a letter.
    bare = re.sub(r"\\[1-9kK]", "(?=)", _ONE_CHARACTER.sub("c", source))
    bare = re.sub(r"\\.", "c", bare)
    if not bare.startswith("^"):
        return False
    position, depth, inside = 1, 0, False
    while position < len(bare):
        if look_around := _LOOK_AROUND.match(bare, position):
            if inside or depth or look_around[0] not in ("(?=", "(?!"):
                return False
            inside, depth, position = True, 1, look_around.end()
            continue
        char = bare[position]
        depth += (char == "(") - (char == ")")
        if inside and depth == 0:
            inside = False
        elif depth == 0:
            remaining = bare[position:]
            return not _LOOK_AROUND.search(remaining) and "|" not in _outermost(remaining)
        position += 1
    return True


def _outermost(text: str) -> str:
    """Return the characters of a pattern outside of any group."""
    depth, outermost = 0, []
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth == 0:
            outermost.append(char)
    return "".join(outermost)


def finishes_within_limit(source: str, text: str) -> bool:
    """Return whether matching finishes within `BACKTRACK_LIMIT` steps of the backtracking engine."""
    validator = _standalone_validator(source)
    if validator.is_valid(text):
        return True
    [error] = validator.iter_errors(text)
    return not error.message.startswith("Error executing regex")


@lru_cache(maxsize=256)
def _standalone_validator(source: str) -> Any:
    import jsonschema_rs

    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    return jsonschema_rs.Draft202012Validator({"pattern": source}, pattern_options=options)


def _compiles(source: str, engine: Literal["linear", "backtracking"], size: int) -> bool:
    import jsonschema_rs  # lazy, to keep the import of the registry fast

    options: Any = jsonschema_rs.RegexOptions(size_limit=size)
    if engine == "backtracking":
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=size)
    try:
        jsonschema_rs.Draft202012Validator({"pattern": source}, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


_NULL: Final[dict[str, Any]] = {"type": "null"}
# These keywords are removed, because the compiler would enforce them in drafts 6 and 7.
_ANNOTATIONS: Final = frozenset({"contentEncoding", "contentMediaType", "contentSchema"})
# If a subschema of one of these keywords accepts more, the keyword accepts less. A `format` that is not enforced in
# such a subschema therefore has to be taken into account.
_REVERSING: Final = frozenset({"not", "if", "oneOf", "maxContains"})
_OF_INTEREST: Final = _ANNOTATIONS | {"pattern", "patternProperties"}
_DEFINITIONS: Final = frozenset({"$defs", "definitions", "$schema", "$id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedForm:
    """A schema in its checked form.

    Attributes:
        schema: The checked form, whose patterns can all be run; the original object if nothing had to change.
        runnable: The patterns of the original schema, with the form in which each is run.
        left_out: The patterns that cannot be run.
    """

    schema: Any
    runnable: dict[str, RunnablePattern]
    left_out: tuple[str, ...]

    @property
    def backtracking(self) -> bool:
        """True if a pattern needs the backtracking engine."""
        return any(pattern.engine == "backtracking" for pattern in self.runnable.values())


def checked_form(
    schema: Any,
    *,
    lone_references: bool = False,
    without_quadratic: bool = False,
    max_weight: int = PATTERN_BYTES,
) -> CheckedForm:
    """Return the checked form of a schema, which has to be shallow enough for recursion.

    Args:
        schema: The schema.
        lone_references: Whether the schema's draft ignores keywords next to a `$ref`.
        without_quadratic: Leave out patterns that may exceed `BACKTRACK_LIMIT` steps.
        max_weight: Leave out patterns whose compiled form has more bytes than this.
    """
    if not _is_of_interest(schema):
        return CheckedForm(schema=schema, runnable={}, left_out=())
    document = SchemaDocument(schema)
    nodes = schema_objects(schema, document)
    form = _Form(
        lone_references=lone_references,
        without_quadratic=without_quadratic,
        max_weight=max_weight,
        affordable=_affordable(nodes),
        nullable=_nullable(nodes),
        widened_by_formats=any(not _REVERSING.isdisjoint(node) for node in nodes),
    )
    changed = apply_edits(schema, form.edit, document, nodes)
    return CheckedForm(schema=changed, runnable=form.runnable, left_out=tuple(dict.fromkeys(form.left_out)))


def with_nulls_spelled_out(schema: Any, *, lone_references: bool) -> Any:
    """Return a schema in which types and alternatives express what `nullable` says."""
    if not any("nullable" in node for node in containers(schema) if isinstance(node, dict)):
        return schema
    document = SchemaDocument(schema)
    nodes = schema_objects(schema, document)
    nullable = _with_parts([node for node in nodes if node.get("nullable") is True])

    def edit(node: dict[str, Any]) -> Edit:
        edit = Edit(dropped={"nullable"} & node.keys())
        if id(node) in nullable:
            accept_null(node, edit, lone=lone_references)
        return edit

    return apply_edits(schema, edit, document, nodes)


def _is_of_interest(schema: Any) -> bool:
    """Return whether an object in a schema, at any depth, has keywords that the checked form changes."""
    has_format = is_reversed = False
    for node in containers(schema):
        if not isinstance(node, dict):
            continue
        if not _OF_INTEREST.isdisjoint(node) or says_nullable(node):
            return True
        has_format = has_format or "format" in node
        is_reversed = is_reversed or not _REVERSING.isdisjoint(node)
    return has_format and is_reversed


@dataclass(slots=True, kw_only=True)
class _Form:
    lone_references: bool
    without_quadratic: bool
    max_weight: int
    affordable: frozenset[str]
    nullable: frozenset[int]
    widened_by_formats: bool
    left_out: list[str] = field(default_factory=list)
    runnable: dict[str, RunnablePattern] = field(default_factory=dict)

    def edit(self, node: dict[str, Any]) -> Edit:
        edit = Edit()
        if self.widened_by_formats and "format" in node:
            edit.widens = True
        if not _ANNOTATIONS.isdisjoint(node):
            edit.dropped |= _ANNOTATIONS & node.keys()
            edit.widens = True
        if isinstance(pattern := node.get("pattern"), str):
            self._edit_pattern(node, pattern, edit)
        if isinstance(members := node.get("patternProperties"), dict):
            self._edit_members(node, members, edit)
        if id(node) in self.nullable:
            accept_null(node, edit, lone=self.lone_references)
        return edit

    def _edit_pattern(self, node: dict[str, Any], pattern: str, edit: Edit) -> None:
        runnable = self._runnable(pattern)
        if runnable is None:
            edit.dropped.add("pattern")
            edit.widens = True
        elif runnable.lengths is not None:
            edit.changes |= _with_lengths(node, runnable)
        elif runnable.source != pattern:
            edit.changes["pattern"] = runnable.source

    def _edit_members(self, node: dict[str, Any], members: dict[str, Any], edit: Edit) -> None:
        runnable_members: dict[str, Any] = {}
        for name, child in members.items():
            runnable = self._runnable(name)
            # No keyword limits the length of a name, and two patterns with the same source would collide.
            if runnable is not None and (runnable.lengths is not None or runnable.source in runnable_members):
                self.left_out.append(name)
                runnable = None
            if runnable is not None:
                runnable_members[runnable.source] = child
        if list(runnable_members) != list(members):
            edit.changes["patternProperties"] = runnable_members
        if len(runnable_members) < len(members):
            # A name that the removed pattern matches must not be refused as undeclared.
            edit.dropped |= {"additionalProperties"} & node.keys()
            edit.widens = edit.uncovers = True

    def _runnable(self, pattern: str) -> RunnablePattern | None:
        runnable = runnable_pattern(pattern) if pattern in self.affordable else None
        if runnable is None or (self.without_quadratic and runnable.quadratic) or runnable.weight > self.max_weight:
            self.left_out.append(pattern)
            return None
        self.runnable[pattern] = runnable
        return runnable


def _affordable(nodes: list[dict[str, Any]]) -> frozenset[str]:
    """Return the patterns of schemas that can be compiled within `MAX_COMPILE_COST`, starting with the cheapest."""
    patterns: set[str] = set()
    for node in nodes:
        if isinstance(pattern := node.get("pattern"), str):
            patterns.add(pattern)
        if isinstance(members := node.get("patternProperties"), dict):
            patterns.update(members)
    cost, affordable = 0, []
    for own, pattern in sorted((compile_cost(pattern), pattern) for pattern in patterns):
        cost += own
        if cost > MAX_COMPILE_COST:
            break
        affordable.append(pattern)
    return frozenset(affordable)


def _with_lengths(node: dict[str, Any], runnable: RunnablePattern) -> dict[str, Any]:
    """Return the keywords that replace a counted pattern: a pattern without the count, and length limits."""
    assert runnable.lengths is not None
    least, most = runnable.lengths
    declared_least, declared_most = node.get("minLength"), node.get("maxLength")
    changes: dict[str, Any] = {"pattern": runnable.source}
    changes["minLength"] = max(least, declared_least) if isinstance(declared_least, int) else least
    if most is not None:
        changes["maxLength"] = min(most, declared_most) if isinstance(declared_most, int) else most
    return changes


def _nullable(nodes: list[dict[str, Any]]) -> frozenset[int]:
    """Return the identities of schemas that accept null by something other than their type."""
    return _with_parts([node for node in nodes if says_nullable(node)])


def _with_parts(nullable: list[dict[str, Any]]) -> frozenset[int]:
    """Return the identities of the given schemas and of their `allOf` parts, at any depth."""
    identities: set[int] = set()
    pending = list(nullable)
    while pending:
        node = pending.pop()
        if id(node) not in identities:
            identities.add(id(node))
            every = node.get("allOf")
            pending += [part for part in every if isinstance(part, dict)] if isinstance(every, list) else []
    return frozenset(identities)


def says_nullable(node: dict[str, Any]) -> bool:
    """Return whether a schema accepts null by `nullable` (OpenAPI 3.0), by its default, or by an `enum` member."""
    if node.get("nullable") is True or node.get("x-nullable") is True:
        return True
    options = node.get("enum")
    return node.get("default", ...) is None or (isinstance(options, list) and None in options)


def accept_null(node: dict[str, Any], edit: Edit, *, lone: bool) -> None:
    """Edit a schema's keywords to accept null. Subschemas keep their positions, because references may lead to them."""
    edit.widens = True
    reference = node.get("$ref")
    if isinstance(reference, str) and lone:
        edit.dropped |= node.keys() - _DEFINITIONS
        edit.changes = {"anyOf": [{"$ref": reference}, _NULL]}
        edit.dropped.discard("anyOf")
        return
    types, options = node.get("type"), node.get("enum")
    if isinstance(types, str) and types != "null":
        edit.changes["type"] = [types, "null"]
    elif isinstance(types, list) and "null" not in types:
        edit.changes["type"] = [*types, "null"]
    if isinstance(options, list) and None not in options:
        edit.changes["enum"] = [*options, None]
    if node.get("const") is not None:
        edit.dropped.add("const")
        edit.changes["enum"] = [node["const"], None]
    alternatives = node.get("anyOf")
    if isinstance(alternatives, list):
        edit.changes["anyOf"] = alternatives = [*alternatives, _NULL]
    either = node.get("oneOf")
    if isinstance(either, list) and all(isinstance(branch, dict) and _refuses_null(branch) for branch in either):
        edit.changes["oneOf"] = [*either, _NULL]
    if isinstance(reference, str):
        edit.dropped.add("$ref")
        referred = [{"$ref": reference}, _NULL]
        if isinstance(alternatives, list):
            every = node.get("allOf")
            edit.changes["allOf"] = [*(every if isinstance(every, list) else ()), {"anyOf": referred}]
        else:
            edit.changes["anyOf"] = referred


def _refuses_null(schema: dict[str, Any]) -> bool:
    types = schema.get("type")
    return isinstance(types, str | list) and "null" not in types and not says_nullable(schema)
