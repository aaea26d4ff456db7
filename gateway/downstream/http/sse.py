"""Server-sent events as bytes.

Source: WHATWG HTML, "Server-sent events", "Parsing an event stream".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PING: Final = b": ping\n\n"
"""A comment: parsers skip it, and proxies see that the connection lives."""
END: Final = b"\n\n"
"""The end of an event after its data."""
HEADERS: Final = (
    b"content-type: text/event-stream\r\n"
    # Some proxies buffer or compress a stream until it ends unless they are told not to.
    b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
)
_MESSAGE: Final = b"event: message\n"
# What readers in use take for the end of a line though it is none in an event stream: those of Python's `splitlines`
# that JSON allows in a string. Written as escapes they are the same string.
_LINE_BREAKS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def event(
    data: bytes | Iterable[bytes | memoryview], event_id: int | str | None = None, *, retry_ms: int | None = None
) -> bytes:
    """One event that carries a JSON text, which has no line break of its own.

    Args:
        data: The text, in one piece or several.
        event_id: The id of the event, for `Last-Event-ID`.
        retry_ms: How long the reader is to wait before it connects again.
    """
    head = _MESSAGE
    if event_id is not None:
        head += b"id: %b\n" % str(event_id).encode()
    if retry_ms is not None:
        head += b"retry: %d\n" % retry_ms
    head += b"data: "
    return b"".join((head, on_one_line(data if isinstance(data, bytes) else b"".join(data)), END))


def on_one_line(text: bytes) -> bytes:
    """A JSON text, or a part of one that ends between characters, as every reader takes it for one line."""
    if not text.isascii():
        for character, escape in _LINE_BREAKS:
            text = text.replace(character, escape)
    return text


def beginning(data: bytes) -> bytes:
    """The first part of an event, whose text goes on."""
    return _MESSAGE + b"data: " + data
