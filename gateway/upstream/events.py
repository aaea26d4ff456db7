"""Server-sent events, read from chunks in linear time and within a bound.

Source: WHATWG HTML, "Server-sent events", "Interpreting an event stream".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.errors import ConnectionLost

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One event: its type and its data."""

    event: str
    data: bytes
    id: str | None = None


class EventParser:
    """Feed chunks, get events. Comments and unknown fields are ignored."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Events that end within this chunk.

        Raises:
            ConnectionLost: A line or an event is larger than `MAX_EVENT_BYTES`.
        """
        if b"\n" not in chunk:
            self._hold(chunk)
            return
        head, _, rest = chunk.partition(b"\n")
        self._pending.append(head)
        lines = [b"".join(self._pending)]
        self._pending.clear()
        self._pending_bytes = 0
        lines += rest.split(b"\n")
        tail = lines.pop()
        for line in lines:
            event = self._line(line[:-1] if line.endswith(b"\r") else line)
            if event is not None:
                yield event
        if tail:
            self._hold(tail)

    def _hold(self, part: bytes) -> None:
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._pending_bytes > MAX_EVENT_BYTES:
            raise ConnectionLost(f"an event is larger than {MAX_EVENT_BYTES} bytes", sent=True)

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            if not self._data:
                self._event = ""
                return None
            made = ServerSentEvent(event=self._event or "message", data=b"\n".join(self._data), id=self._id)
            self._data, self._data_bytes, self._event = [], 0, ""
            return made
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            if self._data_bytes > MAX_EVENT_BYTES:
                raise ConnectionLost(f"an event is larger than {MAX_EVENT_BYTES} bytes", sent=True)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        return None
