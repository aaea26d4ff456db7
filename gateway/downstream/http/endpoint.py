"""The `/mcp` endpoint: Streamable HTTP for both protocol eras.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from gateway import wire
from gateway.access.authenticator import Authenticator
from gateway.access.principal import Principal
from gateway.calls.profile_views import ProfileViews
from gateway.downstream.http.agreement import check_agreement, check_param_headers
from gateway.downstream.http.callers import Addressed, Admitted, Callers, Unproven, session_id_in
from gateway.downstream.http.carried import CarriedRequests, Carrier
from gateway.downstream.http.request import MAX_REQUEST_BYTES, RequestHead, RequestRefused, check_post, over_quota
from gateway.downstream.http.responder import Responder
from gateway.downstream.http.result_stream import ResultStream
from gateway.downstream.http.resumption import ResumableAnswer
from gateway.downstream.http.session_streams import SessionStreams
from gateway.downstream.messages import McpRequest, McpResponse, error_response
from gateway.downstream.server import McpServer
from gateway.downstream.sessions import Emit, Running, Session, SessionTable
from gateway.errors import (
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
from gateway.jsonrpc import InvalidMessage, RequestId, RpcNotification, RpcRequest, RpcResponse, read
from gateway.protocol import HANDSHAKE_VERSIONS, is_modern
from registry.views.view import View

log = logging.getLogger(__name__)

_CANCELLED: Final = -32800
MAX_PARSED_BYTES: Final = 96 * 1024 * 1024
"""What one request may take once it is parsed: rows of a table come to half of it in the largest body that is taken,
nested empty lists to twice."""
# Bodies up to here are not counted: requests in flight are bounded in number, and such a one takes 180 KiB at most.
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
    """Serves `/mcp`. Host and Origin were checked before.

    Attributes:
        authenticator: Who may call.
        draining: Nothing new is begun.
    """

    max_body_bytes = MAX_REQUEST_BYTES

    def __init__(
        self,
        server: McpServer,
        views: ProfileViews,
        authenticator: Authenticator,
        callers: Callers,
        *,
        carrier: Carrier[Any] | None = None,
    ) -> None:
        """Serve these views.

        Args:
            server: Answers MCP requests.
            views: The profiles.
            authenticator: Knows who may call.
            callers: Lets them in.
            carrier: Knows the sessions of other processes; None where there is no other process.
        """
        self._server = server
        self._views = views
        # Whose requests run, subscriptions apart from others: a caller may lose its credentials meanwhile.
        self._running: dict[Running, Principal] = {}
        self._listening: dict[Running, Principal] = {}
        self._streams = SessionStreams(server, self._listening)
        self._carried = CarriedRequests(carrier)
        self._verified = 0
        self._callers = callers
        self.authenticator = authenticator
        authenticator.on_change(self._end_unknown)
        self.sessions = SessionTable(server.announcer)
        self.draining = False

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer; subscriptions are none of them."""
        return len(self._running) + self._carried.in_flight + self._verified

    def give_up(self) -> None:
        """Cut off what is still in flight; each caller gets an answer that says so."""
        for running in list(self._running):
            running.cancel()
        self._carried.give_up()

    def close_streams(self) -> None:
        """End the streams of sessions that other processes have: their callers open them again elsewhere."""
        self._carried.close_streams()

    def _end_unknown(self) -> None:
        """End all that belongs to callers whose credentials are not valid any more."""
        authenticator = self.authenticator
        # A session waits for the next token of the same caller.
        self.sessions.close_unless(authenticator.may_finish)
        for running, principal in list(self._running.items()):
            if not authenticator.may_finish(principal):
                running.cancel()
        for running, principal in list(self._listening.items()):
            if not authenticator.knows(principal):
                running.cancel()

    # the head

    def admit(self, head: RequestHead, peer: str = "") -> Admitted | Unproven:
        """Judge a request by its head: nobody's body is read before it is known who sends it.

        Raises:
            RequestRefused: It is not for us, not from a caller of ours, or not in a form that is taken.
        """
        judged = head.judged
        if type(judged) is Addressed:
            # Its form is right; who sends it, and whether anything is served, is asked each time.
            admitted = self._callers.admit(judged, head, peer)
            if self.draining:
                raise _draining()
            return admitted
        head.check_fields()
        modern = head.raw(b"mcp-protocol-version") not in _HANDSHAKE
        addressed = self._callers.addressed(head, modern=modern)
        admitted = self._callers.admit(addressed, head, peer)
        if self.draining:
            raise _draining()
        if head.method == b"POST":
            addressed.streams = check_post(head)
            head.judged = addressed
        elif modern:
            raise RequestRefused(405, "this version has POST only", [(b"allow", b"POST")])
        elif head.method not in (b"GET", b"DELETE"):
            raise RequestRefused(405, "expected POST, GET or DELETE", [(b"allow", b"GET, POST, DELETE")])
        return admitted

    # the whole request

    def answer(
        self, head: RequestHead, admitted: Admitted | Unproven, body: bytes, responder: Responder, peer: str
    ) -> None:
        """Answer a request that was admitted.

        Raises:
            RequestRefused: It names no session of its caller's, or asks for what there is not.
        """
        if isinstance(admitted, Unproven):
            try:
                admitted.account.hold(len(body))
            except QuotaExceeded as error:
                raise over_quota(error) from None
            responder.run(self._verify(head, admitted, body, responder, peer))
            responder.when_done(partial(admitted.account.release, len(body)))
            return
        if not admitted.modern and self._carried.possible and self._carried.take(head, body, responder):
            return
        if head.method == b"POST":
            if len(body) <= _UNCOUNTED_BYTES:
                self._take(head, admitted, body, responder, peer)
            else:
                self._count_and_take(head, admitted, body, responder, peer)
        elif head.method == b"GET":
            self._streams.open(head, self._session(session_id_in(head), admitted), admitted, responder)
        else:
            self.sessions.close(self._session(session_id_in(head), admitted))
            responder.respond(204)

    async def _verify(
        self, head: RequestHead, unproven: Unproven, body: bytes, responder: Responder, peer: str
    ) -> None:
        """Find out who sends a request, then answer it."""
        self._verified += 1
        try:
            try:
                admitted = await self._callers.verify(unproven, head, peer)
            finally:
                self._verified -= 1
            if self.draining:
                raise _draining()
            self.answer(head, admitted, body, responder, peer)
        except RequestRefused as refused:
            responder.refuse(refused)
        except Exception:  # boundary: without an end of its response the caller would wait for ever
            log.exception("a request failed unexpectedly")
            responder.fail()

    def _count_and_take(
        self, head: RequestHead, admitted: Admitted, body: bytes, responder: Responder, peer: str
    ) -> None:
        size_bytes = wire.parsed_bytes(body)
        if size_bytes > MAX_PARSED_BYTES:
            raise RequestRefused(413, "the body holds too many values to be taken as one request")
        try:
            admitted.account.hold(size_bytes)
        except QuotaExceeded as error:
            raise over_quota(error) from None
        release = partial(admitted.account.release, size_bytes)
        try:
            self._take(head, admitted, body, responder, peer)
        except BaseException:
            release()
            raise
        responder.when_done(release)

    def _take(self, head: RequestHead, admitted: Admitted, body: bytes, responder: Responder, peer: str) -> None:
        try:
            message = read(body)
        except wire.MalformedJson as error:
            _send_error(responder, None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        except InvalidMessage as error:
            _send_error(responder, error.request_id, error)
            return
        if not isinstance(message, RpcRequest):
            self._take_other(head, admitted, message, responder)
            return
        said = head.judged
        assert type(said) is Addressed
        modern, method, params = admitted.modern, message.method, message.params
        if not said.streams:
            if method == "subscriptions/listen":
                raise RequestRefused(406, "Accept must allow text/event-stream: the answer to this method is a stream")
            responder.can_stream = False
        session: Session | None = None
        unchecked: RequestHead | None = None
        answer: ResumableAnswer | None = None
        emit: Emit = responder.emit
        view: View | None = None
        if is_call := method == "tools/call":
            view = self._views.at_hand.get(admitted) or self._views.of(admitted)
        if modern or ("_meta" in params and is_modern(params)):
            try:
                check_agreement(said, method, params)
                if view is not None and view.mirrors_arguments:
                    check_param_headers(head, view, params)
            except RpcError as error:
                _send_error(responder, message.id, error)
                return
            # Which headers a call must have is known once the tools are shown.
            unchecked = head if is_call and view is None else None
            modern = True
        elif method != "initialize":
            session = self._session(said.session_id, admitted)
            if not said.streams:
                emit = session.emit_beside
            elif session.resumable:
                answer = ResumableAnswer(session.answers, admitted.account, message.id, responder)
                emit = answer.emit
        results = ResultStream(message.id, responder, answer) if is_call else None
        request = McpRequest(
            id=message.id,
            method=method,
            params=params,
            modern=modern,
            principal=admitted.principal,
            account=admitted.account,
            emit=emit,
            results=results,
            pause=None if answer is None else answer.pause,
            session=session,
            trace=head.trace,
            peer=peer,
            profile=admitted.profile,
            view=view,
        )
        responder.run(self._run(request, responder, answer, unchecked, results))

    def _take_other(
        self, head: RequestHead, admitted: Admitted, message: RpcNotification | RpcResponse, responder: Responder
    ) -> None:
        """Take what wants no answer."""
        if isinstance(message, RpcResponse):
            if admitted.modern:
                _send_error(responder, None, RpcError(INVALID_REQUEST, "No request of ours is waiting"))
                return
            self._session(session_id_in(head), admitted).answered(message.message)
            responder.respond(202)
        elif admitted.modern:
            responder.respond(202)
        else:
            responder.run(self._notified(self._session(session_id_in(head), admitted), message, responder))

    async def _run(
        self,
        request: McpRequest,
        responder: Responder,
        answer: ResumableAnswer | None,
        unchecked: RequestHead | None,
        results: ResultStream | None,
    ) -> None:
        """Have a request answered; it is known as running until it has its response."""
        session = request.session
        running: Running = responder if answer is None else answer
        known = self._listening if request.method == "subscriptions/listen" else self._running
        known[running] = request.principal
        if session is not None:
            session.running[request.id] = running
        fields, goes_on = None, False
        # In this task and not before it starts: one that is cancelled earlier leaves nothing behind.
        try:
            response = await (
                self._server.answer(request) if unchecked is None else self._answer_checked(unchecked, request)
            )
            if (opened := response.session) is not None:
                try:
                    self.sessions.put(opened)
                except QuotaExceeded as error:
                    opened.end()
                    response = error_response(request.id, error)
                else:
                    fields = [(b"mcp-session-id", opened.id.encode())]
            if response.refused is not None and not responder.streaming:
                responder.refuse(over_quota(response.refused, body=response.body))
                return
            pieces, goes_on = response.pieces, response.goes_on
            status = 200 if response.error_code is None else _status_of(request, response.error_code)
        except asyncio.CancelledError:
            if responder.disconnected and not (answer is not None and answer.resumable):
                if results is not None and results.begun:
                    results.end()
                return
            # Cancelled by a notification, by its own session or by our end: the POST still wants its response.
            status, pieces = 200, self._cut_off(request, streaming=responder.streaming)
        finally:
            del known[running]
            if session is not None:
                session.running.pop(request.id, None)
        if results is not None and results.begun:
            pieces = results.end(pieces, goes_on=goes_on, modern=request.modern)
        if answer is not None and answer.resumable:
            answer.finish(pieces)
        else:
            responder.finish(status, pieces, fields)

    async def _answer_checked(self, head: RequestHead, request: McpRequest) -> McpResponse:
        """Answer a call whose headers could not be checked before: its view has to be made first."""
        try:
            check_param_headers(head, await self._views.prepared(request.profile, request.principal), request.params)
        except KeyError:
            pass  # its profile has gone meanwhile, which it is told below
        except RpcError as error:
            return error_response(request.id, error)
        return await self._server.answer(request)

    def _cut_off(self, request: McpRequest, *, streaming: bool) -> wire.Pieces:
        """What answers a request that was cancelled; nothing where its stream just ends."""
        if self.draining:
            return self._server.abandoned(request).pieces
        return () if streaming else error_response(request.id, RpcError(_CANCELLED, "Request cancelled")).pieces

    async def _notified(self, session: Session, message: RpcNotification, responder: Responder) -> None:
        params = message.params
        if message.method == "notifications/cancelled" and isinstance(params, dict):
            session.cancel(params.get("requestId"))
        else:
            await self._server.notified(session, message.method)
        responder.respond(202)

    def _session(self, session_id: str | None, admitted: Admitted) -> Session:
        if session_id is None:
            raise RequestRefused(400, "Mcp-Session-Id is missing: initialize first")
        session = self.sessions.get(session_id, admitted.principal, admitted.profile)
        if session is None:
            raise RequestRefused(404, "Session not found")
        return session


def _draining() -> RequestRefused:
    return RequestRefused(503, "the gateway is shutting down", [(b"retry-after", b"1")])


def _status_of(request: McpRequest, code: int) -> int:
    """The HTTP status of an error: only the modern era has any but 200."""
    return _STATUS.get(code, 200) if request.modern or code == PARSE_ERROR else 200


def _send_error(responder: Responder, request_id: RequestId | None, error: RpcError) -> None:
    responder.respond(_STATUS.get(error.code, 200), error_response(request_id, error).pieces)
