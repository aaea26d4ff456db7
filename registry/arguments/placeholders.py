"""What stands for a text or a number in an example: one that the schema takes where it says which, else its type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from registry.schema.display_text import excerpt

# Of names and addresses that are reserved for examples: RFC 2606, RFC 5737, RFC 3849.
_OF_FORMAT: Final[Mapping[str, str]] = {
    "date": "2030-01-31",
    "date-time": "2030-01-31T09:00:00Z",
    "time": "09:00:00Z",
    "duration": "PT1H",
    "email": "name@example.com",
    "idn-email": "name@example.com",
    "hostname": "www.example.com",
    "idn-hostname": "www.example.com",
    "uri": "https://www.example.com/",
    "url": "https://www.example.com/",
    "iri": "https://www.example.com/",
    "uri-reference": "/path",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-pointer": "/name",
}
_PLAIN: Final = "<string>"
# Of a pattern that is shown, and of a text that is made as long as the schema wants it.
_MAX_SHOWN: Final = 60


def text_placeholder(schema: Mapping[str, Any]) -> str:
    """Return what stands for a text: one of its format or length, or its pattern in words."""
    named = schema.get("format")
    if isinstance(named, str) and named in _OF_FORMAT:
        return _OF_FORMAT[named]
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern:
        return f"<string matching {excerpt(pattern, _MAX_SHOWN)}>"
    least, most = _length(schema.get("minLength"), 0), _length(schema.get("maxLength"), _MAX_SHOWN)
    if least <= len(_PLAIN) <= most:
        return _PLAIN
    if least > _MAX_SHOWN:
        return f"<string of at least {least} characters>"
    return "x" * min(max(least, 1), most)


def number_placeholder(schema: Mapping[str, Any], kind: str) -> Any:
    """Return what stands for a number: one in its range, where that has an end, else its type."""
    low, high = _bound(schema, "minimum", "exclusiveMinimum", 1), _bound(schema, "maximum", "exclusiveMaximum", -1)
    step = _number(schema.get("multipleOf"))
    if low is None and high is None and step is None:
        return f"<{kind}>"
    value = low if low is not None else high if high is not None else 0
    if kind == "number" and low is not None and high is not None and low > high:
        # A range that is narrower than the step beyond an excluded end.
        value = (low - 1 + high + 1) / 2
    if step is not None and step > 0:
        value = (math.ceil(value / step) if low is not None or high is None else math.floor(value / step)) * step
    if kind == "integer":
        return math.ceil(value) if low is not None or high is None else math.floor(value)
    return value


def different(one: Any, schema: Mapping[str, Any], count: int) -> list[Any]:
    """Return items of a list in which none may be there twice, as far as the schema of an item has others to offer."""
    options = schema.get("enum")
    if isinstance(options, list) and options:
        return options[: max(1, count)]
    found = [one]
    step, high = _number(schema.get("multipleOf")) or 1, _bound(schema, "maximum", "exclusiveMaximum", -1)
    for n in range(1, count):
        if isinstance(one, str) and one.endswith(">"):
            found.append(f"{one[:-1]} {n + 1}>")
        elif isinstance(one, int | float) and not isinstance(one, bool):
            # Where there is no room above, there may be below.
            found.append(one - n * step if high is not None and one + n * step > high else one + n * step)
    return found


def _bound(schema: Mapping[str, Any], plain: str, exclusive: str, step: int) -> float | None:
    """Return one end of a range, moved inside by a step where the end itself is excluded."""
    bound, beyond = _number(schema.get(plain)), schema.get(exclusive)
    # In draft 4 the exclusive keyword is a flag beside the bound.
    if beyond is True:
        return bound + step if bound is not None else None
    excluded = _number(beyond)
    if excluded is None:
        return bound
    inside = excluded + step
    return inside if bound is None else max(inside, bound) if step > 0 else min(inside, bound)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Beyond this a float has no fractions, and arithmetic with it is of no use for an example.
    return value if abs(value) < 2**53 else None


def _length(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
