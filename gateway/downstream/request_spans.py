"""What a span tells of a caller's request."""

from __future__ import annotations

from typing import Any, Final

from gateway.audit.call import session_mark
from gateway.downstream.messages import STDIO_PEER, McpRequest
from gateway.instruments import conventions
from gateway.instruments.trace_context import PARENT, parents_of
from gateway.instruments.tracing import Span, Tracing, UnrecordedSpan, content_of, uri_of
from gateway.protocol import VERSION_KEY

# Of a name, an id or a method that a caller has made up: longer than any that exists.
_MAX_CHARS: Final = 200


def span_of(request: McpRequest, tracing: Tracing) -> Span | UnrecordedSpan:
    """The span of a request, as a part of its caller's trace."""
    params, head = request.params, request.trace
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else None
    parents = parents_of(meta, head) if head or (meta is not None and PARENT in meta) else ()
    # First of all: of most requests nothing is recorded.
    unrecorded = tracing.unrecorded(parents)
    if unrecorded is not None:
        return unrecorded
    session = request.session
    version = session.version if session is not None else (meta or {}).get(VERSION_KEY)
    name = params.get("name")
    attributes: dict[str, Any] = {
        conventions.PROTOCOL_VERSION: version if isinstance(version, str) else None,
        conventions.SESSION_ID: session_mark(session.id) if session is not None else None,
        conventions.RESOURCE_URI: uri_of(params),
        conventions.REQUEST_ID: str(request.id)[:_MAX_CHARS],
        conventions.TRANSPORT: conventions.PIPE if request.peer == STDIO_PEER else conventions.TCP,
    }
    if isinstance(name, str):
        attributes[conventions.PROMPT if request.method == "prompts/get" else conventions.TOOL] = name[:_MAX_CHARS]
    if request.method == "tools/call":
        attributes[conventions.OPERATION] = conventions.EXECUTE_TOOL
        if tracing.content:
            attributes[conventions.ARGUMENTS] = content_of(params.get("arguments"))
    return tracing.of_caller(request.method[:_MAX_CHARS], parents, attributes)
