"""Prepare the arguments of a call: repair them, add defaults, and check the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from registry.arguments import problems
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.repair import MapBack, repair, unmapped
from registry.arguments.repair_report import Repair
from registry.arguments.unwrapping import ToolAddress, may_be_wrapped, put_beside
from registry.catalog.catalog import ToolWrapper
from registry.catalog.shape import RepairLevel, Validation
from registry.dialects.definitions import LoweredDefinition, map_arguments
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import require_countable
from registry.schema.effort import current_effort, effort_of
from registry.schema.instance_size import InstanceSize
from registry.schema.json_paths import NO_NAMES, declared_properties, format_path
from registry.schema.validators import Validator

NO_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({})


# Not frozen, which would make it five times as dear: every call has one.
@dataclass(slots=True, eq=False)
class Prepared:
    """A call's arguments, ready to be sent or with the problems that prevent it.

    Attributes:
        arguments: What to send if there are no problems; the very object that was sent to us if nothing was changed.
        repairs: What was repaired.
        filled: The names of arguments that were added from configured defaults.
        problems: What is wrong; if there is anything, the call is not forwarded.
        understood: What the problems refer to: the arguments without their wrappers and with defaults.
        unchecked: What of the arguments could not be checked, where they are sent nevertheless.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    filled: tuple[str, ...] = ()
    problems: tuple[ArgumentProblem, ...] = ()
    understood: Any = None
    unchecked: tuple[ArgumentProblem, ...] = ()


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


def passes(wrapper: ToolWrapper, arguments: Any, level: RepairLevel) -> bool:
    """Return whether arguments are sent as they are, where they need no mapping back and there are no defaults.

    Otherwise, or where that is not found out in a moment, `prepare` tells.

    Raises:
        NotChecked: As `prepare`, where that is seen at once.
    """
    if type(arguments) is not dict or (level != "off" and may_be_wrapped(arguments)):
        return False
    known = schemas.VALIDATORS.get(wrapper.schema_digest)
    if type(known) is Validator:
        return known.passes(arguments)
    try:
        return schemas.validator(wrapper.checked_schema, wrapper.schema_digest).passes(arguments)
    except SchemaRejected:
        return False


