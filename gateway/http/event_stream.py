"""Parser for server-sent events, with linear run time and bounded memory.

Source: WHATWG HTML, "Server-sent events", "Interpreting an event stream".
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gateway.process.files import ENDS_BYTES, LineSplitter
from gateway.protocol.gateway_errors import ConnectionLost

# The maximum size of a line, an event and a body. Models cannot read texts of this size, and 64 such messages (the
# usual limit of concurrent calls to an upstream) still fit into the memory of a small machine.
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
PAUSE_BYTES: Final = 512 * 1024
"""Reading from the socket pauses when this much is buffered for a slow reader. A few socket buffers have this size."""


# The maximum number of cached Content-Type headers. A server uses one or two different values.
_MAX_TYPES: Final = 128


@lru_cache(maxsize=_MAX_TYPES)
def media_type(value: str) -> str:
    """Return the media type of a Content-Type header, without parameters and in lower case.

    Some proxies repeat the header; the first value counts.
    """
    return value.partition(";")[0].partition(",")[0].strip().lower()


# The maximum number of digits in `retry`. Nine digits are eleven days in milliseconds; longer times are not plausible.
_MAX_RETRY_DIGITS: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """A complete event."""

    event: str
    data: bytes
    id: str | None = None


class EventParser:
    """Incremental parser of one event stream. Comments and unknown fields are ignored.

    Args:
        skip_large: Whether to skip an event over the limit instead of failing. This is for streams that contain several
            responses.
        on_skipped: Called with the beginning and the end of the data of a skipped event.
        last_id: If this stream resumes another stream, the last event id of that stream.
        retry_ms: If this stream resumes another stream, the reconnection time of that stream.
        limit_bytes: The maximum size of a line and of the data of an event.

    Attributes:
        retry_ms: The server's reconnection time in milliseconds; None if it did not send one.
    """

    def __init__(
        self,
        *,
        skip_large: bool = False,
        on_skipped: Callable[[bytes], None] = lambda ends: None,
        last_id: str | None = None,
        retry_ms: int | None = None,
        limit_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._is_first = True
        self._on_skipped = on_skipped
        self._lines = LineSplitter(limit_bytes, lambda ends: on_skipped(ends.removeprefix(b"data:")))
        self._skip_large = skip_large
        self._dropping = False
        # The beginning and end of an event that is being skipped.
        self._head = self._tail = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._id: str | None = last_id
        # The id of the last complete event. The server has to send an incomplete event again.
        self._whole_id: str | None = last_id
        self.retry_ms: int | None = retry_ms

    @property
    def last_id(self) -> str | None:
        """Return the id for `Last-Event-ID` when the client resumes; None if the server sent none."""
        return self._whole_id or None

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that end within this chunk.

        Raises:
            ConnectionLost: A line or an event is larger than `limit_bytes`.
        """
        for line in self._lines.feed(chunk):
            event = self._handle_line(line.removesuffix(b"\r"))
            if event is not None:
                yield event
        # A line over the limit was skipped. Without `skip_large`, this is an error, because the line may be the awaited
        # response.
        if self._lines.skipped and not self._skip_large:
            raise _too_large(self._limit_bytes)

    def _handle_line(self, line: bytes) -> ServerSentEvent | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            self._whole_id = self._id
            # An empty line ends an event; an event without data is not dispatched.
            if self._dropping:
                self._on_skipped(self._head + b"\n" + self._tail)
                self._head = self._tail = b""
            if not self._data or self._dropping:
                self._data, self._data_bytes, self._event, self._dropping = [], 0, "", False
                return None
            data, kind = b"\n".join(self._data), self._event or "message"
            event = ServerSentEvent(event=kind, data=data, id=self._id)
            self._data, self._data_bytes, self._event = [], 0, ""
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data" and self._dropping:
            self._tail = (self._tail + b"\n" + value)[-ENDS_BYTES:]
        elif name == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            # Many short lines can add up to one large event.
            if self._data_bytes > self._limit_bytes:
                if not self._skip_large:
                    raise _too_large(self._limit_bytes)
                self._head, self._tail = b"\n".join(self._data)[:ENDS_BYTES], value[-ENDS_BYTES:]
                self._data, self._data_bytes, self._dropping = [], 0, True
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self.retry_ms = int(value)
        return None


def _too_large(limit_bytes: int) -> ConnectionLost:
    return ConnectionLost(f"an event is larger than {limit_bytes} bytes", sent=True)
