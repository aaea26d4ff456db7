"""Prepare the arguments of a call: repair them, add defaults, and validate the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from registry.arguments import problems
from registry.arguments.coercion import Repair, ToolAddress, flatten_wrapper, may_be_wrapped
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.repair import MapBack, RepairTarget, identity_mapping, repair
from registry.catalog.catalog import ToolWrapper
from registry.catalog.drift import ITEMS, ParameterChange, ParameterPath
from registry.catalog.shape import RepairLevel, Validation
from registry.dialects.definitions import LoweredDefinition, map_arguments
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import InstanceSize, current_effort, require_countable, use_effort
from registry.schema.display_text import excerpt
from registry.schema.json_paths import MAX_SHOWN_KEY, NO_NAMES, JsonPath, declared_properties, format_path
from registry.schema.validators import Validator

NO_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({})


# Not frozen, because every call creates an instance, and creating a frozen dataclass takes five times as long.
@dataclass(slots=True, eq=False)
class Prepared:
    """The prepared arguments of a call, or the problems that prevent it.

    Attributes:
        arguments: The arguments to send if there is no problem; the original object if nothing was changed.
        repairs: The repairs that were made.
        filled: The names of arguments added from configured defaults.
        problems: The problems; if there are any, the call is not forwarded.
        checked: The arguments that the problems refer to: without wrapper objects, and with defaults.
        unchecked: Problems that describe parts of the arguments that could not be checked but are sent anyway.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    filled: tuple[str, ...] = ()
    problems: tuple[ArgumentProblem, ...] = ()
    checked: Any = None
    unchecked: tuple[ArgumentProblem, ...] = ()


def fill_defaults(schema: Any, arguments: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with configured defaults for absent declared parameters; the same object if none was added.

    An argument that was sent is never replaced, not even null.
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
    validation: Validation = "lenient",
    text: bytes | None = None,
) -> Prepared:
    """Repair the arguments, add defaults, and check the result, in this order.

    A valid call takes a single run of the compiled validator, and its arguments are returned as the same object. A
    default never makes a valid call invalid.

    Args:
        wrapper: The tool.
        arguments: The arguments as sent, any JSON value; null counts as an empty object.
        level: What may be repaired; see `registry.arguments.repair`.
        defaults: Configured values of parameters, by name.
        lowered: The definition that the caller was shown, if it was "lowered": rewritten for the client's JSON Schema
            dialect. Its names and nulls are first mapped back to the original schema, also inside wrapper objects.
        validation: How uncheckable arguments are handled: `lenient` checks the other parts and reports the unchecked
            parts, `strict` refuses the call.
        text: The arguments as encoded by `orjson`, if available.

    Raises:
        NotChecked: The check exceeds the current limits, but may succeed with higher limits.
    """
    try:
        return _prepare(wrapper, arguments, level=level, defaults=defaults, lowered=lowered, text=text)
    except NotChecked as doubt:
        if not doubt.final:
            raise
        names = lowered.shown_names if lowered is not None else NO_NAMES
        if validation == "strict":
            return refuse_unchecked(arguments, doubt, names)
        doubts = [doubt]
    with use_effort(replace(current_effort(), leniency="uncheckable")):
        prepared = _prepare(wrapper, arguments, level=level, defaults=defaults, lowered=lowered, text=text)
        if not prepared.problems:
            doubts = _uncheckable(wrapper, prepared.arguments) or doubts
    return replace(prepared, unchecked=tuple(problems.unchecked_problem(each, names) for each in doubts))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedCheck:
    """A full check of arguments that takes too long.

    Attributes:
        doubt: Why the arguments could not be checked.
        checks_cheaply: True to run cheap checks and repairs instead; false to only map names back and add defaults.
        within_s: The time spent on the full check, in seconds.
    """

    doubt: NotChecked
    checks_cheaply: bool
    within_s: float | None = None


