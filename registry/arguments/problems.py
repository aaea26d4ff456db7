"""The problems of one call, as data and as text that a model can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from registry.arguments.diagnosis import ArgumentProblem, NameSuggester, describe_type, diagnose
from registry.arguments.example_call import AS_SENT, example_arguments, find_wrong_kept_paths
from registry.arguments.invoke_tool import UnresolvedCall
from registry.catalog.catalog import ToolWrapper
from registry.dialects.definitions import LoweredDefinition
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.display_text import excerpt
from registry.schema.json_paths import (
    MAX_SHOWN_KEY,
    MISSING,
    NO_NAMES,
    JsonPath,
    declared_properties,
    format_path,
    rename_path,
    value_at,
)
from registry.schema.json_values import without_keys

if TYPE_CHECKING:
    import jsonschema_rs

# A model does not correct more problems in one attempt. The error of its next call shows the remaining problems.
MAX_PROBLEMS: Final = 20
# Maximum length of an error text: about 1,000 tokens. A failed call must not cost more than the definition of the tool.
MAX_TEXT_LENGTH: Final = 4_000
# Shares of that text for missing names, wrong arguments and the example call, so that none of them uses all the room.
# An example for `invoke_tool` contains the arguments twice, so each copy gets half of its share.
_MAX_MISSING: Final = 800
_MAX_WRONG: Final = 1_200
_MAX_EXAMPLE: Final = 900
# With fewer characters left, the schema is omitted, because it would be cut after a few words.
_MIN_SCHEMA: Final = 100
# Maximum length of a quoted server or tool name that is unknown, and of a tool's name in an example.
_MAX_QUOTED: Final = 200
_MAX_TOOL_NAME: Final = 128
# Maximum number of errors that are read. It exceeds `MAX_PROBLEMS`, because the validator may report missing members
# after many wrong values.
_MAX_ERRORS: Final = 200
# Maximum length of the message of an `unchecked` problem. It has room for a path, a pattern and a sentence.
_MAX_UNCHECKED: Final = 400
# Maximum number of keys that are listed from the arguments as sent, and of suggestions for misspelled keys.
_MAX_KEYS: Final = 20
_MAX_SUGGESTIONS: Final = 5

# How the tool was called: by its wrapper name, or through the generic tool `invoke_tool`.
CallRoute = Literal["wrapper", "invoke_tool"]


def check(
    wrapper: ToolWrapper,
    arguments: object,
    names: Mapping[str, str] = NO_NAMES,
    *,
    known_invalid: bool = False,
    errors: list[jsonschema_rs.ValidationError] | None = None,
) -> tuple[ArgumentProblem, ...]:
    """Return the problems of arguments, at most 20; empty if they are valid or the schema cannot be compiled.

    Args:
        wrapper: The tool.
        arguments: The arguments that would be sent.
        names: For each renamed property, the name that the caller was shown.
        known_invalid: True if a check has already failed.
        errors: The validation errors, if already collected.

    Raises:
        NotChecked: The check exceeds the current limits.
    """
    if not isinstance(arguments, dict):
        message = f"arguments are declared as object, you sent {describe_type(arguments)}"
        return (ArgumentProblem(path=(), kind="type", message=message),)
    try:
        compiled = schemas.validator(wrapper.checked_schema, wrapper.schema_digest)
    except SchemaRejected:
        return ()
    if not known_invalid and compiled.is_valid(arguments):
        return ()
    # Collect errors only for invalid arguments, because collecting them costs far more than the check above.
    try:
        if errors is None:
            errors = compiled.first_errors(arguments, _MAX_ERRORS).errors
    except NotChecked as unchecked:
        path, reason = unchecked.path, unchecked.reason
        raise NotChecked(path, reason, final=unchecked.final, invalid=True, unlocated=unchecked.unlocated) from None
    problems = diagnose(errors[:_MAX_ERRORS], arguments, compiled.schema, names)
    if not problems:  # the validator cannot traverse the value
        message = "the arguments do not fit the schema, are nested too deeply, or contain invalid characters"
        problems.append(ArgumentProblem(path=(), kind="value", message=message))
    return tuple(problems[:MAX_PROBLEMS])


def unchecked_problem(
    unchecked: NotChecked, names: Mapping[str, str] = NO_NAMES, *, within_s: float | None = None
) -> ArgumentProblem:
    """Return the problem that describes why arguments cannot be checked.

    Args:
        unchecked: The argument and the reason.
        names: For each renamed property, the name that the caller was shown.
        within_s: The time spent on a check, in seconds.
    """
    where = format_path(unchecked.path, names)
    limit = f" within {within_s:g} s" if within_s is not None else ""
    text = f"{where} could not be checked{limit}: {unchecked.reason}"
    if unchecked.invalid:
        text = f"{where} does not fit the schema; the exact error could not be found{limit}: {unchecked.reason}"
    return ArgumentProblem(path=unchecked.path, kind="unchecked", message=excerpt(text, _MAX_UNCHECKED))


def explain(
    wrapper: ToolWrapper,
    problems: Sequence[ArgumentProblem],
    arguments: object,
    *,
    via: CallRoute = "wrapper",
    checked: object = None,
    filled: Sequence[str] = (),
    lowered: LoweredDefinition | None = None,
) -> str:
    """Return a text that lets a model correct its call, at most 4,000 characters.

    The text says what is missing and what is wrong; it contains the keys that were sent, an example call with typed
    placeholders, and the schema or the relevant part of it. The text never repeats values that were sent, because they
    may be secrets.

    Args:
        wrapper: The tool.
        problems: The problems found by `check`.
        arguments: The arguments as sent.
        via: How the tool was called; for `invoke_tool`, the example shows both the call by wrapper name and the
            `invoke_tool` call.
        checked: The arguments that the problems refer to, if different, such as the arguments inside a wrapper object.
        filled: Members of `checked` that come from configured defaults.
        lowered: The lowered definition that the caller was shown, if any; the text then uses only this definition.
    """
    if lowered is not None:
        wrapper, checked = as_advertised(wrapper, lowered), rename_members(checked, lowered.shown_names)
        problems = [replace(problem, path=rename_path(problem.path, lowered.shown_names)) for problem in problems]
        filled = [lowered.shown_names.get(name, name) for name in filled]
    sentences = [f"Not called: {wrapper.name}. Nothing was sent to its server."]
    missing = [format_path(problem.path) for problem in problems if problem.kind == "missing"]
    if missing:
        sentences.append(f"Missing: {_join_within(missing, ', ', _MAX_MISSING)}.")
    wrong = [problem.message.rstrip(".") for problem in problems if problem.kind != "missing"]
    if wrong:
        sentences.append(f"Wrong: {_join_within(wrong, '; ', _MAX_WRONG)}.".replace("?.", "?"))
    if len(problems) >= MAX_PROBLEMS:
        sentences.append("There may be more.")
    effective = arguments if checked is None else checked
    # Suggestions help only if a parameter is missing.
    hints = _suggestions(wrapper, problems, effective) if missing else []
    # If the whole value is not an object, its problem already names the type that was sent.
    if not any(problem.path == () and problem.kind == "type" for problem in problems):
        sentences.append(_describe_sent(arguments, effective, filled) + "".join(f" {hint}" for hint in hints))
    shown_paths = _paths_to_show(problems, effective)
    is_lowered = lowered is not None and lowered.document is not None
    call = example_call(
        wrapper, form_of(via, lowered), shown_paths=shown_paths, sent=effective, filled=filled, lowered=is_lowered
    )
    sentences.append(f"Call it like: {call}")
    text = _truncate(" ".join(sentences), MAX_TEXT_LENGTH)
    room = MAX_TEXT_LENGTH - len(text) - len(" Schema: ")
    return text if room < _MIN_SCHEMA else f"{text} Schema: {schema_text(wrapper, problems, effective, room)}"


def summarize_problems(problems: Sequence[ArgumentProblem]) -> str:
    """Return the problems as one phrase, for arguments that the caller did not write, such as those of a hook."""
    phrases = [
        f"{format_path(problem.path)} is missing" if problem.kind == "missing" else problem.message.rstrip(".?")
        for problem in problems
    ]
    return _truncate("; ".join(phrases), _MAX_WRONG).replace("you sent", "it is now")


def as_advertised(wrapper: ToolWrapper, lowered: LoweredDefinition) -> ToolWrapper:
    """Return the wrapper with the definition that the caller was shown."""
    if lowered.definition is wrapper.definition:
        return wrapper
    return replace(wrapper, definition=lowered.definition)


def rename_members(arguments: Any, names: Mapping[str, str]) -> Any:
    """Return an argument object with renamed members; any other value unchanged."""
    if not names or not isinstance(arguments, dict) or names.keys().isdisjoint(arguments):
        return arguments
    return {names.get(name, name): value for name, value in arguments.items()}


def explain_unresolved(unresolved: UnresolvedCall, sent: object, lowered: LoweredDefinition | None = None) -> str:
    """Return a text that explains why an `invoke_tool` call cannot be resolved.

    Args:
        unresolved: The unresolved call.
        sent: The arguments as sent.
        lowered: The definition that the caller was shown, if the tool is known.
    """
    if "arguments" in unresolved.faults:
        what = f"invoke_tool takes an object, you sent {describe_type(sent)}."
    elif "mixture" in unresolved.faults:
        what = "There are parameters in two places, and it is not clear which are meant."
    elif "form" in unresolved.faults:
        what = "The call is not in the form that invoke_tool takes, and repairs are turned off for this server."
    else:
        names_by_word = {"server": unresolved.server, "tool": unresolved.tool}
        absent = [f"`{word}`" for word, name in names_by_word.items() if name is None]
        unknown = [
            f"there is no {word} '{excerpt(name, _MAX_QUOTED)}'"
            for word in unresolved.faults
            if (name := names_by_word.get(word))
        ]
        missing = f"invoke_tool needs {' and '.join(absent)} as text" if absent else ""
        what = "; ".join([*([missing] if missing else []), *unknown]) + "."
    sentences = ["Not called. Nothing was sent to any server.", what]
    sentences += [f"Keys sent: {_keys_of(sent)}."] if sent is None or isinstance(sent, dict) else []
    shape = '{"server":"<string>","tool":"<string>","arguments":{…}}'
    call = f"invoke_tool {shape}"
    if unresolved.wrapper is not None:
        advertised = unresolved.wrapper if lowered is None else as_advertised(unresolved.wrapper, lowered)
        call = example_call(advertised, form_of("invoke_tool", lowered))
    return _truncate(" ".join([*sentences, f"Call it like: {call}"]), MAX_TEXT_LENGTH)


def _paths_to_show(problems: Sequence[ArgumentProblem], sent: object) -> list[JsonPath]:
    """Return the paths at which a valid call would differ from the call that was sent."""
    paths: list[JsonPath] = []
    for problem in problems:
        target = problem.path if problem.near is None else (*problem.path[:-1], problem.near)
        is_present = problem.kind == "unknown" and (problem.near is None or value_at(sent, target) is not MISSING)
        # A valid call lacks the unknown member, so only an object around it can be shown.
        if not is_present or len(target) > 1:
            paths.append(problem.path if is_present else target)
    return paths


CallForm = Literal["wrapper", "nested", "text"]
"""How an example shows a call.

