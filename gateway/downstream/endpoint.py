"""The `/mcp` endpoint: Streamable HTTP for both protocol eras.

The modern era is MCP 2026-07-28. The handshake era is every earlier version, in which a caller opens a session with
`initialize`, and receives notifications on the session's own event stream, which it opens with GET.

Sources: MCP 2025-11-25, "Transports", "Listening for Messages from the Server" and "Resumability and Redelivery"; MCP
2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Final

from gateway.access.principal import Authenticator, Principal
from gateway.access.quotas import Account
from gateway.calls.profile_views import ProfileViews
from gateway.downstream.admission import (
    AuthenticatedCaller,
    Callers,
    ForwardedRequests,
    ParsedHeaderBlock,
    SessionForwarder,
    UnverifiedCaller,
    check_agreement,
    check_param_headers,
    session_id_in,
)
from gateway.downstream.mcp_server import McpServer
from gateway.downstream.messages import McpRequest, McpResponse, error_response
from gateway.downstream.resumption import ResumableAnswer
from gateway.downstream.sessions import Emit, Running, Session, SessionTable
from gateway.http.http_request import (
    EVENT_STREAM,
    MAX_REQUEST_BYTES,
    RequestHead,
    RequestRefused,
    accepts,
    check_post,
    over_quota,
)
from gateway.http.responder import Responder
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    QuotaExceeded,
    RpcError,
)
from gateway.protocol.jsonrpc import InvalidMessage, RequestId, RpcNotification, RpcRequest, RpcResponse, read
from gateway.protocol.versions import HANDSHAKE_VERSIONS, is_modern
from registry.views.view import View

log = logging.getLogger(__name__)

# The maximum number of digits in an event id of this gateway.
_MAX_EVENT_ID_DIGITS: Final = 15


class SessionStreams:
    """Answers GET requests with event streams.

    Args:
        server: The server whose `closing` event ends the streams.
        listening: The open streams and their callers.
    """

    def __init__(self, server: McpServer, listening: dict[Running, Principal]) -> None:
        self._server = server
        self._listening = listening

    def open(self, head: RequestHead, session: Session, caller: AuthenticatedCaller, responder: Responder) -> None:
        """Open the session's own stream, or resume the response that `Last-Event-ID` names.

        Raises:
            RequestRefused: The caller does not accept a stream, the session already has a stream, or the response is no
                longer stored.
        """
        account = caller.account
        if not accepts(head, EVENT_STREAM):
            raise RequestRefused(406, "Accept must allow text/event-stream")
        last = head.text(b"last-event-id")
        if session.answers.is_answer_id(last):
            stored = session.answers.find(last)
            if stored is None:
                raise RequestRefused(400, "Last-Event-ID does not name a response that is still stored")
            responder.run(self._run_counted(account, responder, stored[0].resume(responder, stored[1])))
            return
        if session.streaming and not last:
            raise RequestRefused(409, "this session already has a stream")
        after = int(last) if last.isdecimal() and len(last) <= _MAX_EVENT_ID_DIGITS else None
        stream = self._stream(session, caller.principal, after, responder)
        responder.run(self._run_counted(account, responder, stream))

    async def _run_counted(self, account: Account, responder: Responder, stream: Coroutine[Any, Any, None]) -> None:
        """Run a stream and count it in the account while it is open; reject it if the caller has too many streams."""
        try:
            account.open_stream()
        except QuotaExceeded as error:
            stream.close()
            responder.refuse(over_quota(error))
            return
        try:
            await stream
        finally:
            account.close_stream()

    async def _stream(self, session: Session, principal: Principal, after: int | None, responder: Responder) -> None:
        """Send the messages of a session until it ends, another stream replaces this one, or the gateway stops."""
        emit = responder.emit
        responder.ping()  # sends the headers before the first message
        session.open_stream(emit, responder.cancel, after)
        self._listening[responder] = principal
        try:
            await self._server.closing.wait()
        except asyncio.CancelledError:
            pass  # the caller has disconnected, or the gateway closes the stream
        finally:
            del self._listening[responder]
            session.close_stream(emit)
        responder.end()


_CANCELLED: Final = -32800
MAX_PARSED_BYTES: Final = 96 * 1024 * 1024
"""The limit of a request's parsed size in memory. A body of the largest accepted size takes half of this limit if it
consists of table rows, and twice the limit if it consists of nested empty lists."""
# Bodies up to this size are not charged to the caller by their parsed size: it is at most 180 KiB, and the number of
# requests in flight is limited.
_UNCOUNTED_BYTES: Final = 4 * 1024
_HANDSHAKE: Final = frozenset({None, *(version.encode() for version in HANDSHAKE_VERSIONS)})
_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}


class McpEndpoint:
    """Answers requests to `/mcp`. `PathRouter` has already checked Host and Origin.

    Attributes:
        draining: True if new requests are rejected because the process is stopping.
    """

    max_body_bytes = MAX_REQUEST_BYTES

    def __init__(
        self,
        server: McpServer,
        views: ProfileViews,
        authenticator: Authenticator,
        callers: Callers,
        *,
        forwarder: SessionForwarder[Any] | None = None,
    ) -> None:
        """Initialize the endpoint.

        Args:
            forwarder: Forwards a request to the process that has its session; None if there is only one process.
        """
        self._server = server
        self._views = views
        # The callers of running requests, and the callers of open streams and subscriptions. All of these are cancelled
        # if their caller's credentials become invalid.
        self._running: dict[Running, Principal] = {}
        self._listening: dict[Running, Principal] = {}
        self._streams = SessionStreams(server, self._listening)
        self._forwarded = ForwardedRequests(forwarder)
        self._verified = 0
        self._callers = callers
        self.authenticator = authenticator
        authenticator.on_change(self._end_unauthorized)
        self.sessions = SessionTable(server.announcer)
        self.draining = False

    @property
    def in_flight(self) -> int:
        """Return how many requests wait for their response, not counting streams and subscriptions."""
        return len(self._running) + self._forwarded.in_flight + self._verified

    def give_up(self) -> None:
        """Cancel all requests in flight; each caller gets an error response."""
        for running in list(self._running):
            running.cancel()
        self._forwarded.give_up()

    def drain(self) -> None:
        """Reject new requests from now on, and end forwarded session streams."""
        self.draining = True
        self.close_streams()

    def close_streams(self) -> None:
        """End forwarded session streams; their callers reopen them through another process."""
        self._forwarded.close_streams()

    def _end_unauthorized(self) -> None:
        """End the sessions, requests and streams of callers whose credentials are no longer valid."""
        authenticator = self.authenticator
        # An expired token does not end a session: the caller may continue the session with a new token.
        self.sessions.close_unless(authenticator.may_finish)
        for running, principal in list(self._running.items()):
            if not authenticator.may_finish(principal):
                running.cancel()
        for running, principal in list(self._listening.items()):
            if not authenticator.knows(principal):
                running.cancel()

    # Header block

    def admit(self, head: RequestHead, peer: str = "") -> AuthenticatedCaller | UnverifiedCaller:
        """Authenticate and check a request by its header block, so that the body of a rejected request is not read.

        Raises:
            RequestRefused: The profile, the credentials, the method or a header is not accepted.
        """
        judged = head.judged
        if type(judged) is ParsedHeaderBlock:
            # Fast path: the headers were checked for an earlier request with the same header block. The caller and the
            # draining state are checked each time.
            caller = self._callers.admit(judged, head, peer)
            if self.draining:
                raise _draining()
            return caller
        head.check_fields()
        modern = head.raw(b"mcp-protocol-version") not in _HANDSHAKE
        header_block = self._callers.parse_head(head, modern=modern)
        caller = self._callers.admit(header_block, head, peer)
        if self.draining:
            raise _draining()
        if head.method == b"POST":
            header_block.takes_json, header_block.streams = check_post(head)
            head.judged = header_block
        elif modern:
            raise RequestRefused(405, "this protocol version supports only POST", [(b"allow", b"POST")])
        elif head.method not in (b"GET", b"DELETE"):
            raise RequestRefused(405, "expected POST, GET or DELETE", [(b"allow", b"GET, POST, DELETE")])
        return caller

    # Complete request

    def answer(
        self,
        head: RequestHead,
        caller: AuthenticatedCaller | UnverifiedCaller,
        body: bytes,
        responder: Responder,
        peer: str,
    ) -> None:
        """Answer a complete request that `admit` has accepted.

        Raises:
            RequestRefused: The request exceeds a limit, names an unknown session, or asks for a stream that cannot be
                opened.
        """
        if isinstance(caller, UnverifiedCaller):
            try:
                caller.account.hold(len(body))
            except QuotaExceeded as error:
                raise over_quota(error) from None
            responder.run(self._verify(head, caller, body, responder, peer))
            responder.add_done_callback(partial(caller.account.release, len(body)))
            return
        if not caller.modern and self._forwarded.possible and self._forwarded.forward(head, body, responder):
            return
        if head.method == b"POST":
            if len(body) <= _UNCOUNTED_BYTES:
                self._handle_post(head, caller, body, responder, peer)
            else:
                self._handle_large_post(head, caller, body, responder, peer)
        elif head.method == b"GET":
            self._streams.open(head, self._session(session_id_in(head), caller), caller, responder)
        else:
            self.sessions.close(self._session(session_id_in(head), caller))
            responder.respond(204)

    async def _verify(
        self, head: RequestHead, unproven: UnverifiedCaller, body: bytes, responder: Responder, peer: str
    ) -> None:
        """Verify the credentials of a request by asking their issuer, then answer the request."""
        self._verified += 1
        try:
            try:
                caller = await self._callers.verify(unproven, head, peer)
            finally:
                self._verified -= 1
            if self.draining:
                raise _draining()
            self.answer(head, caller, body, responder, peer)
        except RequestRefused as refused:
            responder.refuse(refused)
        except Exception:  # boundary: without a response, the caller would wait forever
            log.exception("request failed")
            responder.fail()

    def _handle_large_post(
        self, head: RequestHead, caller: AuthenticatedCaller, body: bytes, responder: Responder, peer: str
    ) -> None:
        size_bytes = json_bytes.parsed_bytes(body)
        if size_bytes > MAX_PARSED_BYTES:
            raise RequestRefused(413, "the body has too many values for one request")
        try:
            caller.account.hold(size_bytes)
        except QuotaExceeded as error:
            raise over_quota(error) from None
        release = partial(caller.account.release, size_bytes)
        try:
            self._handle_post(head, caller, body, responder, peer)
        except BaseException:
            release()
            raise
        responder.add_done_callback(release)

    def _handle_post(
        self, head: RequestHead, caller: AuthenticatedCaller, body: bytes, responder: Responder, peer: str
    ) -> None:
        try:
            message = read(body)
        except json_bytes.MalformedJson as error:
            _send_error(responder, None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        except InvalidMessage as error:
            _send_error(responder, error.request_id, error)
            return
        if not isinstance(message, RpcRequest):
            self._handle_other(head, caller, message, responder)
            return
        header_block = head.judged
        assert type(header_block) is ParsedHeaderBlock
        modern, method, params = caller.modern, message.method, message.params
        if not header_block.streams and method == "subscriptions/listen":
            raise RequestRefused(406, "Accept must allow text/event-stream: the answer to this method is a stream")
        responder.accept(can_stream=header_block.streams, wants_stream=not header_block.takes_json)
        session: Session | None = None
        unchecked: RequestHead | None = None
        answer: ResumableAnswer | None = None
        emit: Emit = responder.emit
        view: View | None = None
        if is_call := method == "tools/call":
            view = self._views.cached_views.get(caller) or self._views.find_view(caller)
        if modern or ("_meta" in params and is_modern(params)):
            try:
                check_agreement(header_block, method, params)
                if view is not None and view.mirrors_arguments:
                    check_param_headers(head, view, params)
            except RpcError as error:
                _send_error(responder, message.id, error)
                return
            # The view says which headers are required. If the view has to be built first, `_answer_checked` checks the
            # headers later.
            unchecked = head if is_call and view is None else None
            modern = True
        elif method != "initialize":
            session = self._session(header_block.session_id, caller)
            if not header_block.streams:
                emit = session.emit_beside
            elif session.resumable:
                answer = ResumableAnswer(session.answers, caller.account, message.id, responder)
                emit = answer.emit
        request = McpRequest(
            id=message.id,
            method=method,
            params=params,
            modern=modern,
            principal=caller.principal,
            account=caller.account,
            emit=emit,
            pause=None if answer is None else answer.pause,
            session=session,
            trace=head.trace,
            peer=peer,
            profile=caller.profile,
            view=view,
        )
        responder.run(self._run(request, responder, answer, unchecked))

    def _handle_other(
        self,
        head: RequestHead,
        caller: AuthenticatedCaller,
        message: RpcNotification | RpcResponse,
        responder: Responder,
    ) -> None:
        """Handle a notification or a response."""
        if isinstance(message, RpcResponse):
            if caller.modern:
                _send_error(responder, None, RpcError(INVALID_REQUEST, "The gateway is not waiting for a response"))
                return
            self._session(session_id_in(head), caller).handle_response(message.message)
            responder.respond(202)
        elif caller.modern:
            responder.respond(202)
        else:
            responder.run(self._handle_notification(self._session(session_id_in(head), caller), message, responder))

    async def _run(
        self,
        request: McpRequest,
        responder: Responder,
        answer: ResumableAnswer | None,
        unchecked: RequestHead | None,
    ) -> None:
        """Answer a request, and register it as running so that it can be cancelled.

        Args:
            unchecked: The header block if its headers that repeat arguments have not been checked yet; otherwise None.
        """
        session = request.session
        running: Running = responder if answer is None else answer
        requests = self._listening if request.method == "subscriptions/listen" else self._running
        requests[running] = request.principal
        if session is not None:
            session.running[request.id] = running
        fields = None
        # Registered in this task and not before the task starts: a task that is cancelled before its start would never
        # unregister the request.
        try:
            response = await (
                self._server.answer(request) if unchecked is None else self._answer_checked(unchecked, request)
            )
            if (opened := response.session) is not None:
                try:
                    self.sessions.add(opened)
                except QuotaExceeded as error:
                    opened.end()
                    response = error_response(request.id, error)
                else:
                    fields = [(b"mcp-session-id", opened.id.encode())]
            if response.refused is not None and not responder.streaming:
                responder.refuse(over_quota(response.refused, body=response.body))
                return
            pieces = response.pieces
            status = 200 if response.error_code is None else _status_of(request, response.error_code)
        except asyncio.CancelledError:
            if responder.disconnected and not (answer is not None and answer.resumable):
                return
            # The caller's notification, the end of the session or the shutdown has cancelled the task, so the caller is
            # still connected and needs a response.
            status, pieces = 200, self._cancelled_response(request, streaming=responder.streaming)
        finally:
            del requests[running]
            if session is not None:
                session.running.pop(request.id, None)
        if answer is not None and answer.resumable:
            answer.finish(pieces)
        else:
            responder.finish(status, pieces, fields)

    async def _answer_checked(self, head: RequestHead, request: McpRequest) -> McpResponse:
        """Build the view, check the headers that repeat arguments, then answer the call."""
        try:
            check_param_headers(head, await self._views.prepared(request.profile, request.principal), request.params)
        except KeyError:
            pass  # the profile was removed; `answer` reports this below
        except RpcError as error:
            return error_response(request.id, error)
        return await self._server.answer(request)

    def _cancelled_response(self, request: McpRequest, *, streaming: bool) -> json_bytes.Pieces:
        """Return the response to a cancelled request; empty if the response is a stream that only has to be ended."""
        if self.draining:
            return self._server.shutdown_response(request).pieces
        return () if streaming else error_response(request.id, RpcError(_CANCELLED, "Request cancelled")).pieces

    async def _handle_notification(self, session: Session, message: RpcNotification, responder: Responder) -> None:
        params = message.params
        if message.method == "notifications/cancelled" and isinstance(params, dict):
            session.cancel(params.get("requestId"))
        else:
            await self._server.handle_notification(session, message.method)
        responder.respond(202)

    def _session(self, session_id: str | None, caller: AuthenticatedCaller) -> Session:
        if session_id is None:
            raise RequestRefused(400, "Mcp-Session-Id is missing: initialize first")
        session = self.sessions.get(session_id, caller.principal, caller.profile)
        if session is None:
            raise RequestRefused(404, "Session not found")
        return session


def _draining() -> RequestRefused:
    return RequestRefused(503, "the gateway is shutting down", [(b"retry-after", b"1")])


def _status_of(request: McpRequest, code: int) -> int:
    """Return the HTTP status for a JSON-RPC error code. In the handshake era, it is 200 except for parse errors."""
    return _STATUS.get(code, 200) if request.modern or code == PARSE_ERROR else 200


def _send_error(responder: Responder, request_id: RequestId | None, error: RpcError) -> None:
    responder.respond(_STATUS.get(error.code, 200), error_response(request_id, error).pieces)
