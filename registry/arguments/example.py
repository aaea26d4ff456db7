"""Example arguments for a schema: what is required and what a call is about, each with a value or a typed placeholder.

Where the schema says which values it takes (`examples`, `default`, `const`, a format, a range), the example has one of
them; elsewhere it has the type in angle brackets. What was sent is never repeated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from registry.arguments.placeholders import different, number_placeholder, text_placeholder
from registry.schema.json_paths import MISSING, JsonPath, resolve_reference

AS_SENT: Final = "<as sent>"
# An example is cut after 900 characters; these keep it from being that long, and its making cheap.
_MAX_EXAMPLE_DEPTH: Final = 4
# Below that only what is required is shown, so that the call passes, and no more than there is room for.
_MAX_REQUIRED_DEPTH: Final = 10
_MAX_VALUES: Final = 200
_MAX_MEMBERS: Final = 24
_MAX_TEXT: Final = 60
_MAX_ITEMS: Final = 8
# Members of a value of the schema's own that is shown whole.
_MAX_SHOWN_MEMBERS: Final = 4
# Optional members that are shown if none is required, and options of an enumeration.
_MAX_OPTIONAL: Final = 3
_MAX_SHOWN_OPTIONS: Final = 6
# Places that are shown because something is wrong there, and how deep they may be.
_MAX_PLACES: Final = 20
_MAX_PLACE_DEPTH: Final = 16
# Schemas that are put together for one value, and alternatives among which one is chosen.
_MAX_COMPOSED: Final = 32
_MAX_ALTERNATIVES: Final = 32

# Names below names: the places that an example has to show.
_Tree = dict[str, Any]
_KIND_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def example_arguments(
    schema: Any, *, shown: Iterable[JsonPath] = (), kept: Collection[str] = (), sent: object = None
) -> dict[str, Any]:
    """Return an argument object with its required members, or its first ones if it would be empty.

    Args:
        schema: Of the argument object.
        shown: Places that the example has to have, required or not.
        kept: Members that were sent rightly; the example says so instead of repeating their values. Of objects in which
            something is wrong, the other members are.
        sent: What was sent, by which the alternative is chosen that was meant.
    """
    wanted: _Tree = {}
    for path in [*shown][:_MAX_PLACES]:
        below = wanted
        for step in path[:_MAX_PLACE_DEPTH]:
            if isinstance(step, str):
                below = below.setdefault(step, {})
    for name in kept:
        wanted.setdefault(name, {})
    example = _ExampleWriter(schema, kept).value_of_root(wanted, sent)
    return example if isinstance(example, dict) else {}


class _ExampleWriter:
    __slots__ = ("_kept", "_root", "_values")

    def __init__(self, root: Any, kept: Collection[str]) -> None:
        self._root = root
        self._kept = kept
        self._values = 0

    def value_of_root(self, wanted: _Tree, sent: object) -> Any:
        return self._object(self._composed(self._root, wanted, sent), wanted, sent, 0, self._kept)

    def _object(
        self, node: Mapping[str, Any], wanted: _Tree, sent: object, depth: int, kept: Collection[str] = ()
    ) -> dict[str, Any]:
        properties = _mapping(node.get("properties"))
        if others := _of_map(node, [*wanted, *kept], properties):
            properties = {**properties, **others}
        names = _names(node.get("required"))
        # A schema that nothing fits stands for a name that must not be there.
        names += [name for name in wanted if name in properties and not _takes_nothing(properties[name])]
        least, most = _size(node, "minProperties", 0), _size(node, "maxProperties", _MAX_MEMBERS)
        if not names and (depth == 0 or wanted is not _NOTHING):
            # One member of what is spoken of shows how it is written; of all arguments, a few.
            least = max(least, _MAX_OPTIONAL if depth == 0 else 1)
        names = list(dict.fromkeys(names))
        added = self._fillers(properties, names, least - len(names), first=depth == 0)
        names += added
        names += [name for name in _dependent(node, names) if name not in names]
        wanted = {**wanted, **added}
        inner = sent if isinstance(sent, dict) else {}
        example: dict[str, Any] = {}
        for name in names[:most]:
            if name in kept:
                example[name] = AS_SENT
            else:
                below = wanted.get(name, _NOTHING)
                example[name] = self._value(properties.get(name, {}), below, inner.get(name), depth + 1, inside=True)
        return example

    def _fillers(
        self, properties: Mapping[str, Any], names: Collection[str], count: int, *, first: bool
    ) -> dict[str, _Tree]:
        """Return members that are shown for want of others, the plain ones before those that nest further."""
        if count <= 0:
            return {}
        others = [name for name in [*properties][:_MAX_MEMBERS] if name not in names]
        others = [name for name in others if not _takes_nothing(properties[name])]
        ranked = [(self._nesting(properties[name]), name) for name in (others[:count] if first else others)]
        if not first:
            ranked.sort(key=lambda one: one[0])
        # An object that nests no further is shown with one member of its own; others would not end.
        return {name: {} if nesting == 1 else _NOTHING for nesting, name in ranked[:count]}

    def _nesting(self, schema: Any) -> int:
        """Return 0 for a scalar, 1 for an object with scalars, 2 for what nests further."""
        node = self._composed(schema, _NOTHING, None)
        if "properties" not in node:
            return 2 if "items" in node else 0
        below = (resolve_reference(member, self._root) for member in [*node["properties"].values()][:_MAX_MEMBERS])
        plain = ("string", "integer", "number", "boolean")
        return 1 if any(isinstance(one, dict) and _has_any(one.get("type"), plain) for one in below) else 2

    def _value(self, schema: Any, wanted: _Tree, sent: object, depth: int, *, inside: bool = False) -> Any:
        if not isinstance(schema, dict):
            return "<any>"
        node = self._composed(schema, wanted, sent)
        if (known := _value_of_schema(node, inside=bool(wanted))) is not MISSING:
            return known
        kind = node.get("type")
        if isinstance(kind, list):
            # Null is what an optional argument may be; the other type is what it is for.
            kind = next((declared for declared in kind if declared != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in node else "array" if "items" in node else None
        self._values += 1
        deep = depth >= (_MAX_EXAMPLE_DEPTH if wanted is _NOTHING else 2 * _MAX_PLACE_DEPTH)
        if deep and depth < _MAX_REQUIRED_DEPTH and self._values < _MAX_VALUES:
            deep = not node.get("required") if kind == "object" else not node.get("minItems")
        match kind:
            case "object":
                # In an item of a list, `as sent` would leave open in which.
                if not inside or not wanted or not isinstance(sent, dict):
                    return {} if deep else self._object(node, wanted, sent, depth)
                declared = _mapping(node.get("properties"))
                kept = [name for name in [*sent][:_MAX_MEMBERS] if name in declared and name not in wanted]
                return {} if deep else self._object(node, {**wanted, **{name: {} for name in kept}}, sent, depth, kept)
            case "array":
                return [] if deep else self._items(node, wanted, sent, depth)
            case "string":
                return text_placeholder(node)
            case "integer" | "number":
                return number_placeholder(node, kind)
            case "null":
                return None
        return f"<{kind}>" if isinstance(kind, str) and len(kind) <= _MAX_TEXT else "<any>"

    def _items(self, node: Mapping[str, Any], wanted: _Tree, sent: object, depth: int) -> list[Any]:
        first = sent[0] if isinstance(sent, list) and sent else None
        places = node.get("prefixItems")
        if isinstance(places, list) and places:
            return [self._value(place, _NOTHING, None, depth + 1) for place in places[:_MAX_ITEMS]]
        count = min(_size(node, "minItems", 1), _size(node, "maxItems", _MAX_ITEMS), _MAX_ITEMS)
        searched = _mapping(node.get("contains"))
        one = self._value(searched or node.get("items"), wanted, first, depth + 1)
        if not count and not searched and wanted is _NOTHING:
            return []
        item = self._composed(node.get("items"), wanted, first)
        return different(one, item, count) if node.get("uniqueItems") is True else [one] * max(1, count)

    def _composed(self, schema: Any, wanted: _Tree, sent: object) -> dict[str, Any]:
        """Return a schema with all parts of `allOf` and one alternative of `anyOf` and `oneOf` put into it."""
        composed: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        required: list[str] = []
        pending = [schema]
        for _part in range(_MAX_COMPOSED):
            if not pending:
                break
            node = pending.pop(0)
            target = resolve_reference(node, self._root)
            if target is not node:
                # What stands beside a reference holds as well.
                pending[:0] = [target] if len(node) > 1 else []
                node = node if len(node) > 1 else target
            if not isinstance(node, dict):
                continue
            for name, below in _mapping(node.get("properties")).items():
                properties.setdefault(name, below)
            required += _names(node.get("required"))
            for keyword, said in node.items():
                if keyword not in ("$ref", "allOf", "anyOf", "oneOf", "required", "properties"):
                    composed.setdefault(keyword, said)
            parts = node.get("allOf")
            pending += parts[:_MAX_COMPOSED] if isinstance(parts, list) else []
            for keyword in ("oneOf", "anyOf"):
                options = node.get(keyword)
                if isinstance(options, list) and options:
                    pending.append(self._alternative(options[:_MAX_ALTERNATIVES], wanted, sent))
        if properties:
            composed["properties"] = properties
        if required:
            composed["required"] = required
        return composed

    def _alternative(self, options: list[Any], wanted: _Tree, sent: object) -> Any:
        """Return the alternative that was meant, as far as that can be seen, else the first that is not null."""
        members = sent if isinstance(sent, dict) else {}

        def fitness(option: Any) -> tuple[bool, int, int]:
            node = resolve_reference(option, self._root)
            if not isinstance(node, dict):
                return False, 0, 0
            properties = _mapping(node.get("properties"))
            marks = 0
            for name, below in properties.items() if members else ():
                if name in members and isinstance(below, dict) and "const" in below:
                    marks += 1 if below["const"] == members[name] else -1
            named = {*properties, *_names(node.get("required"))}
            return node.get("type") != "null", marks, sum(name in named for name in {*wanted, *members})

        return max(options, key=fitness)  # the first of several


# Below what nobody asked for; unlike an empty tree, which is the end of a place that has to be shown.
_NOTHING: Final[_Tree] = {}


def _takes_nothing(schema: Any) -> bool:
    """Return whether a schema says that there must be nothing."""
    if not isinstance(schema, dict):
        return schema is False
    return schema.get("not") in ({}, True) or schema.get("enum") == []


def _of_map(node: Mapping[str, Any], names: Iterable[str], declared: Collection[str]) -> dict[str, Any]:
    """Return the schemas of members of a map that are spoken of."""
    patterns = [*_mapping(node.get("patternProperties")).values()]
    # Which of several patterns a name matches is not looked at.
    others = node.get("additionalProperties") if not patterns else patterns[0] if len(patterns) == 1 else None
    return {name: others for name in names if name not in declared} if isinstance(others, dict) else {}


def _dependent(node: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return members that others require."""
    demands = _mapping(node.get("dependentRequired")) or _mapping(node.get("dependencies"))
    return [other for name in names for other in _names(demands.get(name))]


