"""Turn validation errors into a few problems that a caller can act on, without any argument value."""

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

# Maximum length of a message: enough for a sentence with a path and some options. Twenty messages fit into one result.
_MAX_MESSAGE: Final = 240
# Maximum length of the `enum` options in a message; the path and a suggestion need the remaining characters.
_MAX_OPTION_TEXT: Final = 120
# Maximum number of options or alternatives that are examined; a message has no room for more.
_MAX_OPTIONS: Final = 50
# Comparing two words takes up to 0.1 ms. These limits bound the declared names that an unknown name is compared with,
# the length of a name, and the number of unknown names.
_MAX_COMPARED_NAMES: Final = 64
_MAX_COMPARED_LENGTH: Final = 40
_MAX_COMPARISONS: Final = 5
# Levels of nested alternatives that are examined. Deeper levels are summarized, to keep the message easy to follow.
_MAX_ALTERNATIVE_DEPTH: Final = 4
# Maximum number of undeclared members read from one error, and of errors read from one alternative. At most 20 problems
# are shown anyway.
_MAX_PER_ERROR: Final = 20
# After this many errors, alternatives are summarized instead of examined. At most 20 problems are shown anyway.
_MAX_ERRORS: Final = 600
# A message lists the missing members of each alternative if there are at most this many alternatives, and if each lacks
# at most this many members.
_MAX_NEEDED: Final = 4
# Maximum number of errors that are searched for the types that nested alternatives accept.
_MAX_TYPE_ERRORS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentProblem:
    """One problem of an argument object.

    Attributes:
        path: The path of the member, with the names of the schema. For a missing member, the last step is the missing
            name.
        message: A sentence for the caller, with the names that the caller was shown. It never contains a value that was
            sent.
        near: The declared name that was probably meant by an unknown name, as the caller was shown it.
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
    """Return the problems behind validation errors, without duplicates, missing arguments first.

    Args:
        errors: The errors of the validator.
        arguments: The arguments that were checked.
        schema: The schema that the arguments were checked against.
        names: For each renamed property, the name that the caller was shown.
    """
    reader = _ErrorReader(arguments, schema, names)
    problems = [problem for error in errors for problem in reader.problems_of(error)]
    mistyped = {problem.path for problem in problems if problem.kind == "type"}
    # A value of the wrong type is not a valid option either, but saying so would not help.
    helpful = [problem for problem in problems if problem.kind != "value" or problem.path not in mistyped]
    # List missing arguments first: the call stays invalid until they are added.
    helpful.sort(key=lambda problem: problem.kind != "missing")
    return list(dict.fromkeys(helpful))


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
    """Suggests the declared name that was probably meant by an unknown name. It compares a limited number of names."""

    __slots__ = ("_comparisons", "_indexed_names")

    def __init__(self) -> None:
        self._comparisons = 0
        # Cached for the latest list of names, because all items of an array are compared with the same list.
        self._indexed_names: tuple[Collection[str], dict[str, list[str]], list[str]] | None = None

    def suggest(self, name: str, names: Collection[str]) -> str | None:
        """Return the only name that differs just in case and separators, else the most similar name, else None."""
        if len(name) > MAX_SHOWN_KEY:
            return None  # the message would show only part of the name, so a suggestion would not help
        spellings, candidates = self._index_names(names)
        alike = spellings.get(coercion.normalized_parameter(name), ())
        if len(alike) == 1:
            return alike[0]
        if (
            self._comparisons >= _MAX_COMPARISONS
            or len(candidates) > _MAX_COMPARED_NAMES
            or len(name) > _MAX_COMPARED_LENGTH
        ):
            return None
        self._comparisons += 1
        near = get_close_matches(name, candidates, n=1)
        return near[0] if near else None

    def _index_names(self, names: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Return a mapping from normalized spellings to names, and the list of names short enough to be compared."""
        if self._indexed_names is None or self._indexed_names[0] is not names:
            spellings: dict[str, list[str]] = {}
            for name in names:
                if len(name) <= MAX_SHOWN_KEY:
                    spellings.setdefault(coercion.normalized_parameter(name), []).append(name)
            self._indexed_names = names, spellings, [name for name in names if len(name) <= _MAX_COMPARED_LENGTH]
        return self._indexed_names[1:]


