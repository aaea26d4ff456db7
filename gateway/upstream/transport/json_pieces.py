"""JSON that arrives in pieces: where a member begins, and an array whose beginning is used before its end is there."""

from __future__ import annotations

from typing import Final

from gateway import wire

# As deep as the parsers go that read whole texts.
_MAX_DEPTH: Final = 512
# A member that stands behind so many texts is not looked for: what an answer begins with has a dozen of them.
_MAX_PARTS: Final = 2_048
# A string that goes on is cut from this length on, so that words such as the type of an item are seen whole.
_MIN_CUT_BYTES: Final = 64
# What has no string to be cut in is kept: it is looked at again with each piece, so not for long.
_MAX_KEPT_BYTES: Final = 64 * 1024
# The protocol has five.
_MAX_TYPES: Final = 16

_ARRAY, _OBJECT, _COLON, _COMMA = b"[{:,"
_ARRAY_END, _OBJECT_END = b"]}"
_OPENING: Final = {_ARRAY: b"[", _OBJECT: b'{"":'}
_CLOSING: Final = {_ARRAY: b"]", _OBJECT: b"}"}
_NO_MARKS: Final = bytes(set(range(256)) - set(b"[]{}:,"))
_BLANKS: Final = b" \t\r\n"
# Of the longest escape, and of the longest character.
_ESCAPE_BYTES: Final = 6
_CHARACTER_BYTES: Final = 4
_MEDIA: Final = (b"image", b"audio")
_FIRST_HALVES: Final = (b"d8", b"d9", b"da", b"db")


def start_of(text: bytes, path: tuple[bytes, ...]) -> int | None:
    """Where the value of a member of nested objects begins in a text whose end may be missing.

    Args:
        text: The text, which nobody has checked to be JSON.
        path: The names on the way to the member, as they stand in the text.

    Returns:
        The offset; None where there is no such member, or none near the beginning.
    """
    depth = level = at = 0
    name = b""
    for number, part in enumerate(_masked(text).split(b'"', _MAX_PARTS)[:_MAX_PARTS]):
        if number % 2:
            name = part
        else:
            for offset, mark in enumerate(part, at):
                if mark in _OPENING:
                    depth += 1
                elif mark in (_ARRAY_END, _OBJECT_END):
                    depth -= 1
                    if depth <= level:
                        return None  # the object that should have it has ended
                elif mark == _COLON and depth == level + 1 and name == path[level]:
                    value = offset + 1
                    while text[value : value + 1] in (b" ", b"\t", b"\r", b"\n"):
                        value += 1
                    level += 1
                    if level == len(path):
                        return value
                    if text[value : value + 1] != b"{":
                        return None
        at += len(part) + 1
    return None


