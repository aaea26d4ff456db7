"""From the errors of a validator to what a caller should hear: fewest words, nothing twice, no value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from registry import readings, schemas
from registry.places import MAX_SHOWN_KEY, MISSING, Path, at, declared, schema_at, show_path
from registry.texts import excerpt

if TYPE_CHECKING:
    import jsonschema_rs

_MAX_MESSAGE: Final = 240
_MAX_OPTIONS: Final = 50
_MAX_NEAR: Final = 64
_MAX_NEAR_LENGTH: Final = 40
_MAX_NEAR_LOOKS: Final = 5
"""Comparing words costs up to a tenth of a millisecond for each pair: so many names, so long, so often."""
_MAX_BRANCH_DEPTH: Final = 4
_MAX_UNEXPECTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentProblem:
    """One thing wrong with an argument object; the path of a missing member ends with its name.

    The message never holds a value that the caller sent.
    """

    path: Path
    kind: Literal["missing", "unknown", "type", "value"]
    message: str


def diagnose(
    errors: Iterable[jsonschema_rs.ValidationError], arguments: dict[str, Any], schema: Any
) -> list[ArgumentProblem]:
    """Return the problems that these errors are about: what is missing first, each place and kind once."""
    found: list[ArgumentProblem] = []
    near = NearNames()
    for error in errors:
        found.extend(_problems_of(error, arguments, schema, near, 0))
    mistyped = {problem.path for problem in found if problem.kind == "type"}
    # Of the wrong type says it all: that it is not one of the options either helps nobody.
    kept = [one for one in found if one.kind != "value" or one.path not in mistyped]
    # Without what is missing no other correction makes the call work.
    kept.sort(key=lambda problem: problem.kind != "missing")
    return list(dict.fromkeys(kept))


def kind_of(value: object) -> str:
    """Return what kind of JSON value this is, with its article."""
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


class NearNames:
    """Finds the name that another one was probably meant to be, a bounded number of times."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = 0

    def find(self, name: str, names: Iterable[str]) -> str | None:
        """Return the only name that is the same but for its spelling, else the nearest one if any is near."""
        if len(name) > MAX_SHOWN_KEY:
            return None
        known = [one for one in names if len(one) <= MAX_SHOWN_KEY]
        spelt = readings.fold(name)
        alike = [one for one in known if readings.fold(one) == spelt]
        if len(alike) == 1:
            return alike[0]
        known = [one for one in known if len(one) <= _MAX_NEAR_LENGTH]
        if self._looks >= _MAX_NEAR_LOOKS or len(known) > _MAX_NEAR or len(name) > _MAX_NEAR_LENGTH:
            return None
        self._looks += 1
        near = get_close_matches(name, known, n=1)
        return near[0] if near else None


def _problems_of(
    error: jsonschema_rs.ValidationError, arguments: dict[str, Any], schema: Any, near: NearNames, depth: int
) -> list[ArgumentProblem]:
    path: Path = tuple(error.instance_path)
    kind = error.kind
    node = schema_at(schema, list(error.schema_path)[:-1])
    node = node if isinstance(node, dict) else {}
    where = show_path(path)
    match kind.name:
        case "required":
            missing = str(getattr(kind, "property", ""))
            return [_problem((*path, missing), "missing", f"{show_path((*path, missing))} is required")]
        case "additionalProperties" | "unevaluatedProperties":
            names = declared(node, schema)
            unexpected = [str(key) for key in getattr(kind, "unexpected", [])][:_MAX_UNEXPECTED]
            return [_unknown(path, key, names, near) for key in unexpected]
        case "type":
            kinds = [str(one) for one in getattr(kind, "types", [])]
            return [_mistyped(path, kinds, at(arguments, path))]
        case "anyOf" | "oneOf":
            if type(kind).__name__.endswith("OneOfMultipleValid"):
                return [_problem(path, "value", f"{where} fits more than one of the alternatives")]
            return _alternatives(error, path, arguments, schema, near, depth)
        case "enum" | "const":
            return [_not_an_option(path, node, at(arguments, path), near)]
        case "not" | "falseSchema":
            text = f"{where} is not allowed here"
        case _:
            text = f"{where}: {error.message}"
    return [_problem(path, "value", text)]


