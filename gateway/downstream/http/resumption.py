"""The answer to one request of a session, which its caller may leave and come back for.

Source: MCP 2025-11-25, "Transports", "Sending Messages to the Server" and "Resumability and Redelivery".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import Struct, field

from gateway import wire
from gateway.access.quotas import Account
from gateway.downstream.http import sse
from gateway.downstream.http.responder import Responder
from gateway.errors import INTERNAL_ERROR, QuotaExceeded, RpcError
from gateway.jsonrpc import RequestId

RESUMABLE_SINCE: Final = "2025-11-25"
"""Callers of earlier versions take an event without data for broken JSON."""
AWAY_S: Final = 30.0
"""How long a call goes on, and its result is kept, for a caller whose connection has ended: clients reconnect within
seconds, and one that never does must not keep an upstream busy."""
RETRY_MS: Final = 1_000
"""How long a caller waits before it comes back, where no upstream has said so."""
MAX_ANSWERS: Final = 64
"""Answers that one session may have open or kept: as many calls as an upstream takes at once."""
MAX_DELIVERED_BYTES: Final = 256 * 1024
"""A result that was sent is kept for a while, since nobody knows whether it arrived; larger ones are not."""
# Messages before the result that are kept for a caller who comes back: of older progress nobody wants to know.
_MAX_KEPT: Final = 256
_MAX_KEPT_BYTES: Final = 1024 * 1024
_SEPARATOR: Final = "-"
# Longer ids are none of ours.
_MAX_ID_CHARS: Final = 32


class ResumableAnswers:
    """Those answers of one session that have become streams, by number.

    Attributes:
        away_s: How long a caller whose connection has ended may take to come back.
    """

    def __init__(self, *, away_s: float = AWAY_S) -> None:
        self.away_s = away_s
        self._answers: dict[int, ResumableAnswer] = {}
        self._next = 1

    def add(self, answer: ResumableAnswer) -> int | None:
        """The number of another stream; None where there are too many, so that it cannot be resumed."""
        if len(self._answers) >= MAX_ANSWERS:
            delivered = next((each for each in self._answers.values() if each.delivered), None)
            if delivered is None:
                return None
            delivered.forget()
        number, self._next = self._next, self._next + 1
        self._answers[number] = answer
        return number

    def drop(self, number: int) -> None:
        """Forget a stream."""
        self._answers.pop(number, None)

    def close(self) -> None:
        """Forget all streams."""
        for answer in list(self._answers.values()):
            answer.forget()

    def find(self, event_id: str) -> tuple[ResumableAnswer, int] | None:
        """The stream that an event belongs to, and its number in it; None where it is not known."""
        number, _, after = event_id.partition(_SEPARATOR)
        if len(event_id) > _MAX_ID_CHARS or not (number.isdecimal() and after.isdecimal()):
            return None
        answer = self._answers.get(int(number))
        return None if answer is None else (answer, int(after))

    @staticmethod
    def names(event_id: str) -> bool:
        """Whether an id is that of an event of an answer, known or not, and not of the session's own stream."""
        return _SEPARATOR in event_id


