"""The base class of every section of the file: keys, validation errors and suggestions."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from gateway.config.source import join, kind
from gateway.protocol.gateway_errors import ConfigError, combine_errors

# Errors repeat at most this many characters of an unknown key. All known keys are shorter.
_KEY_CHARS: Final = 200

# The relative path that a validator may report, such as `profiles.NAME.groups` or `[0].name`.
_STEPS: Final = re.compile(r"(?:\[\d+\]|[\w*-]+)(?:\.[\w*-]+|\[\d+\])*")


def refusal(error: ValidationError, file: str, *, within: str = "") -> ConfigError:
    """Translate pydantic's errors into a `ConfigError` with a line for each. Values may be secret and are omitted.

    Args:
        error: The errors.
        file: The name of the file in messages.
        within: The key of the validated value, if it is not the whole file.
    """
    problems: list[ConfigError] = []
    for details in error.errors(include_url=False):
        context = details.get("ctx", {})
        path = _path(details["loc"], within)
        if details["type"] == "typegate":
            key = context.get("key")
            path, text = _join_path(path, key) if key else path, f"{context['what']}; expected {context['expected']}"
        else:
            text = _describe_error(details["type"], details["msg"], details.get("input"))
        problems.append(ConfigError(text, file=file, key=path or None))
    return combine_errors(problems)


def _join_path(path: str, key: str) -> str:
    """Return the path of `key`, which may be a relative path itself."""
    key = _shorten_key(key)
    if not _STEPS.fullmatch(key):
        return join(path, key)
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def _path(location: tuple[int | str, ...], within: str) -> str:
    path = within
    for part in location:
        # pydantic adds "[key]" after the key if the key itself is invalid.
        if part != "[key]":
            path = join(path, _shorten_key(part) if isinstance(part, str) else part)
    return path


def _shorten_key(key: str) -> str:
    return key if len(key) <= _KEY_CHARS else f"{key[: _KEY_CHARS - 1]}…"


def _describe_error(code: str, message: str, value: object) -> str:
    expected = {
        "string_type": "text, in quotes",
        "list_type": "a list",
        "dict_type": "an object",
        "model_type": "an object",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "int_type": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "string_too_short": "text that is not empty",
        "too_short": "a list that is not empty" if isinstance(value, list) else "an object that is not empty",
    }.get(code)
    if code == "missing":
        return "is missing; expected a value"
    if expected is None:
        bound = message.removeprefix("Input should be ")
        return f"has a wrong value; expected {'a number ' if bound.startswith(('greater', 'less')) else ''}{bound}"
    what = f"is {kind(value)}" if code.endswith("_type") else "has a wrong value"
    return f"{what}; expected {expected}"


def fault(what: str, expected: str, *, key: str | None = None) -> PydanticCustomError:
    """Return a validation error that says what is wrong and what is expected.

    Args:
        what: The problem, as a predicate of the key: "is not a path".
        expected: The valid form, which the message states after "expected".
        key: The key that has the problem, relative to the validated value. The loader adds the file and the full path.
    """
    context = {"what": what, "expected": expected, "key": key}
    return PydanticCustomError("typegate", "{what}; expected {expected}", context)


def suggestion(word: str, known_words: list[str]) -> str:
    """List the known words for the `expected` part of an error, with the word most similar to `word` first."""
    close = _close(word, {name.casefold().replace("_", ""): name for name in known_words})
    listed = ", ".join(sorted(known_words))
    return f"{close} (did you mean it?), or another of: {listed}" if close else f"one of: {listed}"


def _did_you_mean(word: str, known_words: list[str]) -> str:
    close = _close(word, {name.casefold().replace("_", ""): name for name in known_words})
    return f" (did you mean {close}?)" if close else ""


def _close(word: str, folded: dict[str, str]) -> str | None:
    # The default cutoff of difflib, 0.6, allows one or two wrong letters in a key of usual length.
    close = get_close_matches(word.casefold().replace("_", "").replace("-", ""), folded, n=1)
    return folded[close[0]] if close else None


def not_boolean(value: object) -> object:
    """Reject booleans where a number is expected."""
    # Pydantic would read true as 1, and `callTimeout: true` is not meant as one second.
    if isinstance(value, bool):
        raise fault("is a boolean", "a number")
    return value


def is_http_url(url: str) -> bool:
    """Return true if `url` is an absolute http or https URL."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # for example, the port is not a number
        return False
    # urlsplit silently removes some whitespace, so a client would request another URL than this check has seen.
    return is_valid and not any(c.isspace() for c in url)


# A message names at most this many further unknown keys. In an object in the wrong place, all keys are unknown.
_MAX_UNKNOWN: Final = 8
# Unknown keys are cut to this length, because the search for similar keys takes long for long keys. No known key is
# longer.
_MAX_KEY_CHARS: Final = 256
# The maximum is a day: a larger value was most likely meant as milliseconds.
Seconds = Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(not_boolean)]