def _value_of_schema(node: Mapping[str, Any], *, inside: bool) -> Any:
    """Return a value that the schema itself names, or MISSING."""
    # Real options where they are short, so that the example says which values are accepted.
    if "const" in node and _is_short(node["const"]):
        return node["const"]
    options = node.get("enum")
    if not inside:
        examples = node.get("examples")
        named = [*(examples[:1] if isinstance(examples, list) else []), node.get("example"), node.get("default")]
        for value in named:
            if value is not None and _is_shown(value) and _has_type(value, node.get("type")):
                return value
    if isinstance(options, list) and options:
        texts = [option for option in options if isinstance(option, str)]
        joined = "|".join(texts[:_MAX_SHOWN_OPTIONS])
        if len(texts) > 1 and len(joined) <= _MAX_TEXT:
            return f"<{joined}>"
        first = texts[0] if texts else options[0]
        return first if _is_short(first) else "<any>"
    return MISSING


def _has_any(declared: Any, kinds: Collection[str]) -> bool:
    return (
        declared in kinds
        if isinstance(declared, str)
        else isinstance(declared, list) and any(kind in kinds for kind in declared)
    )


def _has_type(value: Any, declared: Any) -> bool:
    kinds = declared if isinstance(declared, list) else [declared]
    kind = _KIND_OF.get(type(value))
    return declared is None or kind in kinds or (kind == "integer" and "number" in kinds)


def _is_shown(value: Any) -> bool:
    if isinstance(value, list | dict):
        members = list(value.values()) if isinstance(value, dict) else value
        keys = list(value) if isinstance(value, dict) else []
        return len(members) <= _MAX_SHOWN_MEMBERS and all(map(_is_short, [*members, *keys]))
    return _is_short(value)


def _is_short(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 10**_MAX_TEXT)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(value: Any) -> list[str]:
    return [name for name in value[:_MAX_MEMBERS] if isinstance(name, str)] if isinstance(value, list) else []


def _size(node: Mapping[str, Any], keyword: str, otherwise: int) -> int:
    """Return a count that the schema demands, within what an example shows."""
    count = node.get(keyword)
    return (
        min(count, _MAX_MEMBERS) if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else otherwise
    )
