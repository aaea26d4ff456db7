"""Read values that are not written as the schema demands: JSON texts, misspelled names, wrapper objects.

A wrapper object is an object around the arguments, such as `{"arguments": {...}}`. It is unrelated to tool wrappers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from registry.catalog.names import normalized_name
from registry.errors import NotChecked
from registry.schema.check_cost import current_effort
from registry.schema.display_text import excerpt
from registry.schema.json_paths import (
    MAX_SHOWN_KEY,
    MISSING,
    NO_NAMES,
    JsonPath,
    composed_schemas,
    declared_properties,
    format_path,
    value_at,
)

# Maximum number of repairs that are listed in one result. A model learns enough from the first few, and a long array
# may need thousands of repairs of the same kind.
_MAX_REPORTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One part of a call that was read differently from how it was written.

    Attributes:
        name: A stable word for counters, such as `renamed`.
        path: The path in the repaired arguments.
        was: The name that was sent, if a name was repaired; never a value.
    """

    name: str
    path: JsonPath = ()
    was: str | None = None

    def to_json(self, names: Mapping[str, str] = NO_NAMES) -> dict[str, str]:
        """Return the repair as `report_repairs` lists it: names are shortened, and values are never shown."""
        data = {"repair": self.name, "path": format_path(self.path, names)}
        return data if self.was is None else {**data, "was": excerpt(self.was, MAX_SHOWN_KEY)}


def report_repairs(repairs: Sequence[Repair], names: Mapping[str, str] = NO_NAMES) -> dict[str, Any]:
    """Return the number of repairs and a list of the first 20, for the `_meta` of a result.

    Args:
        repairs: All repairs.
        names: For each renamed property, the name that the caller was shown.
    """
    return {"count": len(repairs), "repairs": [repair.to_json(names) for repair in repairs[:_MAX_REPORTED]]}


# The number of digits is limited: converting digits takes quadratic time, and a float has at most about 308 digits.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})")
_IGNORED_IN_NAMES = str.maketrans("", "", "-_ .")
# A text that contains any of these separators may be a list of several items.
_ITEM_SEPARATORS = (",", ";", "\n")
# Texts that programs and models write for an absent value. Such a text is not meant as an item of a list.
_NO_VALUE: Final = frozenset({"null", "none", "nil", "undefined", "nan", "n/a"})
# Parsing this many characters takes about 10 ms on the event loop.
_MAX_INLINE_TEXT: Final = 200_000
# Maximum number of serializations to undo. Models serialize a value once or twice.
_MAX_SERIALIZED: Final = 2
# Longer enumerations are not searched for options in a different case, because indexing them takes milliseconds.
MAX_OPTIONS: Final = 10_000


def normalized_parameter(name: str) -> str:
    """Return the name of a parameter in lower case and without separators: `account-ID` becomes `accountid`."""
    return name.translate(_IGNORED_IN_NAMES).casefold()


def parse_json_exactly(text: str) -> Any:
    """Parse JSON; return `MISSING` if it is invalid, would round a number, or repeats a key.

    Raises:
        NotChecked: The text is too long for the current limits.
    """
    if len(text) > _MAX_INLINE_TEXT and current_effort().check_ns is not None:
        raise NotChecked((), f"JSON texts of more than {_MAX_INLINE_TEXT:,} characters are too long for a quick check")
    try:
        return json.loads(
            text, parse_constant=_reject_constant, parse_float=_exact_float, object_pairs_hook=_unique_members
        )
    except (ValueError, RecursionError):
        return MISSING


def parse_container(text: str) -> Any:
    """Return the object or array that was serialized, once or twice, to this text; `MISSING` if there is none."""
    for _time in range(_MAX_SERIALIZED):
        text = text.strip()
        # Fast path: the first character rules out ordinary texts.
        if text[:1] not in ("{", "[", '"'):
            return MISSING
        value = parse_json_exactly(text)
        if isinstance(value, dict | list):
            return value
        if not isinstance(value, str):
            return MISSING
        text = value
    return MISSING


def coerce_text(text: str, types: Collection[str], *, rounded: bool = False) -> Any:
    """Convert a text to one of the given JSON types; return `MISSING` if it does not represent such a value.

    Args:
        text: A text that was sent where the schema does not declare a string.
        types: The declared types.
        rounded: Also read `5.0` as the integer 5.
    """
    plain = text.strip()
    if "boolean" in types and plain.casefold() in ("true", "false"):
        return plain.casefold() == "true"
    if "null" in types and plain in ("null", "None"):
        return None
    if "integer" in types and _INTEGER.fullmatch(plain):
        return int(plain)
    if "number" in types and _NUMBER.fullmatch(plain):
        return parse_json_exactly(plain)
    if rounded and "integer" in types and _NUMBER.fullmatch(plain):
        number = parse_json_exactly(plain)
        return int(number) if isinstance(number, float) and number.is_integer() else MISSING
    if "object" in types or "array" in types:
        value = parse_container(plain)
        container = "object" if isinstance(value, dict) else "array"
        return value if container in types else MISSING
    return MISSING


