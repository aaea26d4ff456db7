"""Choose the alternative (a branch of `anyOf` or `oneOf`) that a value was meant to match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.schema.json_paths import JsonPath, resolve_reference

# Maximum number of alternatives that are examined, including nested alternatives; larger unions are rare.
_MAX_LEAVES: Final = 256
# Maximum number of schemas merged into one alternative, and maximum nesting of alternatives.
_MAX_COMPOSED: Final = 16
_MAX_DEPTH: Final = 4
# Maximum number of options of all alternatives together; a message has room for only a few.
_MAX_OPTIONS: Final = 256

# JSON Schema types of a Python value.
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
    """Return the types that a schema itself declares; empty if it accepts all types."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    return tuple(kind for kind in declared if isinstance(kind, str)) if isinstance(declared, list) else ()


def has_type(value: object, types: Sequence[str]) -> bool:
    """Return whether a value has one of the given types; true if no types are given."""
    if not types or not _TYPES.get(type(value), frozenset()).isdisjoint(types):
        return True
    # A float without a fraction is an integer in JSON Schema.
    return isinstance(value, float) and "integer" in types and value.is_integer()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongOption:
    """The value equals none of the constants that the alternatives accept.

    Attributes:
        path: The path of the value, relative to the value that has the alternatives.
        options: The accepted constants.
    """

    path: JsonPath
    options: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongType:
    """No alternative accepts the type of the value; `types` lists the accepted types."""

    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMark:
    """The member that distinguishes the alternatives is missing; `name` is its name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One alternative, with the constraints that it declares itself.

    Attributes:
        index: The position in the list of alternatives; nested alternatives share the position of their parent.
        schema: The schema, with references resolved.
        marks: Members that accept only constants, each with these constants.
    """

    index: int
    schema: Any
    types: tuple[str, ...]
    options: tuple[Any, ...] | None
    required: frozenset[str]
    names: frozenset[str]
    marks: tuple[tuple[str, tuple[Any, ...]], ...]

    def matches_constants(self, value: dict[str, Any]) -> bool:
        """Return whether no constant member of the value contradicts this alternative."""
        return all(name not in value or _is_one_of(value[name], options) for name, options in self.marks)


class Alternatives:
    """The alternatives of one `anyOf` or `oneOf`, including nested ones."""

    __slots__ = ("_by_mark", "_leaves", "_mark", "_options")

    def __init__(self, branches: Sequence[Any], root: Any) -> None:
        """Read the alternatives.

        Args:
            branches: The schemas of the alternatives.
            root: The document that contains the schemas.
        """
        self._leaves: list[Alternative] = []
        for index, branch in enumerate(branches):
            self._read_branch(index, branch, root, 0)
        self._options: dict[str, tuple[Any, ...]] = {}
        self._mark, self._by_mark = _find_distinguishing_member(self._leaves)

    def choose(self, value: object) -> Alternative | WrongOption | WrongType | MissingMark | None:
        """Return the only plausible alternative, or why no alternative is plausible; None if several are plausible."""
        leaves = self._leaves
        if self._mark and isinstance(value, dict) and isinstance(mark := value.get(self._mark), str):
            # Fast path: examine only the alternatives whose distinguishing member has the value's constant.
            leaves = self._by_mark.get(mark, leaves)
        fitting = [leaf for leaf in leaves if has_type(value, leaf.types)]
        if not fitting:
            types = dict.fromkeys(kind for leaf in self._leaves for kind in leaf.types)
            return WrongType(types=tuple(types)) if types else None
        if len(fitting) == 1:
            return fitting[0]
        if not isinstance(value, dict):
            options = _join_options([leaf.options for leaf in fitting])
            return WrongOption(path=(), options=options) if options else None
        marked = [leaf for leaf in fitting if leaf.matches_constants(value)]
        if not marked:
            return self._wrong_mark(fitting, value)
        if len(marked) == 1:
            return marked[0]
        names = value.keys()
        complete = [leaf for leaf in marked if leaf.required <= names]
        if len(complete) == 1:
            return complete[0]
        with_all_names = [leaf for leaf in complete or marked if names <= leaf.names]
        if len(with_all_names) == 1:
            return with_all_names[0]
        lacking = self._mark and self._mark not in names and all(self._mark in leaf.required for leaf in marked)
        return MissingMark(name=self._mark) if lacking else None

    def _wrong_mark(self, fitting: Sequence[Alternative], value: dict[str, Any]) -> WrongOption | None:
        """Return an error for a constant member whose value matches no alternative; None if there is no such member."""
        for name, _ in fitting[0].marks:
            if name not in value:
                continue
            # Use all alternatives that accept objects, because the fast path may have reduced `fitting`.
            options = self._options.get(name)
            if options is None:
                of_objects = (leaf for leaf in self._leaves if has_type(value, leaf.types))
                options = self._options[name] = _join_options([dict(leaf.marks).get(name) for leaf in of_objects])
            if options and not _is_one_of(value[name], options):
                return WrongOption(path=(name,), options=options)
        return None

    def _read_branch(self, index: int, branch: Any, root: Any, depth: int) -> None:
        if len(self._leaves) >= _MAX_LEAVES:
            return
        schema = resolve_reference(branch, root)
        schema = schema if isinstance(schema, dict) else {}
        for word in ("anyOf", "oneOf"):
            inner = schema.get(word)
            if isinstance(inner, list) and inner and depth < _MAX_DEPTH and not schema.keys() & _CONSTRAINING:
                for nested in inner:
                    self._read_branch(index, nested, root, depth + 1)
                return
        self._leaves.append(_alternative(index, schema, root))


# Keywords next to `anyOf` or `oneOf` that add constraints of their own.
_CONSTRAINING: Final = frozenset({"type", "properties", "required", "allOf", "$ref", "const", "enum", "if", "not"})


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
            if isinstance(below, dict) and (constants := _constants(below)) is not None:
                marks.append((name, constants))
        pending += parts[:_MAX_COMPOSED] if isinstance(parts, list) else []
    return Alternative(
        index=index,
        schema=schema,
        types=types,
        options=options,
        required=frozenset(required),
        names=frozenset(names),
        marks=tuple(marks),
    )


def _constants(schema: dict[str, Any]) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    options = schema.get("enum")
    return tuple(options) if isinstance(options, list) else None


def _find_distinguishing_member(leaves: Sequence[Alternative]) -> tuple[str, dict[str, list[Alternative]]]:
    """Return the first member that has text constants in every alternative, and the alternatives by constant."""
    for name, _ in leaves[0].marks if leaves else ():
        leaves_by_option: dict[str, list[Alternative]] = {}
        for leaf in leaves:
            options = dict(leaf.marks).get(name)
            if options is None or not all(isinstance(option, str) for option in options):
                break
            for option in options:
                leaves_by_option.setdefault(option, []).append(leaf)
        else:
            return name, leaves_by_option
    return "", {}


def _join_options(each: Sequence[tuple[Any, ...] | None]) -> tuple[Any, ...]:
    """Return the options of all alternatives together; empty if an alternative also accepts other values."""
    joined: dict[str, Any] = {}
    for options in each:
        if options is None or len(joined) + len(options) > _MAX_OPTIONS:
            return ()
        for option in options:
            joined.setdefault(repr(option), option)
    return tuple(joined.values())


def _is_one_of(value: object, options: Sequence[Any]) -> bool:
    # In Python, True equals 1; in JSON it does not.
    return any(value == option and isinstance(value, bool) == isinstance(option, bool) for option in options)
