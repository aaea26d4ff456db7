"""What is wrong with the arguments of a call, as data and as text that a model can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from registry.arguments.diagnosis import ArgumentProblem, NameSuggester, describe_type, diagnose
from registry.arguments.example import AS_SENT, example_arguments
from registry.arguments.invoke_tool import UnresolvedCall
from registry.arguments.kept_values import wrong_where_kept
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

# More than a model corrects in one go; the next call shows what is left.
MAX_PROBLEMS: Final = 20
# Some 1,000 tokens: a failed call must not cost more than the definition of the tool.
MAX_TEXT_LENGTH: Final = 4_000
# Shares of that text, so that a long list leaves room for what follows: the missing names, what is wrong, and the
# example call, which is written twice for `invoke_tool`.
_MAX_MISSING: Final = 800
_MAX_WRONG: Final = 1_200
_MAX_EXAMPLE: Final = 900
# With less room than this, a schema would only be its first few words.
_MIN_SCHEMA: Final = 100
# How much is quoted of the name of a server or tool.
_MAX_QUOTED: Final = 200
_MAX_TOOL_NAME: Final = 128
# Errors looked at are more than the problems shown: what is missing may be reported after much that is wrong.
_MAX_ERRORS: Final = 200
# Room for a path, a pattern and a sentence.
_MAX_UNCHECKED: Final = 400
# Keys that are listed of what was sent, and suggestions for misspelled ones.
_MAX_KEYS: Final = 20
_MAX_SUGGESTIONS: Final = 5

# How a tool was called: under its own name, or through the generic tool.
CallRoute = Literal["wrapper", "invoke_tool"]


def check(
    wrapper: ToolWrapper,
    arguments: object,
    names: Mapping[str, str] = NO_NAMES,
    *,
    known_invalid: bool = False,
    errors: list[jsonschema_rs.ValidationError] | None = None,
) -> tuple[ArgumentProblem, ...]:
    """Return what is wrong with the arguments, at most 20 problems; nothing if they are valid.

    With a schema that cannot be compiled there are no problems.

    Args:
        wrapper: The tool.
        arguments: What would be sent to it.
        names: Names that the reader was shown for some properties, if different.
        known_invalid: Whether a check has shown that they do not validate.
        errors: Their errors, where they were collected already.

    Raises:
        NotChecked: It cannot be told within the bounds that hold here.
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
    # Only now the errors: collecting them costs far more than the answer above.
    try:
        if errors is None:
            errors = compiled.first_errors(arguments, _MAX_ERRORS).errors
    except NotChecked as unchecked:
        unchecked.invalid = True
        raise
    found = diagnose(errors[:_MAX_ERRORS], arguments, compiled.schema, names)
    if not found:  # the value cannot be walked
        message = "the arguments do not fit the schema, are nested too deeply or hold broken characters"
        found.append(ArgumentProblem(path=(), kind="value", message=message))
    return tuple(found[:MAX_PROBLEMS])


def unchecked_problem(
    unchecked: NotChecked, names: Mapping[str, str] = NO_NAMES, *, within_s: float | None = None
) -> ArgumentProblem:
    """Return why arguments cannot be checked.

    Args:
        unchecked: The argument, and what it is about it.
        names: Names that the reader was shown for some properties, if different.
        within_s: The time that was spent on a check.
    """
    where = format_path(unchecked.path, names)
    limit = f" within {within_s:g} s" if within_s is not None else ""
    text = f"{where} could not be checked{limit}: {unchecked.reason}"
    if unchecked.invalid:
        text = f"{where} does not fit the schema; what is wrong could not be found{limit}: {unchecked.reason}"
    return ArgumentProblem(path=unchecked.path, kind="unchecked", message=excerpt(text, _MAX_UNCHECKED))


