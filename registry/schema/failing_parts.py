"""Finds the parts of an invalid value that are to blame, where collecting the errors of the whole would take too long.

Errors hold those of every alternative, and of every alternative inside: in a tree of blocks, each of one of ten types,
they multiply on each level. A yes or no does not, so this goes down from part to part by asking which is invalid, and
into the one alternative that can be meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from registry.schema.applications import TooManyApplications, applications
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import without_keys
from registry.schema.references import SUBSCHEMA_LISTS, SUBSCHEMA_MAPS, SchemaDocument

if TYPE_CHECKING:
    import jsonschema_rs

# Parts that are looked at: twenty failing places, each some tens of levels deep.
_MAX_PARTS: Final = 1_000
# Failing members or items of one part that are followed. No more than 20 problems are shown anyway.
_MAX_FAILING: Final = 20
# Applications of schemas in a part that fits no alternative, if all its errors are to be collected: 30 ms at most.
_MAX_WHOLE: Final = 2_000
# Keywords of which the failing part is looked for; the others are checked where they stand.
_FOLLOWED: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "items", "prefixItems", "$defs", "definitions"}
)

# What a value may be declared as. A number without a fraction may be written with one, and is an integer then.
_TYPES: Final = {
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"integer", "number"}),
    type(None): frozenset({"null"}),
}


class _Part(NamedTuple):
    path: JsonPath
    pointer: str
    schema: Any
    value: Any


class LocatedError:
    """An error of a part of a value, with the path in the whole."""

    __slots__ = ("_at", "_error", "evaluation_path", "kind", "message", "schema_path")

    def __init__(self, error: jsonschema_rs.ValidationError, at: JsonPath) -> None:
        self._error = error
        self._at = at
        self.message = error.message
        self.schema_path = error.schema_path
        self.evaluation_path = error.evaluation_path
        self.kind: Any = error.kind
        if getattr(error.kind, "context", None) and error.kind.name != "oneOfMultipleValid":
            self.kind = _LocatedKind(error.kind, at)

    @property
    def instance_path(self) -> list[str | int]:
        """The path of the value in the whole."""
        return [*self._at, *self._error.instance_path]


class _LocatedKind:
    """The kind of an error that holds others."""

    __slots__ = ("context", "name")

    def __init__(self, kind: Any, at: JsonPath) -> None:
        self.name = kind.name
        self.context = [[LocatedError(error, at) for error in branch] for branch in kind.context]


class _NoAlternative:
    """The error of a value for which no single alternative can be meant."""

    __slots__ = ("evaluation_path", "instance_path", "kind", "message", "schema_path")

    class _Kind:
        name = "alternatives"

    def __init__(self, path: JsonPath) -> None:
        self.instance_path = list(path)
        self.schema_path: list[str | int] = []
        self.evaluation_path: list[str | int] = []
        self.kind = self._Kind()
        self.message = "fits none of the alternatives"


class FailingParts:
    """Finds the errors of values that do not validate against one schema."""

    def __init__(self, schema: Any, validators: jsonschema_rs.ValidatorMap) -> None:
        """Prepare to look for errors.

        Args:
            schema: The schema.
            validators: All schemas in it, compiled, by their pointers.
        """
        self._schema = schema
        self._validators = validators
        self._document = SchemaDocument(schema)
        self._pointers = _pointers(schema)

    def errors(self, value: Any, limit: int) -> list[jsonschema_rs.ValidationError]:
        """Return at most `limit` errors, which may not be all."""
        found: list[Any] = []
        pending = [_Part((), "#", self._schema, value)]
        for _part in range(_MAX_PARTS):
            if not pending or len(found) >= limit:
                break
            part = pending.pop()
            below = list(self._failing(part, found))
            found += self._own_errors(part)
            pending += reversed(below)
        return cast("list[jsonschema_rs.ValidationError]", found[:limit])

    def _is_cheap(self, part: _Part) -> bool:
        try:
            for _ in applications(self._document, part.schema, part.value, _MAX_WHOLE):
                pass
        except TooManyApplications:
            return False
        return True

    def _failing(self, part: _Part, found: list[Any]) -> Iterator[_Part]:
        path, pointer, schema, value = part
        if not isinstance(schema, dict):
            return
        for target in self._document.targets(schema):
            if (where := self._pointers.get(id(target))) is not None:
                yield from self._invalid(_Part(path, where, target, value))
        for index, branch in enumerate(_list(schema, "allOf")):
            yield from self._invalid(_Part(path, f"{pointer}/allOf/{index}", branch, value))
        for word in ("anyOf", "oneOf"):
            branches = [_Part(path, f"{pointer}/{word}/{n}", one, value) for n, one in enumerate(_list(schema, word))]
            if branches and all(any(True for _ in self._invalid(branch)) for branch in branches):
                meant = [branch for branch in branches if self._can_be(branch.schema, value)]
                if len(meant) == 1:
                    yield meant[0]
                elif self._is_cheap(part):
                    errors = self._validators[pointer].iter_errors(value)
                    found += [LocatedError(error, path) for error in errors if error.kind.name == word]
                else:
                    found.append(_NoAlternative(path))
        parts = self._members(part) if isinstance(value, dict) else self._items(part) if isinstance(value, list) else ()
        failing = 0
        for below in parts:
            for one in self._invalid(below):
                failing += 1
                yield one
            if failing >= _MAX_FAILING:
                return

    def _members(self, part: _Part) -> Iterator[_Part]:
        properties = part.schema.get("properties")
        for name in part.value if isinstance(properties, dict) else ():
            if name in properties:
                where = f"{part.pointer}/properties/{_escaped(name)}"
                yield _Part((*part.path, name), where, properties[name], part.value[name])

    def _items(self, part: _Part) -> Iterator[_Part]:
        first = _list(part.schema, "prefixItems") or _list(part.schema, "items")
        word = "prefixItems" if "prefixItems" in part.schema else "items"
        for index, (below, item) in enumerate(zip(first, part.value, strict=False)):
            yield _Part((*part.path, index), f"{part.pointer}/{word}/{index}", below, item)
        items = part.schema.get("items")
        if isinstance(items, dict):
            for index, item in enumerate(part.value[len(first) :], len(first)):
                yield _Part((*part.path, index), f"{part.pointer}/items", items, item)

    def _invalid(self, part: _Part) -> Iterator[_Part]:
        validator = self._validators.get(part.pointer)
        if validator is not None and not validator.is_valid(part.value):
            yield part

    def _own_errors(self, part: _Part) -> list[LocatedError]:
        """Return the errors that a part has apart from those of what is followed."""
        if not isinstance(part.schema, dict):
            return []
        own = without_keys(part.schema, _FOLLOWED)
        if (
            not own.keys() - {"type", "description", "title"}
            and _has_type(part.schema, part.value)
            and not isinstance(part.value, float)
        ):
            return []
        if isinstance(declared := part.schema.get("properties"), dict):
            own["properties"] = dict.fromkeys(declared, True)
        import jsonschema_rs  # here, so that importing the registry stays quick

        try:
            validator = jsonschema_rs.Draft202012Validator(own, validate_formats=False, offline=True, mask="the value")
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            return []  # it refers to what has been left out here
        steps = _steps(part.pointer)
        errors = [LocatedError(error, part.path) for error in validator.iter_errors(part.value)]
        for error in errors:
            error.schema_path = [*steps, *error.schema_path]
        return errors

    def _can_be(self, schema: Any, value: Any) -> bool:
        """Return whether an alternative can be meant by a value: type, required names and constants fit."""
        for node in [schema, *(self._document.targets(schema) if isinstance(schema, dict) else ())]:
            if not isinstance(node, dict):
                continue
            if not _has_type(node, value):
                return False
            if not isinstance(value, dict):
                continue
            if any(name not in value for name in _list(node, "required")):
                return False
            properties = node.get("properties")
            for name, below in properties.items() if isinstance(properties, dict) else ():
                options = (
                    below.get("enum", [below["const"]] if "const" in below else None)
                    if isinstance(below, dict)
                    else None
                )
                if name in value and isinstance(options, list) and value[name] not in options:
                    return False
        return True


def _has_type(schema: dict[str, Any], value: Any) -> bool:
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else declared
    if not isinstance(types, list):
        return True
    return not _TYPES.get(type(value), frozenset()).isdisjoint(types)


def _list(schema: dict[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _pointers(schema: Any) -> dict[int, str]:
    """Return the pointer of every object in a schema, by identity."""
    found: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(schema, "#")]
    while pending:
        node, pointer = pending.pop()
        if isinstance(node, dict):
            found.setdefault(id(node), pointer)
            pending += [(child, f"{pointer}/{_escaped(key)}") for key, child in node.items()]
        elif isinstance(node, list):
            pending += [(child, f"{pointer}/{index}") for index, child in enumerate(node)]
    return found


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _steps(pointer: str) -> list[str | int]:
    """Return the steps of a pointer, with numbers where they stand for positions in a list."""
    steps: list[str | int] = []
    for step in pointer.split("/")[1:]:
        before = steps[-1] if steps else ""
        positional = (
            before in SUBSCHEMA_LISTS and step.isdecimal() and (len(steps) < 2 or steps[-2] not in SUBSCHEMA_MAPS)
        )
        steps.append(int(step) if positional else step.replace("~1", "/").replace("~0", "~"))
    return steps
