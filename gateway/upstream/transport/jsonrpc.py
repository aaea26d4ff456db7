"""JSON-RPC over a connection: requests find their answers, whatever else arrives."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway import wire
from gateway.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, Congested, ConnectionLost, RpcError
from gateway.lines import MAX_LINE_BYTES
from gateway.upstream.transport.invalid_json import answered_id, stand_in

log = logging.getLogger(__name__)

OnProgress = Callable[[dict[str, Any]], None]
Reply = Callable[[dict[str, Any]], None]
OnMessage = Callable[[dict[str, Any], Reply], None]
"""Takes a notification or a request of the peer's; a request is answered, in time, through the reply."""
MAX_PENDING: Final = 4096


class Channel(Protocol):
    """One connection to one upstream, whatever carries it.

    Attributes:
        exchanges: Each request is an exchange of its own: one that is lost costs no other.
    """

    exchanges: bool

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Send a request and return its result; the progress token is set by the channel.

        `on_message` takes what arrives on the request's own stream, where the wire has one.

        Raises:
            RpcError: The upstream answered with an error.
            ConnectionLost: The connection failed.
            SessionForgotten: The upstream does not know our session any more.
            HttpStatusError: The upstream refused over HTTP.
        """

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification; nothing comes back."""

    async def wait_closed(self) -> str:
        """Return the reason once the connection has ended."""

    def abandon(self) -> None:
        """Know that the peer cannot be reached, or must not be told of the end."""


def answer_of(message: dict[str, Any]) -> Any:
    """The result of a JSON-RPC answer.

    Raises:
        RpcError: It is an error answer, or no answer at all.
    """
    if "error" in message and message["error"] is not None:
        error = message["error"]
        if not isinstance(error, dict):
            raise RpcError(INTERNAL_ERROR, "the upstream sent a malformed error", {"error": error})
        code = error.get("code")
        text = error.get("message")
        raise RpcError(
            code if type(code) is int else INTERNAL_ERROR,
            text if isinstance(text, str) and text else "the upstream gave no reason",
            error.get("data"),
        )
    if "result" not in message:
        raise RpcError(INTERNAL_ERROR, "the upstream's answer has neither result nor error")
    return message["result"]


def refusal(message: dict[str, Any]) -> dict[str, Any]:
    """Our answer to a request that an upstream makes of us: `ping` works, the rest is not offered."""
    if message.get("method") == "ping":
        return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    error = {"code": METHOD_NOT_FOUND, "message": f"{str(message.get('method'))[:100]} is not offered by this client"}
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}


class Correlator:
    """Pending requests of a connection on which answers arrive in any order."""

    def __init__(self, server: str, on_message: OnMessage, send: Callable[[bytes], None]) -> None:
        self._server = server
        self._on_message = on_message
        self._send = send
        self._ids = itertools.count(1)
        # An answer that is no strict JSON is handed over as it came.
        self._pending: dict[int, tuple[asyncio.Future[dict[str, Any] | bytes], OnProgress | None, str]] = {}
        self._closed: str | None = None
        self.noise = 0

    async def request(
        self, method: str, params: dict[str, Any], on_progress: OnProgress | None, *, cancellable: bool = True
    ) -> Any:
        """Send and wait; leaving early tells the upstream so (`notifications/cancelled`)."""
        if self._closed is not None:
            raise ConnectionLost(self._closed, sent=False)
        if len(self._pending) >= MAX_PENDING:
            raise Congested("too many requests are waiting")
        request_id = next(self._ids)
        if on_progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
        line = wire.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        future: asyncio.Future[dict[str, Any] | bytes] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = (future, on_progress, method)
        try:
            self._send(line)
            message = await future
            if isinstance(message, bytes):
                message = await stand_in(message, method) or {}
            return answer_of(message)
        except asyncio.CancelledError:
            # A cancelled waiter takes its future along; one that is done otherwise holds an answer.
            if cancellable and (future.cancelled() or not future.done()):
                self._tell_cancelled(request_id)
            raise
        finally:
            self._pending.pop(request_id, None)

    def notify(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        self._send(wire.dumps(message))

    def receive(self, line: bytes) -> None:
        """Take one message from the peer. Nothing that it holds can raise."""
        if not line or line.isspace():
            return
        try:
            message = wire.loads_answer(line, self._is_passed_on)
        except wire.MalformedJson:
            entry = self._pending.get(answered_id(line) or 0)
            if entry is not None and not entry[0].done():
                entry[0].set_result(line)
            message = None
        if not isinstance(message, dict):
            self.noise += 1
            if self.noise <= 3:
                log.warning("not a JSON-RPC message, ignored", extra={"server": self._server})
            return
        method = message.get("method")
        if isinstance(method, str):
            params = message.get("params")
            if method == "notifications/progress" and "id" not in message:
                if isinstance(params, dict):
                    self._progress(params)
            else:
                self._on_message(message, self._reply)
            return
        request_id = message.get("id")
        entry = self._pending.get(request_id) if type(request_id) is int else None
        if entry is not None and not entry[0].done():
            entry[0].set_result(message)

    def skip(self, ends: bytes) -> None:
        """Hear the two ends of a message over the bound: whoever waits for it is told."""
        entry = self._pending.get(answered_id(ends, ends=True) or 0)
        if entry is not None and not entry[0].done():
            why = f"The answer has more than {MAX_LINE_BYTES} bytes"
            text = f"{why}: the request has no result, but may have taken effect."
            entry[0].set_result({"error": {"code": INTERNAL_ERROR, "message": text}})

    def close(self, reason: str) -> None:
        """Fail everything that is waiting."""
        self._closed = self._closed or reason
        for future, _, _ in list(self._pending.values()):
            if not future.done():
                future.set_exception(ConnectionLost(reason, sent=True))

    def _is_passed_on(self, request_id: object) -> bool:
        entry = self._pending.get(request_id) if type(request_id) is int else None
        return entry is not None and entry[2] == "tools/call"

    def _progress(self, params: dict[str, Any]) -> None:
        token = params.get("progressToken")
        entry = self._pending.get(token) if type(token) is int else None
        if entry is not None and entry[1] is not None:
            entry[1](params)

    def _reply(self, message: dict[str, Any]) -> None:
        try:
            self._send(wire.dumps(message))
        except (ConnectionLost, Congested):
            log.debug("could not answer a request", extra={"server": self._server})

    def _tell_cancelled(self, request_id: int) -> None:
        try:
            self.notify("notifications/cancelled", {"requestId": request_id, "reason": "the caller left"})
        except (ConnectionLost, Congested):
            log.debug("could not send a cancellation", extra={"server": self._server})