def explain(
    wrapper: ToolWrapper,
    problems: Sequence[ArgumentProblem],
    arguments: object,
    *,
    via: CallRoute = "wrapper",
    understood: object = None,
    filled: Sequence[str] = (),
    lowered: LoweredDefinition | None = None,
) -> str:
    """Return a text that lets a model correct its call, at most 4,000 characters.

    It has what is missing and what is wrong, the keys that were sent, an example call with typed placeholders, and the
    schema or the relevant part of it. Values that were sent are never repeated: one of them may be a secret.

    Args:
        wrapper: The tool.
        problems: What `check` found.
        arguments: What was sent.
        via: How the tool was called; for `invoke_tool` the nested form is shown beside the typed name.
        understood: What the problems refer to, if not to what was sent: the arguments inside a wrapper.
        filled: Members of these that were not sent, but come from configured defaults.
        lowered: The definition that the caller was shown, if different; the text refers to nothing else.
    """
    if lowered is not None:
        wrapper, understood = as_advertised(wrapper, lowered), rename_members(understood, lowered.shown_names)
        problems = [replace(problem, path=rename_path(problem.path, lowered.shown_names)) for problem in problems]
        filled = [lowered.shown_names.get(name, name) for name in filled]
    sentences = [f"Not called: {wrapper.name}. Nothing was sent to its server."]
    missing = [format_path(problem.path) for problem in problems if problem.kind == "missing"]
    if missing:
        sentences.append(f"Missing: {_within(missing, ', ', _MAX_MISSING)}.")
    others = [problem.message.rstrip(".") for problem in problems if problem.kind != "missing"]
    if others:
        sentences.append(f"Wrong: {_within(others, '; ', _MAX_WRONG)}.".replace("?.", "?"))
    if len(problems) >= MAX_PROBLEMS:
        sentences.append("There may be more.")
    spoken_of = arguments if understood is None else understood
    # Suggestions only make sense where something is missing.
    hints = _suggestions(wrapper, problems, spoken_of) if missing else []
    if not any(problem.path == () and problem.kind == "type" for problem in problems):  # which says it already
        sentences.append(_sent(arguments, spoken_of, filled) + "".join(f" {hint}" for hint in hints))
    as_text = lowered is not None and lowered.null_means_omitted
    places = _places(problems, spoken_of)
    other = lowered is not None and lowered.document is not None
    call = example_call(wrapper, via, as_text=as_text, shown=places, sent=spoken_of, filled=filled, lowered=other)
    sentences.append(f"Call it like: {call}")
    text = _truncate(" ".join(sentences), MAX_TEXT_LENGTH)
    room = MAX_TEXT_LENGTH - len(text) - len(" Schema: ")
    return text if room < _MIN_SCHEMA else f"{text} Schema: {schema_text(wrapper, problems, spoken_of, room)}"


def in_short(problems: Sequence[ArgumentProblem]) -> str:
    """Return what is wrong with arguments that somebody else than the caller has made, as one phrase."""
    told = [
        f"{format_path(problem.path)} is missing" if problem.kind == "missing" else problem.message.rstrip(".?")
        for problem in problems
    ]
    return _truncate("; ".join(told), _MAX_WRONG).replace("you sent", "it has become")


def as_advertised(wrapper: ToolWrapper, lowered: LoweredDefinition) -> ToolWrapper:
    """Return a wrapper with the definition that the caller was shown."""
    if lowered.definition is wrapper.definition:
        return wrapper
    return replace(wrapper, definition=lowered.definition)


def rename_members(arguments: Any, names: Mapping[str, str]) -> Any:
    """Return an argument object with some members renamed; anything else as it is."""
    if not names or not isinstance(arguments, dict) or names.keys().isdisjoint(arguments):
        return arguments
    return {names.get(name, name): value for name, value in arguments.items()}