`wrapper`: by wrapper name only. `nested`, `text`: also through `invoke_tool`, with `arguments` as an object or a text.
"""


def form_of(via: CallRoute, lowered: LoweredDefinition | None) -> CallForm:
    """Return the form in which an example shows the call to a caller that used this route."""
    if via == "wrapper":
        return "wrapper"
    # If null means omitted in the client's dialect, the caller was shown an `invoke_tool` that takes `arguments` as
    # text.
    return "text" if lowered is not None and lowered.null_means_omitted else "nested"


def example_call(
    wrapper: ToolWrapper,
    form: CallForm = "wrapper",
    *,
    shown_paths: Sequence[JsonPath] = (),
    sent: object = None,
    filled: Sequence[str] = (),
    lowered: bool = False,
) -> str:
    """Return a call with typed placeholders, of bounded length.

    For the forms `nested` and `text`, the call is shown twice: by wrapper name, and through `invoke_tool`.

    Args:
        wrapper: The tool with the definition that the caller was shown.
        form: See `form_of`.
        shown_paths: The paths of problems; the example includes them, required or not.
        sent: The arguments as sent. For declared members without problems, the example shows `<as sent>` instead of the
            values.
        filled: Members of `sent` added from configured defaults. The example omits these members, because the gateway
            adds them again.
        lowered: True if the shown definition differs from the definition that arguments are checked against.
    """
    limit = _MAX_EXAMPLE if form == "wrapper" else _MAX_EXAMPLE // 2
    schema = wrapper.input_schema
    names_as_sent: list[str] = []
    # A problem of the whole object may concern any of its members.
    if isinstance(sent, dict) and () not in shown_paths:
        wrong = {path[0] for path in shown_paths}
        declared = declared_properties(schema, schema)
        is_map = isinstance(schema, dict) and isinstance(schema.get("additionalProperties"), dict)
        names_as_sent = [name for name in list(sent)[:_MAX_KEYS] if (name in declared or is_map) and name not in wrong]
    example = example_arguments(schema, shown_paths=shown_paths, names_as_sent=names_as_sent, sent=sent)
    if shown_paths and not lowered and (wrong_kept := find_wrong_kept_paths(wrapper, example, sent)):
        names_as_sent = [name for name in names_as_sent if (name,) not in wrong_kept]
        example = example_arguments(
            schema, shown_paths=[*shown_paths, *wrong_kept], names_as_sent=names_as_sent, sent=sent
        )
    added = {name for name in filled if example.get(name) == AS_SENT}
    example = {name: value for name, value in example.items() if name not in added}
    call = _truncate(schemas.compact_json(example), limit)
    if form == "wrapper":
        return call
    server, tool = schemas.compact_json(wrapper.server), schemas.compact_json(excerpt(wrapper.tool, _MAX_TOOL_NAME))
    nested = schemas.compact_json(call) if form == "text" else call
    return f'{wrapper.name} {call} or invoke_tool {{"server":{server},"tool":{tool},"arguments":{nested}}}'


def schema_text(wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: object, room: int) -> str:
    """Return the whole schema if it fits, else the largest relevant part that fits, else the schema's beginning."""
    schema = wrapper.input_schema
    try:
        full_text = schemas.compact_json(schema)
        if len(full_text) <= room or not isinstance(schema, dict):
            return _truncate(full_text, room)
        note = " (optional parameters left out)"
        for part in _schema_parts(schema, problems, arguments):
            shorter = schemas.compact_json(part)
            if len(shorter) + len(note) <= room:
                return shorter + note
    except SchemaRejected:
        return "(cannot be shown)"
    return _truncate(full_text, room)


