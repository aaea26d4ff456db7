"""Build example arguments from a schema and the arguments that were sent.

If the schema says which values it accepts (`examples`, `default`, `const`, a format, a range), the example shows such a
value; otherwise it shows the type in angle brackets, such as `<string>`. The example never repeats a value that was
sent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from registry.catalog.catalog import ToolWrapper
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import InstanceSize
from registry.schema.display_text import excerpt
from registry.schema.json_paths import MISSING, JsonPath, resolve_reference

if TYPE_CHECKING:
    import jsonschema_rs

# These names and addresses are reserved for examples: RFC 2606, RFC 5737, RFC 3849.
_FORMAT_EXAMPLES: Final[Mapping[str, str]] = {
    "date": "2030-01-31",
    "date-time": "2030-01-31T09:00:00Z",
    "time": "09:00:00Z",
    "duration": "PT1H",
    "email": "name@example.com",
    "idn-email": "name@example.com",
    "hostname": "www.example.com",
    "idn-hostname": "www.example.com",
    "uri": "https://www.example.com/",
    "url": "https://www.example.com/",
    "iri": "https://www.example.com/",
    "uri-reference": "/path",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-pointer": "/name",
}
_PLAIN: Final = "<string>"
# Maximum length, in characters, of a pattern that is shown and of the filler text for a `minLength`.
_MAX_SHOWN: Final = 60


def text_placeholder(schema: Mapping[str, Any]) -> str:
    """Return a placeholder for a string: an example of its format, its pattern, or a text of valid length."""
    format_name = schema.get("format")
    if isinstance(format_name, str) and format_name in _FORMAT_EXAMPLES:
        return _FORMAT_EXAMPLES[format_name]
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern:
        return f"<string matching {excerpt(pattern, _MAX_SHOWN)}>"
    least, most = _length(schema.get("minLength"), 0), _length(schema.get("maxLength"), _MAX_SHOWN)
    if least <= len(_PLAIN) <= most:
        return _PLAIN
    if least > _MAX_SHOWN:
        return f"<string of at least {least} characters>"
    return "x" * min(max(least, 1), most)


def number_placeholder(schema: Mapping[str, Any], kind: str) -> Any:
    """Return a placeholder for a number: a value that the range and step allow, or the type if there is neither."""
    low, high = _bound(schema, "minimum", "exclusiveMinimum", 1), _bound(schema, "maximum", "exclusiveMaximum", -1)
    step = _as_number(schema.get("multipleOf"))
    if low is None and high is None and step is None:
        return f"<{kind}>"
    value = low if low is not None else high if high is not None else 0
    if kind == "number" and low is not None and high is not None and low > high:
        # Moving excluded bounds inward by 1 has made them cross, so use the middle of the range.
        value = (low - 1 + high + 1) / 2
    if step is not None and step > 0:
        value = (math.ceil(value / step) if low is not None or high is None else math.floor(value / step)) * step
    if kind == "integer":
        return math.ceil(value) if low is not None or high is None else math.floor(value)
    return value


def distinct_items(item: Any, schema: Mapping[str, Any], count: int) -> list[Any]:
    """Return up to `count` different example items: options of the schema's `enum`, or variations of `item`."""
    options = schema.get("enum")
    if isinstance(options, list) and options:
        return options[: max(1, count)]
    items = [item]
    step, high = _as_number(schema.get("multipleOf")) or 1, _bound(schema, "maximum", "exclusiveMaximum", -1)
    for n in range(1, count):
        if isinstance(item, str) and item.endswith(">"):
            items.append(f"{item[:-1]} {n + 1}>")
        elif isinstance(item, int | float) and not isinstance(item, bool):
            # Count down if the maximum leaves no room above.
            items.append(item - n * step if high is not None and item + n * step > high else item + n * step)
    return items


def _bound(schema: Mapping[str, Any], plain: str, exclusive: str, step: int) -> float | None:
    """Return the lower or upper bound of a range; move an excluded bound inward by `step`, which is 1 or -1."""
    bound, beyond = _as_number(schema.get(plain)), schema.get(exclusive)
    # In draft 4, the exclusive keyword is a flag next to the bound.
    if beyond is True:
        return bound + step if bound is not None else None
    excluded = _as_number(beyond)
    if excluded is None:
        return bound
    inside = excluded + step
    return inside if bound is None else max(inside, bound) if step > 0 else min(inside, bound)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Larger floats have no fractional digits, and arithmetic on them is too inexact for an example.
    return value if abs(value) < 2**53 else None


