"""What every section of the file has in common: its keys, its faults, its near misses."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


def fault(what: str, expected: str, *, key: str | None = None) -> PydanticCustomError:
    """A validation error that carries our three parts; the loader joins them with file and path."""
    context = {"what": what, "expected": expected, "key": key}
    return PydanticCustomError("typegate", "{what}; expected {expected}", context)


def near(word: str, known: list[str]) -> str:
    """The words to expect instead of `word`: the nearest one first, if any is near."""
    folded = {name.casefold().replace("_", ""): name for name in known}
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
    return sound and not any(c.isspace() for c in url)


# At most a day: whatever takes longer is no wait but a mistake in the unit.
Seconds = Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(not_boolean)]
# Text that has to be there: absent it is empty, so that the model's own check can tell what is expected instead.
WrittenText = Annotated[str, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]


class Section(BaseModel):
    """A section of ours: an unknown key is an error with its near miss; a null is an absent key."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def keys(cls) -> list[str]:
        """The keys as they are written in the file."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if cls.model_config.get("extra") == "forbid":
            known = {*cls.keys(), *cls.model_fields}
            for key in data:
                if key not in known:
                    raise fault("unknown key", near(str(key), cls.keys()), key=str(key))
        return {key: value for key, value in data.items() if value is not None}