class ResumableAnswer(Struct, eq=False):
    """One request's answer. While it is one JSON text it is like any other; once it is a stream it can be resumed.

    Args:
        answers: Those of the session.
        account: On which a result is held while its caller is away.
        request_id: Of the request.
        responder: Of the request.

    Attributes:
        resumable: Its caller knows an id to come back with.
        delivered: Its result was sent.
    """

    _answers: ResumableAnswers
    _account: Account
    _request_id: RequestId
    _responder: Responder | None
    _task: asyncio.Task[None] | None = None
    _number: int = 0
    _last: int = 0
    # A list, though it gives way at its beginning: a deque takes more memory than all else, and most stay empty.
    _kept: list[tuple[int, bytes]] = field(default_factory=list)
    _kept_bytes: int = 0
    _held_bytes: int = 0
    _away: asyncio.TimerHandle | None = None
    _done: asyncio.Event | None = None
    _retry_ms: int = RETRY_MS
    resumable: bool = False
    delivered: bool = False

    def __post_init__(self) -> None:
        responder = self._responder
        assert responder is not None
        # Both end with the response, so that no request is a reference cycle that outlives it.
        responder.on_stream = self._begin
        responder.on_disconnect = self._left

    # what the request does

    def emit(self, message: dict[str, Any]) -> None:
        """Send a message before the response, or keep it for a caller that is away."""
        responder = self._responder
        if responder is not None:
            responder.begin_stream()
        if self.resumable:
            self._send(wire.dumps(message))
        elif responder is not None:
            responder.emit(message)

    def stay_unresumable(self) -> bool:
        """Have the response be one that nobody comes back for; false where somebody may do so already."""
        responder = self._responder
        if self.resumable or responder is None:
            return False
        responder.on_stream = None
        return True

    def pause(self, retry_ms: int) -> None:
        """End the connection and not the request: its caller comes back after so many milliseconds."""
        responder = self._responder
        if responder is None:
            return
        self._retry_ms = retry_ms
        responder.begin_stream()
        if self.resumable:
            self._responder = None
            responder.end()
            self._wait()

    def cancel(self) -> None:
        """Cancel the request; its caller gets an answer that says so."""
        if self._task is not None:
            self._task.cancel()
        elif self._responder is not None:
            self._responder.cancel()

    def finish(self, pieces: wire.Pieces) -> None:
        """Send the response of a resumable answer as its last event, or keep it for a caller that is away."""
        if not self._number:
            # Its caller was away for too long, or its session has ended; whoever came back just then waits for nothing.
            self._task = None
            self._end()
            return
        body = b"".join(pieces)
        away = self._responder is None
        kept = away or len(body) <= MAX_DELIVERED_BYTES
        if kept:
            try:
                self._account.hold(len(body))
                self._held_bytes = len(body)
            except QuotaExceeded as error:
                kept = away
                body = self._lost(error) if away else body
        self._send(body)
        self._task = None
        self._end()
        if not kept:
            self.forget()
        elif self._away is None and self._number:
            self._wait()

    # what its caller does

    async def resume(self, responder: Responder, after: int) -> None:
        """Go on with another response, after the event of this number, until the end; a caller has one at a time."""
        self._end()
        if self._away is not None:
            self._away.cancel()
            self._away = None
        responder.begin_stream()
        for number, frame in self._kept:
            if number > after:
                responder.stream(frame)
        if self._task is None:
            responder.end()
            self._wait()
            return
        done = self._done = asyncio.Event()
        self._responder = responder
        try:
            await done.wait()
        except asyncio.CancelledError:
            if self._responder is responder:
                self._responder = None
                self._wait()
        responder.end()

    def forget(self) -> None:
        """Keep nothing more; a request that still runs goes on for nobody."""
        self._answers.drop(self._number)
        self._number = 0
        if self._away is not None:
            self._away.cancel()
            self._away = None
        self._account.release(self._held_bytes)
        self._held_bytes = 0
        self._kept.clear()
        self._end()

    def _begin(self) -> None:
        """Become a stream whose first event gives the caller an id to come back with."""
        responder, number = self._responder, self._answers.add(self)
        if number is None or responder is None:
            return
        self._number, self._task, self.resumable = number, responder.task, True
        responder.write(sse.event(b"", f"{number}{_SEPARATOR}0", retry_ms=self._retry_ms))

    def _left(self) -> None:
        if self.resumable:
            self._responder = None
            self._wait()
        else:
            self.cancel()

    def _wait(self) -> None:
        """Give the caller its time to come back."""
        self._away = asyncio.get_running_loop().call_later(self._answers.away_s, self._give_up)

    def _give_up(self) -> None:
        self._away = None
        if self._task is not None:
            self._task.cancel()
        self.forget()

    def _end(self) -> None:
        """End the response by which the caller reads at present."""
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
        self._kept.append((self._last, frame))
        self._kept_bytes += len(frame)
        while len(self._kept) > 1 and (len(self._kept) > _MAX_KEPT or self._kept_bytes > _MAX_KEPT_BYTES):
            self._kept_bytes -= len(self._kept.pop(0)[1])

    def _lost(self, reason: QuotaExceeded) -> bytes:
        text = f"The request was carried out, but its result was not kept while you were away: {reason.message}"
        error = RpcError(INTERNAL_ERROR, text).to_object()
        return wire.dumps({"jsonrpc": "2.0", "id": self._request_id, "error": error})
