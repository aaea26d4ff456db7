"""JSON on the wire: bytes to values and back, with no value changed on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Set
from typing import Any, Final, NoReturn

import msgspec
import orjson

from registry.schema.packed_definition import PackedDefinition, unpacked

SPLICED_BYTES: Final = 64 * 1024
"""Answers from this size on are not parsed whole where nobody has to look inside."""
_PARSED_BYTES: Final = 16 * 1024
_DATA_URL: Final = b'"data:'
# Each value of some kilobytes holds up other threads for a microsecond as it is freed.
_FREED_AT_ONCE: Final = 100


# Measured in CPython 3.11 to 3.13, with the text itself. A string takes four times its length where one character of
# it is beyond the basic plane; an object or a list takes 64 to 88 bytes before its members.
BYTES_OF_CHARACTER: Final = 5
_BYTES_OF_ASCII: Final = 2
_BYTES_OF_CONTAINER: Final = 88
_BYTES_OF_MEMBER: Final = 16
_BYTES_OF_QUOTE: Final = 16


READ_LATER: Final = frozenset(
    {"tools/call", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tasks/result"}
)
"""Methods whose large answers are for the most part not looked into as they come: passed on, or looked at in parts."""
Pieces = tuple[bytes | memoryview, ...]
"""One JSON text, cut where that was convenient."""


class MalformedJson(ValueError):
    """The bytes are no JSON, or nested too deeply to be held."""


class Unparsed:
    """A JSON text that stands in a value as it came; `dumps` puts it where it belongs."""

    __slots__ = ("text",)

    def __init__(self, text: bytes | memoryview) -> None:
        self.text = text


class PassedOn:
    """A list that stands in a value and has left already, all but its end; see `pieces_after`.

    Attributes:
        types: The values of `type` in its items.
        rest: Of its text, what has not left, without the last bracket.
    """

    __slots__ = ("rest", "types")

    def __init__(self, types: Set[str], rest: bytes = b"") -> None:
        self.types = types
        self.rest = rest

    def change_rest(self, change: Callable[[str], str]) -> None:
        """Change the text of what has not left."""
        self.rest = change(self.rest.decode()).encode()

    def add(self, item: Any) -> None:
        """Let another item follow; there is one before it."""
        self.rest += b"," + dumps(item)


class _Answer(msgspec.Struct):
    id: int | float | str
    result: dict[str, msgspec.Raw]
    jsonrpc: str = ""


class _Item(msgspec.Struct):
    type: Any = None


# The one parser here that keeps integers of any size and is as quick as any.
_parse: Final = msgspec.json.Decoder().decode
_parse_answer: Final = msgspec.json.Decoder(_Answer).decode
_take_apart: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_take_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_parse_items: Final = msgspec.json.Decoder(list[_Item | None]).decode


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond every number")  # it could only leave as null
    return value


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Parse one JSON text; integers of any size and lone surrogates survive.

    Raises:
        MalformedJson: Not JSON, too deep, or with a number that no float can hold.
    """
    try:
        return _parse(data)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except ValueError as error:
        raw = bytes(data)
        if not isinstance(error, UnicodeDecodeError) and b"\\u" not in raw:
            raise MalformedJson(str(error)) from None
    # A surrogate that stands alone, perhaps: the slow parser holds one.
    try:
        return json.loads(raw.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(str(error)) from None


def loads_answer(data: bytes, is_passed_on: Callable[[object], bool] = lambda request_id: True) -> Any:
    """Parse an answer that is read later: where it is large, the large members of its result stay `Unparsed`.

    They are checked to be JSON, and hold no line break, so that they fit on any wire.

    Args:
        data: The text.
        is_passed_on: Tells of the request with this id whether nobody has to look inside its result.

    Raises:
        MalformedJson: As `loads`.
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
        small = len(part) < _PARSED_BYTES or name == "_meta"
        result[name] = loads(part) if small else Unparsed(part)
    return {"jsonrpc": answer.jsonrpc, "id": answer.id, "result": result}


def checked_items(text: bytes) -> list[Any]:
    """The items of a list, of which only the text is looked at: it is JSON.

    Raises:
        MalformedJson: It is not, or is no list.
    """
    try:
        if not text.isascii():
            text.decode()
        return _take_apart(text)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except ValueError as error:
        if b"\\u" not in text:
            raise MalformedJson(str(error)) from None
    # As in `loads`.
    found = loads(text)
    if type(found) is not list:
        raise MalformedJson("no list")
    return found


def whole(value: dict[str, Any]) -> dict[str, Any]:
    """The same object with every member parsed; the very object where all are.

    Raises:
        MalformedJson: A member is nested too deeply.
    """
    if Unparsed not in map(type, value.values()):
        return value
    return {name: loads(one.text) if type(one) is Unparsed else one for name, one in value.items()}


def items_of(value: Unparsed) -> Any:
    """The items of a list, each `Unparsed` and with a text of its own; of another value this itself.

    Raises:
        MalformedJson: As `loads`.
    """
    try:
        return [Unparsed(bytes(item)) for item in _take_apart(value.text)]
    except (ValueError, RecursionError):
        return loads(value.text)


def outlined_items(value: Unparsed) -> list[Any]:
    """Return the items of a list, with an empty text in place of each text that is large and says what it is.

    Raises:
        MalformedJson: As `loads`.
    """
    try:
        return [_outlined(item) for item in _take_apart(value.text)]
    except (ValueError, RecursionError):
        found = loads(value.text)
        return found if isinstance(found, list) else [found]


def _outlined(raw: msgspec.Raw | memoryview) -> Any:
    text = bytes(raw)
    if len(text) < _PARSED_BYTES:
        return loads(text)
    if text[:1] == b'"' and not text.startswith(_DATA_URL) and not (b"-" in text or b"_" in text):
        return ""
    if text[:1] == b"{":
        return {name: _outlined(member) for name, member in _take_members(text).items()}
    return loads(text)


def has_item(items: Any, kind: str) -> bool:
    """Whether a list, parsed or not, holds an object of this `type`.

    Raises:
        MalformedJson: It is not parsed, and cannot be.
    """
    if type(items) is PassedOn:
        return kind in items.types
    if type(items) is Unparsed:
        try:
            return any(item is not None and item.type == kind for item in _parse_items(items.text))
        except (ValueError, RecursionError):
            items = loads(items.text)
    return isinstance(items, list) and any(isinstance(item, dict) and item.get("type") == kind for item in items)


def parsed_bytes(text: bytes) -> int:
    """Estimate the memory that a JSON text and its values take, from above."""
    ascii_only = text.isascii() and b"\\u" not in text
    return (
        (_BYTES_OF_ASCII if ascii_only else BYTES_OF_CHARACTER) * len(text)
        + _BYTES_OF_CONTAINER * (text.count(b"{") + text.count(b"["))
        + _BYTES_OF_MEMBER * text.count(b",")
        + _BYTES_OF_QUOTE * text.count(b'"')
    )


def dumps(value: Any) -> bytes:
    """Serialise a JSON value compactly.

    Raises:
        MalformedJson: Nested too deeply, or not a JSON value.
    """
    try:
        return orjson.dumps(value, _spliced)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_parsed).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedJson(str(error) or "nested too deeply") from None


def parsed(value: Any) -> Any:
    """The value itself, or of one that is `Unparsed` what its text says.

    Raises:
        MalformedJson: As `loads`.
    """
    return loads(value.text) if type(value) is Unparsed else value


def unparsed_each(items: list[Any]) -> list[Any]:
    """Use up a long list: its items as `Unparsed`, or themselves where they are nested too deeply to be written.

    A text takes a third of the memory of what it says, and leaves no holes between small objects that stay.
    """
    found: list[Any] = []
    items.reverse()
    while items:
        # Some at a time: to free all at once would hold up other threads.
        part = items[-_FREED_AT_ONCE:]
        del items[-_FREED_AT_ONCE:]
        found += map(_unparsed, reversed(part))
    return found


def _unparsed(value: Any) -> Any:
    if type(value) is Unparsed:
        return value
    try:
        return Unparsed(fitted(dumps(value)))
    except MalformedJson:
        return value  # whoever looks at it is told so


def fitted(text: bytes) -> bytes:
    """The same text, for who keeps it: as `dumps` makes it, a long one may take eight times its size."""
    return memoryview(text).tobytes()


def pieces(value: dict[str, Any]) -> Pieces:
    """As `dumps`, in pieces: members that are `Unparsed` stand alone and were not copied."""
    if Unparsed not in map(type, value.values()):
        return (dumps(value),)
    found: list[bytes | memoryview] = []
    before = b"{"
    for name, member in value.items():
        found.append(before + dumps(name) + b":")
        found.append(member.text if type(member) is Unparsed else dumps(member))
        before = b","
    return (*found, b"}")


def pieces_after(value: dict[str, Any], name: str) -> Pieces:
    """The rest of an object, of which this member was the first, is `PassedOn` and has left.

    The pieces are what follows in the same text.
    """
    sent = value[name]
    others = {key: member for key, member in value.items() if key != name}
    first, *more = pieces(others)
    # `{` or `{}` is what an object of its own would begin with.
    after = b"]," + bytes(first[1:]) if others else b"]}"
    return (sent.rest, after, *more)


def _spliced(value: object) -> Any:
    if type(value) is Unparsed:
        return orjson.Fragment(bytes(value.text))
    if type(value) is PackedDefinition:
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _parsed(value: object) -> Any:
    return loads(value.text) if type(value) is Unparsed else unpacked(value)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
