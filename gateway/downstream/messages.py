"""A caller's request and its response, independent of the transport, and the serialized lists of a view.

The modern era is MCP 2026-07-28, in which each request contains the client's version and capabilities in `_meta`. The
handshake era is every earlier version, in which the session stores both after `initialize`.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final, Literal, NamedTuple

from cachetools import LRUCache
from msgspec import Struct, field

from gateway import __version__
from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.audit.audit_entries import session_mark
from gateway.calls.builtin_tools import BUILTIN_PROMPTS, GATEWAY_TOOLS
from gateway.calls.caller import Caller
from gateway.downstream.sessions import Emit, Session
from gateway.process.memory import return_memory
from gateway.process.tasks import run_in_thread
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
from registry.catalog.catalog import handshake_definition
from registry.intake.item_intake import ItemKind
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

SERVER_INFO: Final = {"name": "typegate", "title": "typegate", "version": __version__}
DEFAULT_TTL_MS: Final = 60_000
"""How long callers may cache a list if no upstream sets a time. It may be long, because changes are announced."""

# The maximum number of cached lists, enough for dozens of profiles and groups of callers with equal permissions. A list
# of a thousand tools takes 1 MiB.
_MAX_LISTS: Final = 256

# Lists with more items are serialized in a thread, because this takes more than a few milliseconds.
_MAX_WRITTEN_INLINE: Final = 200


class _RenderedList(NamedTuple):
    """The serialized beginning of a result, up to the end of its items.

    Attributes:
        starts, ends: The position of each item in `text`.
        serves_both_eras: True if the list is equal in both protocol eras.
    """

    text: bytes
    items: tuple[object, ...]
    starts: array[int]
    ends: array[int]
    serves_both_eras: bool

    def texts(self) -> dict[int, tuple[object, memoryview]]:
        """Return each item object with its serialized form, by the `id()` of the object."""
        # The item is included so that callers can compare it: an `id()` may be reused after its object is freed.
        full_text, places = memoryview(self.text), zip(self.items, self.starts, self.ends, strict=True)
        return {id(item): (item, full_text[start:end]) for item, start, end in places}


ListedKind = Literal["tools"] | ItemKind
LIST_METHODS: Final[dict[str, ListedKind]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "skills/list": "skills",
}


class ListResults:
    """Cache of list results, by view, kind and protocol era.

    A view is what callers with the same profile and permissions see. Nearly every list is equal in both eras, and such
    a list is stored once.
    """

    def __init__(self) -> None:
        # By view, kind and era: the state that the list was serialized from, and the list. After a change, only changed
        # items are serialized again.
        self._lists: LRUCache[object, tuple[object, _RenderedList]] = LRUCache(_MAX_LISTS)

    async def render_result(
        self, view: View, kind: ListedKind, *, modern: bool, shared: bool, found_names: tuple[str, ...] = ()
    ) -> json_bytes.Pieces:
        """Return the whole serialized result, which is a single page; a long list is serialized in a thread.

        Args:
            modern: Whether the caller uses MCP 2026-07-28.
            shared: Whether callers need no credentials, so that caches may share the list between callers.
            found_names: Names of unlisted tools that searches of this session have found; appended to the list.
        """
        listed = await self._cached_list(view, kind, modern, found_names if kind == "tools" else ())
        if not modern:
            return listed, b"}"
        listings = view.catalog.servers.values()
        envelope = {
            "resultType": "complete",
            "ttlMs": min(
                (listing.ttl_ms for listing in listings if listing.ttl_ms is not None), default=DEFAULT_TTL_MS
            ),
            "cacheScope": "public" if shared and all(listing.scope == "public" for listing in listings) else "private",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        return listed, b"," + json_bytes.dumps(envelope)[1:]

    async def _cached_list(self, view: View, kind: ListedKind, modern: bool, found_names: tuple[str, ...]) -> bytes:
        # Compare the digest, not the catalog object, which is replaced even if none of these items has changed.
        digest = view.digest if kind == "tools" else view.catalog.prompts_and_resources.digests.get(kind)
        name, key = (view.key, kind, modern), (digest, found_names)
        cached, of_other_era = self._lists.get(name), self._lists.get((view.key, kind, not modern))
        if cached is not None and cached[0] == key:
            return cached[1].text
        if of_other_era is not None and of_other_era[0] == key and of_other_era[1].serves_both_eras:
            self._lists[name] = of_other_era
            return of_other_era[1].text
        write = partial(_write_list, view, kind, modern, found_names, cached[1] if cached is not None else None)
        size = len(view.entries) if kind == "tools" else len(view.catalog.prompts_and_resources.items(kind))
        rendered = write() if size <= _MAX_WRITTEN_INLINE else await run_in_thread(partial(_write_and_trim, write))
        if not found_names:  # search results of one session are not cached
            self._lists[name] = key, rendered
        return rendered.text


def _write_and_trim(write: Callable[[], _RenderedList]) -> _RenderedList:
    """Serialize a long list, then return the freed memory to the system, which is as much as the list takes."""
    rendered = write()
    return_memory()
    return rendered


def _write_list(
    view: View, kind: ListedKind, modern: bool, found_names: tuple[str, ...], before: _RenderedList | None
) -> _RenderedList:
    earlier_texts = before.texts() if before is not None else {}
    items = tuple(_items(view, kind, found_names))
    starts, ends = array("Q"), array("Q")
    # Write to a buffer instead of joining strings: ten thousand strings and other allocations would fragment the heap.
    text = BytesIO()
    text.write(b'{"%b":[' % kind.encode())
    serves_both_eras = True
    for item in items:
        older = handshake_definition(item) if kind == "tools" else item
        serves_both_eras &= older is item
        entry = earlier_texts.get(id(item))
        if entry is None or entry[0] is not item:
            entry = item, memoryview(json_bytes.dumps(item if modern else older))
        if starts:
            text.write(b",")
        starts.append(text.tell())
        text.write(entry[1])
        ends.append(text.tell())
    text.write(b"]")
    return _RenderedList(text.getvalue(), items, starts, ends, serves_both_eras)


def _items(view: View, kind: ListedKind, found_names: tuple[str, ...]) -> Iterable[Mapping[str, Any]]:
    if kind != "tools":
        if kind == "prompts":
            yield from BUILTIN_PROMPTS if view.grant.opens("prompts") else ()
        yield from (
            item.definition
            for item in view.catalog.prompts_and_resources.items(kind)
            if item.key != GATEWAY_TOOLS["name"]
        )
        return
    yield from view.builtin_tools
    for entry in view.entries:
        if entry.listed:
            yield entry.definition
    # Append these tools, so that the earlier part of the list stays the same and a host's prompt cache remains valid.
    for name in found_names:
        if (found_entry := view.entry(name)) is not None:
            yield found_entry.definition


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
