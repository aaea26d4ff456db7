"""Store a tool definition as JSON, and parse it on first use."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson

# Maximum number of parsed definitions in memory, about 5 KB each. Fewer tools are called within a few minutes, returned
# by one `find_tools` call, or shown on one admin page. Parsing a definition again takes 5 to 10 µs.
_MAX_PARSED: Final = 512
_NAMED_FIRST: Final = b'{"name":"'

_Loads = Callable[[bytes], dict[str, Any]]
# The definitions whose parsed value is cached, oldest first.
_parsed: Final[deque[PackedDefinition]] = deque()


class PackedDefinition(Mapping[str, Any]):
    """A tool definition that is parsed on first use. Its members are never changed in place.

    The parsed values of a typical tool are about fifty objects and take three times the memory of the text. Between two
    listings, hardly any of ten thousand tools is read.

    Attributes:
        name: The name under which the gateway shows the tool. After a rename, the text still has the earlier name.
    """

    __slots__ = ("_loads", "_text", "_value", "name")

    def __init__(self, text: bytes, loads: _Loads, name: str | None) -> None:
        """Store a definition; see `PackedDefinition.pack`.

        Args:
            text: The definition as JSON, under any name.
            loads: Parses the text.
            name: The name to show; None if the definition has no name that is a string.
        """
        self.name = name
        self._text = text
        self._loads = loads
        self._value: dict[str, Any] | None = None

    @classmethod
    def pack(cls, definition: Mapping[str, Any]) -> PackedDefinition:
        """Pack a definition, which has to be a JSON value; return the same object if it is packed already.

        Raises:
            RecursionError: The definition is nested far more deeply than `registry.intake` accepts.
        """
        if isinstance(definition, PackedDefinition):
            return definition
        text, loads = _dump(definition)
        name = definition.get("name")
        # Copied: the bytes that `orjson` returns may occupy eight times their length.
        return cls(memoryview(text).tobytes(), loads, name if isinstance(name, str) else None)

    def renamed(self, name: str) -> PackedDefinition:
        """Return the same definition under another name, sharing the text."""
        return PackedDefinition(self._text, self._loads, name)

    @property
    def text(self) -> bytes:
        """The definition as compact JSON, with its members in their listed order."""
        text = self._text
        if text.startswith(_NAMED_FIRST):
            end = text.index(b'"', len(_NAMED_FIRST))
            listed = text[len(_NAMED_FIRST) - 1 : end + 1]
            if b"\\" not in listed:
                quoted_name, _ = _dump(self.name)
                return text if quoted_name == listed else _NAMED_FIRST[:-1] + quoted_name + text[end + 1 :]
        return _dump(self.read())[0]

    def read(self) -> dict[str, Any]:
        """Parse the definition without caching the result, for callers that read thousands of definitions in turn."""
        value = self._value
        if value is None:
            value = self._loads(self._text)
            if self.name is not None:
                value["name"] = self.name  # keeps its position in the dict
        return value

    def close(self) -> None:
        """Discard the parsed value."""
        self._value = None

    def may_have(self, member: str) -> bool:
        """Return whether this ASCII word may be a member name or a value. False is certain; the text is not parsed."""
        return b'"%b"' % member.encode() in self._text

    def holds(self, word: str) -> bool:
        """Return whether the text contains this ASCII word anywhere. The text is not parsed."""
        return word.encode() in self._text

    def get(self, key: str, default: Any = None) -> Any:
        """Return a member, or the default if it does not exist."""
        if key == "name" and self.name is not None:
            return self.name
        value = self._value
        return (self._parse_cached() if value is None else value).get(key, default)

    def __getitem__(self, key: str) -> Any:
        if key == "name" and self.name is not None:
            return self.name
        return self._parse_cached()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._parse_cached()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parse_cached())

    def __len__(self) -> int:
        return len(self._parse_cached())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, PackedDefinition):
            # Compare the texts, because 1 equals True in Python.
            return self.name == other.name and (self._text == other._text or self.text == other.text)
        return self.read() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PackedDefinition({self.read()!r})"

    def _parse_cached(self) -> dict[str, Any]:
        value = self._value
        if value is None:
            value = self._value = self.read()
            _parsed.append(self)
            if len(_parsed) > _MAX_PARSED:
                # Several threads may remove entries concurrently.
                with suppress(IndexError):
                    _parsed.popleft().close()
        return value


def members_of(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the plain members of a definition without caching them, for callers that read thousands of definitions."""
    return definition.read() if isinstance(definition, PackedDefinition) else definition


def unpacked(value: object) -> dict[str, Any]:
    """Parse a packed definition, as the `default` function of a JSON encoder.

    Raises:
        TypeError: The value is not a packed definition.
    """
    if type(value) is PackedDefinition:
        return value.read()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _dump(value: object) -> tuple[bytes, _Loads]:
    """Encode a JSON value; return the text and the function that parses it without loss."""
    try:
        return orjson.dumps(value), orjson.loads
    except TypeError:
        # `orjson` does not encode integers beyond 64 bits and lone surrogates.
        return json.dumps(value, separators=(",", ":")).encode(), json.loads
