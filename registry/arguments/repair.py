"""Repair an argument object as its schema directs, and report the repairs.

A repair is another reading of the arguments, never a guess at missing arguments. There are three levels:

`off`
    No repairs.

`safe` (the default): repairs of values that can be read in only one way.
    - `json_text`: a text that contains an object or array as JSON, serialized once or twice, where that type is
      declared and a string is not. The whole argument object may be such a text, and an empty text is an empty argument
      object.
    - `unwrapped`: the argument object inside `arguments`, `params`, `args`, `input`, `parameters` or `kwargs`, if the
      schema declares no such property and nothing is next to it except the tool's own address.
    - `renamed`: a name that differs from exactly one declared and absent property in case and separators only. In an
      invalid object, every such name is replaced, so that no parameter is lost. In a map, where the schema gives any
      name a meaning, no name is replaced.
    - `converted`: a text such as `"5"`, `"true"` or `"null"`, where its type is declared and a string is not. `"5.0"`
      is not an integer and `"yes"` is not a boolean; a number that would be rounded stays as it is.
    - `listed`: a single scalar where an array of that scalar is declared, unless it is a text that may contain several
      (`a, b`) or looks like broken JSON.
    - `letter_case`: a text that differs from exactly one `enum` option in case only.

`full`: the repairs of `safe`, and repairs that rest on a convention or that leave something out.
    - `null_dropped`: null for an optional parameter that does not accept null. (The caller may have meant to delete the
      value.)
    - `item_taken`: an array of one item where no array is declared.
    - `listed` for a single object where an array of objects is declared.
    - `converted` from an integer to text, and from `"5.0"` to an integer.

For calls of `invoke_tool`, `registry.arguments.invoke_tool` adds repairs of the address around the arguments.

Invariants: valid arguments are never changed; the result is valid, or nothing was repaired; repairing the result again
changes nothing. Therefore edits are made only where the validator reports an error.

There is one exception to the first invariant. If a schema declares properties, requires none and allows others, then
`{"arguments": {"limit": 5}}` is valid, although the tool will not find the limit and runs without it. Such a wrapper
object is removed if the schema does not declare its name but declares all of its members, possibly in another spelling.
The inner object is then repaired and checked like any other call. If other parameters are next to the wrapper object,
the call is refused. If the schema gives other names a meaning (a map) or declares nothing, the call stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from registry.arguments.coercion import (
    Repair,
    SpellingCorrector,
    ToolAddress,
    find_mixed_wrapper,
    is_map,
    may_be_wrapped,
    unwrap,
)
from registry.arguments.validation_repair import MAX_ERRORS, MAX_ROUNDS, ValidationRepair
from registry.catalog.shape import RepairLevel
from registry.schema.check_cost import InstanceSize, current_effort, use_effort
from registry.schema.json_paths import JsonPath, composed_schemas, declared_properties
from registry.schema.validators import LARGE, SchemaNames, Validator

if TYPE_CHECKING:
    import jsonschema_rs

# The number of errors that `registry.arguments.problems` reads.
_MAX_ERRORS: Final = 200
# Maximum number of errors on which repairs are tried. If one of them cannot be repaired, the call stays invalid, so the
# other errors do not matter.
_MAX_TRIED: Final = 2
# Limits of these trials (see `Effort.repair_cost` and `Effort.whole`), which then take about 10 ms.
_MAX_COST: Final = 8_000
_MAX_WHOLE: Final = 500
# Maximum number of undeclared members that a reduced object keeps, besides failing members and members that others
# depend on.
_MAX_KEPT: Final = 20
# Errors that a reduced value may have although the whole value does not have them.
_ERRORS_OF_PARTS: Final = frozenset({"minItems", "minProperties", "contains"})


Fill = Callable[[dict[str, Any]], dict[str, Any]]
MapBack = Callable[[Any], Any]


def identity_mapping(arguments: Any) -> Any:
    """Return the arguments unchanged, for a caller that was shown the original schema."""
    return arguments


def _unchanged(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTarget:
    """The schema that arguments have to match after a repair, with its validator and mappings.

    Attributes:
        schema: The input schema.
        validator: The compiled input schema.
        address: The tool's names, which may be next to a wrapped argument object.
        fill: Adds defaults; arguments that are valid with their defaults are accepted.
        map_back: Maps arguments written for the schema that the caller was shown to this schema. The arguments to
            repair have been mapped already, but values inside JSON texts and wrapper objects have not.
    """

    schema: Any
    validator: Validator
    address: ToolAddress | None = None
    fill: Fill = _unchanged
    map_back: MapBack = identity_mapping


def errors_beyond_repair(
    target: RepairTarget, value: dict[str, Any], size: InstanceSize, *, full: bool
) -> list[jsonschema_rs.ValidationError] | None:
    """Return the errors of a large value that cannot be repaired; None if it may be repairable or is not large.

    Args:
        value: The arguments as sent, which are invalid.
        size: The size of the value.
        full: True if repairs of the level `full` are allowed.
    """
    validator = target.validator
    if size.members <= LARGE:
        return None
    first_errors = validator.first_errors(value, _MAX_ERRORS, size)
    failing = _path_tree([tuple(error.instance_path) for error in first_errors.errors[:_MAX_TRIED]])
    part = _reduce(value, failing, validator.names)
    # If repairing a part is too expensive, repairing the whole value is even more expensive.
    with use_effort(replace(current_effort(), repair_cost=_MAX_COST, whole=_MAX_WHOLE)):
        repaired = ValidationRepair(target.schema, validator, part, full=full, map_back=target.map_back).run()
        if _accepts(target, repaired):
            return first_errors.errors if first_errors.has_failing(MAX_ERRORS * MAX_ROUNDS) else None
        remaining_kinds = {error.kind.name for error in validator.errors(repaired, _MAX_ERRORS)}
    return first_errors.errors if remaining_kinds - _ERRORS_OF_PARTS else None


def _path_tree(paths: Sequence[JsonPath]) -> dict[str | int, Any]:
    """Return the paths as a tree: each step with the steps below it."""
    tree: dict[str | int, Any] = {}
    for path in paths:
        below = tree
        for step in path:
            below = below.setdefault(step, {})
    return tree


def _reduce(value: Any, failing: dict[str | int, Any], names: SchemaNames) -> Any:
    """Reduce a value to its failing parts and a few other members and items."""
    if isinstance(value, list):
        indices = sorted(step for step in failing if isinstance(step, int)) or range(min(len(value), 1))
        return [_reduce(value[index], failing.get(index, {}), names) for index in indices]
    if isinstance(value, dict):
        kept_names = value if len(value) <= _MAX_KEPT else _names_to_keep(value, failing, names)
        return {name: _reduce(value[name], failing.get(name, {}), names) for name in kept_names}
    return value


def _names_to_keep(value: dict[str, Any], failing: Container[str | int], names: SchemaNames) -> list[str]:
    undeclared = islice((name for name in value if name not in names.declared and name not in failing), _MAX_KEPT)
    return [*(name for name in value if name in names.related or name in failing), *undeclared]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The outcome of a repair.

    Attributes:
        arguments: The valid arguments; the original object if nothing was repaired.
        repairs: The repairs, in order.
        valid: Whether `arguments` are valid.
        unwrapped: The inner argument object with its parameters as sent. Problems refer to this object. Send
            `arguments` instead, which may be the same object.
        errors: The errors of `unwrapped`, if collected.
        mixed: The key of a member that contains some parameters while other parameters are next to the member. The call
            is valid because the schema is open, but the upstream would ignore that member.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    valid: bool
    unwrapped: Any
    errors: list[jsonschema_rs.ValidationError] | None = None
    mixed: str | None = None


def repair(
    target: RepairTarget,
    arguments: Any,
    level: RepairLevel = "safe",
    *,
    known_valid: bool | None = None,
    size: InstanceSize | None = None,
) -> Repaired:
    """Repair arguments; if they stay invalid, return the arguments as sent.

    Args:
        arguments: The arguments as sent, any JSON value.
        level: What may be repaired.
        known_valid: Whether the arguments are valid, if already checked.
        size: The size of the arguments, if known.
    """
    if known_valid is None:
        known_valid = isinstance(arguments, dict) and target.validator.is_valid(arguments)
    if level == "off":
        valid = known_valid or _accepts(target, arguments, known_invalid=True)
        return Repaired(arguments=arguments, valid=valid, unwrapped=arguments)
    repaired = _repair_once(target, arguments, level, known_valid=known_valid, size=size)
    if not repaired.valid or not repaired.repairs or not may_be_wrapped(repaired.arguments):
        return repaired
    # The repaired arguments are valid, but with an open schema they may still be wrapped.
    inner = _repair_once(target, repaired.arguments, level, known_valid=True, size=None)
    if not inner.valid:
        return replace(inner, arguments=arguments)
    return replace(inner, repairs=(*repaired.repairs, *inner.repairs))


def _repair_once(
    target: RepairTarget, arguments: Any, level: RepairLevel, *, known_valid: bool, size: InstanceSize | None
) -> Repaired:
    schema, validator, map_back = target.schema, target.validator, target.map_back
    value: Any
    if known_valid:
        wrapped = may_be_wrapped(arguments) and _is_open(schema)
        unwrapped = _unwrap_valid(target, arguments) if wrapped else None
        if unwrapped is None:
            mixed = find_mixed_wrapper(arguments, declared_properties(schema, schema)) if wrapped else None
            return Repaired(arguments=arguments, valid=True, unwrapped=arguments, mixed=mixed)
        value, repairs = unwrapped
    else:
        names = declared_properties(schema, schema)
        value, repairs = unwrap(
            arguments, names, target.address, until=lambda inner: validator.is_valid(map_back(inner))
        )
        # The content of a wrapper object has not been mapped yet.
        value = value if value is arguments else map_back(value)
    if not isinstance(value, dict):
        return Repaired(arguments=arguments, valid=False, unwrapped=arguments)
    if value is arguments or not validator.is_valid(value):
        value_size = size if size is not None and value is arguments else InstanceSize.at_most(value)
        unrepairable = errors_beyond_repair(target, value, value_size, full=level == "full")
        if unrepairable is not None:
            return Repaired(arguments=arguments, valid=False, unwrapped=value, errors=unrepairable)
        attempt = ValidationRepair(schema, validator, value, full=level == "full", map_back=map_back, size=value_size)
        repaired = attempt.run()
        # All or nothing: if the arguments stay invalid, no repair is applied.
        changed = bool(attempt.repairs)
        if not _accepts(target, repaired if changed else value, known_invalid=not changed):
            return Repaired(arguments=arguments, valid=False, unwrapped=value, errors=attempt.errors)
        if attempt.repairs:
            return Repaired(arguments=repaired, repairs=(*repairs, *attempt.repairs), valid=True, unwrapped=value)
    return Repaired(arguments=value, repairs=tuple(repairs), valid=True, unwrapped=value)


def _accepts(target: RepairTarget, arguments: Any, *, known_invalid: bool = False) -> bool:
    """Return whether arguments are valid, with or without defaults."""
    validator = target.validator
    if not isinstance(arguments, dict):
        return False
    return (not known_invalid and validator.is_valid(arguments)) or (
        (filled := target.fill(arguments)) is not arguments and validator.is_valid(filled)
    )


def _is_open(schema: Any) -> bool:
    """Return whether a schema declares properties and accepts any others without giving them a meaning."""
    nodes = composed_schemas(schema, schema)
    return bool(declared_properties(schema, schema)) and not any(is_map(node) for node in nodes)


def _unwrap_valid(target: RepairTarget, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[Repair]] | None:
    """Return the inner arguments and the repairs if wrapped arguments are valid only because the schema is open."""
    schema = target.schema
    names = declared_properties(schema, schema)
    inner, repairs = unwrap(arguments, names, target.address, until=lambda _: False)
    inner = target.map_back(inner) if repairs else inner
    if not repairs or not isinstance(inner, dict):
        return None
    if not inner.keys() <= names.keys():
        # Unlike in an open object, every member of a wrapper object is meant to be a parameter, so names are corrected.
        corrected = SpellingCorrector(schema).corrections(inner, schema, schema_path=[], path=(), dropped=())
        inner = {corrected.get(name, name): value for name, value in inner.items()}
        repairs += [Repair(name="renamed", path=(new,), was=old) for old, new in corrected.items()]
    if not inner.keys() <= names.keys():
        return None
    if not inner and any(repair.name == "json_text" for repair in repairs):
        return None  # an empty text may be the value of a parameter that the schema does not declare
    return inner, repairs
