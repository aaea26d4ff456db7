"""Events of every stream, kept in memory, so that clients can come back for what they missed."""

from __future__ import annotations

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage


class KeptEvents(EventStore):
    """All events in one list; an id is a place in it."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep one event; returns its id."""
        self._events.append((stream_id, message))
        return str(len(self._events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came after an event on the same stream."""
        last = int(last_event_id)
        stream_id = self._events[last][0]
        for number, (stream, message) in enumerate(self._events[last + 1 :], last + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id
