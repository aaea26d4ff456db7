"""The base of every section of the file: its keys, validation errors, and suggestions for misspelt keys."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


def fault(what: str, expected: str, *, key: str | None = None) -> PydanticCustomError:
    """A validation error with what is wrong, what is expected, and the key; the loader adds file and path."""
    context = {"what": what, "expected": expected, "key": key}
    return PydanticCustomError("typegate", "{what}; expected {expected}", context)


def suggestion(word: str, known: list[str]) -> str:
    """What to expect instead of `word`: the most similar known word first, if any is similar."""
    folded = {name.casefold().replace("_", ""): name for name in known}
    # 0.6 is the default of difflib: one or two wrong letters in a usual key.
    close = get_close_matches(word.casefold().replace("_", "").replace("-", ""), folded, n=1)
    listed = ", ".join(sorted(known))
    return f"{folded[close[0]]} (did you mean it?), or another of: {listed}" if close else f"one of: {listed}"


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


# At most a day: more is milliseconds written where seconds are meant.
Seconds = Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(not_boolean)]
# Required text. Absent it is empty, so that the check of the type reports what it expects, instead of pydantic.
WrittenText = Annotated[str, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]


class Section(BaseModel):
    """A section of our own: an unknown key is an error with a suggestion, and null means absent."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        # What stands below a key describes it: in the JSON Schema, and so in editors.
        use_attribute_docstrings=True,
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
            for key in data:
                if key not in known:
                    raise fault("unknown key", suggestion(str(key), cls.keys()), key=str(key))
        return {key: value for key, value in data.items() if value is not None}