def prepare(
    wrapper: ToolWrapper,
    arguments: Any,
    *,
    level: RepairLevel = "safe",
    defaults: Mapping[str, Any] = NO_DEFAULTS,
    lowered: LoweredDefinition | None = None,
    validation: Validation = "lenient",
    text: bytes | None = None,
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
        validation: What happens to arguments that no effort can check: `lenient` checks the rest and reports them,
            `strict` refuses them.
        text: What `orjson` makes of the arguments, if the caller knows that.

    Raises:
        NotChecked: They cannot be checked within the bounds that hold here, and could be within others.
    """
    try:
        return _prepare(wrapper, arguments, level=level, defaults=defaults, lowered=lowered, text=text)
    except NotChecked as doubt:
        if not doubt.final:
            raise
        names = lowered.shown_names if lowered is not None else NO_NAMES
        if validation == "strict":
            return refused(arguments, doubt, names)
        doubts = [doubt]
    with effort_of(replace(current_effort(), leniency="uncheckable")):
        prepared = _prepare(wrapper, arguments, level=level, defaults=defaults, lowered=lowered, text=text)
        if not prepared.problems:
            doubts = _uncheckable(wrapper, prepared.arguments) or doubts
    return replace(prepared, unchecked=tuple(problems.unchecked_problem(one, names) for one in doubts))


def prepare_partly(
    wrapper: ToolWrapper,
    arguments: Any,
    doubt: NotChecked,
    *,
    level: RepairLevel,
    defaults: Mapping[str, Any],
    lowered: LoweredDefinition | None,
    checked: bool,
    within_s: float | None = None,
) -> Prepared:
    """Prepare arguments whose check takes too long: only what is cheap is checked, or nothing.

    Args:
        wrapper: The tool.
        arguments: What was sent.
        doubt: Why they could not be checked.
        level: As for `prepare`.
        defaults: As for `prepare`.
        lowered: As for `prepare`.
        checked: Whether anything is checked and repaired; otherwise names are mapped back and defaults added.
        within_s: The time that was spent on the check.

    Raises:
        NotChecked: As `prepare`.
    """
    names = lowered.shown_names if lowered is not None else NO_NAMES
    unchecked = (problems.unchecked_problem(doubt, names, within_s=within_s),)
    if checked:
        with effort_of(replace(current_effort(), leniency="costly")):
            prepared = _prepare(wrapper, arguments, level=level, defaults=defaults, lowered=lowered, text=None)
        return replace(prepared, unchecked=unchecked)
    plain = {} if arguments is None else arguments
    if not isinstance(plain, dict):
        return refused(arguments, doubt, names, within_s=within_s)
    if lowered is not None and lowered.document is not None:
        plain = map_arguments(plain, replace(lowered, null_means_omitted=False))
    prepared = _with_defaults(wrapper, None, plain, defaults)
    return replace(prepared, understood=plain, unchecked=unchecked)


def _uncheckable(wrapper: ToolWrapper, arguments: Any) -> list[NotChecked]:
    try:
        return schemas.validator(wrapper.checked_schema, wrapper.schema_digest).uncheckable(arguments)
    except SchemaRejected:
        return []


def refused(
    arguments: Any, doubt: NotChecked, names: Mapping[str, str] = NO_NAMES, *, within_s: float | None = None
) -> Prepared:
    """Return arguments that are not sent because they cannot be checked; see `problems.unchecked_problem`."""
    problem = problems.unchecked_problem(doubt, names, within_s=within_s)
    return Prepared(arguments=arguments, problems=(problem,), understood=arguments)


def _prepare(
    wrapper: ToolWrapper,
    arguments: Any,
    *,
    level: RepairLevel,
    defaults: Mapping[str, Any],
    lowered: LoweredDefinition | None,
    text: bytes | None,
) -> Prepared:
    schema = wrapper.checked_schema
    names = lowered.shown_names if lowered is not None and lowered.original_names else NO_NAMES
    map_back: MapBack = unmapped
    if lowered is not None and lowered.document is not None:
        map_back = partial(map_arguments, lowered=lowered)
        require_countable(arguments)
    # First of all: repairs and checks know the original schema only.
    sent, arguments = arguments, map_back(arguments)
    try:
        validator = schemas.validator(schema, wrapper.schema_digest)
    except SchemaRejected as rejected:
        if current_effort().leniency == "none":
            raise NotChecked((), f"the schema cannot be used: {rejected.detail}", final=True) from None
        plain = {} if arguments is None else arguments
        if not isinstance(plain, dict):
            return Prepared(arguments=plain, problems=problems.check(wrapper, plain, names), understood=plain)
        return _with_defaults(wrapper, None, plain, defaults)
    # Where there is time for large values, their size is found once: that takes as long as a check.
    schema = validator.schema
    text = text if arguments is sent else None
    size = InstanceSize.at_most(arguments, text) if current_effort().check_ns is None else None
    valid = isinstance(arguments, dict) and validator.is_valid(arguments, size)
    if valid and (level == "off" or not may_be_wrapped(arguments)):
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
        known_valid=valid if plain is arguments else None,
        size=size if plain is arguments else None,
    )
    if done.mixed is not None:
        told = f"{format_path((done.mixed,), names)} is not a parameter, but holds some; put them beside the others"
        mixed = ArgumentProblem(path=(done.mixed,), kind="unknown", message=told)
        return Prepared(arguments=arguments, problems=(mixed,), understood=put_beside(done.unwrapped, done.mixed))
    if done.valid:
        return _with_defaults(wrapper, validator, done.arguments, defaults, done.repairs)
    # A default may be what would have been missing.
    understood = fill_defaults(schema, done.unwrapped, defaults) if isinstance(done.unwrapped, dict) else done.unwrapped
    errors = done.errors if understood is done.unwrapped else None
    found = problems.check(wrapper, understood, names, known_invalid=understood is arguments, errors=errors)
    added = () if understood is done.unwrapped else tuple(name for name in understood if name not in done.unwrapped)
    return Prepared(arguments=arguments, filled=added, problems=found, understood=understood)


def _with_defaults(
    wrapper: ToolWrapper,
    validator: Validator | None,
    arguments: dict[str, Any],
    defaults: Mapping[str, Any],
    repairs: tuple[Repair, ...] = (),
) -> Prepared:
    filled = fill_defaults(wrapper.checked_schema, arguments, defaults)
    if filled is arguments or (validator is not None and not validator.is_valid(filled)):
        return Prepared(arguments=arguments, repairs=repairs)
    added = tuple(name for name in filled if name not in arguments)
    return Prepared(arguments=filled, repairs=repairs, filled=added)
