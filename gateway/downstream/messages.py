"""A caller's request and its response, independent of the transport.

The modern era is MCP 2026-07-28, in which each request contains the client's version and capabilities in `_meta`. The
handshake era is every earlier version, in which the session stores both after `initialize`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.audit.audit_entries import session_mark
from gateway.calls.caller import Caller
from gateway.downstream.lists import SERVER_INFO
from gateway.downstream.sessions import Emit, Session
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import QuotaExceeded, RpcError
from gateway.protocol.jsonrpc import RequestId
from gateway.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    SERVER_INFO_KEY,
    VERSION_KEY,
)
from gateway.telemetry import trace_context
from gateway.telemetry.trace_context import PARENT, parents_of
from gateway.telemetry.tracing import Span, Tracing, UnrecordedSpan, content_of, uri_of
from gateway.upstream.session import OnParams
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

STDIO_PEER: Final = "stdio"
"""The `peer` of a host that uses standard input and output."""
_SERVER_INFO_META: Final = {SERVER_INFO_KEY: SERVER_INFO}


class McpRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A caller's request, independent of the transport.

    Attributes:
        id: The JSON-RPC id, echoed unchanged.
        modern: Whether the request has the `_meta` members of MCP 2026-07-28.
        session: The handshake-era session; None in the modern era, and for `initialize`.
        emit: A function that sends a message to the caller before the response.
        pause: A function that closes the connection and makes the caller reconnect after the given milliseconds; None
            if the caller cannot resume the response.
        trace: The caller's trace context, as HTTP headers.
        peer: The address of the caller.
        account: The account to charge.
        view: The items that the caller sees, if they have already been looked up.
    """

    id: RequestId
    method: str
    params: dict[str, Any]
    modern: bool
    principal: Principal
    account: Account
    emit: Emit
    pause: Callable[[int], None] | None = None
    session: Session | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    profile: str = DEFAULT_PROFILE
    view: View | None = None

    def log(self, params: dict[str, Any]) -> None:
        """Send a log message to the caller."""
        self.emit({"jsonrpc": "2.0", "method": "notifications/message", "params": params})

    def send_request(self, method: str, params: dict[str, Any]) -> Awaitable[Any]:
        """Send a request to the caller as part of this request, and return the result (see `Session.send_request`)."""
        assert self.session is not None
        return self.session.send_request(self.emit, method, params)

    def list_found(self, names: list[str], view: View) -> None:
        """Add the tools that a search has found to the session's list, and notify the caller before the response."""
        if self.session is not None and self.session.found.add(names, view):
            self.emit({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


class McpResponse(Struct, frozen=True, kw_only=True, eq=False):
    """A response to a request.

    Attributes:
        pieces: The JSON text of the response, in one or more pieces.
        error_code: The JSON-RPC error code; None for a result.
        session: The session that `initialize` has opened.
        refused: The quota that the request would have exceeded; None if the request was run.
    """

    pieces: json_bytes.Pieces
    error_code: int | None = None
    session: Session | None = None
    refused: QuotaExceeded | None = None

    @property
    def body(self) -> bytes:
        """Return the JSON text in one piece."""
        return b"".join(self.pieces)


def error_response(request_id: RequestId | None, error: RpcError) -> McpResponse:
    """Return an error response; its `data` is omitted if it cannot be expressed as JSON."""
    try:
        body = json_bytes.dumps(error.to_object())
    except json_bytes.MalformedJson:
        body = json_bytes.dumps({"code": error.code, "message": error.message})
    beginning = b'{"jsonrpc":"2.0","id":' + json_bytes.dumps(request_id) + b',"error":'
    refused = error if isinstance(error, QuotaExceeded) else None
    return McpResponse(pieces=(beginning, body, b"}"), error_code=error.code, refused=refused)


def result_response(request_id: RequestId, result: json_bytes.Pieces, session: Session | None = None) -> McpResponse:
    """Return a response with a serialized result, and with the session that the request has opened."""
    beginning = b'{"jsonrpc":"2.0","id":' + json_bytes.dumps(request_id) + b',"result":'
    return McpResponse(pieces=(beginning, *result, b"}"), session=session)


def call_response(request: McpRequest, result: dict[str, Any]) -> McpResponse:
    """Return the response to a tool call.

    Raises:
        MalformedJson: The result is nested too deeply.
    """
    result = _add_modern_members(result, request)
    if json_bytes.UnparsedJson not in map(type, result.values()):
        # Fast path for nearly all results.
        return McpResponse(pieces=(json_bytes.dumps({"jsonrpc": "2.0", "id": request.id, "result": result}),))
    return result_response(request.id, json_bytes.pieces(result))


def serialize_result(result: dict[str, Any], request: McpRequest) -> json_bytes.Pieces:
    """Serialize a result; in the modern era, add `resultType` and the gateway's `serverInfo`."""
    return json_bytes.pieces(_add_modern_members(result, request))


def _add_modern_members(result: dict[str, Any], request: McpRequest) -> dict[str, Any]:
    if request.modern:
        result.setdefault("resultType", "complete")
        meta = result.get("_meta")
        result["_meta"] = (
            _SERVER_INFO_META if meta is None else {**(meta if isinstance(meta, dict) else {}), **_SERVER_INFO_META}
        )
    return result


def caller_of(request: McpRequest, view: View) -> Caller:
    """Return the caller of a request, with its permissions, capabilities and callbacks."""
    params, session = request.params, request.session
    meta = params.get("_meta")
    if type(meta) is not dict:
        meta = {}
    token = meta.get("progressToken")
    on_progress = None if token is None else _progress_sender(request.emit, token)
    if session is None:
        level, capabilities = meta.get(LOG_LEVEL_KEY), meta.get(CAPABILITIES_KEY)
        return Caller(
            principal=request.principal,
            account=request.account,
            view=view,
            version=meta[VERSION_KEY] if request.modern else HANDSHAKE_VERSIONS[-1],
            request_id=request.id,
            capabilities=capabilities if type(capabilities) is dict else {},
            answers="inputResponses" in params or "requestState" in params,
            log_level=None if level is None or level not in LOG_LEVELS else level,
            on_progress=on_progress,
            on_log=None if level is None else request.log,
            trace=request.trace,
            peer=request.peer,
            client_info=meta.get(CLIENT_INFO_KEY),
        )
    return Caller(
        principal=request.principal,
        account=request.account,
        view=view,
        version=session.version,
        request_id=request.id,
        owner=session,
        session_id=session.id,
        host=session.host,
        capabilities=session.capabilities,
        log_level=session.log_level,
        on_progress=on_progress,
        on_log=None if session.log_level is None else request.log,
        on_pause=request.pause,
        ask=request.send_request,
        found=request.list_found,
        trace=request.trace,
        peer=request.peer,
    )


def _progress_sender(emit: Emit, token: object) -> OnParams | None:
    """Return a function that sends progress notifications to the caller; None if the token is invalid."""
    # In Python, unlike in JSON, a boolean is an integer.
    if not isinstance(token, str | int) or isinstance(token, bool):
        return None
    method = "notifications/progress"
    return lambda params: emit({"jsonrpc": "2.0", "method": method, "params": {**params, "progressToken": token}})


# Names, ids and methods from the caller are truncated to this length in spans. No name in use is longer.
_MAX_CHARS: Final = 200


def span_of(request: McpRequest, tracing: Tracing) -> Span | UnrecordedSpan:
    """Start and return the span of a request, as a part of the caller's trace."""
    params, trace = request.params, request.trace
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else None
    parents = parents_of(meta, trace) if trace or (meta is not None and PARENT in meta) else ()
    # Check this before computing the attributes, because most requests are not recorded.
    unrecorded = tracing.unrecorded(parents)
    if unrecorded is not None:
        return unrecorded
    session = request.session
    version = session.version if session is not None else (meta or {}).get(VERSION_KEY)
    name = params.get("name")
    attributes: dict[str, Any] = {
        trace_context.PROTOCOL_VERSION: version if isinstance(version, str) else None,
        trace_context.SESSION_ID: session_mark(session.id) if session is not None else None,
        trace_context.RESOURCE_URI: uri_of(params),
        trace_context.REQUEST_ID: str(request.id)[:_MAX_CHARS],
        trace_context.TRANSPORT: trace_context.PIPE if request.peer == STDIO_PEER else trace_context.TCP,
    }
    if isinstance(name, str):
        attributes[trace_context.PROMPT if request.method == "prompts/get" else trace_context.TOOL] = name[:_MAX_CHARS]
    if request.method == "tools/call":
        attributes[trace_context.OPERATION] = trace_context.EXECUTE_TOOL
        if tracing.content:
            attributes[trace_context.ARGUMENTS] = content_of(params.get("arguments"))
    return tracing.start_server_span(request.method[:_MAX_CHARS], parents, attributes)
