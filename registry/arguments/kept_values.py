"""Which values an example call leaves as they were sent although they are wrong where it has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from registry.arguments.example import AS_SENT
from registry.catalog.catalog import ToolWrapper
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.instance_size import InstanceSize
from registry.schema.json_paths import JsonPath

if TYPE_CHECKING:
    import jsonschema_rs

# Of the arguments: what is wrong with larger ones was looked for part by part, and most of them is not in an example.
_MAX_MEMBERS: Final = 250
_MAX_ERRORS: Final = 40
_MAX_DEPTH: Final = 8


def wrong_where_kept(wrapper: ToolWrapper, example: dict[str, Any], sent: object) -> list[JsonPath]:
    """Return the places of an example that say `as sent`, and where what was sent does not fit.

    Which alternative an object is to be was not known when its members were judged.

    Args:
        wrapper: The tool, with the definition that it checks by.
        example: Arguments with placeholders.
        sent: The arguments that were sent.
    """
    kept = [path for path, value in _leaves(example) if value == AS_SENT]
    if not kept or not InstanceSize(sent, _MAX_MEMBERS).complete:
        return []
    filled = _filled(example, sent)
    try:
        validator = schemas.validator(wrapper.checked_schema, wrapper.schema_digest)
        if validator.is_valid(filled):
            return []
        errors = validator.errors(filled, _MAX_ERRORS)
    except (NotChecked, SchemaRejected):
        return []
    placeholders = [path for path, value in _leaves(example) if isinstance(value, str) and value.startswith("<")]
    at_fault = {place for error in errors for path in _paths(error, placeholders) if (place := _place(path, kept))}
    return [path for path in kept if path in at_fault]


def _leaves(value: Any, path: JsonPath = ()) -> Iterator[tuple[JsonPath, Any]]:
    if isinstance(value, dict) and len(path) < _MAX_DEPTH:
        for name, below in value.items():
            yield from _leaves(below, (*path, name))
    else:
        yield path, value


def _filled(example: Any, sent: Any) -> Any:
    if isinstance(example, dict):
        inner = sent if isinstance(sent, dict) else {}
        return {name: _filled(below, inner.get(name)) for name, below in example.items()}
    return sent if example == AS_SENT else example


def _paths(error: jsonschema_rs.ValidationError, placeholders: list[JsonPath]) -> Iterator[JsonPath]:
    """Yield where an error is; of alternatives, where those of the one are that the example shows."""
    yield tuple(error.instance_path)
    for branch in getattr(error.kind, "context", None) or []:
        if all(_place(tuple(inner.instance_path), placeholders) is not None for inner in branch):
            yield from (tuple(inner.instance_path) for inner in branch)


def _place(path: JsonPath, places: list[JsonPath]) -> JsonPath | None:
    return next((place for place in places if path[: len(place)] == place), None)
