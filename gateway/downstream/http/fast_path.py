"""The calls of a well-behaved host, told apart at a glance; all others take the long way, which knows every rule.

A request is taken here only if nothing about it is unusual, and falls through otherwise: whatever has to be
refused, decoded or explained is the endpoint's. So both ways answer alike, and this one checks less only where
there is less to check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway import wire
from gateway.downstream.http.endpoint import McpEndpoint, status_of
from gateway.downstream.server import Request
from gateway.downstream.sessions import Emit, Running
from gateway.protocol import CAPABILITIES_KEY, HANDSHAKE_VERSIONS, MODERN_VERSIONS, VERSION_KEY
from registry.views.profile import DEFAULT

MAX_BODY_BYTES: Final = 256 * 1024
_METHODS: Final = frozenset({"tools/call", "tools/list", "ping"})
_MODERN: Final = {version.encode(): version for version in MODERN_VERSIONS}
_HANDSHAKE: Final = frozenset({None, *(version.encode() for version in HANDSHAKE_VERSIONS)})
_TRACE: Final = (b"traceparent", b"tracestate", b"baggage")
_NO_TRACE: Final[dict[str, str]] = {}

Admits = Callable[[bytes, bytes | None], bool]
"""Whether a Host and an Origin may come in."""


class FastPath:
    """Takes requests whose head and body are there already, and answers them without ASGI.

    Args:
        endpoint: The long way; its sessions, keys and running requests are shared.
        admits: The look at Host and Origin.
    """

    def __init__(self, endpoint: McpEndpoint, admits: Admits) -> None:
        self._endpoint = endpoint
        self._admits = admits

    def take(
        self, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes, *, peer: str, emit: Emit
    ) -> Request | None:
        """The request, if it is one of the usual ones; nothing has happened where it is not.

        Args:
            path: As it was written, without a query.
            headers: Names in lower case.
            body: All of it.
            peer: The other end of the connection.
            emit: Sends a message that belongs to the request.
        """
        endpoint = self._endpoint
        head = dict(headers)
        if (
            len(head) != len(headers)
            or endpoint.draining
            or b"host" not in head
            or head.get(b"content-type") != b"application/json"
            or not self._admits(head[b"host"], head.get(b"origin"))
        ):
            return None
        accept = head.get(b"accept", b"*/*")
        if b"*/*" not in accept and not (b"application/json" in accept and b"text/event-stream" in accept):
            return None
        profile = path[5:].decode("latin-1") or DEFAULT
        authorization = head.get(b"authorization")
        principal = endpoint.principal(profile, None if authorization is None else authorization.decode("latin-1"))
        if principal is None:
            return None
        try:
            message = wire.loads(body)
        except wire.MalformedJson:
            return None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        request_id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if not isinstance(request_id, int | str) or request_id is True or request_id is False:
            return None
        if not isinstance(method, str) or method not in _METHODS or not isinstance(params, dict):
            return None
        version = head.get(b"mcp-protocol-version")
        session = None
        modern = version in _MODERN
        if modern:
            if method == "ping" or not self._agrees(head, version, method, params, profile):
                return None
        elif version in _HANDSHAKE and b"mcp-session-id" in head:
            meta = params.get("_meta")
            if isinstance(meta, dict) and VERSION_KEY in meta:
                return None
            session = endpoint.sessions.get(head[b"mcp-session-id"].decode("latin-1"), principal, profile)
            if session is None:
                return None
        else:
            return None
        return Request(
            id=request_id,
            method=method,
            params=params,
            modern=modern,
            principal=principal,
            emit=emit,
            session=session,
            trace=_trace(head),
            peer=peer,
            profile=profile,
        )

    async def answer(self, request: Request, running: Running) -> tuple[int, wire.Pieces]:
        """Run a request that was taken: the status of its answer, and the answer.

        Raises:
            CancelledError: `running` was cancelled.
        """
        endpoint = self._endpoint
        endpoint.begin(request, running)
        try:
            answer = await endpoint.server.answer(request)
        finally:
            endpoint.end(request, running)
        return status_of(request, answer), answer.pieces

    def cut_off(self, request: Request, *, streaming: bool) -> bytes:
        """What answers a request that was cancelled; nothing where its stream just ends."""
        return b"" if streaming and not self._endpoint.draining else self._endpoint.cut_off(request)

    def _agrees(
        self, head: dict[bytes, bytes], version: bytes | None, method: str, params: dict[str, Any], profile: str
    ) -> bool:
        """Whether headers and body of a modern request say the same, in the plainest form."""
        meta = params.get("_meta")
        if not isinstance(meta, dict) or version is None or meta.get(VERSION_KEY) != _MODERN.get(version):
            return False
        if not isinstance(meta.get(CAPABILITIES_KEY), dict) or head.get(b"mcp-method") != method.encode():
            return False
        if method != "tools/call":
            return True
        name = params.get("name")
        if not isinstance(name, str) or head.get(b"mcp-name", b"").decode("latin-1") != name:
            return False
        # Parameters that are mirrored in headers are compared on the long way.
        return not name.startswith("=?") and not self._endpoint.mirrors(profile, name)


def _trace(head: dict[bytes, bytes]) -> dict[str, str]:
    if b"traceparent" not in head and b"tracestate" not in head and b"baggage" not in head:
        return _NO_TRACE
    return {name.decode(): head[name].decode("latin-1") for name in _TRACE if name in head}
