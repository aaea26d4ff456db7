"""The base of every section of the file: its keys, validation errors, and suggestions for misspelt keys."""

from __future__ import annotations

import ast
import inspect
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


def fault(what: str, expected: str, *, key: str | None = None) -> PydanticCustomError:
    """A validation error with what is wrong, what is expected, and the key; the loader adds file and path."""
    context = {"what": what, "expected": expected, "key": key}
    return PydanticCustomError("typegate", "{what}; expected {expected}", context)


def suggestion(word: str, known: list[str]) -> str:
    """What to expect instead of `word`: the most similar known word first, if any is similar."""
    close = _close(word, {name.casefold().replace("_", ""): name for name in known})
    listed = ", ".join(sorted(known))
    return f"{close} (did you mean it?), or another of: {listed}" if close else f"one of: {listed}"


def _meant(word: str, known: list[str]) -> str:
    close = _close(word, {name.casefold().replace("_", ""): name for name in known})
    return f" (did you mean {close}?)" if close else ""


def _close(word: str, folded: dict[str, str]) -> str | None:
    # 0.6 is the default of difflib: one or two wrong letters in a usual key.
    close = get_close_matches(word.casefold().replace("_", "").replace("-", ""), folded, n=1)
    return folded[close[0]] if close else None


def not_boolean(value: object) -> object:
    """Refuse true and false where a number is wanted."""
    # Pydantic would read true as 1, and nobody who writes `callTimeout: true` means one second.
    if isinstance(value, bool):
        raise fault("is a boolean", "a number")
    return value


def is_http_url(url: str) -> bool:
    """Whether this is an absolute http or https URL."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # as for a port that is no number
        return False
    # urlsplit removes some whitespace silently, and a client would then send something else than was checked.
    return sound and not any(c.isspace() for c in url)


# Of an object that is meant for another place all keys are unknown.
_MAX_UNKNOWN: Final = 8
# At most a day: more is milliseconds written where seconds are meant.
Seconds = Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(not_boolean)]


def as_text(value: object) -> object:
    """Return a number or a boolean as JavaScript writes it into a text, as hosts do; other values as they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(int(value)) if value == value // 1 else str(value)
    return value


def _texts(value: object) -> object:
    return [as_text(one) for one in value] if isinstance(value, list) else value


# What hosts put into variables, headers and arguments: `"PORT": 3000` is the text 3000.
_SCALAR: Final = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]
Text = Annotated[str, BeforeValidator(as_text), WithJsonSchema({"anyOf": _SCALAR})]
OptionalText = Annotated[str | None, BeforeValidator(as_text), WithJsonSchema({"anyOf": [*_SCALAR, {"type": "null"}]})]
Texts = Annotated[list[str], BeforeValidator(_texts), WithJsonSchema({"type": "array", "items": {"anyOf": _SCALAR}})]
# Required text. Absent it is empty, so that the check of the type reports what it expects, instead of pydantic.
WrittenText = Annotated[str, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]


class Section(BaseModel):
    """A section of our own: an unknown key is an error with a suggestion, and null means absent.

    What stands below a key describes it in the JSON Schema, and so in editors; see `describe`.

    Attributes:
        takes_null: Whether null is a value like others here, for keys that say what it means.
    """

    takes_null: ClassVar[bool] = False

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        # Only what is used is built: a host waits for its first answer, and most files have few sections.
        defer_build=True,
        # Values may be credentials, and errors are printed and logged.
        hide_input_in_errors=True,
    )

    @classmethod
    def keys(cls) -> list[str]:
        """The keys as they are written in the file."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        # Before pydantic's own check of extra keys, which knows no suggestion.
        if not isinstance(data, dict):
            return data
        if cls.model_config.get("extra") == "forbid":
            known = {*cls.keys(), *cls.model_fields}
            if unknown := [str(key) for key in data if key not in known]:
                first, *others = unknown
                too = "".join(f"; {key} is unknown too{_meant(key, cls.keys())}" for key in others[:_MAX_UNKNOWN])
                error = fault("unknown key", suggestion(first, cls.keys()) + too, key=first)
                raise _with_others(error, cls, {key: value for key, value in data.items() if key in known})
        return data if cls.takes_null else {key: value for key, value in data.items() if value is not None}


def _with_others(
    error: PydanticCustomError, section: type[Section], known: dict[str, Any]
) -> PydanticCustomError | ValidationError:
    """Return an error with those of the keys that are known: whoever mends a file sees all of its faults at once."""
    try:
        section.model_validate(known)
    except ValidationError as others:
        rest = [
            InitErrorDetails(type=_again(one), loc=one["loc"], input=one.get("input"), ctx=one.get("ctx", {}))
            # What is missing, or is said of the whole section, may be what the unknown key was meant to be.
            for one in others.errors(include_url=False)
            if one["loc"] and one["type"] != "missing" and "is missing" not in one["msg"]
        ]
        return ValidationError.from_exception_data(section.__name__, [InitErrorDetails(type=error, input=None), *rest])
    return error


def _again(error: ErrorDetails) -> str | PydanticCustomError:
    if error["type"] != "typegate":
        return error["type"]
    context = error["ctx"]
    return fault(context["what"], context["expected"], key=context["key"])


SectionT = TypeVar("SectionT", bound=Section)


def absent(section: type[SectionT]) -> SectionT:
    """The default of a section that may be absent: every key as if it were."""
    # Not the model itself: to make one of those would build its validator.
    default: SectionT = Field(default_factory=section.model_construct)
    return default


def add_descriptions(schema: dict[str, Any], root: type[Section] | None = None) -> None:
    """Put what stands below the keys of sections into a schema that was made of some; the sections stay as they are.

    Not by pydantic's own option, which would read every source at every start; nor by changing the models, which takes
    long while others may be using them.

    Args:
        schema: Of `root`, or of something that has sections in it.
        root: The section whose schema it is.
    """
    sections = {each.__name__: each for each in _all_of(Section)}
    for part in (schema, *schema.get("$defs", {}).values()):
        section = root if part is schema and root is not None else sections.get(part.get("title", ""))
        # The schema of an entry has the keys of every type of server.
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
    found: dict[str, str] = {}
    [made] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(made, ast.ClassDef)
    for field, below in pairwise(made.body):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field, ast.AnnAssign)
            assert isinstance(field.target, ast.Name)
            if field.target.id in model.model_fields and isinstance(below.value.value, str):
                found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
