"""Responses that a disconnected caller can resume, as event streams of a session.

A response becomes an event stream when a message is sent before the result, or after some seconds of silence. Each
event has an id of the form RESPONSE-EVENT. A caller that reconnects sends the id of the last event that it has
received.

Source: MCP 2025-11-25, "Transports", "Sending Messages to the Server" and "Resumability and Redelivery".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import Struct, field

from gateway.access.quotas import Account
from gateway.http import responder as sse
from gateway.http.responder import Responder
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, QuotaExceeded, RpcError
from gateway.protocol.jsonrpc import RequestId

RESUMABLE_SINCE: Final = "2025-11-25"
"""The first protocol version with resumable responses. Such a response begins with an event without data. Callers with
earlier versions would reject that event as invalid JSON."""
AWAY_S: Final = 30.0
"""How long a call continues, and its result is stored, after the caller has disconnected. Clients reconnect within
seconds. The limit keeps clients that never reconnect from occupying an upstream."""
RETRY_MS: Final = 1_000
"""How long the caller has to wait before it reconnects, unless an upstream has set another delay."""
MAX_ANSWERS: Final = 64
"""The maximum number of responses per session, which is also the usual limit of concurrent calls to an upstream."""
MAX_DELIVERED_BYTES: Final = 256 * 1024
"""Sent results up to this size are stored for `AWAY_S`, because they may not have arrived. Larger ones are dropped."""
# The limits of stored events per response. A caller that reconnects does not need older progress notifications.
_MAX_STORED: Final = 256
_MAX_STORED_BYTES: Final = 1024 * 1024
_SEPARATOR: Final = "-"
# The maximum length of an event id of this gateway.
_MAX_ID_CHARS: Final = 32


class ResumableAnswers:
    """The responses of one session that have become event streams, by number.

    Attributes:
        away_s: How long a disconnected caller may take to reconnect, in seconds.
    """

    def __init__(self, *, away_s: float = AWAY_S) -> None:
        self.away_s = away_s
        self._answers: dict[int, ResumableAnswer] = {}
        self._next = 1

    def add(self, answer: ResumableAnswer) -> int | None:
        """Add a response and return its number. If there are too many, return None: the response cannot be resumed."""
        if len(self._answers) >= MAX_ANSWERS:
            delivered = next((each for each in self._answers.values() if each.delivered), None)
            if delivered is None:
                return None
            delivered.forget()
        number, self._next = self._next, self._next + 1
        self._answers[number] = answer
        return number

    def drop(self, number: int) -> None:
        """Remove a response."""
        self._answers.pop(number, None)

    def close(self) -> None:
        """Remove all responses and their stored events."""
        for answer in list(self._answers.values()):
            answer.forget()

    def find(self, event_id: str) -> tuple[ResumableAnswer, int] | None:
        """Return the response that an event id belongs to, and the event's number; None if the response is unknown."""
        number, _, after = event_id.partition(_SEPARATOR)
        if len(event_id) > _MAX_ID_CHARS or not (number.isdecimal() and after.isdecimal()):
            return None
        answer = self._answers.get(int(number))
        return None if answer is None else (answer, int(after))

    @staticmethod
    def is_answer_id(event_id: str) -> bool:
        """Return whether an event id belongs to a response instead of the session's own stream."""
        return _SEPARATOR in event_id