def is_single_item(value: object) -> bool:
    """Return whether a value can only be a single item of a list, and not a text that may contain several."""
    if isinstance(value, str):
        plain = value.strip()
        return (
            bool(plain)
            and plain[0] not in '[{"'
            and plain.casefold() not in _NO_VALUE
            and not any(mark in plain for mark in _ITEM_SEPARATORS)
        )
    return isinstance(value, bool | int | float)


class EnumOptions:
    """The options of one `enum` or `const`, indexed once for any number of values."""

    __slots__ = ("_by_case", "_other_options", "_types")

    def __init__(self, schema: dict[str, Any]) -> None:
        options = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if not isinstance(options, list) or len(options) > MAX_OPTIONS:
            options = []
        by_case: dict[str, list[str]] = {}
        for option in options:
            if isinstance(option, str):
                by_case.setdefault(option.casefold(), []).append(option)
        # Options that differ only in case are ambiguous for a value in a third spelling.
        self._by_case = {plain: alike[0] for plain, alike in by_case.items() if len(alike) == 1}
        self._other_options = [option for option in options if not isinstance(option, str)]
        self._types = {scalar for option in self._other_options if (scalar := _scalar_type(option)) is not None}

    def match(self, text: str) -> tuple[Any, str]:
        """Return the option that a text means and the name of the repair; `MISSING` if there is no such option."""
        option: Any = self._by_case.get(text.casefold(), MISSING)
        if option is not MISSING:
            return option, "letter_case"
        read = coerce_text(text, self._types)
        # Compare the types as well, because 1 equals True in Python.
        if read is not MISSING and any(
            read == option_value and type(read) is type(option_value) for option_value in self._other_options
        ):
            return read, "converted"
        return MISSING, ""


def _scalar_type(value: object) -> str | None:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    return None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object.

    Raises:
        ValueError: A key is repeated, so one of its values would be lost.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a repeated key")
    return members


def _reject_constant(constant: str) -> Any:
    raise ValueError(constant)


def _exact_float(text: str) -> float:
    """Return the float that a text writes out exactly.

    Raises:
        ValueError: The number would be rounded.
    """
    number = float(text)
    try:
        if math.isfinite(number) and Decimal(text) == Decimal(repr(number)):
            return number
    except ArithmeticError:
        pass
    raise ValueError("not exactly a float")


@dataclass(frozen=True, slots=True)
class _ObjectNames:
    """The names that an object schema declares.

    Attributes:
        by_spelling: The names that a misspelled name may mean, by normalized spelling.
        known: The names that are correct as they are.
    """

    by_spelling: dict[str, list[str]]
    known: set[str]


class SpellingCorrector:
    """Corrects member names according to one schema; caches the names of each object schema."""

    __slots__ = ("_names", "_root")

    def __init__(self, root: Any) -> None:
        self._root = root
        # Keyed by the identity of the object schema, which lives as long as the root. All items of an array share an
        # entry.
        self._names: dict[int, _ObjectNames] = {}

    def corrections(
        self,
        members: dict[str, Any],
        schema: dict[str, Any],
        *,
        schema_path: list[str | int],
        path: JsonPath,
        dropped: Container[JsonPath],
    ) -> dict[str, str]:
        """Return the correct name of each member whose name differs only in spelling from exactly one absent property.

        Args:
            members: The object.
            schema: The schema that describes the object.
            schema_path: The path of the schema in the root.
            path: The path of the object.
            dropped: Paths of members that were removed on purpose; a correction must not add them again under another
                name.
        """
        names = self._names_of(schema, schema_path)
        sent: dict[str, list[str]] = {}
        for key in members:
            if key not in names.known:
                sent.setdefault(normalized_parameter(key), []).append(key)
        corrections: dict[str, str] = {}
        for spelling, keys in sent.items():
            absent = [
                name
                for name in names.by_spelling.get(spelling, ())
                if name not in members and (*path, name) not in dropped
            ]
            # Two keys for one property, or two properties for one key, would require a guess.
            if len(keys) == 1 and len(absent) == 1:
                corrections[keys[0]] = absent[0]
        return corrections

    def _names_of(self, schema: dict[str, Any], schema_path: list[str | int]) -> _ObjectNames:
        names = self._names.get(id(schema))
        if names is not None:
            return names
        own = set(declared_properties(schema, self._root))
        required = schema.get("required")
        if isinstance(required, list):
            own.update(name for name in required if isinstance(name, str))
        if any(is_map(node) for node in composed_schemas(schema, self._root)):
            own.clear()
        accepted = set(own)
        for length in range(len(schema_path)):
            outer = value_at(self._root, schema_path[:length])
            # An alternative declares only some of the names. Names that the schemas around it declare are correct, too.
            if isinstance(outer, dict) and isinstance(outer.get("properties"), dict):
                accepted |= outer["properties"].keys()
        by_spelling: dict[str, list[str]] = {}
        for name in own:
            by_spelling.setdefault(normalized_parameter(name), []).append(name)
        names = self._names[id(schema)] = _ObjectNames(by_spelling, accepted)
        return names


