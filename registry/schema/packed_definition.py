"""PackedDefinition: the definition of a tool, kept as the JSON that it is and read when somebody looks inside."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson

# Definitions that stay read, of some 5 KB each: the tools that are called within minutes, and more than one answer of
# `find_tools` or one page of an administrator shows. Reading one again takes 5 to 10 µs.
_MAX_OPEN: Final = 512
_NAMED_FIRST: Final = b'{"name":"'

_Loads = Callable[[bytes], dict[str, Any]]
# The one that was read first is at the left.
_open: Final[deque[PackedDefinition]] = deque()


class PackedDefinition(Mapping[str, Any]):
    """The members of a definition; none of them is ever changed in place.

    Of a usual tool the values take three times the memory of the text, in some fifty objects with room between them,
    and hardly any of ten thousand tools is looked into between two listings.

    Attributes:
        name: What the tool is called here; another text than the listed one for one that was renamed.
    """

    __slots__ = ("_loads", "_text", "_value", "name")

    def __init__(self, text: bytes, loads: _Loads, name: str | None) -> None:
        """Keep a text; see `of`.

        Args:
            text: The definition as JSON, under whatever name.
            loads: Reads it.
            name: Its name here; None where it has none that is a text.
        """
        self.name = name
        self._text = text
        self._loads = loads
        self._value: dict[str, Any] | None = None

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> PackedDefinition:
        """Pack a definition: one that is a JSON value, whatever its numbers and texts; the very object if it is packed.

        Raises:
            RecursionError: It is nested far more deeply than what intake admits.
        """
        if isinstance(definition, PackedDefinition):
            return definition
        text, loads = _written(definition)
        name = definition.get("name")
        # As `orjson` leaves it, a text may take eight times its size.
        return cls(memoryview(text).tobytes(), loads, name if isinstance(name, str) else None)

    def renamed(self, name: str) -> PackedDefinition:
        """Return the same definition under another name, with the same text in memory."""
        return PackedDefinition(self._text, self._loads, name)

    @property
    def text(self) -> bytes:
        """The definition as compact JSON, its members in the order in which they were listed."""
        text = self._text
        if text.startswith(_NAMED_FIRST):
            end = text.index(b'"', len(_NAMED_FIRST))
            listed = text[len(_NAMED_FIRST) - 1 : end + 1]
            if b"\\" not in listed:
                shown, _ = _written(self.name)
                return text if shown == listed else _NAMED_FIRST[:-1] + shown + text[end + 1 :]
        return _written(self.read())[0]

    def read(self) -> dict[str, Any]:
        """Return the whole definition, and keep nothing of it: for who looks at thousands of them in turn."""
        value = self._value
        if value is None:
            value = self._loads(self._text)
            if self.name is not None:
                value["name"] = self.name  # in its place
        return value

    def close(self) -> None:
        """Keep nothing but the text."""
        self._value = None

    def may_have(self, member: str) -> bool:
        """Return whether the text has this ASCII word as a name or a value: false is certain, and costs no reading."""
        return b'"%b"' % member.encode() in self._text

    def holds(self, word: str) -> bool:
        """Return whether the text holds this ASCII word anywhere, which costs no reading."""
        return word.encode() in self._text

    def get(self, key: str, default: Any = None) -> Any:
        """Return a member, or something else where there is none."""
        if key == "name" and self.name is not None:
            return self.name
        value = self._value
        return (self._opened() if value is None else value).get(key, default)

    def __getitem__(self, key: str) -> Any:
        if key == "name" and self.name is not None:
            return self.name
        return self._opened()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._opened()

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, PackedDefinition):
            # As they are written: to Python 1 and true are equal too.
            return self.name == other.name and (self._text == other._text or self.text == other.text)
        return self.read() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PackedDefinition({self.read()!r})"

    def _opened(self) -> dict[str, Any]:
        value = self._value
        if value is None:
            value = self._value = self.read()
            _open.append(self)
            if len(_open) > _MAX_OPEN:
                # Several threads may come here at once.
                with suppress(IndexError):
                    _open.popleft().close()
        return value


def members_of(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a definition as plain values, for who looks at many members of thousands."""
    return definition.read() if isinstance(definition, PackedDefinition) else definition


def unpacked(value: object) -> dict[str, Any]:
    """Return the whole of a packed definition, for encoders that do not know it.

    Raises:
        TypeError: It is something else.
    """
    if type(value) is PackedDefinition:
        return value.read()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _written(value: object) -> tuple[bytes, _Loads]:
    """Return a JSON value as a text, and what reads that as it was."""
    try:
        return orjson.dumps(value), orjson.loads
    except TypeError:
        # Integers beyond 64 bits and halves of surrogate pairs, which the quick parser does not read as they were.
        return json.dumps(value, separators=(",", ":")).encode(), json.loads