def _length(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


AS_SENT: Final = "<as sent>"
# The text of an example is cut after 900 characters. These limits keep most examples shorter, and cheap to build.
_MAX_EXAMPLE_DEPTH: Final = 4
# From `_MAX_EXAMPLE_DEPTH` down to this depth, only required members are shown, so that the call is valid.
_MAX_REQUIRED_DEPTH: Final = 10
_MAX_VALUES: Final = 200
_MAX_MEMBERS: Final = 24
_MAX_TEXT: Final = 60
_MAX_ITEMS: Final = 8
# Values of `examples` and `default` that have more members than this are not shown.
_MAX_SHOWN_MEMBERS: Final = 4
# Maximum number of optional members shown if no member is required, and of `enum` options shown.
_MAX_OPTIONAL: Final = 3
_MAX_SHOWN_OPTIONS: Final = 6
# Maximum number of paths with problems that an example shows, and of steps in each path.
_MAX_PLACES: Final = 20
_MAX_PLACE_DEPTH: Final = 16
# Maximum number of schemas that are merged for one value, and of alternatives that are considered.
_MAX_COMPOSED: Final = 32
_MAX_ALTERNATIVES: Final = 32

# The paths that an example has to show, as nested dicts keyed by member name.
_Tree = dict[str, Any]
_KIND_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def example_arguments(
    schema: Any, *, shown_paths: Iterable[JsonPath] = (), names_as_sent: Collection[str] = (), sent: object = None
) -> dict[str, Any]:
    """Return an argument object with its required members, or with its first members if none is required.

    Args:
        schema: The schema of the argument object.
        shown_paths: Paths that the example has to include, required or not.
        names_as_sent: Members that were sent correctly; the example shows `<as sent>` instead of their values. Correct
            members of a nested object that has a problem are shown in the same way.
        sent: The arguments as sent, used to choose among the alternatives of `anyOf` and `oneOf`.
    """
    places: _Tree = {}
    for path in [*shown_paths][:_MAX_PLACES]:
        below = places
        for step in path[:_MAX_PLACE_DEPTH]:
            if isinstance(step, str):
                below = below.setdefault(step, {})
    for name in names_as_sent:
        places.setdefault(name, {})
    example = _ExampleWriter(schema, names_as_sent).value_of_root(places, sent)
    return example if isinstance(example, dict) else {}


class _ExampleWriter:
    __slots__ = ("_names_as_sent", "_root", "_values")

    def __init__(self, root: Any, names_as_sent: Collection[str]) -> None:
        self._root = root
        self._names_as_sent = names_as_sent
        self._values = 0

    def value_of_root(self, places: _Tree, sent: object) -> Any:
        return self._write_object(self._compose(self._root, places, sent), places, sent, 0, self._names_as_sent)

    def _write_object(
        self, node: Mapping[str, Any], places: _Tree, sent: object, depth: int, names_as_sent: Collection[str] = ()
    ) -> dict[str, Any]:
        properties = _mapping(node.get("properties"))
        if map_members := _map_members(node, [*places, *names_as_sent], properties):
            properties = {**properties, **map_members}
        names = _names(node.get("required"))
        # If the schema of a member accepts nothing, the member must be absent.
        names += [name for name in places if name in properties and not _accepts_nothing(properties[name])]
        least, most = _size(node, "minProperties", 0), _size(node, "maxProperties", _MAX_MEMBERS)
        if not names and (depth == 0 or places is not _NOTHING):
            # Show a few members of the argument object, or one member of a nested object, although none is required.
            least = max(least, _MAX_OPTIONAL if depth == 0 else 1)
        names = list(dict.fromkeys(names))
        added = self._fillers(properties, names, least - len(names), first=depth == 0)
        names += added
        names += [name for name in _required_by(node, names) if name not in names]
        places = {**places, **added}
        inner = sent if isinstance(sent, dict) else {}
        example: dict[str, Any] = {}
        for name in names[:most]:
            if name in names_as_sent:
                example[name] = AS_SENT
            else:
                below = places.get(name, _NOTHING)
                example[name] = self._write_value(
                    properties.get(name, {}), below, inner.get(name), depth + 1, inside=True
                )
        return example

    def _fillers(
        self, properties: Mapping[str, Any], names: Collection[str], count: int, *, first: bool
    ) -> dict[str, _Tree]:
        """Return `count` more members: the first members if `first` is true, otherwise the least nested members."""
        if count <= 0:
            return {}
        candidates = [name for name in [*properties][:_MAX_MEMBERS] if name not in names]
        candidates = [name for name in candidates if not _accepts_nothing(properties[name])]
        ranked = [(self._nesting(properties[name]), name) for name in (candidates[:count] if first else candidates)]
        if not first:
            ranked.sort(key=lambda entry: entry[0])
        # An object of scalars is shown with one of its members. A deeper object is not expanded, because it may be
        # recursive.
        return {name: {} if nesting == 1 else _NOTHING for nesting, name in ranked[:count]}

    def _nesting(self, schema: Any) -> int:
        """Return 0 for a scalar, 1 for an object of scalars, and 2 for deeper nesting."""
        node = self._compose(schema, _NOTHING, None)
        if "properties" not in node:
            return 2 if "items" in node else 0
        below = (resolve_reference(member, self._root) for member in [*node["properties"].values()][:_MAX_MEMBERS])
        plain = ("string", "integer", "number", "boolean")
        return 1 if any(isinstance(member, dict) and _has_any(member.get("type"), plain) for member in below) else 2

    def _write_value(self, schema: Any, places: _Tree, sent: object, depth: int, *, inside: bool = False) -> Any:
        if not isinstance(schema, dict):
            return "<any>"
        node = self._compose(schema, places, sent)
        if (stated := _value_of_schema(node, inside=bool(places))) is not MISSING:
            return stated
        kind = node.get("type")
        if isinstance(kind, list):
            # `null` next to another type usually only makes the argument optional, so show the other type.
            kind = next((declared for declared in kind if declared != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in node else "array" if "items" in node else None
        self._values += 1
        deep = depth >= (_MAX_EXAMPLE_DEPTH if places is _NOTHING else 2 * _MAX_PLACE_DEPTH)
        if deep and depth < _MAX_REQUIRED_DEPTH and self._values < _MAX_VALUES:
            deep = not node.get("required") if kind == "object" else not node.get("minItems")
        match kind:
            case "object":
                # Inside an item of a list, `as sent` would not say which item is meant.
                if not inside or not places or not isinstance(sent, dict):
                    return {} if deep else self._write_object(node, places, sent, depth)
                declared = _mapping(node.get("properties"))
                names_as_sent = [name for name in [*sent][:_MAX_MEMBERS] if name in declared and name not in places]
                return (
                    {}
                    if deep
                    else self._write_object(
                        node, {**places, **{name: {} for name in names_as_sent}}, sent, depth, names_as_sent
                    )
                )
            case "array":
                return [] if deep else self._write_items(node, places, sent, depth)
            case "string":
                return text_placeholder(node)
            case "integer" | "number":
                return number_placeholder(node, kind)
            case "null":
                return None
        return f"<{kind}>" if isinstance(kind, str) and len(kind) <= _MAX_TEXT else "<any>"

    def _write_items(self, node: Mapping[str, Any], places_below: _Tree, sent: object, depth: int) -> list[Any]:
        first = sent[0] if isinstance(sent, list) and sent else None
        places = node.get("prefixItems")
        if isinstance(places, list) and places:
            return [self._write_value(place, _NOTHING, None, depth + 1) for place in places[:_MAX_ITEMS]]
        count = min(_size(node, "minItems", 1), _size(node, "maxItems", _MAX_ITEMS), _MAX_ITEMS)
        searched = _mapping(node.get("contains"))
        item = self._write_value(searched or node.get("items"), places_below, first, depth + 1)
        if not count and not searched and places_below is _NOTHING:
            return []
        item_schema = self._compose(node.get("items"), places_below, first)
        return distinct_items(item, item_schema, count) if node.get("uniqueItems") is True else [item] * max(1, count)

    def _compose(self, schema: Any, places: _Tree, sent: object) -> dict[str, Any]:
        """Return a schema merged with all parts of its `allOf` and with one alternative of each `anyOf` and `oneOf`."""
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
                # Keywords next to a reference apply as well.
                pending[:0] = [target] if len(node) > 1 else []
                node = node if len(node) > 1 else target
            if not isinstance(node, dict):
                continue
            for name, below in _mapping(node.get("properties")).items():
                properties.setdefault(name, below)
            required += _names(node.get("required"))
            for keyword, keyword_value in node.items():
                if keyword not in ("$ref", "allOf", "anyOf", "oneOf", "required", "properties"):
                    composed.setdefault(keyword, keyword_value)
            parts = node.get("allOf")
            pending += parts[:_MAX_COMPOSED] if isinstance(parts, list) else []
            for keyword in ("oneOf", "anyOf"):
                options = node.get(keyword)
                if isinstance(options, list) and options:
                    pending.append(self._choose_alternative(options[:_MAX_ALTERNATIVES], places, sent))
        if properties:
            composed["properties"] = properties
        if required:
            composed["required"] = required
        return composed

    def _choose_alternative(self, options: list[Any], places: _Tree, sent: object) -> Any:
        """Return the alternative that was probably meant, else the first alternative whose type is not null."""
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
            member_names = {*properties, *_names(node.get("required"))}
            return node.get("type") != "null", marks, sum(name in member_names for name in {*places, *members})

        return max(options, key=fitness)  # `max` returns the first of several equally fit options


# Means that no path below has to be shown. It is compared by identity, because any other empty tree ends a path that
# has to be shown.
_NOTHING: Final[_Tree] = {}


def _accepts_nothing(schema: Any) -> bool:
    """Return whether a schema accepts no value."""
    if not isinstance(schema, dict):
        return schema is False
    return schema.get("not") in ({}, True) or schema.get("enum") == []


def _map_members(node: Mapping[str, Any], names: Iterable[str], declared: Collection[str]) -> dict[str, Any]:
    """Return the schemas of those given names that a schema accepts without declaring them."""
    patterns = [*_mapping(node.get("patternProperties")).values()]
    # With several patterns, return nothing, because names are not matched against patterns here.
    member_schema = node.get("additionalProperties") if not patterns else patterns[0] if len(patterns) == 1 else None
    return {name: member_schema for name in names if name not in declared} if isinstance(member_schema, dict) else {}


def _required_by(node: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the members that the given members require."""
    demands = _mapping(node.get("dependentRequired")) or _mapping(node.get("dependencies"))
    return [required for name in names for required in _names(demands.get(name))]


def _value_of_schema(node: Mapping[str, Any], *, inside: bool) -> Any:
    """Return a constant, example, default or option that the schema contains, or `MISSING`."""
    # Short constants and options are shown as they are, so that the example says which values are accepted.
    if "const" in node and _is_short(node["const"]):
        return node["const"]
    options = node.get("enum")
    if not inside:
        examples = node.get("examples")
        suggested = [*(examples[:1] if isinstance(examples, list) else []), node.get("example"), node.get("default")]
        for value in suggested:
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
    """Return the count that a keyword such as `minItems` demands, limited to what an example shows."""
    count = node.get(keyword)
    return (
        min(count, _MAX_MEMBERS) if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else otherwise
    )


# Arguments with more members than this are not checked again, because the example lacks most of their members.
_MAX_KEPT_MEMBERS: Final = 250
_MAX_ERRORS: Final = 40
_MAX_DEPTH: Final = 8


def find_wrong_kept_paths(wrapper: ToolWrapper, example: dict[str, Any], sent: object) -> list[JsonPath]:
    """Return the paths at which an example says `<as sent>` although the value that was sent there is invalid.

    This happens if the sent value is valid in one alternative of a schema, but the example shows another alternative.

    Args:
        wrapper: The tool, with the definition that arguments are checked against.
        example: Arguments with placeholders.
        sent: The arguments as sent.
    """
    paths_as_sent = [path for path, value in _iter_leaves(example) if value == AS_SENT]
    if not paths_as_sent or not InstanceSize(sent, _MAX_KEPT_MEMBERS).complete:
        return []
    filled = _fill_as_sent(example, sent)
    try:
        validator = schemas.validator(wrapper.checked_schema, wrapper.schema_digest)
        if validator.is_valid(filled):
            return []
        errors = validator.errors(filled, _MAX_ERRORS)
    except (NotChecked, SchemaRejected):
        return []
    placeholders = [path for path, value in _iter_leaves(example) if isinstance(value, str) and value.startswith("<")]
    error_paths = (path for error in errors for path in _error_paths(error, placeholders))
    at_fault = {prefix for path in error_paths if (prefix := _find_prefix(path, paths_as_sent))}
    return [path for path in paths_as_sent if path in at_fault]


def _iter_leaves(value: Any, path: JsonPath = ()) -> Iterator[tuple[JsonPath, Any]]:
    if isinstance(value, dict) and len(path) < _MAX_DEPTH:
        for name, below in value.items():
            yield from _iter_leaves(below, (*path, name))
    else:
        yield path, value


def _fill_as_sent(example: Any, sent: Any) -> Any:
    if isinstance(example, dict):
        inner = sent if isinstance(sent, dict) else {}
        return {name: _fill_as_sent(below, inner.get(name)) for name, below in example.items()}
    return sent if example == AS_SENT else example


def _error_paths(error: jsonschema_rs.ValidationError, placeholders: list[JsonPath]) -> Iterator[JsonPath]:
    """Yield the path of an error, and the paths of errors in alternatives that fail only at placeholders."""
    yield tuple(error.instance_path)
    for branch in getattr(error.kind, "context", None) or []:
        if all(_find_prefix(tuple(inner.instance_path), placeholders) is not None for inner in branch):
            yield from (tuple(inner.instance_path) for inner in branch)


def _find_prefix(path: JsonPath, places: list[JsonPath]) -> JsonPath | None:
    return next((place for place in places if path[: len(place)] == place), None)