def _schema_parts(
    schema: dict[str, Any], problems: Sequence[ArgumentProblem], arguments: object
) -> list[dict[str, Any]]:
    """Return parts of a schema that are relevant to a call, from the largest to the smallest."""
    properties, required = declared_properties(schema, schema), schema.get("required")
    required_names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    touched = [problem.path[0] for problem in problems if problem.path]
    sent = list(arguments)[:_MAX_KEYS] if isinstance(arguments, dict) else []
    parts: list[dict[str, Any]] = []
    for names in ([*required_names, *touched, *sent], [*required_names, *touched], required_names):
        selected = {name: properties[name] for name in dict.fromkeys(names) if name in properties}
        part: dict[str, Any] = {"type": "object", "properties": selected, "required": required_names}
        if schema.get("additionalProperties") is False:
            part["additionalProperties"] = False
        # Prefer a part with definitions, because references in it cannot be resolved without them.
        definitions: dict[str, Any] = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
        parts += [{**definitions, **part}] if definitions else []
        parts.append(part)
    # The last resort: omit descriptions, titles and examples.
    bare_properties = {name: _without_texts(below) for name, below in parts[-1]["properties"].items()}
    return [*parts, {**parts[-1], "properties": bare_properties}] if properties else []


def _without_texts(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return without_keys(schema, ("description", "title", "examples"))


def _suggestions(wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: object) -> list[str]:
    """Return hints about undeclared parameters that are probably misspellings of missing parameters.

    An open schema accepts any name, so the validator reports only the missing parameter.
    """
    if not isinstance(arguments, dict):
        return []
    names = declared_properties(wrapper.input_schema, wrapper.input_schema)
    reported = {problem.path for problem in problems if problem.kind == "unknown"}
    missing = [str(problem.path[0]) for problem in problems if problem.kind == "missing" and len(problem.path) == 1]
    hints: list[str] = []
    suggester = NameSuggester()
    for key in list(arguments)[:_MAX_KEYS]:
        if key in names or (key,) in reported or len(hints) >= _MAX_SUGGESTIONS:
            continue
        if (near := suggester.suggest(key, missing)) is not None:
            hints.append(f"{excerpt(key, MAX_SHOWN_KEY)} is not a parameter; did you mean {near}?")
    return hints


def _describe_sent(arguments: object, checked: object, filled: Sequence[str]) -> str:
    # Null counts as an empty object, like absent arguments.
    keyed = arguments is None or isinstance(arguments, dict)
    text = f"Keys sent: {_keys_of(arguments)}" if keyed else f"You sent: {describe_type(arguments)}"
    if filled and isinstance(checked, dict):
        checked = {name: value for name, value in checked.items() if name not in filled}
    if isinstance(checked, dict) and checked is not arguments and arguments is not None:
        inner = _keys_of(checked)
        text += f", read as: {inner}" if inner != _keys_of(arguments) else ""
    # Name the defaults, so that a model does not wonder why these parameters are not reported as missing.
    return text + (f"; added from defaults: {_keys_of(dict.fromkeys(filled))}." if filled else ".")


def _keys_of(arguments: object) -> str:
    if not isinstance(arguments, dict) or not arguments:
        return "(none)"
    keys = ", ".join(excerpt(str(key), MAX_SHOWN_KEY) for key in list(arguments)[:_MAX_KEYS])
    more = len(arguments) - _MAX_KEYS
    return keys + (f" and {more:,} more" if more > 0 else "")


def _join_within(texts: Sequence[str], separator: str, limit: int) -> str:
    """Join as many texts as fit, and say how many were left out."""
    joined, room = "", limit
    for index, text in enumerate(texts):
        room -= len(text) + len(separator)
        if room < 0 and index:
            return f"{joined} and {len(texts) - index:,} more"
        joined += f"{separator}{text}" if index else _truncate(text, limit)
    return joined


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
