"""Arguments under names that their parameters had before: brought up to date, or refused with today's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from registry.arguments import problems
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.prepare import Prepared
from registry.arguments.repair_report import Repair
from registry.catalog.catalog import ToolWrapper
from registry.catalog.parameter_changes import ITEMS, ParameterChange, ParameterPath
from registry.catalog.shape import RepairLevel
from registry.schema.display_text import excerpt
from registry.schema.json_paths import MAX_SHOWN_KEY, NO_NAMES, JsonPath, declared_properties

# A schema with one of these says what other members are for, so that a former name may be one of them.
_SAYS_WHAT_ELSE = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")


def with_current_names(
    wrapper: ToolWrapper,
    prepared: Prepared,
    changes: Mapping[ParameterPath, ParameterChange],
    *,
    level: RepairLevel,
    names: Mapping[str, str] = NO_NAMES,
) -> Prepared:
    """Return arguments that an open schema accepts although some have names of former parameters.

    The upstream would ignore those silently. Where a rename is certain the argument gets its new name; otherwise the
    call is refused.

    Args:
        wrapper: The tool as it is now.
        prepared: Arguments without problems.
        changes: What became of former parameters.
        level: What may be repaired.
        names: Names that the caller was shown for some properties, if different.

    Raises:
        NotChecked: The arguments cannot be checked again within the bounds that hold here.
    """
    schema, arguments = wrapper.input_schema, prepared.arguments
    if not isinstance(schema, dict) or any(keyword in schema for keyword in _SAYS_WHAT_ELSE):
        return prepared
    declared = declared_properties(schema, schema)
    stale = {
        path[0]: change
        for path, change in changes.items()
        if len(path) == 1 and path[0] in arguments and path[0] not in declared and change.kind != "retyped"
    }
    if not stale:
        return prepared
    found = [
        ArgumentProblem(
            path=(name,),
            kind="unknown",
            message=_told((name,), change, names),
            near=names.get(change.now, change.now) or None,
        )
        for name, change in stale.items()
        if level == "off" or not change.certain or change.now in arguments
    ]
    if not found:
        arguments = {stale[name].now if name in stale else name: value for name, value in arguments.items()}
        found = list(problems.check(wrapper, arguments, names))
    if found:
        return replace(prepared, problems=tuple(found), understood=prepared.arguments)
    repairs = [Repair(name="former_name", path=(change.now,), was=name) for name, change in stale.items()]
    return replace(prepared, arguments=arguments, repairs=(*prepared.repairs, *repairs))


def with_near_names(
    found: Sequence[ArgumentProblem],
    changes: Mapping[ParameterPath, ParameterChange],
    names: Mapping[str, str] = NO_NAMES,
) -> list[ArgumentProblem]:
    """Return problems of which those with former parameters know today's name.

    Args:
        found: The problems.
        changes: What became of former parameters.
        names: Names that the caller was shown for some properties, if different.
    """

    def with_near(problem: ArgumentProblem) -> ArgumentProblem:
        change = changes.get(_as_parameter(problem.path)) if problem.kind == "unknown" else None
        if change is None or change.kind != "renamed":
            return problem
        return replace(problem, near=names.get(change.now, change.now))

    return [with_near(problem) for problem in found]


def told_changes(
    arguments: Any,
    changes: Mapping[ParameterPath, ParameterChange],
    names: Mapping[str, str] = NO_NAMES,
    missing: Iterable[JsonPath] = (),
) -> Iterator[str]:
    """Return what became of those former parameters that a call has arguments for, and which ones are required now.

    Args:
        arguments: What was sent, in the tool's own names.
        changes: What became of former parameters.
        names: Names that the caller was shown for some properties, if different.
        missing: The paths of arguments that are missing.
    """
    lacked = {_as_parameter(path) for path in missing}
    for path, change in changes.items():
        if path in lacked if change.kind == "required" else _is_sent(arguments, path):
            yield _told(path, change, names)


def _told(path: ParameterPath, change: ParameterChange, names: Mapping[str, str]) -> str:
    shown = f"`{_shown(path, names)}`"
    match change.kind:
        case "removed":
            return f"{shown} was removed"
        case "retyped":
            return f"{shown} is now {change.now}, not {change.was}"
        case "required":
            return f"{shown} is now required"
    return f"{shown} is now `{_shown((*path[:-1], change.now), names)}`"


def _as_parameter(path: JsonPath) -> ParameterPath:
    return tuple(ITEMS if isinstance(step, int) else step for step in path)


def _shown(path: ParameterPath, names: Mapping[str, str]) -> str:
    steps = (step if step == ITEMS else excerpt(names.get(step, step), MAX_SHOWN_KEY) for step in path)
    return ".".join(steps).replace(f".{ITEMS}", "[]")


def _is_sent(value: Any, path: ParameterPath) -> bool:
    if not path:
        return True
    if path[0] == ITEMS:
        return isinstance(value, list) and any(_is_sent(item, path[1:]) for item in value)
    return isinstance(value, dict) and path[0] in value and _is_sent(value[path[0]], path[1:])
