"""From the errors of a validator to what a caller should hear: fewest words, nothing twice, no value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from registry.arguments import coercion
from registry.schema import schemas
from registry.schema.json_paths import MAX_SHOWN_KEY, MISSING, NO_NAMES, Path, at, declared, schema_at, show_path
from registry.schema.text import excerpt

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

    The path has the names of the schema, the message those that its reader was shown.
    The message never holds a value that the caller sent.
    """

    path: Path
    kind: Literal["missing", "unknown", "type", "value"]
    message: str


def diagnose(
    errors: Iterable[jsonschema_rs.ValidationError],
    arguments: dict[str, Any],
    schema: Any,
    names: Mapping[str, str] = NO_NAMES,
) -> list[ArgumentProblem]:
    """Return the problems that these errors are about: what is missing first, each place and kind once.

    Args:
        errors: What the validator says.
        arguments: What it says it of.
        schema: The schema that it knows.
        names: Other names for some properties, which messages speak of; paths are as the schema has them.
    """
    reader = _Reader(arguments, schema, names)
    found = [problem for error in errors for problem in reader.problems_of(error)]
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
        spelt = coercion.fold(name)
        alike = [one for one in known if coercion.fold(one) == spelt]
        if len(alike) == 1:
            return alike[0]
        known = [one for one in known if len(one) <= _MAX_NEAR_LENGTH]
        if self._looks >= _MAX_NEAR_LOOKS or len(known) > _MAX_NEAR or len(name) > _MAX_NEAR_LENGTH:
            return None
        self._looks += 1
        near = get_close_matches(name, known, n=1)
        return near[0] if near else None


class _Reader:
    """Reads the errors about one argument object."""

    __slots__ = ("_arguments", "_names", "_near", "_schema")

    def __init__(self, arguments: dict[str, Any], schema: Any, names: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._schema = schema
        self._names = names
        self._near = NearNames()

    def problems_of(self, error: jsonschema_rs.ValidationError, depth: int = 0) -> list[ArgumentProblem]:
        path: Path = tuple(error.instance_path)
        kind = error.kind
        node = schema_at(self._schema, list(error.schema_path)[:-1])
        node = node if isinstance(node, dict) else {}
        where = self._shown(path)
        match kind.name:
            case "required":
                missing = (*path, str(getattr(kind, "property", "")))
                return [_problem(missing, "missing", f"{self._shown(missing)} is required")]
            case "additionalProperties" | "unevaluatedProperties":
                declared_here = declared(node, self._schema)
                unexpected = [str(key) for key in getattr(kind, "unexpected", [])][:_MAX_UNEXPECTED]
                return [self._unknown(path, key, declared_here) for key in unexpected]
            case "type":
                return [self._mistyped(path, [str(one) for one in getattr(kind, "types", [])])]
            case "anyOf" | "oneOf":
                if type(kind).__name__.endswith("OneOfMultipleValid"):
                    return [_problem(path, "value", f"{where} fits more than one of the alternatives")]
                return self._alternatives(error, path, depth)
            case "enum" | "const":
                return [self._not_an_option(path, node)]
            case "not" | "falseSchema":
                text = f"{where} is not allowed here"
            case _:
                text = f"{where}: {self._in_other_names(error.message)}"
        return [_problem(path, "value", text)]

    def _shown(self, path: Path) -> str:
        return show_path(path, self._names)

    def _in_other_names(self, message: str) -> str:
        """Put the names that a validator quotes in its own words."""
        for name, other in self._names.items():
            quoted = schemas.text_of(name)
            message = message.replace(quoted, schemas.text_of(other)) if quoted in message else message
        return message

    def _mistyped(self, path: Path, kinds: list[str]) -> ArgumentProblem:
        value = at(self._arguments, path)
        sent = "nothing" if value is MISSING else kind_of(value)
        return _problem(path, "type", f"{self._shown(path)} is declared as {' or '.join(kinds)}, you sent {sent}")

    def _unknown(self, path: Path, key: str, known: Iterable[str]) -> ArgumentProblem:
        hint = _hint(self._near.find(key, [self._names.get(name, name) for name in known]))
        return _problem((*path, key), "unknown", f"{self._shown((*path, key))} is not a parameter{hint}")

    def _not_an_option(self, path: Path, node: dict[str, Any]) -> ArgumentProblem:
        value = at(self._arguments, path)
        options = node.get("enum", [node["const"]] if "const" in node else [])
        options = options if isinstance(options, list) else []
        shown = schemas.text_of(options[:_MAX_OPTIONS])
        text = f"{self._shown(path)} must be {shown[1:-1] if len(options) == 1 else f'one of {shown}'}"
        words = [one for one in options[: _MAX_NEAR + 1] if isinstance(one, str)]
        # Only the option is told, which is the schema's; the value may be anything.
        hint = _hint(self._near.find(value, words)) if isinstance(value, str) and len(options) > 1 else ""
        return _problem(path, "value", excerpt(text, _MAX_MESSAGE - len(hint)) + hint)

    def _alternatives(self, error: jsonschema_rs.ValidationError, path: Path, depth: int) -> list[ArgumentProblem]:
        """Speak of the one alternative that was surely meant, else of the types that would do."""
        branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", None) or []
        flat = f"{self._shown(path)} fits none of the alternatives"
        if depth >= _MAX_BRANCH_DEPTH:
            return [_problem(path, "value", flat)]
        told = [
            [problem for one in branch[:_MAX_UNEXPECTED] for problem in self.problems_of(one, depth + 1)]
            for branch in branches[:_MAX_OPTIONS]
        ]
        meant = [problems for problems in told if not any(one.kind == "type" and one.path == path for one in problems)]
        if not meant:
            return [self._mistyped(path, _kinds(branches))]
        if len(meant) > 1:
            # A wrong constant inside says that another alternative was meant.
            unmarked = [problems for problems in meant if not any(one.kind == "value" for one in problems)]
            meant = unmarked if len(unmarked) == 1 else meant
        return meant[0] if len(meant) == 1 else [_problem(path, "value", flat)]


def _problem(path: Path, kind: Literal["missing", "unknown", "type", "value"], text: str) -> ArgumentProblem:
    return ArgumentProblem(path=path, kind=kind, message=excerpt(text, _MAX_MESSAGE))


def _hint(name: str | None) -> str:
    return f"; did you mean {excerpt(name, MAX_SHOWN_KEY)}?" if name is not None else ""


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