def is_map(schema: dict[str, Any]) -> bool:
    """Return whether a schema gives undeclared names a meaning, so that an undeclared name is not a misspelling."""
    undeclared = schema.get("additionalProperties")
    return "patternProperties" in schema or (isinstance(undeclared, dict) and bool(undeclared))


# The names of wrapper objects, as normalized by `normalized_parameter`.
WRAPPER_KEYS: Final = frozenset({"arguments", "params", "args", "input", "parameters", "kwargs"})
WRAPPER_SPELLINGS: Final = WRAPPER_KEYS | {key.capitalize() for key in WRAPPER_KEYS}
SERVER_KEYS: Final = ("server", "servername")
TOOL_KEYS: Final = ("tool", "toolname", "name")
ADDRESS_KEYS: Final = frozenset({*SERVER_KEYS, *TOOL_KEYS})
# Maximum number of layers that are removed from a call. Models may send a wrapper object that contains a JSON text that
# contains another wrapper object, but rarely more layers.
_MAX_LAYERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAddress:
    """The names of a tool. A call may repeat them next to a wrapper object."""

    server: str
    tool: str
    name: str

    def matches(self, key: str, value: object) -> bool:
        """Return whether a member only names the tool that is called."""
        if not isinstance(value, str):
            return False
        plain_key, plain_value = normalized_parameter(key), normalized_name(value)
        if plain_key in SERVER_KEYS:
            return plain_value == normalized_name(self.server)
        return plain_key in TOOL_KEYS and plain_value in (normalized_name(self.tool), normalized_name(self.name))


def may_be_wrapped(arguments: Mapping[str, Any]) -> bool:
    """Return whether an object may contain a wrapper object. It runs for every valid call, so it only checks keys."""
    return not WRAPPER_SPELLINGS.isdisjoint(arguments)


def unwrap(
    arguments: Any, declared: Collection[str], address: ToolAddress | None, *, until: Callable[[Any], bool]
) -> tuple[Any, list[Repair]]:
    """Return the argument object inside JSON texts and wrapper objects, and the repairs made to get it.

    Args:
        arguments: The arguments as sent; null counts as an empty object.
        declared: Names that the schema declares. A member with such a name is not a wrapper object.
        address: The names of the tool, which may be next to a wrapper object.
        until: Returns whether an object needs no further unwrapping. The search ends at the first such object.
    """
    value: Any = {} if arguments is None else arguments
    repairs: list[Repair] = []
    for _layer in range(_MAX_LAYERS):
        if isinstance(value, str):
            inner = _parse_object(value)
            if inner is MISSING:
                return arguments if not repairs else value, repairs
            repairs.append(Repair(name="json_text"))
        elif isinstance(value, dict):
            key = _wrapper_key(value, declared, address)
            if key is None or until(value):
                break
            inner = value[key]
            if isinstance(inner, str) and (inner := _parse_object(inner)) is MISSING:
                break
            if not isinstance(inner, dict):
                break
            repairs.append(Repair(name="unwrapped", was=key))
            if isinstance(value[key], str):
                repairs.append(Repair(name="json_text"))
        else:
            break
        value = inner
    return value, repairs


def find_mixed_wrapper(arguments: Mapping[str, Any], declared: Collection[str]) -> str | None:
    """Return the key of an apparent wrapper object that has other parameters next to it; None if there is none."""
    if len(arguments) < 2:
        return None
    for key in WRAPPER_SPELLINGS.intersection(arguments):
        inner = arguments[key]
        inner = _parse_object(inner) if isinstance(inner, str) else inner
        if key in declared or not isinstance(inner, dict) or not inner.keys() <= set(declared):
            continue
        if inner.keys() - arguments.keys():  # some parameters occur only in the wrapper object
            return key
    return None


def flatten_wrapper(arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Move the members of a mixed wrapper object next to the other arguments, which take precedence."""
    inner = arguments[key]
    inner = _parse_object(inner) if isinstance(inner, str) else inner
    outer = {name: value for name, value in arguments.items() if name != key}
    return {**outer, **{name: value for name, value in inner.items() if name not in outer}}


def _parse_object(text: str) -> Any:
    """Return the argument object that a text represents, or `MISSING`; an empty text is an empty object."""
    if not text.strip() or text.strip() == "null":
        return {}
    value = parse_container(text)
    return value if isinstance(value, dict) else MISSING


def _wrapper_key(value: Mapping[str, Any], declared: Collection[str], address: ToolAddress | None) -> str | None:
    """Return the key of the wrapper object, if nothing is next to it except the tool's address."""
    # A wrapped call has few members. This test avoids a search through an object that has many.
    if len(value) > len(ADDRESS_KEYS) + 1:
        return None
    keys = [key for key in value if key not in declared and normalized_parameter(key) in WRAPPER_KEYS]
    if len(keys) != 1:
        return None
    siblings = [key for key in value if key != keys[0]]
    matches = address is not None and all(key not in declared and address.matches(key, value[key]) for key in siblings)
    return keys[0] if not siblings or matches else None
