"""The seam to upstreams that speak JSON-RPC: what a transport promises, and how answers are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from gateway import wire
from gateway.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, RpcError

MAX_ERROR_CHARS: Final = 16 * 1024
"""Of the text of an error, which says why there is no result: models, logs and the audit log read it. A result, also
one with `isError`, may be what a model has asked for, such as the output of a compiler, and has the bound of a message.
"""
MAX_ERROR_DATA_BYTES: Final = 64 * 1024
"""Of the data of an error, for programs."""

OnProgress = Callable[[dict[str, Any]], None]
Reply = Callable[[dict[str, Any]], None]
OnPause = Callable[[int], None]
OnMessage = Callable[[dict[str, Any], Reply], None]
"""Takes a notification or a request of the peer's; a request is answered, in time, through the reply."""


class ResultStream(Protocol):
    """Takes the items of a result's `content` before the rest of the result is there."""

    def begin(self, close: Callable[[], bytes]) -> bool:
        """Begin a result; false where it has to be sent as a whole.

        Args:
            close: Gives what is to follow, where the rest does not come, so that the list has whole items so far.
        """

    def pass_on(self, items: bytes) -> Awaitable[None] | None:
        """Send a part of the list of items, as JSON; where the caller does not keep up, what to await before more."""


class Transport(Protocol):
    """One connection to one upstream, whatever carries it.

    Attributes:
        independent_requests: Each request is an exchange of its own, with headers of its own: a lost one is no
            sign that the others are, and only a failed request shows that the peer is gone.
    """

    independent_requests: bool

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
        """Send a request and return its result; the progress token is set by the transport.

        Args:
            method: The method.
            params: The whole params object; with `on_progress` it and its `_meta` are changed.
            on_progress: Takes the params of progress notifications.
            on_message: Takes what arrives on the request's own stream, where it has one.
            headers: For this request, where there are such things.
            on_pause: Is told when the server has closed the stream of the answer before the answer, to have it opened
                again, and after how many milliseconds.
            results: Takes a large result in pieces, where the transport can tell it before it is there.

        Raises:
            RpcError: The upstream answered with an error.
            ConnectionLost: The connection failed.
            SessionForgotten: The upstream does not know our session any more.
            HttpStatusError: The upstream refused over HTTP.
        """

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification; nothing comes back."""

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Receive messages that belong to no request until their stream ends.

        Args:
            on_open: Called once they can arrive.

        Raises:
            RpcError, ConnectionLost, SessionForgotten, HttpStatusError: As `request`.
        """

    def use_version(self, version: str) -> None:
        """Name this protocol version on every request from now on, where there is a place for it."""

    async def wait_closed(self) -> str:
        """Return the reason once the connection has ended."""

    def fail(self, reason: str) -> None:
        """Treat the connection as ended, where nothing but a failed request tells that it is."""

    def abandon(self) -> None:
        """Do not tell the peer of the end: it cannot be reached, or calls on their way still need the session."""


def result_in(message: dict[str, Any]) -> Any:
    """The result that a JSON-RPC response carries.

    Raises:
        RpcError: It is an error response, or no response at all.
    """
    if "error" in message and message["error"] is not None:
        error = message["error"]
        if not isinstance(error, dict):
            raise RpcError(INTERNAL_ERROR, "the upstream sent a malformed error", _bounded_data({"error": error}))
        code = error.get("code")
        text = error.get("message")
        raise RpcError(
            code if type(code) is int else INTERNAL_ERROR,
            _bounded_text(text) if isinstance(text, str) and text else "the upstream gave no reason",
            _bounded_data(error.get("data")),
        )
    if "result" not in message:
        raise RpcError(INTERNAL_ERROR, "the upstream's answer has neither result nor error")
    return message["result"]


def _bounded_text(text: str) -> str:
    if len(text) <= MAX_ERROR_CHARS:
        return text
    return f"{text[:MAX_ERROR_CHARS]}… (cut: these are the first {MAX_ERROR_CHARS} of {len(text)} characters)"


def _bounded_data(data: Any) -> Any:
    if data is None:
        return None
    try:
        size_bytes = len(wire.dumps(data))
    except wire.MalformedJson:
        return data  # whoever writes it says so
    if size_bytes <= MAX_ERROR_DATA_BYTES:
        return data
    return {"cut": f"the data of this error had {size_bytes} bytes; at most {MAX_ERROR_DATA_BYTES} are passed on"}


def default_response(request: dict[str, Any]) -> dict[str, Any]:
    """Our response to an upstream's request that nobody else answers: `ping` works, the rest is not offered."""
    if request.get("method") == "ping":
        return {"jsonrpc": "2.0", "id": request["id"], "result": {}}
    # The method is repeated only so far: it is the upstream's text in our log and in its own.
    error = {"code": METHOD_NOT_FOUND, "message": f"{str(request.get('method'))[:100]} is not offered by this client"}
    return {"jsonrpc": "2.0", "id": request["id"], "error": error}


def set_progress_token(params: dict[str, Any], token: int) -> None:
    """Ask for the progress of a request; the token is the request's id."""
    meta = params.get("_meta")
    if meta is None:
        params["_meta"] = {"progressToken": token}
    else:
        meta["progressToken"] = token


def notification(method: str, params: dict[str, Any] | None) -> dict[str, Any]:
    """A JSON-RPC notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}


def cancellation(request_id: int) -> dict[str, Any]:
    """The notification that nobody waits for a request any more."""
    return notification("notifications/cancelled", {"requestId": request_id, "reason": "the caller left"})
