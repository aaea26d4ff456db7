"""JSON on the wire: bytes to values and back, with no value changed on the way."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

import orjson

# orjson turns integers beyond 64 bits into floats: a run of 19 digits is where that can begin. Looking for
# nineteen noughts where every digit is one takes a tenth of the time of a pattern.
_DIGITS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER: Final = b"0" * 19


class MalformedJson(ValueError):
    """The bytes are no JSON, or nested too deeply to be held."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond every number")  # it could only leave as null
    return value


def _loads_slowly(raw: bytes) -> Any:
    return json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Parse one JSON text; integers of any size and lone surrogates survive.

    Raises:
        MalformedJson: Not JSON, too deep, or with a number that no float can hold.
    """
    raw = bytes(data)
    try:
        if _LONG_NUMBER not in raw.translate(_DIGITS):
            return orjson.loads(raw)
        return _loads_slowly(raw)
    except ValueError as error:
        if "surrogate" not in str(error):
            raise MalformedJson(str(error)) from None
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    try:
        return _loads_slowly(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(str(error)) from None


def dumps(value: Any) -> bytes:
    """Serialise a JSON value compactly.

    Raises:
        MalformedJson: Nested too deeply, or not a JSON value.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedJson(str(error) or "nested too deeply") from None
