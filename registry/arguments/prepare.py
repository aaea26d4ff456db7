"""Prepare the arguments of a call: repair them, add defaults, and check the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from registry.arguments import problems
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.repair import MapBack, repair, unmapped
from registry.arguments.repair_report import Repair
from registry.arguments.unwrapping import ToolAddress
from registry.catalog.catalog import ToolWrapper
from registry.catalog.shape import RepairLevel
from registry.dialects.definitions import LoweredDefinition, map_arguments
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.json_paths import NO_NAMES, declared_properties
from registry.schema.validators import Validator

NO_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call's arguments, ready to be sent or with the problems that prevent it.

    Attributes:
        arguments: What to send if there are no problems; the very object that was sent to us if nothing was changed.
        repairs: What was repaired.
        filled: The names of arguments that were added from configured defaults.
        problems: What is wrong; if there is anything, the call is not forwarded.
        understood: What the problems refer to: the arguments without their wrappers and with defaults.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    filled: tuple[str, ...] = ()
    problems: tuple[ArgumentProblem, ...] = ()
    understood: Any = None


def fill_defaults(schema: Any, arguments: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with configured defaults for declared parameters that are absent.

    An argument that was sent stays, null included. The same object is returned if nothing was added.
    """
    absent = [name for name in defaults if name not in arguments]
    if not absent:
        return arguments
    names = declared_properties(schema, schema)
    added = {name: defaults[name] for name in absent if name in names}
    return {**arguments, **added} if added else arguments


def prepare(
    wrapper: ToolWrapper,
    arguments: Any,
    *,
    level: RepairLevel = "safe",
    defaults: Mapping[str, Any] = NO_DEFAULTS,
    lowered: LoweredDefinition | None = None,
) -> Prepared:
    """Repair the arguments, add defaults, and check the result, in this order.

    A valid call costs a single run of the compiled validator, and its arguments are returned as the same object. A
    default never makes a call invalid that is valid without it.

    Args:
        wrapper: The tool.
        arguments: What was sent, any JSON value; null counts as an empty object.
        level: What may be repaired; see `registry.arguments.repair`.
        defaults: Configured values of parameters, by name.
        lowered: The definition that the caller was shown: its names and nulls are mapped back first, however deep
            inside wrappers they are.
    """
    schema = wrapper.input_schema
    names = lowered.shown_names if lowered is not None and lowered.original_names else NO_NAMES
    map_back: MapBack = unmapped
    if lowered is not None and lowered.document is not None:
        map_back = partial(map_arguments, lowered=lowered)
    # First of all: repairs and checks know the original schema only.
    arguments = map_back(arguments)
    try:
        validator = schemas.validator(schema, wrapper.schema_digest)
    except SchemaRejected:  # nothing to check against; the upstream decides
        plain = {} if arguments is None else arguments
        if not isinstance(plain, dict):
            return Prepared(arguments=plain, problems=problems.check(wrapper, plain, names), understood=plain)
        return _with_defaults(wrapper, None, plain, defaults)
    valid = isinstance(arguments, dict) and validator.is_valid(arguments)
    if valid and level != "full":
        return _with_defaults(wrapper, validator, arguments, defaults) if defaults else Prepared(arguments=arguments)
    # With repairs, `unwrap` takes null for an empty object; without them this is left to do here.
    plain = {} if arguments is None and level == "off" else arguments
    done = repair(
        schema,
        validator,
        plain,
        level,
        address=ToolAddress(server=wrapper.server, tool=wrapper.tool, name=wrapper.name),
        fill=lambda value: fill_defaults(schema, value, defaults),
        map_back=map_back,
        known_valid=valid,
    )
    if done.valid:
        return _with_defaults(wrapper, validator, done.arguments, defaults, done.repairs)
    # A default may be what would have been missing.
    understood = fill_defaults(schema, done.unwrapped, defaults) if isinstance(done.unwrapped, dict) else done.unwrapped
    return Prepared(arguments=arguments, problems=problems.check(wrapper, understood, names), understood=understood)


def _with_defaults(
    wrapper: ToolWrapper,
    validator: Validator | None,
    arguments: dict[str, Any],
    defaults: Mapping[str, Any],
    repairs: tuple[Repair, ...] = (),
) -> Prepared:
    filled = fill_defaults(wrapper.input_schema, arguments, defaults)
    if filled is arguments or (validator is not None and not validator.is_valid(filled)):
        return Prepared(arguments=arguments, repairs=repairs)
    added = tuple(name for name in filled if name not in arguments)
    return Prepared(arguments=filled, repairs=repairs, filled=added)
