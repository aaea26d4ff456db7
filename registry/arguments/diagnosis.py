"""Turn validation errors into problems for a caller: few, each once, and without any value that was sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from registry.arguments import coercion
from registry.schema import schemas
from registry.schema.alternatives import Alternative, Alternatives, MissingMark, WrongOption
from registry.schema.display_text import excerpt
from registry.schema.json_paths import (
    MAX_SHOWN_KEY,
    MISSING,
    NO_NAMES,
    JsonPath,
    declared_properties,
    format_path,
    value_at,
)

if TYPE_CHECKING:
    import jsonschema_rs

# Room for one sentence with a path and some options; twenty problems still fit into one result.
_MAX_MESSAGE: Final = 240
# Of a message, for the options of an enumeration; the path and a near miss need the rest.
_MAX_OPTION_TEXT: Final = 120
# Options or alternatives that are looked at; a message has no room for more.
_MAX_OPTIONS: Final = 50
# Comparing two words costs up to a tenth of a millisecond: so many names, of such a length, for so many questions.
_MAX_COMPARED_NAMES: Final = 64
_MAX_COMPARED_LENGTH: Final = 40
_MAX_COMPARISONS: Final = 5
# Alternatives inside alternatives; deeper ones are summarized, since nobody could follow the sentence.
_MAX_ALTERNATIVE_DEPTH: Final = 4
# Undeclared members, or errors of one alternative. No more than 20 problems are shown anyway.
_MAX_PER_ERROR: Final = 20
# Errors that are worded in all: twenty problems are shown, and of alternatives most are worded in vain.
_MAX_WORDED: Final = 600
# Alternatives, and members of each, that are named where one of them is needed.
_MAX_NEEDED: Final = 4
# Errors that are looked at for the types of nested alternatives.
_MAX_TYPE_ERRORS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentProblem:
    """One thing that is wrong with an argument object.

    Attributes:
        path: Where, in the names of the schema; the path of a missing member ends with its name.
        message: One sentence, in the names that its reader was shown. It never contains a value that was sent.
        near: The member that an unknown one was probably meant to be, in the names that its reader was shown.
    """

    path: JsonPath
    kind: Literal["missing", "unknown", "type", "value", "unchecked"]
    message: str
    near: str | None = None


def diagnose(
    errors: Iterable[jsonschema_rs.ValidationError],
    arguments: dict[str, Any],
    schema: Any,
    names: Mapping[str, str] = NO_NAMES,
) -> list[ArgumentProblem]:
    """Return the problems behind validation errors: missing arguments first, each problem once.

    Args:
        errors: From the validator.
        arguments: What was checked.
        schema: What it was checked against.
        names: Names that the reader was shown for some properties, if different.
    """
    reader = _ErrorReader(arguments, schema, names)
    found = [problem for error in errors for problem in reader.problems_of(error)]
    mistyped = {problem.path for problem in found if problem.kind == "type"}
    # A value of the wrong type is no valid option either, but saying so would not help.
    kept = [problem for problem in found if problem.kind != "value" or problem.path not in mistyped]
    # Without the missing arguments no other correction makes the call valid.
    kept.sort(key=lambda problem: problem.kind != "missing")
    return list(dict.fromkeys(kept))


def describe_type(value: object) -> str:
    """Return the JSON type of a value, with an article."""
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


class NameSuggester:
    """Finds the declared name that an unknown one was probably meant to be, a bounded number of times."""

    __slots__ = ("_comparisons", "_known")

    def __init__(self) -> None:
        self._comparisons = 0
        # Of one list of names; the same is asked for each item of a list.
        self._known: tuple[Collection[str], dict[str, list[str]], list[str]] | None = None

    def suggest(self, name: str, names: Collection[str]) -> str | None:
        """Return the only name that differs in spelling alone, else the most similar one, or None."""
        if len(name) > MAX_SHOWN_KEY:
            return None  # it would be shown cut, and a suggestion for half a name helps nobody
        spellings, known = self._read(names)
        alike = spellings.get(coercion.normalized_parameter(name), ())
        if len(alike) == 1:
            return alike[0]
        if (
            self._comparisons >= _MAX_COMPARISONS
            or len(known) > _MAX_COMPARED_NAMES
            or len(name) > _MAX_COMPARED_LENGTH
        ):
            return None
        self._comparisons += 1
        near = get_close_matches(name, known, n=1)
        return near[0] if near else None

    def _read(self, names: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Return names by their spelling, and those that are short enough to be compared."""
        if self._known is None or self._known[0] is not names:
            spellings: dict[str, list[str]] = {}
            for name in names:
                if len(name) <= MAX_SHOWN_KEY:
                    spellings.setdefault(coercion.normalized_parameter(name), []).append(name)
            self._known = names, spellings, [name for name in names if len(name) <= _MAX_COMPARED_LENGTH]
        return self._known[1:]


