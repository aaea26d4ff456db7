"""One HTTP request as it arrives: its headers by name, its body within bounds, and what both must say alike.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from gateway.access.principal import Principal
from gateway.downstream.http.response import Receive, Send
from gateway.errors import HEADER_MISMATCH, RpcError
from gateway.protocol import NAMED_BY, VERSION_KEY, check_envelope, is_modern

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
BODY_S: Final = 30.0
_FORGOTTEN_BYTES: Final = 64 * 1024 * 1024
_ROUTING: Final = frozenset({"mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"})
_TRACE: Final[tuple[str, ...]] = ("traceparent", "tracestate", "baggage")

Scope = MutableMapping[str, Any]


class Refused(Exception):
    """The request ends with this status before anything runs."""

    def __init__(self, status: int, message: str = "", headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.status = status
        self.message = message
        self.headers = headers
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One HTTP request whose caller is known, and the way back."""

    headers: dict[str, str]
    principal: Principal
    profile: str
    peer: str
    receive: Receive
    send: Send

    @property
    def trace(self) -> dict[str, str]:
        """The caller's trace context."""
        return {name: self.headers[name] for name in _TRACE if name in self.headers}


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers by name; one that routes must not appear twice.

    Raises:
        Refused: It does.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1")
        if name in headers and (name in _ROUTING or name.startswith("mcp-param-")):
            raise Refused(400, f"the header {name} appears more than once")
        # Source: RFC 9110, section 5.5 "Field Values": white space around a value is not part of it.
        headers[name] = raw_value.decode("latin-1").strip(" \t")
    return headers


def check_post(headers: dict[str, str]) -> None:
    """Media types and length of a POST.

    Raises:
        Refused: They are not what this endpoint takes.
    """
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refused(415, "Content-Type must be application/json")
    accept = headers.get("accept", "*/*")
    if "*/*" not in accept:
        wanted = ("application/json" in accept or "application/*" in accept) and "text/event-stream" in accept
        if not wanted:
            raise Refused(406, "Accept must contain application/json and text/event-stream")
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        # Within reason its rest is read and forgotten: who is cut while writing sees a reset, not this answer.
        close = [(b"connection", b"close")] if int(length) > _FORGOTTEN_BYTES else None
        raise Refused(413, f"a request may have {MAX_BODY_BYTES} bytes", close)


async def read_body(receive: Receive) -> bytes:
    """The whole body.

    Raises:
        Refused: It is too large, too slow, or its caller has left.
    """
    deadline = anyio.current_time() + BODY_S
    message = await _receive(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await _receive(receive, deadline - anyio.current_time())
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise Refused(413, f"a request may have {MAX_BODY_BYTES} bytes", [(b"connection", b"close")])
    return b"".join(parts)


async def _receive(receive: Receive, within_s: float = BODY_S) -> MutableMapping[str, Any]:
    with anyio.move_on_after(within_s):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the caller left")
        return message
    raise Refused(408, "the body did not arrive in time", [(b"connection", b"close")])


def check_agreement(headers: dict[str, str], method: str, params: dict[str, Any]) -> None:
    """Headers against body (MCP 2026-07-28, Streamable HTTP, "Server Validation").

    Raises:
        RpcError: They disagree, or the envelope is unsound.
    """
    meta = params.get("_meta")
    claimed = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if isinstance(claimed, str) and headers.get("mcp-protocol-version") != claimed:
        raise _mismatch("MCP-Protocol-Version does not match the request's protocol version")
    if headers.get("mcp-method") != method and is_modern(params):
        raise _mismatch("Mcp-Method does not match the request's method")
    key = NAMED_BY.get(method)
    named = params.get(key) if key is not None and is_modern(params) else None
    if named is not None and _decoded(headers.get("mcp-name")) != named:
        raise _mismatch(f"Mcp-Name does not match params.{key}")
    check_envelope(params)


def _decoded(value: str | None) -> str | None:
    if value is None or not value.startswith("=?base64?"):
        return value
    from mcp.shared.inbound import decode_header_value

    return decode_header_value(value)


def _mismatch(message: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, message)