def _problem(path: Path, kind: Literal["missing", "unknown", "type", "value"], text: str) -> ArgumentProblem:
    return ArgumentProblem(path=path, kind=kind, message=excerpt(text, _MAX_MESSAGE))


def _mistyped(path: Path, kinds: list[str], value: object) -> ArgumentProblem:
    sent = "nothing" if value is MISSING else kind_of(value)
    return _problem(path, "type", f"{show_path(path)} is declared as {' or '.join(kinds)}, you sent {sent}")


def _unknown(path: Path, key: str, names: Iterable[str], near: NearNames) -> ArgumentProblem:
    hint = _hint(near.find(key, names))
    return _problem((*path, key), "unknown", f"{show_path((*path, key))} is not a parameter{hint}")


def _hint(name: str | None) -> str:
    return f"; did you mean {excerpt(name, MAX_SHOWN_KEY)}?" if name is not None else ""


def _not_an_option(path: Path, node: dict[str, Any], value: object, near: NearNames) -> ArgumentProblem:
    options = node.get("enum", [node["const"]] if "const" in node else [])
    options = options if isinstance(options, list) else []
    shown = schemas.text_of(options[:_MAX_OPTIONS])
    text = f"{show_path(path)} must be {shown[1:-1] if len(options) == 1 else f'one of {shown}'}"
    words = [one for one in options[: _MAX_NEAR + 1] if isinstance(one, str)]
    # Only the option is told, which is the schema's; the value may be anything.
    hint = _hint(near.find(value, words)) if isinstance(value, str) and len(options) > 1 else ""
    return _problem(path, "value", excerpt(text, _MAX_MESSAGE - len(hint)) + hint)


def _alternatives(
    error: jsonschema_rs.ValidationError,
    path: Path,
    arguments: dict[str, Any],
    schema: Any,
    near: NearNames,
    depth: int,
) -> list[ArgumentProblem]:
    """Speak of the one alternative that was surely meant, else of the types that would do."""
    branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", None) or []
    flat = f"{show_path(path)} fits none of the alternatives"
    if depth >= _MAX_BRANCH_DEPTH:
        return [_problem(path, "value", flat)]
    told = [
        [
            problem
            for one in branch[:_MAX_UNEXPECTED]
            for problem in _problems_of(one, arguments, schema, near, depth + 1)
        ]
        for branch in branches[:_MAX_OPTIONS]
    ]
    meant = [problems for problems in told if not any(one.kind == "type" and one.path == path for one in problems)]
    if not meant:
        return [_mistyped(path, _kinds(branches), at(arguments, path))]
    if len(meant) > 1:
        # A wrong constant inside says that another alternative was meant.
        unmarked = [problems for problems in meant if not any(one.kind == "value" for one in problems)]
        meant = unmarked if len(unmarked) == 1 else meant
    return meant[0] if len(meant) == 1 else [_problem(path, "value", flat)]


def _kinds(branches: list[list[jsonschema_rs.ValidationError]]) -> list[str]:
    """Return the types that the alternatives declare, those within alternatives included, each once."""
    kinds: dict[str, None] = {}
    pending = [one for branch in reversed(branches[:_MAX_OPTIONS]) for one in branch[:_MAX_UNEXPECTED]]
    for _step in range(200):
        if not pending:
            break
        error = pending.pop()
        if error.kind.name == "type":
            kinds.update(dict.fromkeys(str(one) for one in getattr(error.kind, "types", [])))
        elif error.kind.name in ("anyOf", "oneOf"):
            inner = getattr(error.kind, "context", None) or []
            pending += [one for branch in reversed(inner) for one in branch]
    return list(kinds) or ["something else"]