class _ErrorReader:
    """Words the errors about one argument object."""

    __slots__ = ("_arguments", "_declared", "_names", "_schema", "_suggester", "_worded")

    def __init__(self, arguments: dict[str, Any], schema: Any, names: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._schema = schema
        self._names = names
        self._suggester = NameSuggester()
        self._declared: dict[int, Collection[str]] = {}
        self._worded = 0

    def problems_of(self, error: jsonschema_rs.ValidationError, depth: int = 0) -> list[ArgumentProblem]:
        self._worded += 1
        path: JsonPath = tuple(error.instance_path)
        kind = error.kind
        node = value_at(self._schema, list(error.schema_path)[:-1])
        node = node if isinstance(node, dict) else {}
        where = self._shown(path)
        match kind.name:
            case "required":
                missing = (*path, str(getattr(kind, "property", "")))
                return [_problem(missing, "missing", f"{self._shown(missing)} is required")]
            case "additionalProperties" | "unevaluatedProperties":
                declared_here = self._declared_in(node)
                unexpected = [str(key) for key in getattr(kind, "unexpected", [])][:_MAX_PER_ERROR]
                if kind.name == "unevaluatedProperties":
                    # A declared one that is wrong counts as unevaluated, too.
                    declared = declared_properties(node, self._schema)
                    unexpected = [key for key in unexpected if key not in declared]
                return [self._unknown(path, key, declared_here) for key in unexpected]
            case "type":
                return [self._mistyped(path, [str(name) for name in getattr(kind, "types", [])])]
            case "anyOf" | "oneOf":
                if type(kind).__name__.endswith("OneOfMultipleValid"):
                    return [_problem(path, "value", f"{where} fits more than one of the alternatives")]
                return self._alternatives(error, node, path, depth)
            case "enum" | "const":
                options = node.get("enum", [node["const"]] if "const" in node else [])
                return [self._not_an_option(path, options if isinstance(options, list) else [])]
            case "options":
                return [self._not_an_option(path, list(getattr(kind, "options", ())))]
            case "minProperties" | "maxProperties" if declared_properties(node, self._schema):
                text = self._wrong_number(where, node, declared_properties(node, self._schema))
            # What is forbidden cannot be named without quoting the value.
            case "not" | "falseSchema":
                text = f"{where} is not allowed here"
            case "contains" if isinstance(searched := node.get("contains"), dict):
                options = searched.get("enum", [searched["const"]] if "const" in searched else None)
                what = _options(options) if isinstance(options, list) and options else "an item of another kind"
                text = f"{where} has to contain {'one of ' if what.startswith('[') else ''}{what}"
            case "alternatives" | "whole":
                text = f"{where} {error.message}"
            case _:
                text = f"{where}: {self._in_other_names(error.message)}"
        return [_problem(path, "value", text)]

    def _shown(self, path: JsonPath) -> str:
        return format_path(path, self._names)

    def _in_other_names(self, message: str) -> str:
        """Return a message of the validator with the names that the reader was shown."""
        for name, other in self._names.items():
            quoted = schemas.compact_json(name)
            message = message.replace(quoted, schemas.compact_json(other)) if quoted in message else message
        return message

    def _mistyped(self, path: JsonPath, kinds: list[str]) -> ArgumentProblem:
        value = value_at(self._arguments, path)
        sent = "nothing" if value is MISSING else describe_type(value)
        return _problem(path, "type", f"{self._shown(path)} is declared as {' or '.join(kinds)}, you sent {sent}")

    def _declared_in(self, node: dict[str, Any]) -> Collection[str]:
        """Return the names that a schema declares, as the reader was shown them."""
        known = self._declared.get(id(node))
        if known is None:
            declared = declared_properties(node, self._schema)
            known = [self._names.get(name, name) for name in declared]
            if node:  # nothing else is part of the schema, and stays where it is
                self._declared[id(node)] = known
        return known

    def _unknown(self, path: JsonPath, key: str, known: Collection[str]) -> ArgumentProblem:
        near = self._suggester.suggest(key, known)
        text = f"{self._shown((*path, key))} is not a parameter{_hint(near)}"
        return replace(_problem((*path, key), "unknown", text), near=near)

    def _wrong_number(self, where: str, node: dict[str, Any], known: Iterable[str]) -> str:
        least, most = node.get("minProperties", 0), node.get("maxProperties")
        count = f"exactly {least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        names = ", ".join(self._names.get(name, name) for name in [*known][:_MAX_OPTIONS])
        return f"{where} takes {count} of: {names}"

    def _not_an_option(self, path: JsonPath, options: list[Any]) -> ArgumentProblem:
        value = value_at(self._arguments, path)
        if not options:
            return _problem(path, "value", f"{self._shown(path)} is not allowed here")
        text = f"{self._shown(path)} must be {'one of ' if len(options) != 1 else ''}{_options(options)}"
        # One more than are compared, so that a longer list is not compared at all.
        words = [option for option in options[: _MAX_COMPARED_NAMES + 1] if isinstance(option, str)]
        # The suggestion is an option of the schema; the value itself may be a secret and is not quoted.
        hint = _hint(self._suggester.suggest(value, words)) if isinstance(value, str) and len(options) > 1 else ""
        return _problem(path, "value", excerpt(text, _MAX_MESSAGE - len(hint)) + hint)

    def _alternatives(
        self, error: jsonschema_rs.ValidationError, node: dict[str, Any], path: JsonPath, depth: int
    ) -> list[ArgumentProblem]:
        """Return the problems of the one alternative that was clearly meant, else the types that would be accepted."""
        branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", None) or []
        flat = _problem(path, "value", f"{self._shown(path)} fits none of the alternatives")
        if depth >= _MAX_ALTERNATIVE_DEPTH or self._worded > _MAX_WORDED:
            return [flat]
        found = [
            [problem for inner in branch[:_MAX_PER_ERROR] for problem in self.problems_of(inner, depth + 1)]
            for branch in branches[:_MAX_OPTIONS]
        ]
        meant = [
            problems
            for problems in found
            if not any(problem.kind == "type" and problem.path == path for problem in problems)
        ]
        if not meant:
            return [self._mistyped(path, _declared_types(branches))]
        if len(meant) > 1:
            # A wrong constant marks an alternative that was not meant: `{"kind": "circle"}` is no square with errors.
            unmarked = [problems for problems in meant if not any(problem.kind == "value" for problem in problems)]
            meant = unmarked if len(unmarked) == 1 else meant
        if len(meant) == 1:
            return meant[0]
        return self._by_what_they_say(node.get(error.kind.name), found, path) or [self._lacking(path, found) or flat]

    def _lacking(self, path: JsonPath, found: list[list[ArgumentProblem]]) -> ArgumentProblem | None:
        """Return which members are needed, if alternatives demand nothing else, and that is a short sentence."""
        needed = [[str(one.path[-1]) for one in problems if one.kind == "missing"] for problems in found]
        if not all(needed) or max(len(found), *map(len, found)) > _MAX_NEEDED:
            return None
        if any(one.kind != "missing" or one.path[:-1] != path for problems in found for one in problems):
            return None
        shown = dict.fromkeys(" and ".join(self._names.get(name, name) for name in names) for names in needed)
        either = " or ".join(shown)
        return _problem(path, "value", f"{self._shown(path)} needs {either}" if path else f"{either} is required")

    def _by_what_they_say(
        self, schemas_of: Any, found: list[list[ArgumentProblem]], path: JsonPath
    ) -> list[ArgumentProblem]:
        """Return the problems of the alternative that constants and names tell, or of the constant itself."""
        if not isinstance(schemas_of, list):
            return []
        meant = Alternatives(schemas_of, self._schema).meant_by(value_at(self._arguments, path))
        if isinstance(meant, MissingMark):
            missing = (*path, meant.name)
            return [_problem(missing, "missing", f"{self._shown(missing)} is required")]
        if isinstance(meant, WrongOption):
            return [self._not_an_option((*path, *meant.path), list(meant.options))]
        return found[meant.index] if isinstance(meant, Alternative) and meant.index < len(found) else []


def _problem(path: JsonPath, kind: Literal["missing", "unknown", "type", "value"], text: str) -> ArgumentProblem:
    return ArgumentProblem(path=path, kind=kind, message=excerpt(text, _MAX_MESSAGE))


def _options(options: list[Any]) -> str:
    """Return as many options as there is room for, and how many more there are."""
    texts: list[str] = []
    room = _MAX_OPTION_TEXT
    for option in options[:_MAX_OPTIONS]:
        text = schemas.compact_json(option)
        room -= len(text) + 1
        if room < 0 and texts:
            break
        texts.append(text)
    more = len(options) - len(texts)
    if len(options) == 1:
        return texts[0]
    return f"[{','.join(texts)}]" + (f" and {more:,} more" if more else "")


def _hint(name: str | None) -> str:
    return f"; did you mean {excerpt(name, MAX_SHOWN_KEY)}?" if name is not None else ""


def _declared_types(branches: list[list[jsonschema_rs.ValidationError]]) -> list[str]:
    """Return the types that alternatives declare, nested ones included, each once."""
    kinds: dict[str, None] = {}
    # Reversed, since they are taken from the end: types are listed in the order of the schema.
    pending = [error for branch in reversed(branches[:_MAX_OPTIONS]) for error in branch[:_MAX_PER_ERROR]]
    for _error in range(_MAX_TYPE_ERRORS):
        if not pending:
            break
        error = pending.pop()
        if error.kind.name == "type":
            kinds.update(dict.fromkeys(str(name) for name in getattr(error.kind, "types", [])))
        elif error.kind.name in ("anyOf", "oneOf"):
            inner = getattr(error.kind, "context", None) or []
            pending += [nested for branch in reversed(inner) for nested in branch]
    return list(kinds) or ["something else"]
