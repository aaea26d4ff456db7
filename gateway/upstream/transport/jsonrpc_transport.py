"""The transport interface for upstreams that speak JSON-RPC, and the repair of responses that are not strict JSON.

"Intake" is the step that follows the listing: it checks each listed definition and rejects invalid definitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio.to_thread

from gateway.process.files import ENDS_BYTES
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, METHOD_NOT_FOUND, RpcError
from registry.schema.display_text import clean

# How deeply values may be nested in a repaired response. The limit is higher than the limit of intake, so that intake
# rejects a truncated definition, and lower than the limit of the parsers.
_KEPT_DEPTH: Final = 250
# The gateway never sends ids with more than 18 digits. Some servers return the id as a string, or as `1.0`.
_MEMBER: Final = rb'\s*"(?:jsonrpc"\s*:\s*"2\.0"|id"\s*:\s*"?(\d{1,18})(?:\.0)?"?)\s*'
_HEAD: Final = re.compile(rb"\s*\{(?:" + _MEMBER + rb',)*+\s*"(?:result|error)"\s*:')
_TAIL: Final = re.compile(rb"(?:," + _MEMBER + rb")++\}\s*\Z")
# A match of a string may lack the closing quote or end with a backslash, so that no byte is scanned twice.
_SHAPE: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def answered_id(line: bytes, *, ends: bool = False) -> int | None:
    """Return the id of the request that this text answers, or None if the id is uncertain.

    Servers write `id` before or after `result` or `error`, so searching both ends of the text is enough.

    Args:
        line: The text of the response.
        ends: Whether `line` consists only of the beginning and the end of a longer text.
    """
    head = _HEAD.match(line[:ENDS_BYTES])
    if head is None or b'"jsonrpc"' not in line[:ENDS_BYTES] + line[-ENDS_BYTES:]:
        return None
    if head[1] is None and (ends or line.count(b"{") == line.count(b"}")):
        # Search the end only if the text is complete: the last `id` of a truncated text may belong to a nested object.
        head = _TAIL.search(line[-ENDS_BYTES:])
    return int(head[1]) if head is not None and head[1] is not None else None


async def repaired_response(data: bytes, method: str) -> dict[str, Any] | None:
    """Return a substitute for a response that is not strict JSON, or None if the text is not a response.

    A single malformed tool must not hide all tools of a server. In a response to `tools/list`, values that are nested
    too deeply become `null`, and numbers such as NaN remain, so that intake rejects only the malformed tool. For other
    methods, the substitute is an error response.
    """
    request_id = answered_id(data)
    if request_id is None:
        return None
    # Parse in a thread, because the lenient parser is slow and a listing may be large.
    try:
        if method == "tools/list":
            message = await anyio.to_thread.run_sync(_lenient, data)
            if isinstance(message, dict):
                return message
        json_bytes.loads(data)
        why = "it is not an object"
    except (ValueError, RecursionError) as error:
        why = str(error)[:200] or "it is nested too deeply"
    return no_result(request_id, why)


def no_result(request_id: int, why: str) -> dict[str, Any]:
    """Return the error response that replaces an unusable response to a request."""
    text = f"The answer is not JSON ({why}): the request has no result, but may have taken effect."
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": INTERNAL_ERROR, "message": text}}


def truncated_at_depth(data: bytes) -> bytes:
    """Return the text with every value nested more than 250 levels deep replaced by `null`, in linear time."""
    parts: list[bytes] = []
    depth = start = 0
    for match in _SHAPE.finditer(data):
        first, length = data[match.start()], match.end() - match.start()
        if first in b"[{":
            if depth <= _KEPT_DEPTH < depth + length:
                parts += [data[start : match.start() + _KEPT_DEPTH - depth], b"null"]
            depth += length
        elif first in b"]}":
            if depth - length <= _KEPT_DEPTH < depth:
                start = match.start() + depth - _KEPT_DEPTH
            depth -= length
    parts.append(data[start:] if depth <= _KEPT_DEPTH else b"")
    return b"".join(parts)


def _lenient(data: bytes) -> Any:
    return json.loads(truncated_at_depth(data).decode("utf-8", "replace"), strict=False)


MAX_ERROR_CHARS: Final = 16 * 1024
"""The length limit of an error message, which may be shown to models and logged. Results, even with `isError`, are
limited only by the message size, because they may contain output that the caller needs, such as compiler errors."""
MAX_ERROR_DATA_BYTES: Final = 64 * 1024
"""The size limit of the `data` member of an error, which only programs read."""

OnProgress = Callable[[dict[str, Any]], None]
Reply = Callable[[dict[str, Any]], None]
OnPause = Callable[[int], None]
OnMessage = Callable[[dict[str, Any], Reply], None]
"""Handles a notification or a request from the upstream. To respond to a request, it calls the second argument."""


class Transport(Protocol):
    """A connection to one upstream.

    Attributes:
        independent_requests: Whether each request is a separate exchange with its own headers. If so, a lost request
            does not affect other requests, and only a failed request shows that the upstream is unreachable.
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
    ) -> Any:
        """Send a request and return its result.

        Args:
            params: The whole params object. With `on_progress`, the transport adds a progress token to the object.
            on_progress: Called with the params of each progress notification.
            on_message: Called with each notification or request on the stream that belongs to this request, if the
                transport has such streams.
            headers: Headers of this request, if the transport has headers.
            on_pause: Called with the delay before the reconnect, in milliseconds, when the server closes the stream
                before the response.

        Raises:
            RpcError: The upstream answered with an error.
            ConnectionLost: The connection failed.
            SessionForgotten: The upstream no longer knows the session.
            HttpStatusError: The upstream responded with an HTTP error status.
        """

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Receive the messages that do not belong to a request, until the stream of these messages ends.

        Args:
            on_open: Called once messages can arrive.

        Raises:
            RpcError, ConnectionLost, SessionForgotten, HttpStatusError: See `request`.
        """

    def use_version(self, version: str) -> None:
        """Send this protocol version with every later request, if the transport has a field for the version."""

    async def wait_closed(self) -> str:
        """Wait until the connection has ended, and return the reason."""

    def fail(self, reason: str) -> None:
        """Mark the connection as ended, for transports that cannot notice the end themselves."""

    def abandon(self) -> None:
        """Do not send a shutdown message on closing: the upstream is unreachable, or calls still need the session."""


def result_in(message: dict[str, Any]) -> Any:
    """Return the result of a JSON-RPC response.

    Raises:
        RpcError: The message is an error response, or is not a valid response.
    """
    if "error" in message and message["error"] is not None:
        error = message["error"]
        if not isinstance(error, dict):
            raise RpcError(INTERNAL_ERROR, "the upstream sent a malformed error", bounded_data({"error": error}))
        code = error.get("code")
        text = error.get("message")
        raise RpcError(
            code if type(code) is int else INTERNAL_ERROR,
            bounded_text(text) if isinstance(text, str) and text else "the upstream gave no reason",
            bounded_data(error.get("data")),
        )
    if "result" not in message:
        raise RpcError(INTERNAL_ERROR, "the upstream's answer has neither result nor error")
    return message["result"]


def bounded_text(text: str) -> str:
    """Return the text of an error without hidden characters. If the text is too long, truncate it and add a note."""
    if len(text) <= MAX_ERROR_CHARS:
        return clean(text)
    return f"{clean(text[:MAX_ERROR_CHARS])}… (cut: these are the first {MAX_ERROR_CHARS} of {len(text)} characters)"


def bounded_data(data: Any) -> Any:
    """Return the data of an error, or a note instead if the data is too large."""
    if data is None:
        return None
    try:
        size_bytes = len(json_bytes.dumps(data))
    except json_bytes.MalformedJson:
        return data  # the serializer reports the error
    if size_bytes <= MAX_ERROR_DATA_BYTES:
        return data
    return {"cut": f"the data of this error had {size_bytes} bytes; at most {MAX_ERROR_DATA_BYTES} are forwarded"}


def default_response(request: dict[str, Any]) -> dict[str, Any]:
    """Return the default response to an upstream's request: success for `ping`, an error for other methods."""
    if request.get("method") == "ping":
        return {"jsonrpc": "2.0", "id": request["id"], "result": {}}
    # The method name is truncated, because the upstream controls this text, and both sides may log it.
    error = {"code": METHOD_NOT_FOUND, "message": f"{str(request.get('method'))[:100]} is not offered by this client"}
    return {"jsonrpc": "2.0", "id": request["id"], "error": error}


def notification(method: str, params: dict[str, Any] | None) -> dict[str, Any]:
    """Return a JSON-RPC notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}


def cancellation(request_id: int) -> dict[str, Any]:
    """Return the notification that cancels a request."""
    return notification("notifications/cancelled", {"requestId": request_id, "reason": "the caller left"})
