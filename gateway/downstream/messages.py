"""One request of a caller and its response, whatever transport carries them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from gateway import wire
from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.downstream.lists import SERVER_INFO
from gateway.downstream.sessions import Emit, Session
from gateway.errors import QuotaExceeded, RpcError
from gateway.jsonrpc import RequestId
from gateway.protocol import SERVER_INFO_KEY
from gateway.upstream.transport.jsonrpc import ResultStream
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

STDIO_PEER: Final = "stdio"
"""The `peer` of the host that has started us."""
_OUR_META: Final = {SERVER_INFO_KEY: SERVER_INFO}
# What a result holds that is not written with all else.
_IN_PARTS: Final = frozenset({wire.Unparsed, wire.PassedOn})


class McpRequest(Struct, frozen=True, kw_only=True, eq=False):
    """One request of a caller, whatever transport carried it.

    Attributes:
        id: The JSON-RPC id, echoed as it came.
        modern: It carries the `_meta` envelope of 2026-07-28.
        session: Of the handshake era; None in the modern one, and for `initialize`.
        emit: Sends a message to the caller before the response.
        results: Takes a large result in pieces; None where its transport cannot carry that.
        pause: Has the caller come back for the response after some milliseconds; None where it cannot.
        trace: The caller's trace context, as HTTP headers.
        peer: The address of the caller.
        profile: The profile that it addresses.
        account: What its caller uses at present.
        view: What its caller sees, where that is known already.
    """

    id: RequestId
    method: str
    params: dict[str, Any]
    modern: bool
    principal: Principal
    account: Account
    emit: Emit
    results: ResultStream | None = None
    pause: Callable[[int], None] | None = None
    session: Session | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    profile: str = DEFAULT_PROFILE
    view: View | None = None

    def log(self, params: dict[str, Any]) -> None:
        """Send the caller a log message."""
        self.emit({"jsonrpc": "2.0", "method": "notifications/message", "params": params})

    def ask(self, method: str, params: dict[str, Any]) -> Awaitable[Any]:
        """Put a question to the caller in the middle of a request of its session; see `Session.ask`."""
        assert self.session is not None
        return self.session.ask(self.emit, method, params)

    def list_found(self, names: list[str], view: View) -> None:
        """Add to the list of its session what it has searched for; it is notified before the result."""
        if self.session is not None and self.session.found.add(names, view):
            self.emit({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


class McpResponse(Struct, frozen=True, kw_only=True, eq=False):
    """The response as JSON, its error code if it is an error, and the session that `initialize` has opened.

    Attributes:
        refused: Nothing was run, since a quota would be exceeded.
        goes_on: The pieces are the rest of a response whose beginning was sent as the beginning of its result.
    """

    pieces: wire.Pieces
    error_code: int | None = None
    session: Session | None = None
    refused: QuotaExceeded | None = None
    goes_on: bool = False

    @property
    def body(self) -> bytes:
        """The response in one piece."""
        return b"".join(self.pieces)


def error_response(request_id: RequestId | None, error: RpcError) -> McpResponse:
    """An error response."""
    try:
        body = wire.dumps(error.to_object())
    except wire.MalformedJson:
        body = wire.dumps({"code": error.code, "message": error.message})
    head = b'{"jsonrpc":"2.0","id":' + wire.dumps(request_id) + b',"error":'
    refused = error if isinstance(error, QuotaExceeded) else None
    return McpResponse(pieces=(head, body, b"}"), error_code=error.code, refused=refused)


def response_of(request_id: RequestId, result: wire.Pieces, session: Session | None = None) -> McpResponse:
    """A response with a result; with the session that it opens."""
    head = b'{"jsonrpc":"2.0","id":' + wire.dumps(request_id) + b',"result":'
    return McpResponse(pieces=(head, *result, b"}"), session=session)


def response_to(request: McpRequest, result: dict[str, Any]) -> McpResponse:
    """The response with the result of a call; the rest of it where its `content` was passed on.

    Raises:
        MalformedJson: The result is nested too deeply.
    """
    result = _completed(result, request)
    if _IN_PARTS.isdisjoint(map(type, result.values())):
        # Nearly all of them.
        return McpResponse(pieces=(wire.dumps({"jsonrpc": "2.0", "id": request.id, "result": result}),))
    if type(result.get("content")) is wire.PassedOn:
        return McpResponse(pieces=(*wire.pieces_after(result, "content"), b"}"), goes_on=True)
    return response_of(request.id, wire.pieces(result))


def serialised(result: dict[str, Any], request: McpRequest) -> wire.Pieces:
    """A result as its caller gets it: in the modern era with its type and our `serverInfo`."""
    return wire.pieces(_completed(result, request))


def _completed(result: dict[str, Any], request: McpRequest) -> dict[str, Any]:
    if request.modern:
        result.setdefault("resultType", "complete")
        meta = result.get("_meta")
        result["_meta"] = _OUR_META if meta is None else {**(meta if isinstance(meta, dict) else {}), **_OUR_META}
    return result
