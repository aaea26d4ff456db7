"""Server-sent events, read from chunks in linear time and within a bound.

Source: WHATWG HTML, "Server-sent events", "Interpreting an event stream".
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.errors import ConnectionLost
from gateway.lines import ENDS_BYTES, LineSplitter
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES

# Milliseconds: eleven days at most; longer numbers are nonsense.
_MAX_RETRY_DIGITS: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One event: its type and its data.

    Attributes:
        goes_on: More of its data follows: this is no event yet.
        went_on: A part of its data came before.
    """

    event: str
    data: bytes
    id: str | None = None
    goes_on: bool = False
    went_on: bool = False


class EventParser:
    """Feed chunks, get events. Comments and unknown fields are ignored.

    Args:
        skip_large: Leave out what is over the bound, where a stream carries the answers of others too.
        on_skipped: Is given the two ends of data that were left out.
        last_id: The last id of a stream that this one goes on from.
        retry_ms: What that stream said of it.

    Attributes:
        opens_from_bytes: Data that has so much in one line is given out while it comes; 0 for never.
        retry_ms: How long the server wants a client to wait before it connects again; None where it did not say.
    """

    def __init__(
        self,
        *,
        skip_large: bool = False,
        on_skipped: Callable[[bytes], None] = lambda ends: None,
        last_id: str | None = None,
        retry_ms: int | None = None,
    ) -> None:
        self.opens_from_bytes = 0
        # Of the line that is arriving: whether it is given out, or whether it may be. And of its event.
        self._is_open = self._is_closed = self._went_on = False
        self._is_first = True
        self._on_skipped = on_skipped
        self._lines = LineSplitter(MAX_MESSAGE_BYTES, lambda ends: on_skipped(ends.removeprefix(b"data:")))
        self._skip_large = skip_large
        self._dropping = False
        # Of an event that is dropped.
        self._head = self._tail = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._id: str | None = last_id
        # Of events that have arrived as a whole: one that was cut in the middle is to be sent again.
        self._whole_id: str | None = last_id
        self.retry_ms: int | None = retry_ms

    @property
    def last_id(self) -> str | None:
        """The id that a client names to go on after what it has read; None where the server gave none."""
        return self._whole_id or None

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Events that end within this chunk.

        Raises:
            ConnectionLost: A line or an event is larger than `MAX_MESSAGE_BYTES`.
        """
        for line in self._lines.feed(chunk):
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                yield event
        # A line that was skipped left its event without data, which is no event: only the reader of several answers
        # can do without it.
        if self._lines.skipped and not self._skip_large:
            raise _too_large()
        if self.opens_from_bytes and (data := self._open_data()):
            yield ServerSentEvent(event="message", data=data, goes_on=True)

    def _open_data(self) -> bytes | None:
        """What has come of a large line of data that has not ended, if it is the first of its event."""
        if self._is_open:
            return self._lines.take(b"")
        # What can be sent again as a whole is waited for.
        unusual = self._is_closed or self._data or self._id or self._event not in ("", "message")
        if unusual or self._lines.held_bytes < self.opens_from_bytes:
            return None
        line = self._lines.take(b"data:")
        if line is None:
            self._is_closed = True
            return None
        self._is_open = True
        return line[5:].removeprefix(b" ")

    def _line(self, line: bytes) -> ServerSentEvent | None:
        self._is_closed = False
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if self._is_open:
            self._is_open, self._went_on = False, True
            self._data.append(line)
            return None
        if not line:
            self._whole_id = self._id
            # An empty line ends an event; one without data is not dispatched.
            if self._dropping:
                self._on_skipped(self._head + b"\n" + self._tail)
                self._head = self._tail = b""
            if not self._data or self._dropping:
                self._data, self._data_bytes, self._event, self._dropping = [], 0, "", False
                return None
            data, kind = b"\n".join(self._data), self._event or "message"
            made = ServerSentEvent(event=kind, data=data, id=self._id, went_on=self._went_on)
            self._data, self._data_bytes, self._event, self._went_on = [], 0, "", False
            return made
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data" and self._dropping:
            self._tail = (self._tail + b"\n" + value)[-ENDS_BYTES:]
        elif name == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            # Many short lines can make one large event.
            if self._data_bytes > MAX_MESSAGE_BYTES:
                if not self._skip_large:
                    raise _too_large()
                self._head, self._tail = b"\n".join(self._data)[:ENDS_BYTES], value[-ENDS_BYTES:]
                self._data, self._data_bytes, self._dropping = [], 0, True
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self.retry_ms = int(value)
        return None


def _too_large() -> ConnectionLost:
    return ConnectionLost(f"an event is larger than {MAX_MESSAGE_BYTES} bytes", sent=True)