class _ErrorReader:
    """Turns the errors of one argument object into problems."""

    __slots__ = ("_arguments", "_declared", "_error_count", "_names", "_schema", "_suggester")

    def __init__(self, arguments: dict[str, Any], schema: Any, names: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._schema = schema
        self._names = names
        self._suggester = NameSuggester()
        self._declared: dict[int, Collection[str]] = {}
        self._error_count = 0

    def problems_of(self, error: jsonschema_rs.ValidationError, depth: int = 0) -> list[ArgumentProblem]:
        self._error_count += 1
        path: JsonPath = tuple(error.instance_path)
        kind = error.kind
        node = value_at(self._schema, list(error.schema_path)[:-1])
        node = node if isinstance(node, dict) else {}
        where = self._format_path(path)
        match kind.name:
            case "required":
                missing = (*path, str(getattr(kind, "property", "")))
                return [_problem(missing, "missing", f"{self._format_path(missing)} is required")]
            case "additionalProperties" | "unevaluatedProperties":
                declared_here = self._declared_in(node)
                unexpected = [str(key) for key in getattr(kind, "unexpected", [])][:_MAX_PER_ERROR]
                if kind.name == "unevaluatedProperties":
                    # A declared but invalid member counts as unevaluated, too.
                    declared = declared_properties(node, self._schema)
                    unexpected = [key for key in unexpected if key not in declared]
                return [self._unknown_problem(path, key, declared_here) for key in unexpected]
            case "type":
                return [self._type_problem(path, [str(name) for name in getattr(kind, "types", [])])]
            case "anyOf" | "oneOf":
                if type(kind).__name__.endswith("OneOfMultipleValid"):
                    return [_problem(path, "value", f"{where} fits more than one of the alternatives")]
                return self._alternative_problems(error, node, path, depth)
            case "enum" | "const":
                options = node.get("enum", [node["const"]] if "const" in node else [])
                return [self._option_problem(path, options if isinstance(options, list) else [])]
            case "options":
                return [self._option_problem(path, list(getattr(kind, "options", ())))]
            case "minProperties" | "maxProperties" if declared_properties(node, self._schema):
                text = self._describe_member_count(where, node, declared_properties(node, self._schema))
            # A forbidden value cannot be named without quoting it.
            case "not" | "falseSchema":
                text = f"{where} is not allowed here"
            case "contains" if isinstance(searched := node.get("contains"), dict):
                options = searched.get("enum", [searched["const"]] if "const" in searched else None)
                what = _format_options(options) if isinstance(options, list) and options else "an item of another kind"
                text = f"{where} has to contain {'one of ' if what.startswith('[') else ''}{what}"
            case "alternatives" | "whole":
                text = f"{where} {error.message}"
            case _:
                text = f"{where}: {self._in_other_names(error.message)}"
        return [_problem(path, "value", text)]

    def _format_path(self, path: JsonPath) -> str:
        return format_path(path, self._names)

    def _in_other_names(self, message: str) -> str:
        """Replace property names in a validator message with the names that the caller was shown."""
        for name, shown_name in self._names.items():
            quoted = schemas.compact_json(name)
            message = message.replace(quoted, schemas.compact_json(shown_name)) if quoted in message else message
        return message

    def _type_problem(self, path: JsonPath, kinds: list[str]) -> ArgumentProblem:
        value = value_at(self._arguments, path)
        sent = "nothing" if value is MISSING else describe_type(value)
        return _problem(path, "type", f"{self._format_path(path)} is declared as {' or '.join(kinds)}, you sent {sent}")

    def _declared_in(self, node: dict[str, Any]) -> Collection[str]:
        """Return the names that a schema declares, as the caller was shown them."""
        names = self._declared.get(id(node))
        if names is None:
            declared = declared_properties(node, self._schema)
            names = [self._names.get(name, name) for name in declared]
            if node:  # part of the schema, so its identity is stable
                self._declared[id(node)] = names
        return names

    def _unknown_problem(self, path: JsonPath, key: str, declared: Collection[str]) -> ArgumentProblem:
        near = self._suggester.suggest(key, declared)
        text = f"{self._format_path((*path, key))} is not a parameter{_hint(near)}"
        return replace(_problem((*path, key), "unknown", text), near=near)

    def _describe_member_count(self, where: str, node: dict[str, Any], declared: Iterable[str]) -> str:
        least, most = node.get("minProperties", 0), node.get("maxProperties")
        count = f"exactly {least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        names = ", ".join(self._names.get(name, name) for name in [*declared][:_MAX_OPTIONS])
        return f"{where} takes {count} of: {names}"

    def _option_problem(self, path: JsonPath, options: list[Any]) -> ArgumentProblem:
        value = value_at(self._arguments, path)
        if not options:
            return _problem(path, "value", f"{self._format_path(path)} is not allowed here")
        text = f"{self._format_path(path)} must be {'one of ' if len(options) != 1 else ''}{_format_options(options)}"
        # Pass one option more than the limit, so that the suggester recognizes a longer list and does not compare it.
        words = [option for option in options[: _MAX_COMPARED_NAMES + 1] if isinstance(option, str)]
        # The suggestion is an option of the schema; the value itself may be a secret and is not quoted.
        hint = _hint(self._suggester.suggest(value, words)) if isinstance(value, str) and len(options) > 1 else ""
        return _problem(path, "value", excerpt(text, _MAX_MESSAGE - len(hint)) + hint)

    def _alternative_problems(
        self, error: jsonschema_rs.ValidationError, node: dict[str, Any], path: JsonPath, depth: int
    ) -> list[ArgumentProblem]:
        """Return the problems of the alternative that was clearly meant, or one problem that summarizes all of them."""
        branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", None) or []
        flat = _problem(path, "value", f"{self._format_path(path)} fits none of the alternatives")
        if depth >= _MAX_ALTERNATIVE_DEPTH or self._error_count > _MAX_ERRORS:
            return [flat]
        problems_by_branch = [
            [problem for inner in branch[:_MAX_PER_ERROR] for problem in self.problems_of(inner, depth + 1)]
            for branch in branches[:_MAX_OPTIONS]
        ]
        plausible = [
            problems
            for problems in problems_by_branch
            if not any(problem.kind == "type" and problem.path == path for problem in problems)
        ]
        if not plausible:
            return [self._type_problem(path, _declared_types(branches))]
        if len(plausible) > 1:
            # A wrong constant rules out an alternative: `{"kind": "circle"}` is not a square with errors.
            unmarked = [problems for problems in plausible if not any(problem.kind == "value" for problem in problems)]
            plausible = unmarked if len(unmarked) == 1 else plausible
        if len(plausible) == 1:
            return plausible[0]
        return self._problems_of_chosen(node.get(error.kind.name), problems_by_branch, path) or [
            self._needed_members(path, problems_by_branch) or flat
        ]

    def _needed_members(
        self, path: JsonPath, problems_by_branch: list[list[ArgumentProblem]]
    ) -> ArgumentProblem | None:
        """Return one problem that lists the members that each alternative needs; None if anything else is wrong.

        The result is also None if the list would be too long for a sentence.
        """
        needed = [
            [str(problem.path[-1]) for problem in problems if problem.kind == "missing"]
            for problems in problems_by_branch
        ]
        if not all(needed) or max(len(problems_by_branch), *map(len, problems_by_branch)) > _MAX_NEEDED:
            return None
        if any(
            problem.kind != "missing" or problem.path[:-1] != path
            for problems in problems_by_branch
            for problem in problems
        ):
            return None
        combinations = dict.fromkeys(" and ".join(self._names.get(name, name) for name in names) for names in needed)
        either = " or ".join(combinations)
        return _problem(path, "value", f"{self._format_path(path)} needs {either}" if path else f"{either} is required")

    def _problems_of_chosen(
        self, schemas_of: Any, problems_by_branch: list[list[ArgumentProblem]], path: JsonPath
    ) -> list[ArgumentProblem]:
        """Return the problems of the alternative that constants and names select; empty if they do not select one.

        If the constant that would select an alternative is missing or wrong, return that problem.
        """
        if not isinstance(schemas_of, list):
            return []
        choice = Alternatives(schemas_of, self._schema).choose(value_at(self._arguments, path))
        if isinstance(choice, MissingMark):
            missing = (*path, choice.name)
            return [_problem(missing, "missing", f"{self._format_path(missing)} is required")]
        if isinstance(choice, WrongOption):
            return [self._option_problem((*path, *choice.path), list(choice.options))]
        return (
            problems_by_branch[choice.index]
            if isinstance(choice, Alternative) and choice.index < len(problems_by_branch)
            else []
        )


def _problem(path: JsonPath, kind: Literal["missing", "unknown", "type", "value"], text: str) -> ArgumentProblem:
    return ArgumentProblem(path=path, kind=kind, message=excerpt(text, _MAX_MESSAGE))


def _format_options(options: list[Any]) -> str:
    """Return as many options as fit, and how many more there are."""
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
    """Return the types that alternatives declare, including nested ones, without duplicates."""
    kinds: dict[str, None] = {}
    # Reversed, because errors are popped from the end and types should be listed in the order of the schema.
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