def prepare_with_cheap_checks(
    wrapper: ToolWrapper,
    arguments: Any,
    check: UnfinishedCheck,
    *,
    level: RepairLevel,
    defaults: Mapping[str, Any],
    lowered: LoweredDefinition | None,
) -> Prepared:
    """Prepare arguments whose full check takes too long: run only cheap checks, or none.

    Args:
        wrapper: The tool.
        arguments: The arguments as sent.
        check: The full check that takes too long.
        level, defaults, lowered: See `prepare`.

    Raises:
        NotChecked: See `prepare`.
    """
    names = lowered.shown_names if lowered is not None else NO_NAMES
    doubt, within_s = check.doubt, check.within_s
    unchecked = (problems.unchecked_problem(doubt, names, within_s=within_s),)
    if check.checks_cheaply:
        with use_effort(replace(current_effort(), leniency="costly")):
            prepared = _prepare(wrapper, arguments, level=level, defaults=defaults, lowered=lowered, text=None)
        return replace(prepared, unchecked=unchecked)
    plain = {} if arguments is None else arguments
    if not isinstance(plain, dict):
        return refuse_unchecked(arguments, doubt, names, within_s=within_s)
    if lowered is not None and lowered.document is not None:
        plain = map_arguments(plain, replace(lowered, null_means_omitted=False))
    prepared = _with_defaults(wrapper, None, plain, defaults)
    return replace(prepared, checked=plain, unchecked=unchecked)


def _uncheckable(wrapper: ToolWrapper, arguments: Any) -> list[NotChecked]:
    try:
        return schemas.validator(wrapper.checked_schema, wrapper.schema_digest).uncheckable(arguments)
    except SchemaRejected:
        return []


def refuse_unchecked(
    arguments: Any, doubt: NotChecked, names: Mapping[str, str] = NO_NAMES, *, within_s: float | None = None
) -> Prepared:
    """Return the result for arguments that are not sent because they cannot be checked."""
    problem = problems.unchecked_problem(doubt, names, within_s=within_s)
    return Prepared(arguments=arguments, problems=(problem,), checked=arguments)


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
    map_back: MapBack = identity_mapping
    if lowered is not None and lowered.document is not None:
        map_back = partial(map_arguments, lowered=lowered)
        require_countable(arguments)
    # Map back first: repairs and checks use the original schema.
    sent, arguments = arguments, map_back(arguments)
    try:
        validator = schemas.validator(schema, wrapper.schema_digest)
    except SchemaRejected as rejected:
        if current_effort().leniency == "none":
            raise NotChecked((), f"the schema cannot be used: {rejected.detail}", final=True) from None
        plain = {} if arguments is None else arguments
        if not isinstance(plain, dict):
            return Prepared(arguments=plain, problems=problems.check(wrapper, plain, names), checked=plain)
        return _with_defaults(wrapper, None, plain, defaults)
    # If a check has no time limit, measure a large value only once, because measuring takes as long as checking.
    schema = validator.schema
    text = text if arguments is sent else None
    size = InstanceSize.at_most(arguments, text) if current_effort().check_ns is None else None
    valid = isinstance(arguments, dict) and validator.is_valid(arguments, size)
    if valid and (level == "off" or not may_be_wrapped(arguments)):
        return _with_defaults(wrapper, validator, arguments, defaults) if defaults else Prepared(arguments=arguments)
    # With repairs off, `repair` does not turn null into an empty object, so this is done here.
    plain = {} if arguments is None and level == "off" else arguments
    target = RepairTarget(
        schema=schema,
        validator=validator,
        address=ToolAddress(server=wrapper.server, tool=wrapper.tool, name=wrapper.name),
        fill=lambda value: fill_defaults(schema, value, defaults),
        map_back=map_back,
    )
    done = repair(
        target,
        plain,
        level,
        known_valid=valid if plain is arguments else None,
        size=size if plain is arguments else None,
    )
    if done.mixed is not None:
        message = (
            f"{format_path((done.mixed,), names)} is not a parameter but contains some; move them next to the others"
        )
        mixed = ArgumentProblem(path=(done.mixed,), kind="unknown", message=message)
        return Prepared(arguments=arguments, problems=(mixed,), checked=flatten_wrapper(done.unwrapped, done.mixed))
    if done.valid:
        return _with_defaults(wrapper, validator, done.arguments, defaults, done.repairs)
    # Configured defaults may supply missing arguments.
    checked = fill_defaults(schema, done.unwrapped, defaults) if isinstance(done.unwrapped, dict) else done.unwrapped
    errors = done.errors if checked is done.unwrapped else None
    issues = problems.check(wrapper, checked, names, known_invalid=checked is arguments, errors=errors)
    added = () if checked is done.unwrapped else tuple(name for name in checked if name not in done.unwrapped)
    return Prepared(arguments=arguments, filled=added, problems=issues, checked=checked)


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


# These keywords give undeclared members a meaning, so a former name may be a valid member.
_OPEN_KEYWORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")