class ResumableAnswer(Struct, eq=False):
    """The response to one request, which can be resumed once it has become an event stream.

    Args:
        account: The account to charge for a stored result.

    Attributes:
        resumable: True once the caller has been sent an event id for resuming the response.
        delivered: True once the result was sent.
    """

    _answers: ResumableAnswers
    _account: Account
    _request_id: RequestId
    _responder: Responder | None
    _task: asyncio.Task[None] | None = None
    _number: int = 0
    _last: int = 0
    # The numbers and encoded forms of stored events. Events are removed at the beginning, but a deque would take more
    # memory than all other attributes, and most responses store no event.
    _stored: list[tuple[int, bytes]] = field(default_factory=list)
    _stored_bytes: int = 0
    _held_bytes: int = 0
    _timer: asyncio.TimerHandle | None = None
    _done: asyncio.Event | None = None
    _retry_ms: int = RETRY_MS
    resumable: bool = False
    delivered: bool = False

    def __post_init__(self) -> None:
        responder = self._responder
        assert responder is not None
        # The responder drops both callbacks when the response ends, so that no reference cycle outlives the request.
        responder.report_to(on_stream=self._start_stream, on_disconnect=self._handle_disconnect)

    # Called by the request

    def emit(self, message: dict[str, Any]) -> None:
        """Send a message before the result, or store it for a disconnected caller."""
        responder = self._responder
        if responder is not None:
            responder.begin_stream()
        if self.resumable:
            self._send(json_bytes.dumps(message))
        elif responder is not None:
            responder.emit(message)

    def pause(self, retry_ms: int) -> None:
        """End the connection but not the request; the caller reconnects after this delay.

        A response that cannot become resumable continues on its connection.
        """
        responder = self._responder
        if responder is None:
            return
        self._retry_ms = retry_ms
        responder.begin_stream()
        if self.resumable:
            self._responder = None
            responder.end()
            self._start_timeout()

    def cancel(self) -> None:
        """Cancel the request; the caller gets an error response."""
        if self._task is not None:
            self._task.cancel()
        elif self._responder is not None:
            self._responder.cancel()

    def finish(self, pieces: json_bytes.Pieces) -> None:
        """Send the result of a resumable response as its last event, or store it for a disconnected caller."""
        if not self._number:
            # The stored events were removed: the caller did not reconnect in time, or its session has ended. End the
            # caller's current connection, if there is one.
            self._task = None
            self._end_response()
            return
        body = b"".join(pieces)
        away = self._responder is None
        is_stored = away or len(body) <= MAX_DELIVERED_BYTES
        if is_stored:
            try:
                self._account.hold(len(body))
                self._held_bytes = len(body)
            except QuotaExceeded as error:
                is_stored = away
                body = self._lost_result(error) if away else body
        self._send(body)
        self._task = None
        self._end_response()
        if not is_stored:
            self.forget()
        elif self._timer is None and self._number:
            self._start_timeout()

    # Called for the caller

    async def resume(self, responder: Responder, after: int) -> None:
        """Close the caller's previous connection, and send the events after number `after` until the response ends."""
        self._end_response()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        responder.begin_stream()
        for number, frame in self._stored:
            if number > after:
                responder.stream(frame)
        if self._task is None:
            responder.end()
            self._start_timeout()
            return
        done = self._done = asyncio.Event()
        self._responder = responder
        try:
            await done.wait()
        except asyncio.CancelledError:
            if self._responder is responder:
                self._responder = None
                self._start_timeout()
        responder.end()

    def forget(self) -> None:
        """Remove all stored events, and end the caller's connection. A running request continues without a caller."""
        self._answers.drop(self._number)
        self._number = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._account.release(self._held_bytes)
        self._held_bytes = 0
        self._stored.clear()
        self._end_response()

    def _start_stream(self) -> None:
        """Begin the event stream with an event that gives the caller an id for resuming."""
        responder, number = self._responder, self._answers.add(self)
        if number is None or responder is None:
            return
        self._number, self._task, self.resumable = number, responder.task, True
        responder.write(sse.event(b"", f"{number}{_SEPARATOR}0", retry_ms=self._retry_ms))

    def _handle_disconnect(self) -> None:
        if self.resumable:
            self._responder = None
            self._start_timeout()
        else:
            self.cancel()

    def _start_timeout(self) -> None:
        """Start the timer that ends the response unless the caller reconnects."""
        self._timer = asyncio.get_running_loop().call_later(self._answers.away_s, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        if self._task is not None:
            self._task.cancel()
        self.forget()

    def _end_response(self) -> None:
        """End the caller's current connection."""
        responder, self._responder = self._responder, None
        if responder is not None:
            self.delivered = self._task is None
            responder.end()
        if self._done is not None:
            self._done.set()
            self._done = None

    def _send(self, body: bytes) -> None:
        self._last += 1
        frame = sse.event(body, f"{self._number}{_SEPARATOR}{self._last}")
        if self._responder is not None:
            self._responder.stream(frame)
        if not self._number:
            return
        self._stored.append((self._last, frame))
        self._stored_bytes += len(frame)
        while len(self._stored) > 1 and (len(self._stored) > _MAX_STORED or self._stored_bytes > _MAX_STORED_BYTES):
            self._stored_bytes -= len(self._stored.pop(0)[1])

    def _lost_result(self, reason: QuotaExceeded) -> bytes:
        text = (
            f"The request was carried out, but its result was not stored while you were disconnected: {reason.message}"
        )
        error = RpcError(INTERNAL_ERROR, text).to_object()
        return json_bytes.dumps({"jsonrpc": "2.0", "id": self._request_id, "error": error})