def explain_unresolved(found: UnresolvedCall, sent: object, lowered: LoweredDefinition | None = None) -> str:
    """Return a text about a call of `invoke_tool` that names no tool, or whose arguments are ambiguous.

    Args:
        found: What is wrong.
        sent: What was sent.
        lowered: The definition that the caller was shown, if it is known which tool is meant.
    """
    if "arguments" in found.faults:
        what = f"invoke_tool takes an object, you sent {describe_type(sent)}."
    elif "mixture" in found.faults:
        what = "There are parameters in two places, and it is not clear which are meant."
    elif "form" in found.faults:
        what = "The call is not in the form that invoke_tool takes, and repairs are turned off for this server."
    else:
        named = {"server": found.server, "tool": found.tool}
        absent = [f"`{word}`" for word, name in named.items() if name is None]
        unknown = [
            f"there is no {word} '{excerpt(name, _MAX_QUOTED)}'" for word in found.faults if (name := named.get(word))
        ]
        missing = f"invoke_tool needs {' and '.join(absent)} as text" if absent else ""
        what = "; ".join([*([missing] if missing else []), *unknown]) + "."
    sentences = ["Not called. Nothing was sent to any server.", what]
    sentences += [f"Keys sent: {_keys_of(sent)}."] if sent is None or isinstance(sent, dict) else []
    shape = '{"server":"<string>","tool":"<string>","arguments":{…}}'
    call = f"invoke_tool {shape}"
    if found.wrapper is not None:
        shown = found.wrapper if lowered is None else as_advertised(found.wrapper, lowered)
        call = example_call(shown, "invoke_tool", as_text=lowered is not None and lowered.null_means_omitted)
    return _truncate(" ".join([*sentences, f"Call it like: {call}"]), MAX_TEXT_LENGTH)


def _places(problems: Sequence[ArgumentProblem], sent: object) -> list[JsonPath]:
    """Return where a right call has something else than this one."""
    places: list[JsonPath] = []
    for problem in problems:
        meant = problem.path if problem.near is None else (*problem.path[:-1], problem.near)
        is_there = problem.kind == "unknown" and (problem.near is None or value_at(sent, meant) is not MISSING)
        # What is too much is not in it; but an object with it is another.
        if not is_there or len(meant) > 1:
            places.append(problem.path if is_there else meant)
    return places


def example_call(
    wrapper: ToolWrapper,
    via: CallRoute = "wrapper",
    *,
    as_text: bool = False,
    shown: Sequence[JsonPath] = (),
    sent: object = None,
    filled: Sequence[str] = (),
    lowered: bool = False,
) -> str:
    """Return a call with typed placeholders, at most 1,500 characters.

    For `invoke_tool` there are two forms of it: with the typed name, and nested.

    Args:
        wrapper: The tool, as the caller was shown it.
        via: How the tool was called.
        as_text: The caller was shown an `invoke_tool` that takes its arguments as text.
        shown: What is wrong in the call that this is an answer to; the example has it, required or not.
        sent: That call's arguments. Declared ones in which nothing is wrong stay, without their values.
        filled: Those of them that configured defaults added. They are left out, as they will be added again.
        lowered: Whether the definition is another than the one that arguments are checked by.
    """
    limit = _MAX_EXAMPLE if via == "wrapper" else _MAX_EXAMPLE // 2
    schema = wrapper.input_schema
    kept: list[str] = []
    # What is wrong with the whole may be any of its members.
    if isinstance(sent, dict) and () not in shown:
        wrong = {path[0] for path in shown}
        declared = declared_properties(schema, schema)
        is_map = isinstance(schema, dict) and isinstance(schema.get("additionalProperties"), dict)
        kept = [name for name in list(sent)[:_MAX_KEYS] if (name in declared or is_map) and name not in wrong]
    example = example_arguments(schema, shown=shown, kept=kept, sent=sent)
    if shown and not lowered and (wrong_too := wrong_where_kept(wrapper, example, sent)):
        kept = [name for name in kept if (name,) not in wrong_too]
        example = example_arguments(schema, shown=[*shown, *wrong_too], kept=kept, sent=sent)
    added = {name for name in filled if example.get(name) == AS_SENT}
    example = {name: value for name, value in example.items() if name not in added}
    call = _truncate(schemas.compact_json(example), limit)
    if via == "wrapper":
        return call
    server, tool = schemas.compact_json(wrapper.server), schemas.compact_json(excerpt(wrapper.tool, _MAX_TOOL_NAME))
    nested = schemas.compact_json(call) if as_text else call
    return f'{wrapper.name} {call} or invoke_tool {{"server":{server},"tool":{tool},"arguments":{nested}}}'