def apply_current_names(
    wrapper: ToolWrapper,
    prepared: Prepared,
    changes: Mapping[ParameterPath, ParameterChange],
    *,
    level: RepairLevel,
    names: Mapping[str, str] = NO_NAMES,
) -> Prepared:
    """Replace former parameter names, which an open schema accepts but the upstream would silently ignore.

    If it is certain that a parameter was renamed, its argument gets the current name; otherwise the call is refused.

    Args:
        wrapper: The tool as it is now.
        prepared: Arguments without problems.
        changes: The changes of former parameters.
        level: What may be repaired.
        names: For each renamed property, the name that the caller was shown.

    Raises:
        NotChecked: Checking the renamed arguments exceeds the current limits.
    """
    schema, arguments = wrapper.input_schema, prepared.arguments
    if not isinstance(schema, dict) or any(keyword in schema for keyword in _OPEN_KEYWORDS):
        return prepared
    declared = declared_properties(schema, schema)
    stale = {
        path[0]: change
        for path, change in changes.items()
        if len(path) == 1 and path[0] in arguments and path[0] not in declared and change.kind != "retyped"
    }
    if not stale:
        return prepared
    issues = [
        ArgumentProblem(
            path=(name,),
            kind="unknown",
            message=_describe_change((name,), change, names),
            near=names.get(change.now, change.now) or None,
        )
        for name, change in stale.items()
        if level == "off" or not change.certain or change.now in arguments
    ]
    if not issues:
        arguments = {stale[name].now if name in stale else name: value for name, value in arguments.items()}
        issues = list(problems.check(wrapper, arguments, names))
    if issues:
        return replace(prepared, problems=tuple(issues), checked=prepared.arguments)
    repairs = [Repair(name="former_name", path=(change.now,), was=name) for name, change in stale.items()]
    return replace(prepared, arguments=arguments, repairs=(*prepared.repairs, *repairs))


def suggest_current_names(
    issues: Sequence[ArgumentProblem],
    changes: Mapping[ParameterPath, ParameterChange],
    names: Mapping[str, str] = NO_NAMES,
) -> list[ArgumentProblem]:
    """Return the problems, with the current name as the suggestion for each renamed parameter.

    Args:
        issues: The problems.
        changes: The changes of former parameters.
        names: For each renamed property, the name that the caller was shown.
    """

    def with_current_name(problem: ArgumentProblem) -> ArgumentProblem:
        change = changes.get(_as_parameter(problem.path)) if problem.kind == "unknown" else None
        if change is None or change.kind != "renamed":
            return problem
        return replace(problem, near=names.get(change.now, change.now))

    return [with_current_name(problem) for problem in issues]


def describe_changes(
    arguments: Any,
    changes: Mapping[ParameterPath, ParameterChange],
    names: Mapping[str, str] = NO_NAMES,
    missing: Iterable[JsonPath] = (),
) -> Iterator[str]:
    """Yield a sentence for each changed parameter that the arguments use, or that is now required and missing.

    Args:
        arguments: The arguments as sent, but with the tool's own parameter names.
        changes: The changes of former parameters.
        names: For each renamed property, the name that the caller was shown.
        missing: The paths of missing arguments.
    """
    missing_parameters = {_as_parameter(path) for path in missing}
    for path, change in changes.items():
        if path in missing_parameters if change.kind == "required" else _is_sent(arguments, path):
            yield _describe_change(path, change, names)


def _describe_change(path: ParameterPath, change: ParameterChange, names: Mapping[str, str]) -> str:
    parameter = f"`{_format_parameter(path, names)}`"
    match change.kind:
        case "removed":
            return f"{parameter} was removed"
        case "retyped":
            return f"{parameter} is now {change.now}, not {change.was}"
        case "required":
            return f"{parameter} is now required"
    return f"{parameter} is now `{_format_parameter((*path[:-1], change.now), names)}`"


def _as_parameter(path: JsonPath) -> ParameterPath:
    return tuple(ITEMS if isinstance(step, int) else step for step in path)


def _format_parameter(path: ParameterPath, names: Mapping[str, str]) -> str:
    steps = (step if step == ITEMS else excerpt(names.get(step, step), MAX_SHOWN_KEY) for step in path)
    return ".".join(steps).replace(f".{ITEMS}", "[]")


def _is_sent(value: Any, path: ParameterPath) -> bool:
    if not path:
        return True
    if path[0] == ITEMS:
        return isinstance(value, list) and any(_is_sent(item, path[1:]) for item in value)
    return isinstance(value, dict) and path[0] in value and _is_sent(value[path[0]], path[1:])
