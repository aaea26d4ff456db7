"""Directed by the schema: what the model surely meant; otherwise nothing.

A repair is one reading of what was sent, never a guess at what was not. Three levels:

`off`
    Nothing is repaired.

`safe` (the default): only what has a single reading.
    - `json_text`: a text that holds JSON, made once or twice, where an object, array or no text is declared;
      the same for the whole argument object. An empty text is an empty argument object.
    - `unwrapped`: the argument object inside `arguments`, `params`, `args`, `input`, `parameters` or `kwargs`
      where the schema declares no such property and nothing else is beside it but the tool's own address.
    - `renamed`: a parameter's name that differs in case and separators from exactly one declared and absent
      property. In an object that does not validate every such slip is renamed, so that nothing gets lost; but
      none in a map, whose schema gives other names a meaning too.
    - `converted`: `"5"`, `"true"`, `"null"` where that type is declared and text is not. `"5.0"` is no integer,
      `"yes"` no boolean; a number that would change on the way stays what it is.
    - `listed`: one scalar where an array of that scalar is declared, unless it is a text that may hold several
      (`a, b`) or that looks like broken JSON.
    - `letter_case`: an enumerated text that differs in case only, from exactly one option.

`full`: also what rests on a convention, or leaves something out.
    - `null_dropped`: null for an optional parameter that takes no null. (It might have meant: delete it.)
    - `item_taken`: an array of one where no array is declared.
    - `listed` for one object where an array of objects is declared.
    - `converted` from an integer to text, and from `"5.0"` to an integer.
    - `unwrapped` even where the whole validates, because the schema is open: see below.

On the generic route `registry.arguments.unwrapping` adds repairs of the address around the arguments.

The laws: what validates is never touched; what comes out validates, or nothing was repaired; repairing again
changes nothing. So every edit is made where a validator complained, and nowhere else.

Two rules meet where a schema declares properties, requires none and allows others: `{"arguments": {"limit": 5}}`
validates there, though the tool will surely not find its limit. The law wins at `safe`: a caller can rely on a
valid call to arrive as it was sent, whatever we think of it, and the check of a valid call stays one look of the
compiled validator. `full` unwraps it, if all that is inside is declared and validates. Where a schema declares
nothing at all, no level can know better than the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from registry.arguments.attempt import Attempt
from registry.arguments.unwrapping import Address, Repair, opened
from registry.catalog.shape import Level
from registry.schema.json_paths import declared
from registry.schema.validators import Validator

Fill = Callable[[dict[str, Any]], dict[str, Any]]
Restore = Callable[[Any], Any]


def as_it_is(arguments: Any) -> Any:
    """Lead nothing back: the caller was shown the schema itself."""
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What became of an argument object.

    Attributes:
        arguments: What validates; the very object that was sent if nothing was repaired.
        repairs: What was done, in order; empty if nothing was.
        valid: Whether `arguments` validate.
        opened: The best reading of the root: inside its wrapping, parameters as they were sent. It is what
            an explanation should speak of, and must never be sent unless it is `arguments`.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    valid: bool
    opened: Any


def repair(
    schema: Any,
    validator: Validator,
    arguments: Any,
    level: Level = "safe",
    *,
    address: Address | None = None,
    fill: Fill = lambda arguments: arguments,
    lead_back: Restore = as_it_is,
) -> Repaired:
    """Return the arguments that were surely meant, or the ones that were sent.

    Args:
        schema: The input schema.
        validator: The same, compiled.
        arguments: What was sent: any JSON value.
        level: What may be repaired.
        address: Names that may stand beside a wrapped argument object.
        fill: Adds defaults; an argument object that validates with them is as good as one without need of them.
        lead_back: Puts an argument object that was written for another schema in the names of this one. What was
            sent has been led back; what repair finds inside it has not.
    """
    if isinstance(arguments, dict) and validator.is_valid(arguments):
        if level == "full" and (inner := _lost_inside(schema, validator, arguments, address, lead_back)) is not None:
            return inner
        return Repaired(arguments=arguments, valid=True, opened=arguments)
    return repair_invalid(schema, validator, arguments, level, address=address, fill=fill, lead_back=lead_back)


def repair_invalid(
    schema: Any,
    validator: Validator,
    arguments: Any,
    level: Level = "safe",
    *,
    address: Address | None = None,
    fill: Fill = lambda arguments: arguments,
    lead_back: Restore = as_it_is,
) -> Repaired:
    """Do as `repair` does with arguments that are known not to validate."""
    if level == "off":
        return Repaired(arguments=arguments, valid=_accepts(validator, arguments, fill), opened=arguments)
    value, repairs = opened(
        arguments, declared(schema, schema), address, until=lambda one: validator.is_valid(lead_back(one))
    )
    value = value if value is arguments else lead_back(value)
    if not isinstance(value, dict):
        return Repaired(arguments=arguments, valid=False, opened=arguments)
    if value is arguments or not validator.is_valid(value):
        attempt = Attempt(schema, validator, value, full=level == "full", lead_back=lead_back)
        mended = attempt.settle()
        if not _accepts(validator, mended if attempt.repairs else value, fill):
            return Repaired(arguments=arguments, valid=False, opened=value)
        if attempt.repairs:
            return Repaired(arguments=mended, repairs=(*repairs, *attempt.repairs), valid=True, opened=value)
    return Repaired(arguments=value, repairs=tuple(repairs), valid=True, opened=value)


def _accepts(validator: Validator, arguments: Any, fill: Fill) -> bool:
    if not isinstance(arguments, dict):
        return False
    return validator.is_valid(arguments) or (
        (filled := fill(arguments)) is not arguments and validator.is_valid(filled)
    )


def _lost_inside(
    schema: Any, validator: Validator, arguments: dict[str, Any], address: Address | None, lead_back: Restore
) -> Repaired | None:
    """Return the inner arguments of a call that validates only because its schema is open."""
    names = declared(schema, schema)
    inner, repairs = opened(arguments, names, address, until=lambda _: False)
    inner = lead_back(inner) if repairs else inner
    if not repairs or not isinstance(inner, dict) or not inner or not names or not inner.keys() <= names.keys():
        return None
    if not validator.is_valid(inner):
        return None
    return Repaired(arguments=inner, repairs=tuple(repairs), valid=True, opened=inner)
