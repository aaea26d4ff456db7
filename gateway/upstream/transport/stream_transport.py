"""One stream for everything: requests wait for their answers, which arrive on it in any order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

import anyio

from gateway import wire
from gateway.errors import INTERNAL_ERROR, Congested, ConnectionLost, GatewayError
from gateway.jsonrpc import is_answer, number_of
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES
from gateway.upstream.transport.invalid_json import answered_id, repaired_response
from gateway.upstream.transport.jsonrpc import (
    OnMessage,
    OnPause,
    OnProgress,
    ResultStream,
    cancellation,
    notification,
    result_in,
    set_progress_token,
)

log = logging.getLogger(__name__)

# The future of the answer, who takes progress, and the method.
_Pending = tuple[asyncio.Future[dict[str, Any] | bytes], OnProgress | None, str]

# A peer that leaves thousands of requests unanswered is stuck: each of them is a task and its arguments here.
MAX_PENDING: Final = 4096
# Whoever reads the stream closes it soon after its end, and then knows why: a moment longer than that takes.
_LAST_WORDS_S: Final = 0.5


class StreamTransport:
    """See `Transport`. Whoever reads the stream hands in what arrives, and closes it at its end."""

    independent_requests = False

    def __init__(
        self,
        server: str,
        on_message: OnMessage,
        send: Callable[[bytes], None],
        *,
        on_noise: Callable[[bytes], None] = lambda line: log.debug("not a JSON-RPC message, ignored"),
    ) -> None:
        """Use a stream.

        Args:
            server: The alias.
            on_message: Takes what is no answer.
            send: Sends one message.
            on_noise: Takes what is no JSON-RPC message.
        """
        self._server = server
        self._on_message = on_message
        self._send = send
        self._ids = itertools.count(1)
        # An answer that is no strict JSON is handed over as it came: repairing it is the requester's time, not ours.
        self._pending: dict[int, _Pending] = {}
        self._on_noise = on_noise
        self._closed = anyio.Event()
        self._reason = ""

    # what a session uses

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
        on_pause: OnPause | None = None,
        results: ResultStream | None = None,
    ) -> Any:
        """See `Transport.request`; messages are not marked with their request, and there are no headers.

        A result is always passed on as a whole: whose it is may stand at its end.

        Leaving early sends `notifications/cancelled`.
        """
        if self._reason:
            raise ConnectionLost(self._reason, sent=False)
        if len(self._pending) >= MAX_PENDING:
            raise Congested("too many requests are waiting")
        request_id = next(self._ids)
        if on_progress is not None:
            set_progress_token(params, request_id)
        # A future, not an event of anyio: every call has one, and it carries the answer too.
        future: asyncio.Future[dict[str, Any] | bytes] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = (future, on_progress, method)
        try:
            # Not kept in a name: whoever waits would hold it all that time.
            try:
                self._send(wire.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
            except ConnectionLost as error:
                del self._pending[request_id]  # nobody waits for it
                raise await self._explained(error) from None
            message = await future
            if isinstance(message, bytes):
                message = await repaired_response(message, method) or {}
            return result_in(message)
        except asyncio.CancelledError:
            # A cancelled waiter takes its future along; one that is done otherwise holds an answer.
            # "The `initialize` request MUST NOT be cancelled by clients": MCP 2025-11-25, "Cancellation".
            if method != "initialize" and (future.cancelled() or not future.done()):
                self._try_to_send(cancellation(request_id))
            raise
        finally:
            self._pending.pop(request_id, None)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """See `Transport.notify`."""
        try:
            self._send(wire.dumps(notification(method, params)))
        except ConnectionLost as error:
            raise await self._explained(error) from None

    async def listen(self, on_open: Callable[[], None]) -> None:
        """See `Transport.listen`; messages come on the one stream as long as there is a connection."""
        on_open()
        await anyio.sleep_forever()

    def use_version(self, version: str) -> None:
        """See `Transport.use_version`; there is no place for it."""

    async def wait_closed(self) -> str:
        """See `Transport.wait_closed`."""
        await self._closed.wait()
        return self._reason

    def fail(self, reason: str) -> None:
        """See `Transport.fail`; the end of a stream is noticed by who reads it."""

    def abandon(self) -> None:
        """See `Transport.abandon`."""

    # what the reader of the stream uses

    def receive(self, line: bytes) -> None:
        """Take one message from the peer. Nothing that it holds can raise."""
        if not line or line.isspace():
            return
        try:
            message = wire.loads_answer(line, self._is_passed_on)
        except wire.MalformedJson:
            self._resolve(answered_id(line), line)
            message = None
        if not isinstance(message, dict):
            self._on_noise(line)
            return
        method = message.get("method")
        if not isinstance(method, str):
            if is_answer(message):
                self._resolve(message.get("id"), message)
            else:
                self._on_noise(line)
        elif method != "notifications/progress" or "id" in message:
            self._on_message(message, self._try_to_send)
        elif isinstance(params := message.get("params"), dict):
            entry = self._entry(params.get("progressToken"))
            if entry is None:
                self._on_message(message, self._try_to_send)  # of a task
            elif entry[1] is not None:
                entry[1](params)

    def skip(self, ends: bytes) -> None:
        """Take the two ends of a message that was over the bound; the request it answers fails."""
        text = (
            f"The answer has more than {MAX_MESSAGE_BYTES} bytes: the request has no result, but may have taken effect."
        )
        self._resolve(answered_id(ends, ends=True), {"error": {"code": INTERNAL_ERROR, "message": text}})

    def refuse(self, request_id: object, error: GatewayError) -> None:
        """Fail one request, where what was to carry it was refused."""
        entry = self._entry(request_id)
        if entry is not None and not entry[0].done():
            entry[0].set_exception(error)

    def close(self, reason: str) -> None:
        """Fail everything that is waiting. Of several reasons the first one counts."""
        self._reason = self._reason or reason
        self._closed.set()
        for future, _, _ in list(self._pending.values()):
            if not future.done():
                future.set_exception(ConnectionLost(reason, sent=True))

    async def _explained(self, error: ConnectionLost) -> ConnectionLost:
        """The same with the whole reason: what a peer said as it ended is read a moment after its end is noticed."""
        with anyio.move_on_after(_LAST_WORDS_S):
            await self._closed.wait()
        return ConnectionLost(self._reason or str(error), sent=False)

    def _entry(self, request_id: object) -> _Pending | None:
        number = number_of(request_id)
        return self._pending.get(number) if number is not None else None

    def _resolve(self, request_id: object, answer: dict[str, Any] | bytes) -> None:
        entry = self._entry(request_id)
        if entry is not None and not entry[0].done():
            entry[0].set_result(answer)

    def _is_passed_on(self, request_id: object) -> bool:
        entry = self._entry(request_id)
        return entry is not None and entry[2] in wire.READ_LATER

    def _try_to_send(self, message: dict[str, Any]) -> None:
        try:
            self._send(wire.dumps(message))
        except (ConnectionLost, Congested):
            log.debug("a message could not be sent", extra={"server": self._server})
