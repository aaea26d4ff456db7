"""A transport over one stream, on which responses may arrive in any order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

import anyio

from gateway.http.event_stream import MAX_MESSAGE_BYTES
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, ConnectionLost, GatewayError, TooManyCalls
from gateway.protocol.jsonrpc import is_answer, number_of
from gateway.upstream.transport.jsonrpc_transport import (
    OnMessage,
    OnPause,
    OnProgress,
    answered_id,
    cancellation,
    notification,
    repaired_response,
    result_in,
)

log = logging.getLogger(__name__)

# The future of the response, the progress callback, and the method.
_Pending = tuple[asyncio.Future[dict[str, Any] | bytes], OnProgress | None, str]

# A peer that leaves thousands of requests unanswered is stuck. The limit exists because pending requests use memory.
MAX_PENDING: Final = 4096
# How long to wait after a failed write for the reader of the stream to report why the connection ended.
_LAST_WORDS_S: Final = 0.5


class StreamTransport:
    """A `Transport` over one stream.

    The code that reads the stream calls `receive` for each message, and `close` at the end.
    """

    independent_requests = False

    def __init__(
        self,
        server: str,
        on_message: OnMessage,
        send: Callable[[bytes], None],
        *,
        on_noise: Callable[[bytes], None] = lambda line: log.debug("not a JSON-RPC message, ignored"),
    ) -> None:
        """Start without pending requests.

        Args:
            server: The alias of the server.
            on_message: Called with each message that is not a response.
            send: Sends one message.
            on_noise: Called with each line that is not a JSON-RPC message.
        """
        self._server = server
        self._on_message = on_message
        self._send = send
        self._ids = itertools.count(1)
        # The result of a future is bytes if the response is not strict JSON. `request` then repairs the response.
        self._pending: dict[int, _Pending] = {}
        self._on_noise = on_noise
        self._closed = anyio.Event()
        self._reason = ""

    # used by the session

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
        on_pause: OnPause | None = None,
    ) -> Any:
        """Send a request, ignoring `on_message`, `headers` and `on_pause`; see `Transport.request`.

        Cancelling the wait sends `notifications/cancelled`.
        """
        if self._reason:
            raise ConnectionLost(self._reason, sent=False)
        if len(self._pending) >= MAX_PENDING:
            raise TooManyCalls("too many requests are waiting")
        request_id = next(self._ids)
        if on_progress is not None:
            params.setdefault("_meta", {})["progressToken"] = request_id
        # This is a future and not an anyio event, because a future also contains the response.
        future: asyncio.Future[dict[str, Any] | bytes] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = (future, on_progress, method)
        try:
            # Do not assign the message to a variable, which would keep the message in memory during the wait.
            try:
                self._send(json_bytes.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
            except ConnectionLost as error:
                del self._pending[request_id]  # no response will arrive
                raise await self._explain_loss(error) from None
            message = await future
            if isinstance(message, bytes):
                message = await repaired_response(message, method) or {}
            return result_in(message)
        except asyncio.CancelledError:
            # Cancelling this task cancels the future. If the future is done without being cancelled, the response has
            # arrived, so do not cancel the request.
            # "The `initialize` request MUST NOT be cancelled by clients": MCP 2025-11-25, "Cancellation".
            if method != "initialize" and (future.cancelled() or not future.done()):
                self._try_to_send(cancellation(request_id))
            raise
        finally:
            self._pending.pop(request_id, None)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        try:
            self._send(json_bytes.dumps(notification(method, params)))
        except ConnectionLost as error:
            raise await self._explain_loss(error) from None

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Wait until cancelled. All messages arrive on the same stream, so no other stream is read."""
        on_open()
        await anyio.sleep_forever()

    def use_version(self, version: str) -> None:
        """Do nothing: the stream has no field for the version."""

    async def wait_closed(self) -> str:
        await self._closed.wait()
        return self._reason

    def fail(self, reason: str) -> None:
        """Do nothing: the reader of the stream notices its end."""

    def abandon(self) -> None:
        """Do nothing: the stream has no shutdown message."""

    # used by the reader of the stream

    def receive(self, line: bytes) -> None:
        """Handle one message from the peer; never raise an error, whatever the message contains."""
        if not line or line.isspace():
            return
        try:
            message = json_bytes.loads_answer(line, self._is_passed_on)
        except json_bytes.MalformedJson:
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
                self._on_message(message, self._try_to_send)  # progress of a task
            elif entry[1] is not None:
                entry[1](params)

    def skip(self, ends: bytes) -> None:
        """Fail the request whose response was too large.

        Args:
            ends: The beginning and the end of the response.
        """
        text = (
            f"The answer has more than {MAX_MESSAGE_BYTES} bytes: the request has no result, but may have taken effect."
        )
        self._resolve(answered_id(ends, ends=True), {"error": {"code": INTERNAL_ERROR, "message": text}})

    def refuse(self, request_id: object, error: GatewayError) -> None:
        """Fail a request that the peer did not accept."""
        entry = self._entry(request_id)
        if entry is not None and not entry[0].done():
            entry[0].set_exception(error)

    def close(self, reason: str) -> None:
        """Fail all pending requests; `wait_closed` returns the reason of the first call."""
        self._reason = self._reason or reason
        self._closed.set()
        for future, _, _ in list(self._pending.values()):
            if not future.done():
                future.set_exception(ConnectionLost(reason, sent=True))

    async def _explain_loss(self, error: ConnectionLost) -> ConnectionLost:
        """Return an error with the reason for the end. Wait briefly, because the reason may be reported later."""
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
        return entry is not None and entry[2] in json_bytes.READ_LATER

    def _try_to_send(self, message: dict[str, Any]) -> None:
        try:
            self._send(json_bytes.dumps(message))
        except (ConnectionLost, TooManyCalls):
            log.debug("message not sent", extra={"server": self._server})