class ArrayPieces:
    """Reads an array piece by piece. What it gives back is checked: together with what may follow, it is JSON.

    A piece ends inside a string, where nothing else than the string has to be known of what comes before: each is
    parsed with the brackets that are open there, which costs no more than to parse the whole.

    Attributes:
        ended: The array is over.
        after: What came after it, in pieces.
        types: The values of `type` in its items.
        kept_bytes: What has arrived and was not given back.
    """

    def __init__(self) -> None:
        self.ended = False
        self.after: list[bytes] = []
        self.types: set[bytes] = set()
        self._type = b""
        # The brackets that are open before what is kept, and whether a string is.
        self._open = b""
        self._in_string = False
        self._kept: list[bytes] = []
        self.kept_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Take what has arrived; returns what goes on after all that was returned before, without the last bracket.

        Raises:
            MalformedJson: It is not JSON.
        """
        if self.ended:
            self.after.append(data)
            return b""
        self._kept.append(data)
        self.kept_bytes += len(data)
        if self.kept_bytes - len(data) > _MAX_KEPT_BYTES:
            return b""  # `finish` reads it
        return self._read(b"".join(self._kept))

    @property
    def closing(self) -> bytes:
        """What makes an array, but for its last bracket, of what was given back: some part of an item, or more."""
        if self.ended:
            return b""
        # Readers refuse these without it, and it often comes last.
        more = b',"mimeType":"application/octet-stream"' if self._open == b"[{" and self._type in _MEDIA else b""
        return b'"' + more + b"".join([_CLOSING[mark] for mark in reversed(self._open[1:])])

    def finish(self) -> bytes:
        """Read what was kept, at the end of everything; returns as `feed`.

        Raises:
            MalformedJson: The array does not end, or is not JSON.
        """
        piece = b"" if self.ended else self._read(b"".join(self._kept))
        if not self.ended:
            raise wire.MalformedJson("it ends too early")
        return piece

    def _read(self, text: bytes) -> bytes:
        if self._in_string:
            # Nearly always: of a long text, or of an image.
            end = _whole_characters(text)
            if _is_within_string(text[:end]):
                return self._take(text, end, self._open)
        return self._read_structure(text)

    def _read_structure(self, text: bytes) -> bytes:
        parts, at = _masked(text).split(b'"'), 0
        if self._in_string:
            parts.insert(0, b"")
            at = -1
        open_now = bytearray(self._open)
        before, name = _COLON, b""
        cut: tuple[int, bytes] | None = None
        for number, part in enumerate(parts):
            if number % 2 == 0:
                for passed, mark in enumerate(part.translate(None, _NO_MARKS)):
                    before = mark
                    if mark in _OPENING:
                        open_now.append(mark)
                        if len(open_now) > _MAX_DEPTH:
                            raise wire.MalformedJson("nested too deeply")
                    elif mark in (_ARRAY_END, _OBJECT_END):
                        del open_now[-1:]
                        if not open_now:
                            return self._end(text, at + _offset_of_mark(part, passed))
            elif before in (_COLON, _ARRAY) or (before == _COMMA and open_now[-1:] == b"["):
                if number < len(parts) - 1:
                    cut = at + len(part), bytes(open_now)
                    if name == b"type" and open_now == b"[{" and len(self.types) < _MAX_TYPES:
                        self._type = part
                        self.types.add(part)
                elif len(part) >= _MIN_CUT_BYTES:
                    cut = _whole_characters(text), bytes(open_now)
            else:
                name = part
            at += len(part) + 1
        if cut is None:
            self._keep(text)
            return b""
        end, open_then = cut
        _check(self._before() + text[:end] + b'"' + b"".join([_CLOSING[mark] for mark in reversed(open_then)]))
        return self._take(text, end, open_then)

    def _take(self, text: bytes, end: int, open_then: bytes) -> bytes:
        self._open, self._in_string = open_then, True
        self._keep(text[end:])
        return text[:end]

    def _end(self, text: bytes, last: int) -> bytes:
        _check(self._before() + text[: last + 1])
        self.ended, self.after = True, [text[last + 1 :]]
        self._keep(b"")
        return text[:last]

    def _keep(self, text: bytes) -> None:
        self._kept, self.kept_bytes = [text] if text else [], len(text)

    def _before(self) -> bytes:
        """What stands for all that was given back already: the same brackets, and the string, are open after it."""
        return b"".join([_OPENING[mark] for mark in self._open]) + b'"' if self._in_string else b""


def _masked(text: bytes) -> bytes:
    """The text with other characters for escaped quotes, and for what may be taken for the beginning of an escape."""
    return text.replace(b"\\\\", b"..").replace(b'\\"', b"..") if b"\\" in text else text


def _offset_of_mark(part: bytes, passed: int) -> int:
    """Where in a text the mark stands that comes after so many others."""
    for offset, byte in enumerate(part):
        if byte not in _NO_MARKS:
            if not passed:
                return offset
            passed -= 1
    raise AssertionError("there are so many")


def _is_within_string(piece: bytes) -> bool:
    text = b'["' + piece + b'"]'
    try:
        return len(wire.checked_items(text)) == 1
    except wire.MalformedJson:
        return False


def _check(text: bytes) -> None:
    wire.checked_items(text)


def _whole_characters(text: bytes) -> int:
    """How much of a string's text can be used on its own: without a part of an escape or of a character at its end."""
    size = len(text)
    last = text.rfind(b"\\", max(0, size - 2 * _ESCAPE_BYTES))
    if last >= 0:
        run = last + 1 - len(text[: last + 1].rstrip(b"\\"))
        # Of two backslashes the second is no beginning.
        if run % 2 and _is_cut(text[last:]):
            return last
    for back in range(1, min(_CHARACTER_BYTES, size) + 1):
        byte = text[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return size - back if length > back else size
    return size


def _is_cut(escape: bytes) -> bool:
    """Whether a text that begins with an escape may go on with more of it."""
    if escape[1:2] != b"u":
        return len(escape) < 2
    # The first half of a pair is followed by an escape of its own.
    return len(escape) < _ESCAPE_BYTES or (len(escape) == _ESCAPE_BYTES and escape[2:4].lower() in _FIRST_HALVES)
