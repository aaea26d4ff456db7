"""Which of the alternatives of a schema a value was meant for, told from types, constants and names alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.schema.json_paths import JsonPath, resolve_reference

# Alternatives that are looked at, with those inside them; unions of more types are rare.
_MAX_LEAVES: Final = 256
# Schemas that together are one alternative, and alternatives inside alternatives.
_MAX_COMPOSED: Final = 16
_MAX_DEPTH: Final = 4
# Options of all alternatives together; a message has room for a few.
_MAX_OPTIONS: Final = 256

# What a value may be declared as.
_TYPES: Final = {
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    type(None): frozenset({"null"}),
}


def declared_types(schema: dict[str, Any]) -> tuple[str, ...]:
    """Return the types that a schema itself declares; none if it takes all."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    return tuple(kind for kind in declared if isinstance(kind, str)) if isinstance(declared, list) else ()


def has_type(value: object, types: Sequence[str]) -> bool:
    """Return whether a value is of one of these types; of any if there are none."""
    if not types or not _TYPES.get(type(value), frozenset()).isdisjoint(types):
        return True
    # A number without a fraction may be written with one, and is an integer all the same.
    return isinstance(value, float) and "integer" in types and value.is_integer()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongOption:
    """A value is none of the constants that alternatives take there.

    Attributes:
        path: Of the value, from the one that has the alternatives.
        options: What the alternatives take.
    """

    path: JsonPath
    options: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongType:
    """No alternative takes a value of this type.

    Attributes:
        types: Those that they take.
    """

    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMark:
    """The member by which alternatives differ is not there.

    Attributes:
        name: Its name.
    """

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One alternative, with what it says in itself.

    Attributes:
        index: Its position among those of the schema; several inside one of them share it.
        schema: The schema, without references before it.
    """

    index: int
    schema: Any
    types: tuple[str, ...]
    options: tuple[Any, ...] | None
    required: frozenset[str]
    names: frozenset[str]
    marks: tuple[tuple[str, tuple[Any, ...]], ...]

    def is_marked(self, value: dict[str, Any]) -> bool:
        """Return whether no constant of a member tells that another alternative is meant."""
        return all(name not in value or _is_one_of(value[name], options) for name, options in self.marks)


class Alternatives:
    """The alternatives of one `anyOf` or `oneOf`, those inside them included."""

    __slots__ = ("_by_mark", "_leaves", "_mark", "_options")

    def __init__(self, branches: Sequence[Any], root: Any) -> None:
        """Read the alternatives.

        Args:
            branches: Their schemas.
            root: The document in which they are.
        """
        self._leaves: list[Alternative] = []
        for index, branch in enumerate(branches):
            self._read(index, branch, root, 0)
        self._options: dict[str, tuple[Any, ...]] = {}
        self._mark, self._by_mark = _distinguishing(self._leaves)

    def meant_by(self, value: object) -> Alternative | WrongOption | WrongType | MissingMark | None:
        """Return the one alternative that can be meant, or why there is none; None if that cannot be told."""
        leaves = self._leaves
        if self._mark and isinstance(value, dict) and isinstance(mark := value.get(self._mark), str):
            # Of a hundred types only the named one is looked at.
            leaves = self._by_mark.get(mark, leaves)
        fitting = [leaf for leaf in leaves if has_type(value, leaf.types)]
        if not fitting:
            types = dict.fromkeys(kind for leaf in self._leaves for kind in leaf.types)
            return WrongType(types=tuple(types)) if types else None
        if len(fitting) == 1:
            return fitting[0]
        if not isinstance(value, dict):
            options = _joined([leaf.options for leaf in fitting])
            return WrongOption(path=(), options=options) if options else None
        marked = [leaf for leaf in fitting if leaf.is_marked(value)]
        if not marked:
            return self._wrong_mark(fitting, value)
        if len(marked) == 1:
            return marked[0]
        names = value.keys()
        complete = [leaf for leaf in marked if leaf.required <= names]
        if len(complete) == 1:
            return complete[0]
        named = [leaf for leaf in complete or marked if names <= leaf.names]
        if len(named) == 1:
            return named[0]
        lacking = self._mark and self._mark not in names and all(self._mark in leaf.required for leaf in marked)
        return MissingMark(name=self._mark) if lacking else None

    def _wrong_mark(self, fitting: Sequence[Alternative], value: dict[str, Any]) -> WrongOption | None:
        """Return the member by which alternatives differ, if its value is that of none."""
        for name, _ in fitting[0].marks:
            if name not in value:
                continue
            # Those of all, not of the fitting ones: the others differ in type, and an object has only one.
            options = self._options.get(name)
            if options is None:
                of_objects = (leaf for leaf in self._leaves if has_type(value, leaf.types))
                options = self._options[name] = _joined([dict(leaf.marks).get(name) for leaf in of_objects])
            if options and not _is_one_of(value[name], options):
                return WrongOption(path=(name,), options=options)
        return None

    def _read(self, index: int, branch: Any, root: Any, depth: int) -> None:
        if len(self._leaves) >= _MAX_LEAVES:
            return
        schema = resolve_reference(branch, root)
        schema = schema if isinstance(schema, dict) else {}
        for word in ("anyOf", "oneOf"):
            inner = schema.get(word)
            if isinstance(inner, list) and inner and depth < _MAX_DEPTH and not schema.keys() & _SAYING_MORE:
                for one in inner:
                    self._read(index, one, root, depth + 1)
                return
        self._leaves.append(_alternative(index, schema, root))


# Keywords beside alternatives that make them more than the alternatives themselves.
_SAYING_MORE: Final = frozenset({"type", "properties", "required", "allOf", "$ref", "const", "enum", "if", "not"})


def _alternative(index: int, schema: dict[str, Any], root: Any) -> Alternative:
    types: tuple[str, ...] = ()
    options: tuple[Any, ...] | None = None
    required: set[str] = set()
    names: set[str] = set()
    marks: list[tuple[str, tuple[Any, ...]]] = []
    pending: list[Any] = [schema]
    for _part in range(_MAX_COMPOSED):
        if not pending:
            break
        node = resolve_reference(pending.pop(0), root)
        if not isinstance(node, dict):
            continue
        types = types or declared_types(node)
        options = options if options is not None else _constants(node)
        demanded, properties, parts = node.get("required"), node.get("properties"), node.get("allOf")
        required.update(name for name in (demanded if isinstance(demanded, list) else ()) if isinstance(name, str))
        for name, below in properties.items() if isinstance(properties, dict) else ():
            names.add(name)
            if isinstance(below, dict) and (known := _constants(below)) is not None:
                marks.append((name, known))
        pending += parts[:_MAX_COMPOSED] if isinstance(parts, list) else []
    return Alternative(
        index=index, schema=schema, types=types, options=options, required=frozenset(required),
        names=frozenset(names), marks=tuple(marks),
    )  # fmt: skip


def _constants(schema: dict[str, Any]) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    options = schema.get("enum")
    return tuple(options) if isinstance(options, list) else None


def _distinguishing(leaves: Sequence[Alternative]) -> tuple[str, dict[str, list[Alternative]]]:
    """Return the member by whose text all alternatives differ, and those that take each text."""
    for name, _ in leaves[0].marks if leaves else ():
        found: dict[str, list[Alternative]] = {}
        for leaf in leaves:
            options = dict(leaf.marks).get(name)
            if options is None or not all(isinstance(option, str) for option in options):
                break
            for option in options:
                found.setdefault(option, []).append(leaf)
        else:
            return name, found
    return "", {}


def _joined(each: Sequence[tuple[Any, ...] | None]) -> tuple[Any, ...]:
    """Return the options of all together; nothing if one of them takes other values as well."""
    joined: dict[str, Any] = {}
    for options in each:
        if options is None or len(joined) + len(options) > _MAX_OPTIONS:
            return ()
        for option in options:
            joined.setdefault(repr(option), option)
    return tuple(joined.values())


def _is_one_of(value: object, options: Sequence[Any]) -> bool:
    # True and 1 are equal for Python, and not in JSON.
    return any(value == option and isinstance(value, bool) == isinstance(option, bool) for option in options)
