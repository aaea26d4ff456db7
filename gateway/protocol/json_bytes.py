"""Convert between JSON text and values without changing any value.

Parts of large messages that the gateway only forwards stay JSON text, as `UnparsedJson`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec
import orjson

from registry.schema.packed_definition import PackedDefinition, unpacked

SPLICED_BYTES: Final = 64 * 1024
"""Responses of at least this size are not parsed completely unless their content is needed."""
_PARSED_BYTES: Final = 16 * 1024
# A `_meta` with more commas stays unparsed, because parsing it would take more than 10 ms. Its size does not matter: it
# may contain large texts, which are parsed quickly.
MAX_META_COMMAS: Final = 50_000
_DATA_URL: Final = b'"data:'
# Number of values to free in one step. Freeing a value of several kilobytes blocks other threads for about 1 µs.
_FREED_AT_ONCE: Final = 100


# Bytes of memory for each character or token of a JSON text, for its parsed value and the text itself, measured with
# CPython 3.11 to 3.13. A string takes four bytes per character if any of its characters is outside the basic
# multilingual plane. An empty object or list takes 64 to 88 bytes.
BYTES_OF_CHARACTER: Final = 5
_BYTES_OF_ASCII: Final = 2
_BYTES_OF_CONTAINER: Final = 88
_BYTES_OF_MEMBER: Final = 16
_BYTES_OF_QUOTE: Final = 16


READ_LATER: Final = frozenset(
    {"tools/call", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tasks/result"}
)
"""Methods whose large responses are not parsed on arrival: they are forwarded, or parsed item by item later."""
Pieces = tuple[bytes | memoryview, ...]
"""One JSON text in several buffers, so that large parts do not have to be copied."""


class MalformedJson(ValueError):
    """The bytes are not JSON, or are nested too deeply."""


class UnparsedJson:
    """The JSON text of a part of a value. `dumps` inserts the text unchanged."""

    __slots__ = ("text",)

    def __init__(self, text: bytes | memoryview) -> None:
        self.text = text


class _Answer(msgspec.Struct):
    id: int | float | str
    result: dict[str, msgspec.Raw]
    jsonrpc: str = ""


class _Item(msgspec.Struct):
    type: Any = None


# msgspec is the only fast parser that preserves integers of any size.
_parse: Final = msgspec.json.Decoder().decode
_parse_answer: Final = msgspec.json.Decoder(_Answer).decode
_split_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_split_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_parse_items: Final = msgspec.json.Decoder(list[_Item | None]).decode


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is out of range")  # infinity would be serialized as null
    return value


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Parse a JSON text, preserving integers of any size and lone surrogates.

    Raises:
        MalformedJson: The text is not JSON, is nested too deeply, or contains a number beyond the range of a float.
    """
    try:
        return _parse(data)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except ValueError as error:
        raw = bytes(data)
        if not isinstance(error, UnicodeDecodeError) and b"\\u" not in raw:
            raise MalformedJson(str(error)) from None
    # The text may contain a lone surrogate, which only the slow parser accepts.
    try:
        return json.loads(raw.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(str(error)) from None


def loads_answer(data: bytes, is_passed_on: Callable[[object], bool] = lambda request_id: True) -> Any:
    """Parse a response. If it is large, return the large members of its result as `UnparsedJson`.

    The unparsed members have been checked: they are valid JSON without line breaks, so any transport can forward them.

    Args:
        is_passed_on: Takes the request id, and returns whether the result is forwarded without being examined. If not,
            the whole response is parsed.

    Raises:
        MalformedJson: As for `loads`.
    """
    if len(data) < SPLICED_BYTES or b"\n" in data or b"\r" in data or not _is_utf8(data):
        return loads(data)
    try:
        answer = _parse_answer(data)
    except (ValueError, RecursionError):
        return loads(data)
    if not is_passed_on(answer.id):
        return loads(data)
    result: dict[str, Any] = {}
    for name, raw in answer.result.items():
        part = memoryview(raw)
        small = len(part) < _PARSED_BYTES or (name == "_meta" and bytes(part).count(b",") <= MAX_META_COMMAS)
        result[name] = loads(part) if small else UnparsedJson(part)
    return {"jsonrpc": answer.jsonrpc, "id": answer.id, "result": result}


def parse_members(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object with every `UnparsedJson` member parsed; the same object if there is none.

    Raises:
        MalformedJson: A member is nested too deeply.
    """
    if UnparsedJson not in map(type, value.values()):
        return value
    return {name: loads(member.text) if type(member) is UnparsedJson else member for name, member in value.items()}


def items_of(value: UnparsedJson) -> Any:
    """Split a list into its items, each as `UnparsedJson` with its own copy of the text. Parse a value of another type.

    Raises:
        MalformedJson: As for `loads`.
    """
    try:
        return [UnparsedJson(bytes(item)) for item in _split_items(value.text)]
    except (ValueError, RecursionError):
        return loads(value.text)


def outlined_items(value: UnparsedJson) -> list[Any]:
    """Parse the items of a list, with an empty string in place of each large string that needs no repair.

    Large strings are base64, which needs repair if it is a data URL or uses the URL-safe alphabet (`-` and `_`).

    Raises:
        MalformedJson: As for `loads`.
    """
    try:
        return [_outline(item) for item in _split_items(value.text)]
    except (ValueError, RecursionError):
        whole_value = loads(value.text)
        return whole_value if isinstance(whole_value, list) else [whole_value]


def _outline(raw: msgspec.Raw | memoryview) -> Any:
    text = bytes(raw)
    if len(text) < _PARSED_BYTES:
        return loads(text)
    if text[:1] == b'"' and not text.startswith(_DATA_URL) and not (b"-" in text or b"_" in text):
        return ""
    if text[:1] == b"{":
        return {name: _outline(member) for name, member in _split_members(text).items()}
    return loads(text)


def unparsed_bytes(value: dict[str, Any]) -> int:
    """Return the size of the unparsed members of an object."""
    return sum(len(member.text) for member in value.values() if type(member) is UnparsedJson)


def has_item(items: Any, kind: str) -> bool:
    """Return whether a list, parsed or not, contains an object of this `type`.

    Raises:
        MalformedJson: The list is unparsed and cannot be parsed.
    """
    if type(items) is UnparsedJson:
        try:
            return any(item is not None and item.type == kind for item in _parse_items(items.text))
        except (ValueError, RecursionError):
            items = loads(items.text)
    return isinstance(items, list) and any(isinstance(item, dict) and item.get("type") == kind for item in items)


def parsed_bytes(text: bytes) -> int:
    """Return an upper estimate of the bytes of memory that a JSON text and its parsed values take."""
    ascii_only = text.isascii() and b"\\u" not in text
    return (
        (_BYTES_OF_ASCII if ascii_only else BYTES_OF_CHARACTER) * len(text)
        + _BYTES_OF_CONTAINER * (text.count(b"{") + text.count(b"["))
        + _BYTES_OF_MEMBER * text.count(b",")
        + _BYTES_OF_QUOTE * text.count(b'"')
    )


def dumps(value: Any) -> bytes:
    """Serialize a JSON value compactly.

    Raises:
        MalformedJson: The value is nested too deeply or cannot be represented in JSON.
    """
    try:
        return orjson.dumps(value, _encode_raw)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_to_plain).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedJson(str(error) or "nested too deeply") from None


def parsed(value: Any) -> Any:
    """Return the value, parsed if it is `UnparsedJson`.

    Raises:
        MalformedJson: As for `loads`.
    """
    return loads(value.text) if type(value) is UnparsedJson else value


def unparsed_each(items: list[Any]) -> list[Any]:
    """Return the items of a list as `UnparsedJson`, and empty the list. Items that cannot be serialized are unchanged.

    A JSON text takes a third of the memory of its parsed value, and does not fragment the memory.
    """
    unparsed: list[Any] = []
    items.reverse()
    while items:
        # Free items in batches, because freeing all of them at once would block other threads.
        part = items[-_FREED_AT_ONCE:]
        del items[-_FREED_AT_ONCE:]
        unparsed += map(_to_unparsed, reversed(part))
    return unparsed


def _to_unparsed(value: Any) -> Any:
    if type(value) is UnparsedJson:
        return value
    try:
        return UnparsedJson(fitted(dumps(value)))
    except MalformedJson:
        return value  # serializing the value later reports the error


def fitted(text: bytes) -> bytes:
    """Return a copy that occupies only its own size in memory. A text from `dumps` can occupy eight times its size."""
    return memoryview(text).tobytes()


def pieces(value: dict[str, Any]) -> Pieces:
    """Serialize an object like `dumps`, but into several buffers, so that `UnparsedJson` members are not copied."""
    if UnparsedJson not in map(type, value.values()):
        return (dumps(value),)
    buffers: list[bytes | memoryview] = []
    before = b"{"
    for name, member in value.items():
        buffers.append(before + dumps(name) + b":")
        buffers.append(member.text if type(member) is UnparsedJson else dumps(member))
        before = b","
    return (*buffers, b"}")


def _encode_raw(value: object) -> Any:
    if type(value) is UnparsedJson:
        return orjson.Fragment(bytes(value.text))
    if type(value) is PackedDefinition:
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


def _to_plain(value: object) -> Any:
    return loads(value.text) if type(value) is UnparsedJson else unpacked(value)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
