"""What is wrong with these arguments, as data, and as text that a model can act on."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from registry import schemas
from registry.catalog import ToolWrapper
from registry.errors import SchemaRejected
from registry.example import example_call
from registry.texts import excerpt

if TYPE_CHECKING:
    import jsonschema_rs

MAX_PROBLEMS: Final = 20
MAX_TEXT_LENGTH: Final = 4_000
_MAX_ERRORS: Final = 200
"""Errors looked at, more than are told: what is missing may come after much that is wrong."""
_MAX_MESSAGE: Final = 240
_MAX_KEYS: Final = 20
_MAX_KEY_LENGTH: Final = 64

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentProblem:
    """One thing wrong with an argument object; the path of a missing member ends with its name.

    The message never holds a value that the caller sent.
    """

    path: Path
    kind: Literal["missing", "unknown", "type", "value"]
    message: str


def check(wrapper: ToolWrapper, arguments: object) -> tuple[ArgumentProblem, ...]:
    """Return what keeps these arguments from the tool, at most 20 problems; nothing when they fit.

    A schema that cannot be compiled finds no problem: its upstream decides.
    """
    if not isinstance(arguments, dict):
        message = f"arguments are declared as object, you sent {_kind_of(arguments)}"
        return (ArgumentProblem(path=(), kind="type", message=message),)
    try:
        compiled = schemas.validator(wrapper.input_schema, wrapper.schema_digest)
    except SchemaRejected:
        return ()
    if compiled.is_valid(arguments):
        return ()
    found: list[ArgumentProblem] = []
    for error in compiled.errors(arguments, _MAX_ERRORS):
        found.extend(_problems_of(error, arguments, wrapper.input_schema))
    if not found:
        message = "the arguments are nested too deeply or hold broken characters"
        found.append(ArgumentProblem(path=(), kind="value", message=message))
    # What is missing comes first: without it no other correction makes the call work.
    found.sort(key=lambda problem: problem.kind != "missing")
    return tuple(dict.fromkeys(found))[:MAX_PROBLEMS]


def _problems_of(error: jsonschema_rs.ValidationError, arguments: dict[str, Any], schema: Any) -> list[ArgumentProblem]:
    path: Path = tuple(error.instance_path)
    kind = error.kind
    where = show_path(path)
    match kind.name:
        case "required":
            missing = str(getattr(kind, "property", ""))
            text = f"{show_path((*path, missing))} is required"
            text = excerpt(text, _MAX_MESSAGE)
            return [ArgumentProblem(path=(*path, missing), kind="missing", message=text)]
        case "additionalProperties" | "unevaluatedProperties":
            unexpected = [str(key) for key in getattr(kind, "unexpected", [])][:MAX_PROBLEMS]
            return [_unknown(path, key, schema) for key in unexpected]
        case "type":
            declared = " or ".join(str(one) for one in getattr(kind, "types", []))
            text = f"{where} is declared as {declared}, you sent {_kind_of(_at(arguments, path))}"
            return [ArgumentProblem(path=path, kind="type", message=excerpt(text, _MAX_MESSAGE))]
        case "anyOf" | "oneOf":
            many = type(kind).__name__.endswith("OneOfMultipleValid")
            text = f"{where} fits {'more than one' if many else 'none'} of the alternatives"
        case "enum":
            options = schemas.text_of(list(getattr(kind, "options", []))[:50])
            text = f"{where} must be one of {options}"
        case "not" | "falseSchema":
            text = f"{where} is not allowed here"
        case _:
            text = f"{where}: {error.message}"
    return [ArgumentProblem(path=path, kind="value", message=excerpt(text, _MAX_MESSAGE))]


def _unknown(path: Path, key: str, schema: Any) -> ArgumentProblem:
    text = f"{show_path((*path, key))} is not a parameter"
    declared = schema.get("properties") if isinstance(schema, dict) and not path else None
    if isinstance(declared, dict) and len(declared) <= 500 and len(key) <= _MAX_KEY_LENGTH:
        near = get_close_matches(key, [name for name in declared if len(name) <= _MAX_KEY_LENGTH], n=1)
        if near:
            text += f"; did you mean {near[0]}?"
    return ArgumentProblem(path=(*path, key), kind="unknown", message=excerpt(text, _MAX_MESSAGE))


def show_path(path: Path) -> str:
    """Write a path as a model reads it: `to[0].address`; the whole argument object is `arguments`."""
    if not path:
        return "arguments"
    text = ""
    for step in path[:20]:
        text += f"[{step}]" if isinstance(step, int) else f".{excerpt(step, _MAX_KEY_LENGTH)}"
    return text.removeprefix(".")


def explain(wrapper: ToolWrapper, problems: tuple[ArgumentProblem, ...], arguments: object) -> str:
    """Return words that let a model call again rightly, at most 4,000 characters.

    Names what is missing, the keys that were sent, a ready call with typed placeholders and the
    schema. Values that were sent are never repeated: one of them may be a secret.
    """
    sentences = [f"Not called: {wrapper.name}."]
    missing = [show_path(problem.path) for problem in problems if problem.kind == "missing"]
    if missing:
        sentences.append(f"Missing: {_fit(', '.join(missing), 800)}.")
    others = [problem.message.rstrip(".") for problem in problems if problem.kind != "missing"]
    if others:
        sentences.append(f"Wrong: {_fit('; '.join(others), 1_200)}.".replace("?.", "?"))
    sentences.append(f"You sent: {_keys_of(arguments)}.")
    call = schemas.text_of(example_call(wrapper.input_schema))
    sentences.append(f"Call it like: {_fit(call, 900)}")
    text = _fit(" ".join(sentences), MAX_TEXT_LENGTH)
    room = MAX_TEXT_LENGTH - len(text) - len(" Schema: ")
    return text if room < 100 else f"{text} Schema: {_schema_text(wrapper.input_schema, room)}"


def _fit(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _keys_of(arguments: object) -> str:
    if not isinstance(arguments, dict):
        return _kind_of(arguments)
    if not arguments:
        return "(no arguments)"
    shown = [excerpt(str(key), _MAX_KEY_LENGTH) for key in list(arguments)[:_MAX_KEYS]]
    more = len(arguments) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _schema_text(schema: Any, room: int) -> str:
    """Return the schema whole where it fits, else only what a call cannot do without, else its start."""
    try:
        whole = schemas.text_of(schema)
        if len(whole) <= room or not isinstance(schema, dict):
            return _fit(whole, room)
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            needed = {k: properties[k] for k in required if isinstance(k, str) and k in properties}
            reduced = {"type": "object", "properties": needed, "required": required}
            note = " (optional parameters left out)"
            shorter = schemas.text_of(reduced)
            if len(shorter) + len(note) <= room:
                return shorter + note
    except SchemaRejected:
        return "(cannot be shown)"
    return _fit(whole, room)


def _at(arguments: object, path: Path) -> object:
    found = arguments
    for step in path:
        try:
            found = found[step]  # type: ignore[index]
        except (TypeError, KeyError, IndexError):
            return None
    return found


def _kind_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
