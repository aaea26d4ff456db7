"""Tells from a small part of a large argument object that no repair makes it valid, before the whole is worked on."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from registry.arguments.validation_repair import MAX_ERRORS, MAX_ROUNDS, ValidationRepair
from registry.schema.effort import current_effort, effort_of
from registry.schema.instance_size import InstanceSize
from registry.schema.json_paths import JsonPath
from registry.schema.validators import LARGE, SchemaNames, Validator

if TYPE_CHECKING:
    import jsonschema_rs

# As many as show what is wrong; see `registry.arguments.problems`.
_MAX_ERRORS: Final = 200
# Errors that repairs are tried on: if one of the first stays, the call is invalid, whatever becomes of the others.
_TRIED: Final = 2
# What trying may cost, as in `Effort.repair_cost` and `Effort.whole`: some 10 ms.
_MAX_COST: Final = 8_000
_MAX_WHOLE: Final = 500
# Undeclared members that are kept of an object beside those that fail or that others depend on.
_KEPT: Final = 20
# Complaints that a part may give rise to where the whole would not.
_OF_PARTS: Final = frozenset({"minItems", "minProperties", "contains"})


def errors_beyond_repair(
    schema: Any,
    validator: Validator,
    value: dict[str, Any],
    size: InstanceSize,
    *,
    full: bool,
    map_back: Callable[[Any], Any],
    accepts: Callable[[Any], bool],
) -> list[jsonschema_rs.ValidationError] | None:
    """Return errors of a large value that cannot be repaired; None if it may be, or is not large.

    Args:
        schema: The input schema.
        validator: The same, compiled.
        value: What was sent; it does not validate.
        size: Its size.
        full: Whether repairs of the level `full` may be made.
        map_back: See `repair`.
        accepts: Whether a value validates with defaults.
    """
    if size.members <= LARGE:
        return None
    found = validator.first_errors(value, _MAX_ERRORS, size)
    failing = _tree([tuple(error.instance_path) for error in found.errors[:_TRIED]])
    part = _part_of(value, failing, validator.names)
    # What is too much work for a part is far too much for the whole.
    with effort_of(replace(current_effort(), repair_cost=_MAX_COST, whole=_MAX_WHOLE)):
        repaired = ValidationRepair(schema, validator, part, full=full, map_back=map_back).run()
        if accepts(repaired):
            return found.errors if found.has_failing(MAX_ERRORS * MAX_ROUNDS) else None
        left = {error.kind.name for error in validator.errors(repaired, _MAX_ERRORS)}
    return found.errors if left - _OF_PARTS else None


def _tree(paths: Sequence[JsonPath]) -> dict[str | int, Any]:
    """Return the steps of paths, each with the steps below it."""
    tree: dict[str | int, Any] = {}
    for path in paths:
        below = tree
        for step in path:
            below = below.setdefault(step, {})
    return tree


def _part_of(value: Any, failing: dict[str | int, Any], names: SchemaNames) -> Any:
    """Return a value with what fails, and little else, in its lists and objects."""
    if isinstance(value, list):
        kept = sorted(step for step in failing if isinstance(step, int)) or range(min(len(value), 1))
        return [_part_of(value[index], failing.get(index, {}), names) for index in kept]
    if isinstance(value, dict):
        telling = value if len(value) <= _KEPT else _telling_names(value, failing, names)
        return {name: _part_of(value[name], failing.get(name, {}), names) for name in telling}
    return value


def _telling_names(value: dict[str, Any], failing: Container[str | int], names: SchemaNames) -> list[str]:
    undeclared = islice((name for name in value if name not in names.declared and name not in failing), _KEPT)
    return [*(name for name in value if name in names.related or name in failing), *undeclared]
