"""What is wrong with these arguments, as data, and as text that a model can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from registry.arguments.diagnosis import ArgumentProblem, NearNames, diagnose, kind_of
from registry.arguments.example import example_call
from registry.arguments.unwrapping import Misaddressed
from registry.catalog.catalog import ToolWrapper
from registry.dialects.definitions import Lowered
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.json_paths import MAX_SHOWN_KEY, NO_NAMES, declared, renamed_path, show_path
from registry.schema.text import excerpt

MAX_PROBLEMS: Final = 20
MAX_TEXT_LENGTH: Final = 4_000
_MAX_ERRORS: Final = 200
"""Errors looked at, more than are told: what is missing may come after much that is wrong."""
_MAX_KEYS: Final = 20
_MAX_HINTS: Final = 5

Via = Literal["wrapper", "invoke_tool"]

__all__ = [
    "ArgumentProblem", "Via", "as_shown", "check", "explain", "explain_address", "ready_call", "renamed", "schema_text",
]  # fmt: skip


def check(wrapper: ToolWrapper, arguments: object, names: Mapping[str, str] = NO_NAMES) -> tuple[ArgumentProblem, ...]:
    """Return what keeps these arguments from the tool, at most 20 problems; nothing when they fit.

    A schema that cannot be compiled finds no problem: its upstream decides.

    Args:
        wrapper: The tool.
        arguments: What would be sent to it.
        names: Other names for some properties, of which messages speak.
    """
    if not isinstance(arguments, dict):
        message = f"arguments are declared as object, you sent {kind_of(arguments)}"
        return (ArgumentProblem(path=(), kind="type", message=message),)
    try:
        compiled = schemas.validator(wrapper.input_schema, wrapper.schema_digest)
    except SchemaRejected:
        return ()
    if compiled.is_valid(arguments):
        return ()
    found = diagnose(compiled.errors(arguments, _MAX_ERRORS), arguments, wrapper.input_schema, names)
    if not found:
        message = "the arguments do not fit the schema, are nested too deeply or hold broken characters"
        found.append(ArgumentProblem(path=(), kind="value", message=message))
    return tuple(found[:MAX_PROBLEMS])


def explain(
    wrapper: ToolWrapper,
    problems: Sequence[ArgumentProblem],
    arguments: object,
    *,
    via: Via = "wrapper",
    understood: object = None,
    lowered: Lowered | None = None,
) -> str:
    """Return words that let a model call again rightly, at most 4,000 characters.

    Names what is missing and what is wrong, the keys that were sent, a ready call with typed placeholders and the
    schema, or the part of it that matters. Values that were sent are never repeated: one of them may be a secret.

    Args:
        wrapper: The tool.
        problems: What `check` found.
        arguments: What was sent.
        via: The way the call came; through `invoke_tool` the nested form is shown beside the typed name.
        understood: What the problems speak of, if that is not what was sent: the arguments inside a wrapping.
        lowered: How the caller was shown the tool, where that is not as it is: it reads of nothing else.
    """
    if lowered is not None:
        wrapper, understood = as_shown(wrapper, lowered), renamed(understood, lowered.names)
        problems = [replace(one, path=renamed_path(one.path, lowered.names)) for one in problems]
    sentences = [f"Not called: {wrapper.name}. Nothing was sent to its server."]
    missing = [show_path(problem.path) for problem in problems if problem.kind == "missing"]
    if missing:
        sentences.append(f"Missing: {_fit(', '.join(missing), 800)}.")
    others = [problem.message.rstrip(".") for problem in problems if problem.kind != "missing"]
    if others:
        sentences.append(f"Wrong: {_fit('; '.join(others), 1_200)}.".replace("?.", "?"))
    spoken_of = arguments if understood is None else understood
    hints = _near_misses(wrapper, problems, spoken_of) if missing else []
    sentences.append(_sent(arguments, spoken_of) + "".join(f" {hint}" for hint in hints))
    as_text = lowered is not None and lowered.nulls
    sentences.append(f"Call it like: {ready_call(wrapper, via, as_text=as_text)}")
    text = _fit(" ".join(sentences), MAX_TEXT_LENGTH)
    room = MAX_TEXT_LENGTH - len(text) - len(" Schema: ")
    return text if room < 100 else f"{text} Schema: {schema_text(wrapper, problems, spoken_of, room)}"


def as_shown(wrapper: ToolWrapper, lowered: Lowered) -> ToolWrapper:
    """Return a wrapper with the definition that a caller was shown."""
    if lowered.definition is wrapper.definition:
        return wrapper
    return replace(wrapper, definition=lowered.definition)


def renamed(arguments: Any, names: Mapping[str, str]) -> Any:
    """Return an argument object with the names of its members as a caller was shown them; anything else as it is."""
    if not names or not isinstance(arguments, dict) or names.keys().isdisjoint(arguments):
        return arguments
    return {names.get(name, name): value for name, value in arguments.items()}


def explain_address(found: Misaddressed, sent: object, lowered: Lowered | None = None) -> str:
    """Return words for a call of `invoke_tool` that names no tool, or whose arguments are in doubt.

    A server or a tool that is named and not known is for the catalog to speak of; here it is only repeated.

    Args:
        found: What is wrong.
        sent: What was sent.
        lowered: How the caller was shown the tool, if it is known which is meant.
    """
    if "arguments" in found.faults:
        what = f"invoke_tool takes an object, you sent {kind_of(sent)}."
    elif "mixture" in found.faults:
        what = "There are parameters in two places, and it is not clear which are meant."
    elif "form" in found.faults:
        what = "The call is not in the form that invoke_tool takes, and repairs are turned off for this server."
    else:
        named = {"server": found.server, "tool": found.tool}
        absent = [f"`{word}`" for word, name in named.items() if name is None]
        unknown = [
            f"there is no {word} '{excerpt(named[word] or '', 200)}'" for word in found.faults if named.get(word)
        ]
        missing = f"invoke_tool needs {' and '.join(absent)} as text" if absent else ""
        what = "; ".join([*([missing] if missing else []), *unknown]) + "."
    sentences = ["Not called. Nothing was sent to any server.", what]
    sentences += [f"Keys sent: {_keys_of(sent)}."] if isinstance(sent, dict) else []
    shape = '{"server":"<string>","tool":"<string>","arguments":{…}}'
    call = f"invoke_tool {shape}"
    if found.wrapper is not None:
        shown = found.wrapper if lowered is None else as_shown(found.wrapper, lowered)
        call = ready_call(shown, "invoke_tool", as_text=lowered is not None and lowered.nulls)
    return _fit(" ".join([*sentences, f"Call it like: {call}"]), MAX_TEXT_LENGTH)


def ready_call(wrapper: ToolWrapper, via: Via = "wrapper", *, as_text: bool = False) -> str:
    """Return a call that only wants its placeholders filled, at most 1,500 characters.

    Through `invoke_tool` both ways are shown: the typed name, and the nested form.

    Args:
        wrapper: The tool, as the caller was shown it.
        via: The way of the call.
        as_text: The caller was shown an `invoke_tool` that takes its arguments as text.
    """
    call = _fit(schemas.text_of(example_call(wrapper.input_schema)), 450 if via == "invoke_tool" else 900)
    if via == "wrapper":
        return call
    server, tool = schemas.text_of(wrapper.server), schemas.text_of(excerpt(wrapper.tool, 128))
    nested = schemas.text_of(call) if as_text else call
    return f'{wrapper.name} {call} or invoke_tool {{"server":{server},"tool":{tool},"arguments":{nested}}}'


def schema_text(wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: object, room: int) -> str:
    """Return the schema whole where it fits, else what this call cannot do without, else its start."""
    schema = wrapper.input_schema
    try:
        whole = schemas.text_of(schema)
        if len(whole) <= room or not isinstance(schema, dict):
            return _fit(whole, room)
        note = " (optional parameters left out)"
        for part in _parts(schema, problems, arguments):
            shorter = schemas.text_of(part)
            if len(shorter) + len(note) <= room:
                return shorter + note
    except SchemaRejected:
        return "(cannot be shown)"
    return _fit(whole, room)


def _parts(schema: dict[str, Any], problems: Sequence[ArgumentProblem], arguments: object) -> list[dict[str, Any]]:
    """Return parts of a schema that matter for a call, the fullest first."""
    properties, required = declared(schema, schema), schema.get("required")
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    touched = [problem.path[0] for problem in problems if problem.path]
    sent = list(arguments)[:_MAX_KEYS] if isinstance(arguments, dict) else []
    parts: list[dict[str, Any]] = []
    for names in ([*wanted, *touched, *sent], [*wanted, *touched], wanted):
        kept = {name: properties[name] for name in dict.fromkeys(names) if name in properties}
        part: dict[str, Any] = {"type": "object", "properties": kept, "required": wanted}
        if schema.get("additionalProperties") is False:
            part["additionalProperties"] = False
        definitions: dict[str, Any] = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
        parts += [{**definitions, **part}] if definitions else []
        parts.append(part)
    bare = {name: _without_texts(below) for name, below in parts[-1]["properties"].items()}
    return [*parts, {**parts[-1], "properties": bare}] if properties else []


def _without_texts(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if key not in ("description", "title", "examples")}


def _near_misses(wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: object) -> list[str]:
    """Name the parameters that an open schema lets pass, and that were probably meant to be a missing one."""
    if not isinstance(arguments, dict):
        return []
    names = declared(wrapper.input_schema, wrapper.input_schema)
    told = {problem.path for problem in problems if problem.kind == "unknown"}
    missing = [str(one.path[0]) for one in problems if one.kind == "missing" and len(one.path) == 1]
    hints: list[str] = []
    names_near = NearNames()
    for key in list(arguments)[:_MAX_KEYS]:
        if key in names or (key,) in told or len(hints) >= _MAX_HINTS:
            continue
        if (near := names_near.find(key, missing)) is not None:
            hints.append(f"{excerpt(key, MAX_SHOWN_KEY)} is not a parameter; did you mean {near}?")
    return hints


def _sent(arguments: object, understood: object) -> str:
    text = f"Keys sent: {_keys_of(arguments)}" if isinstance(arguments, dict) else f"You sent: {kind_of(arguments)}"
    if isinstance(understood, dict) and understood is not arguments and arguments is not None:
        inner = _keys_of(understood)
        text += f", read as: {inner}" if inner != _keys_of(arguments) else ""
    return text + "."


def _keys_of(arguments: object) -> str:
    if not isinstance(arguments, dict) or not arguments:
        return "(none)"
    shown = [excerpt(str(key), MAX_SHOWN_KEY) for key in list(arguments)[:_MAX_KEYS]]
    more = len(arguments) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _fit(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
