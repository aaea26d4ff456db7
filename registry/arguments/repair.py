"""Repair an argument object as its schema directs: what the model clearly meant, otherwise nothing.

A repair is another reading of what was sent, never a guess at what was not. There are three levels:

`off`
    Nothing is repaired.

`safe` (the default): only what can be read in a single way.
    - `json_text`: a text that holds JSON, serialized once or twice, where an object or array is declared, or any
      type but a string; the same for the whole argument object. An empty text is an empty argument object.
    - `unwrapped`: the argument object inside `arguments`, `params`, `args`, `input`, `parameters` or `kwargs`,
      if the schema declares no such property and nothing stands beside it but the tool's own address.
    - `renamed`: a name that differs in case and separators from exactly one declared and absent property. In an
      object that does not validate, every such name is replaced, so that nothing gets lost; but none in a map,
      whose schema gives other names a meaning as well.
    - `converted`: `"5"`, `"true"`, `"null"` where that type is declared and a string is not. `"5.0"` is no integer
      and `"yes"` no boolean; a number that would be rounded stays as it is.
    - `listed`: one scalar where an array of that scalar is declared, unless it is a text that may hold several
      (`a, b`) or that looks like broken JSON.
    - `letter_case`: a text that differs from exactly one option of an enumeration in case only.

`full`: also what rests on a convention, or leaves something out.
    - `null_dropped`: null for an optional parameter that does not accept null. (It might have meant: delete it.)
    - `item_taken`: an array of one where no array is declared.
    - `listed` for one object where an array of objects is declared.
    - `converted` from an integer to text, and from `"5.0"` to an integer.

For calls of `invoke_tool`, `registry.arguments.invoke_tool` adds repairs of the address around the arguments.

The laws: what validates is never changed; what is returned validates, or nothing was repaired; repairing again
changes nothing. So every edit is made where the validator reported an error, and nowhere else.

One case is an exception to the first law. Where a schema declares properties, requires none and allows others,
`{"arguments": {"limit": 5}}` validates, although the tool will not find its limit and runs without it. Such a wrapper
is taken off if no property of its name is declared and all that is in it is, in this or another spelling; what is
inside is then repaired and checked like any other call. Where other parameters stand beside it, the call is refused.
Where the schema gives other names a meaning (a map), or declares nothing at all, the call stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from registry.arguments.large_calls import errors_beyond_repair
from registry.arguments.repair_report import Repair
from registry.arguments.spelling import SpellingCorrector, is_map
from registry.arguments.unwrapping import ToolAddress, may_be_wrapped, mixed_in, unwrap
from registry.arguments.validation_repair import ValidationRepair
from registry.catalog.shape import RepairLevel
from registry.schema.instance_size import InstanceSize
from registry.schema.json_paths import composed_schemas, declared_properties
from registry.schema.validators import Validator

if TYPE_CHECKING:
    import jsonschema_rs

Fill = Callable[[dict[str, Any]], dict[str, Any]]
MapBack = Callable[[Any], Any]


def unmapped(arguments: Any) -> Any:
    """Return the arguments themselves: the caller was shown the very schema."""
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The outcome of repairing an argument object.

    Attributes:
        arguments: What validates; the very object that was sent if nothing was repaired.
        repairs: What was done, in order.
        valid: Whether `arguments` validate.
        unwrapped: The argument object inside its wrappers, with parameters as they were sent. Explanations refer to
            it; it must not be sent unless it is `arguments`.
        errors: Those of `unwrapped`, where they were collected.
        mixed: The member that holds some of the parameters while others stand beside it. The call validates, because
            its schema is open, and what it holds would be lost.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    valid: bool
    unwrapped: Any
    errors: list[jsonschema_rs.ValidationError] | None = None
    mixed: str | None = None


def repair(
    schema: Any,
    validator: Validator,
    arguments: Any,
    level: RepairLevel = "safe",
    *,
    address: ToolAddress | None = None,
    fill: Fill = lambda arguments: arguments,
    map_back: MapBack = unmapped,
    known_valid: bool | None = None,
    size: InstanceSize | None = None,
) -> Repaired:
    """Return the arguments that were clearly meant, or those that were sent.

    Args:
        schema: The input schema.
        validator: The same, compiled.
        arguments: What was sent: any JSON value.
        level: What may be repaired.
        address: Names that may stand beside a wrapped argument object.
        fill: Adds defaults; arguments that validate with their defaults are accepted.
        map_back: Puts arguments that were written for an advertised schema into the names of this one. What was sent
            has been mapped already; what a repair finds inside it has not.
        known_valid: Whether the arguments validate, if the caller has checked that.
        size: The size of the arguments, if the caller knows it.
    """
    if known_valid is None:
        known_valid = isinstance(arguments, dict) and validator.is_valid(arguments)
    if level == "off":
        valid = known_valid or _accepts(validator, arguments, fill, known_invalid=True)
        return Repaired(arguments=arguments, valid=valid, unwrapped=arguments)
    found = _repaired(schema, validator, arguments, level, address, fill, map_back, known_valid=known_valid, size=size)
    if not found.valid or not found.repairs or not may_be_wrapped(found.arguments):
        return found
    # Only now does it validate, and what validates because its schema is open may be wrapped still.
    inner = _repaired(schema, validator, found.arguments, level, address, fill, map_back, known_valid=True, size=None)
    if not inner.valid:
        return replace(inner, arguments=arguments)
    return replace(inner, repairs=(*found.repairs, *inner.repairs))


def _repaired(
    schema: Any,
    validator: Validator,
    arguments: Any,
    level: RepairLevel,
    address: ToolAddress | None,
    fill: Fill,
    map_back: MapBack,
    *,
    known_valid: bool,
    size: InstanceSize | None,
) -> Repaired:
    value: Any
    if known_valid:
        wrapped = may_be_wrapped(arguments) and _is_open(schema)
        inside = _wrapped_inside(schema, arguments, address, map_back) if wrapped else None
        if inside is None:
            mixed = mixed_in(arguments, declared_properties(schema, schema)) if wrapped else None
            return Repaired(arguments=arguments, valid=True, unwrapped=arguments, mixed=mixed)
        value, repairs = inside
    else:
        names = declared_properties(schema, schema)
        value, repairs = unwrap(arguments, names, address, until=lambda inner: validator.is_valid(map_back(inner)))
        # What was inside a wrapper has not been mapped yet.
        value = value if value is arguments else map_back(value)
    if not isinstance(value, dict):
        return Repaired(arguments=arguments, valid=False, unwrapped=arguments)
    if value is arguments or not validator.is_valid(value):
        known = size if size is not None and value is arguments else InstanceSize.at_most(value)
        hopeless = errors_beyond_repair(
            schema, validator, value, known, full=level == "full", map_back=map_back,
            accepts=lambda attempted: _accepts(validator, attempted, fill),
        )  # fmt: skip
        if hopeless is not None:
            return Repaired(arguments=arguments, valid=False, unwrapped=value, errors=hopeless)
        attempt = ValidationRepair(schema, validator, value, full=level == "full", map_back=map_back, size=known)
        repaired = attempt.run()
        # All or nothing: a call that stays invalid is reported as it was sent.
        changed = bool(attempt.repairs)
        if not _accepts(validator, repaired if changed else value, fill, known_invalid=not changed):
            return Repaired(arguments=arguments, valid=False, unwrapped=value, errors=attempt.errors)
        if attempt.repairs:
            return Repaired(arguments=repaired, repairs=(*repairs, *attempt.repairs), valid=True, unwrapped=value)
    return Repaired(arguments=value, repairs=tuple(repairs), valid=True, unwrapped=value)


def _accepts(validator: Validator, arguments: Any, fill: Fill, *, known_invalid: bool = False) -> bool:
    if not isinstance(arguments, dict):
        return False
    return (not known_invalid and validator.is_valid(arguments)) or (
        (filled := fill(arguments)) is not arguments and validator.is_valid(filled)
    )


def _is_open(schema: Any) -> bool:
    """Return whether a schema declares properties, and says nothing of others."""
    nodes = composed_schemas(schema, schema)
    return bool(declared_properties(schema, schema)) and not any(is_map(node) for node in nodes)


def _wrapped_inside(
    schema: Any, arguments: dict[str, Any], address: ToolAddress | None, map_back: MapBack
) -> tuple[dict[str, Any], list[Repair]] | None:
    """Return what is wrapped in a call that validates only because its schema is open, and the repairs."""
    names = declared_properties(schema, schema)
    inner, repairs = unwrap(arguments, names, address, until=lambda _: False)
    inner = map_back(inner) if repairs else inner
    if not repairs or not isinstance(inner, dict):
        return None
    if not inner.keys() <= names.keys():
        # Inside a wrapper a misspelt name is one, since all of what is there is meant to be parameters.
        corrected = SpellingCorrector(schema).corrections(inner, schema, schema_path=[], path=(), dropped=())
        inner = {corrected.get(name, name): value for name, value in inner.items()}
        repairs += [Repair(name="renamed", path=(new,), was=old) for old, new in corrected.items()]
    if not inner.keys() <= names.keys():
        return None
    if not inner and any(repair.name == "json_text" for repair in repairs):
        return None  # an empty text may be the value of a parameter that the schema does not name
    return inner, repairs