def schema_text(wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: object, room: int) -> str:
    """Return the whole schema if it fits, else the part that this call needs, else its beginning."""
    schema = wrapper.input_schema
    try:
        whole = schemas.compact_json(schema)
        if len(whole) <= room or not isinstance(schema, dict):
            return _truncate(whole, room)
        note = " (optional parameters left out)"
        for part in _schema_parts(schema, problems, arguments):
            shorter = schemas.compact_json(part)
            if len(shorter) + len(note) <= room:
                return shorter + note
    except SchemaRejected:
        return "(cannot be shown)"
    return _truncate(whole, room)


def _schema_parts(
    schema: dict[str, Any], problems: Sequence[ArgumentProblem], arguments: object
) -> list[dict[str, Any]]:
    """Return ever smaller parts of a schema that matter for a call."""
    properties, required = declared_properties(schema, schema), schema.get("required")
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    touched = [problem.path[0] for problem in problems if problem.path]
    sent = list(arguments)[:_MAX_KEYS] if isinstance(arguments, dict) else []
    parts: list[dict[str, Any]] = []
    for names in ([*wanted, *touched, *sent], [*wanted, *touched], wanted):
        kept = {name: properties[name] for name in dict.fromkeys(names) if name in properties}
        part: dict[str, Any] = {"type": "object", "properties": kept, "required": wanted}
        if schema.get("additionalProperties") is False:
            part["additionalProperties"] = False
        # With the definitions first, since without them references in the part lead nowhere.
        definitions: dict[str, Any] = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
        parts += [{**definitions, **part}] if definitions else []
        parts.append(part)
    # The last resort: the same without descriptions.
    bare = {name: _without_texts(below) for name, below in parts[-1]["properties"].items()}
    return [*parts, {**parts[-1], "properties": bare}] if properties else []


def _without_texts(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return without_keys(schema, ("description", "title", "examples"))


def _suggestions(wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: object) -> list[str]:
    """Return hints about undeclared parameters that are probably misspelled missing ones.

    An open schema accepts any name, so that the validator reports the missing one only.
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


def _sent(arguments: object, understood: object, filled: Sequence[str]) -> str:
    # Null, or no arguments at all, counts as an empty object.
    keyed = arguments is None or isinstance(arguments, dict)
    text = f"Keys sent: {_keys_of(arguments)}" if keyed else f"You sent: {describe_type(arguments)}"
    if filled and isinstance(understood, dict):
        understood = {name: value for name, value in understood.items() if name not in filled}
    if isinstance(understood, dict) and understood is not arguments and arguments is not None:
        inner = _keys_of(understood)
        text += f", read as: {inner}" if inner != _keys_of(arguments) else ""
    # Whoever does not know of them wonders why they are not missing.
    return text + (f"; added from defaults: {_keys_of(dict.fromkeys(filled))}." if filled else ".")


def _keys_of(arguments: object) -> str:
    if not isinstance(arguments, dict) or not arguments:
        return "(none)"
    shown = ", ".join(excerpt(str(key), MAX_SHOWN_KEY) for key in list(arguments)[:_MAX_KEYS])
    more = len(arguments) - _MAX_KEYS
    return shown + (f" and {more:,} more" if more > 0 else "")


def _within(texts: Sequence[str], separator: str, limit: int) -> str:
    """Join as many texts as there is room for, and say how many are left out."""
    joined, room = "", limit
    for index, text in enumerate(texts):
        room -= len(text) + len(separator)
        if room < 0 and index:
            return f"{joined} and {len(texts) - index:,} more"
        joined += f"{separator}{text}" if index else _truncate(text, limit)
    return joined


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