def as_text(value: object) -> object:
    """Convert a number or a boolean to text as JavaScript does, since hosts do so; return other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(int(value)) if value == value // 1 else str(value)
    return value


def _texts(value: object) -> object:
    return [as_text(item) for item in value] if isinstance(value, list) else value


# Hosts accept scalars for variables, headers and arguments: `"PORT": 3000` is read as the text 3000.
_SCALAR: Final = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]
Text = Annotated[str, BeforeValidator(as_text), WithJsonSchema({"anyOf": _SCALAR})]
OptionalText = Annotated[str | None, BeforeValidator(as_text), WithJsonSchema({"anyOf": [*_SCALAR, {"type": "null"}]})]
Texts = Annotated[list[str], BeforeValidator(_texts), WithJsonSchema({"type": "array", "items": {"anyOf": _SCALAR}})]
# Required text. The default is empty, so that `check_entry` of the server's type reports a missing value, and not
# pydantic.
WrittenText = Annotated[str, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]


class Section(BaseModel):
    """A section of the configuration: an unknown key is an error with a suggestion, and null means absent.

    The docstrings of fields become descriptions in the JSON Schema; see `add_descriptions`.

    Attributes:
        takes_null: True if null is passed to the fields. By default, a key with the value null counts as absent.
    """

    takes_null: ClassVar[bool] = False

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        # Build validators on first use, to shorten the start: most files use only a few sections.
        defer_build=True,
        # Errors are printed and logged, and values may be credentials.
        hide_input_in_errors=True,
    )

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys as they are written in the file."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        # Runs before pydantic's check of extra keys, which gives no suggestions.
        if not isinstance(data, dict):
            return data
        if cls.model_config.get("extra") == "forbid":
            known_keys = {*cls.keys(), *cls.model_fields}
            if unknown := [str(key)[:_MAX_KEY_CHARS] for key in data if key not in known_keys]:
                first, *further = unknown
                too = "".join(
                    f"; {key} is unknown too{_did_you_mean(key, cls.keys())}" for key in further[:_MAX_UNKNOWN]
                )
                error = fault("unknown key", suggestion(first, cls.keys()) + too, key=first)
                raise _with_others(error, cls, {key: value for key, value in data.items() if key in known_keys})
        return data if cls.takes_null else {key: value for key, value in data.items() if value is not None}


def _with_others(
    error: PydanticCustomError, section: type[Section], known_values: dict[str, Any]
) -> PydanticCustomError | ValidationError:
    """Combine `error` with the errors of the known keys, so that all problems of a file are reported together."""
    try:
        section.model_validate(known_values)
    except ValidationError as invalid:
        further_errors = [
            InitErrorDetails(
                type=_recreate_error(each), loc=each["loc"], input=each.get("input"), ctx=each.get("ctx", {})
            )
            # Skip missing keys and errors of the whole section: a misspelt key may be their cause.
            for each in invalid.errors(include_url=False)
            if each["loc"] and each["type"] != "missing" and "is missing" not in each["msg"]
        ]
        return ValidationError.from_exception_data(
            section.__name__, [InitErrorDetails(type=error, input=None), *further_errors]
        )
    return error


def _recreate_error(error: ErrorDetails) -> str | PydanticCustomError:
    if error["type"] != "typegate":
        return error["type"]
    context = error["ctx"]
    return fault(context["what"], context["expected"], key=context["key"])


SectionT = TypeVar("SectionT", bound=Section)


def default_section(section: type[SectionT]) -> SectionT:
    """Return the default of an optional section: a section in which every key is absent."""
    # Unlike a constructor call, model_construct does not build the validator of the section.
    default: SectionT = Field(default_factory=section.model_construct)
    return default


def add_descriptions(schema: dict[str, Any], root: type[Section] | None = None) -> None:
    """Add the docstrings of fields to a JSON Schema as descriptions.

    Pydantic's `use_attribute_docstrings` is not used: it would parse the source of every model at every start.

    Args:
        schema: The schema of `root`, or a schema with definitions of sections. It is modified.
        root: The section that the top level of the schema describes.
    """
    sections = {each.__name__: each for each in _all_of(Section)}
    for part in (schema, *schema.get("$defs", {}).values()):
        section = root if part is schema and root is not None else sections.get(part.get("title", ""))
        # The schema of a server entry contains the keys of all types, so subclasses are included.
        for each in (*section.mro(), *_all_of(section)) if section is not None else ():
            if not issubclass(each, Section) or each is Section:
                continue
            for name, text in _docstrings_of_fields(each).items():
                key = each.model_fields[name].alias or name
                if (described := part.get("properties", {}).get(key)) is not None:
                    described.setdefault("description", text)


def _all_of(section: type[Section]) -> Iterator[type[Section]]:
    for derived in section.__subclasses__():
        yield from _all_of(derived)
        yield derived


@cache
def _docstrings_of_fields(model: type[BaseModel]) -> dict[str, str]:
    docstrings: dict[str, str] = {}
    [class_node] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(class_node, ast.ClassDef)
    for field, below in pairwise(class_node.body):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field, ast.AnnAssign)
            assert isinstance(field.target, ast.Name)
            if field.target.id in model.model_fields and isinstance(below.value.value, str):
                docstrings[field.target.id] = inspect.cleandoc(below.value.value)
    return docstrings
