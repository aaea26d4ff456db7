"""The `/mcp` endpoint: Streamable HTTP for both protocol eras.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from gateway import wire
from gateway.access.authenticator import Authenticator
from gateway.access.principal import Principal
from gateway.access.quotas import Account, Quotas
from gateway.calls.profile_views import ProfileViews
from gateway.downstream.http.request import MAX_REQUEST_BYTES, RequestHead, RequestRefused, check_post, over_quota
from gateway.downstream.http.responder import Responder
from gateway.downstream.http.resumption import ResumableAnswer
from gateway.downstream.server import McpRequest, McpResponse, McpServer, error_response
from gateway.downstream.sessions import Running, Session, SessionTable
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
from gateway.jsonrpc import InvalidMessage, RequestId, RpcNotification, RpcResponse, classify
from gateway.protocol import HANDSHAKE_VERSIONS, NAMED_BY, VERSION_KEY, check_envelope, is_modern
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

_CANCELLED: Final = -32800
MAX_PARSED_BYTES: Final = 96 * 1024 * 1024
"""What one request may take once it is parsed: rows of a table come to half of it in the largest body that is taken,
nested empty lists to twice."""
# Bodies up to here are not counted: requests in flight are bounded in number, and such a one takes 180 KiB at most.
_UNCOUNTED_BYTES: Final = 4 * 1024
# Longer ids of events are no numbers of ours.
_MAX_EVENT_ID_DIGITS: Final = 15
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


class Carrier(Protocol):
    """Hands requests to the process that has their session."""

    def owner(self, session_id: str | None) -> int | None:
        """Which other process has the session; None where it is this one's, or nobody's."""

    async def carry(self, owner: int, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Have the request answered there, and pass the response on as it comes."""


class _Admitted(NamedTuple):
    """What the head of a request says of its caller."""

    account: Account
    principal: Principal
    profile: str
    modern: bool


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
        quotas: Quotas,
        *,
        carrier: Carrier | None = None,
    ) -> None:
        """Serve these views.

        Args:
            server: Answers MCP requests.
            views: The profiles.
            authenticator: Knows who may call.
            quotas: What each caller may use.
            carrier: Knows the sessions of other processes; None where there is no other process.
        """
        self._server = server
        self._views = views
        self._carrier = carrier
        # Whose requests run, subscriptions apart from others: a caller may lose its credentials meanwhile.
        self._running: dict[Running, Principal] = {}
        self._listening: dict[Running, Principal] = {}
        self._carried = 0
        self._quotas = quotas
        self.authenticator = authenticator
        authenticator.on_change(self._end_unknown)
        self.sessions = SessionTable(server.announcer)
        self.draining = False

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer; subscriptions are none of them."""
        return len(self._running) + self._carried

    def give_up(self) -> None:
        """Cut off what is still in flight; each caller gets an answer that says so."""
        for running in list(self._running):
            running.cancel()

    def _end_unknown(self) -> None:
        """End all that belongs to callers whose credentials are not valid any more."""
        knows = self.authenticator.knows
        self.sessions.close_unless(knows)
        for running, principal in [*self._running.items(), *self._listening.items()]:
            if not knows(principal):
                running.cancel()

    # the head

    def admit(self, head: RequestHead, peer: str = "") -> _Admitted:
        """Judge a request by its head: nobody's body is read before it is known who sends it.

        Raises:
            RequestRefused: It is not for us, not from a caller of ours, or not in a form that is taken.
        """
        head.check_fields()
        path = head.path if b"%" not in head.path else unquote(head.path.decode("latin-1")).encode("latin-1", "replace")
        profile = path[5:].decode("latin-1") or DEFAULT_PROFILE
        authorization = head.raw(b"authorization")
        principal = self.authenticator.principal(None if authorization is None else head.text(b"authorization"))
        if principal is None:
            raise RequestRefused(401, "a valid API key is needed", [(b"www-authenticate", b"Bearer")])
        # After the key: names of profiles are not for everybody.
        if profile not in self._views.profiles or not principal.may_enter(profile):
            raise RequestRefused(404, "there is no such profile")
        if self.draining:
            raise RequestRefused(503, "the gateway is shutting down", [(b"retry-after", b"1")])
        modern = head.raw(b"mcp-protocol-version") not in _HANDSHAKE
        if head.method == b"POST":
            check_post(head)
        elif modern:
            raise RequestRefused(405, "this version has POST only", [(b"allow", b"POST")])
        elif head.method not in (b"GET", b"DELETE"):
            raise RequestRefused(405, "refused", [(b"allow", b"GET, POST, DELETE")])
        return _Admitted(self._quotas.account(principal), principal, profile, modern)

    # the whole request

    def answer(self, head: RequestHead, admitted: _Admitted, body: bytes, responder: Responder, peer: str) -> None:
        """Answer a request that was admitted.

        Raises:
            RequestRefused: It names no session of its caller's, or asks for what there is not.
        """
        if self._carrier is not None and not admitted.modern:
            owner = self._carrier.owner(head.text(b"mcp-session-id") or None)
            if owner is not None:
                responder.run(self._carry(self._carrier, owner, head, body, responder))
                return
        if head.method == b"POST":
            self._post(head, admitted, body, responder, peer)
        elif head.method == b"GET":
            self._open_stream(head, self._session(head, admitted), admitted.account, responder)
        else:
            self.sessions.close(self._session(head, admitted))
            responder.respond(204)

    async def _carry(self, carrier: Carrier, owner: int, head: RequestHead, body: bytes, responder: Responder) -> None:
        counted = head.method == b"POST"
        self._carried += counted
        try:
            await carrier.carry(owner, head, body, responder)
        except Exception:  # boundary: without an end of its response the caller would wait for ever
            log.exception("a request could not be carried")
            responder.fail()
        finally:
            self._carried -= counted

    def _post(self, head: RequestHead, admitted: _Admitted, body: bytes, responder: Responder, peer: str) -> None:
        if len(body) <= _UNCOUNTED_BYTES:
            self._take(head, admitted, body, responder, peer)
            return
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

    def _take(self, head: RequestHead, admitted: _Admitted, body: bytes, responder: Responder, peer: str) -> None:
        try:
            message = classify(wire.loads(body))
        except wire.MalformedJson as error:
            _send_error(responder, None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        except InvalidMessage as error:
            _send_error(responder, error.request_id, error)
            return
        account, principal, profile, modern = admitted
        if isinstance(message, RpcResponse):
            if modern:
                _send_error(responder, None, RpcError(INVALID_REQUEST, "No request of ours is waiting"))
                return
            self._session(head, admitted).answered(message.message)
            responder.respond(202)
            return
        if isinstance(message, RpcNotification):
            if modern:
                responder.respond(202)
            else:
                responder.run(self._notified(self._session(head, admitted), message, responder))
            return
        request_id, method, params = message
        session: Session | None = None
        if modern or is_modern(params):
            try:
                check_agreement(head, method, params)
                if method == "tools/call":
                    self._check_param_headers(head, profile, params)
            except RpcError as error:
                _send_error(responder, request_id, error)
                return
            modern = True
        elif method != "initialize":
            session = self._session(head, admitted)
        answer = None
        if session is not None and session.resumable:
            answer = ResumableAnswer(session.answers, account, request_id, responder)
        request = McpRequest(
            id=request_id,
            method=method,
            params=params,
            modern=modern,
            principal=principal,
            account=account,
            emit=responder.emit if answer is None else answer.emit,
            pause=None if answer is None else answer.pause,
            session=session,
            trace=head.trace,
            peer=peer,
            profile=profile,
        )
        responder.run(self._run(request, responder, answer))

    async def _run(self, request: McpRequest, responder: Responder, answer: ResumableAnswer | None) -> None:
        """Have a request answered; it is known as running until it has its response."""
        session = request.session
        running: Running = responder if answer is None else answer
        known = self._listening if request.method == "subscriptions/listen" else self._running
        known[running] = request.principal
        if session is not None:
            session.running[request.id] = running
        fields = None
        # In this task and not before it starts: one that is cancelled earlier leaves nothing behind.
        try:
            response = await self._server.answer(request)
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
            status, pieces = _status_of(request, response), response.pieces
        except asyncio.CancelledError:
            if responder.disconnected and not (answer is not None and answer.resumable):
                return
            # Cancelled by a notification, by its own session or by our end: the POST still wants its response.
            status, pieces = 200, self._cut_off(request, streaming=responder.streaming)
        finally:
            del known[running]
            if session is not None:
                session.running.pop(request.id, None)
        if answer is not None and answer.resumable:
            answer.finish(pieces)
        else:
            responder.finish(status, pieces, fields)

    def _cut_off(self, request: McpRequest, *, streaming: bool) -> wire.Pieces:
        """What answers a request that was cancelled; nothing where its stream just ends."""
        if self.draining:
            return self._server.abandoned(request).pieces
        return () if streaming else error_response(request.id, RpcError(_CANCELLED, "Request cancelled")).pieces

    def _open_stream(self, head: RequestHead, session: Session, account: Account, responder: Responder) -> None:
        accept = head.text(b"accept")
        if "text/event-stream" not in accept and "*/*" not in accept:
            raise RequestRefused(406, "Accept must contain text/event-stream")
        last = head.text(b"last-event-id")
        if session.answers.names(last):
            found = session.answers.find(last)
            if found is None:
                raise RequestRefused(400, "Last-Event-ID names no answer that is still kept")
            responder.run(self._counted(account, responder, found[0].resume(responder, found[1])))
            return
        if session.streaming and not last:
            raise RequestRefused(409, "this session already has a stream")
        after = int(last) if last.isdecimal() and len(last) <= _MAX_EVENT_ID_DIGITS else None
        responder.run(self._counted(account, responder, self._stream(session, after, responder)))

    async def _counted(self, account: Account, responder: Responder, stream: Coroutine[Any, Any, None]) -> None:
        """Count a stream for as long as it is open, or refuse it."""
        try:
            account.open_stream()
        except QuotaExceeded as error:
            stream.close()
            responder.refuse(over_quota(error))
            return
        try:
            await stream
        finally:
            account.streams -= 1

    async def _stream(self, session: Session, after: int | None, responder: Responder) -> None:
        """Carry what a session hears beside its requests, until it ends, another stream takes over, or we close."""
        emit = responder.emit
        responder.ping()  # the head goes out before there is anything to tell
        session.open_stream(emit, responder.cancel, after)
        try:
            await self._server.closing.wait()
        except asyncio.CancelledError:
            pass  # its caller has left, or is to leave: either way the stream ends here
        finally:
            session.close_stream(emit)
        responder.end()

    async def _notified(self, session: Session, message: RpcNotification, responder: Responder) -> None:
        params = message.params
        if message.method == "notifications/cancelled" and isinstance(params, dict):
            session.cancel(params.get("requestId"))
        else:
            await self._server.notified(session, message.method)
        responder.respond(202)

    def _session(self, head: RequestHead, admitted: _Admitted) -> Session:
        session_id = head.raw(b"mcp-session-id")
        if session_id is None:
            raise RequestRefused(400, "Mcp-Session-Id is missing: initialize first")
        session = self.sessions.get(head.text(b"mcp-session-id"), admitted.principal, admitted.profile)
        if session is None:
            raise RequestRefused(404, "Session not found")
        return session

    def _check_param_headers(self, head: RequestHead, profile: str, params: dict[str, Any]) -> None:
        name, arguments = params.get("name"), params.get("arguments")
        entry = self._views.view(profile).entry(name) if isinstance(name, str) else None
        if entry is None or not entry.wrapper.headers:
            return
        from mcp.shared.inbound import validate_mcp_param_headers

        # What a caller is shown decides which headers it has to send: a dialect may leave the annotation out.
        arguments = arguments if isinstance(arguments, dict) else {}
        rejection = validate_mcp_param_headers(entry.definition["inputSchema"], arguments, head.texts())
        if rejection is not None:
            raise RpcError(rejection.code, rejection.message, rejection.data)


def check_agreement(head: RequestHead, method: str, params: dict[str, Any]) -> None:
    """Headers against body (MCP 2026-07-28, Streamable HTTP, "Server Validation").

    Raises:
        RpcError: They disagree, or the envelope is unsound.
    """
    meta = params.get("_meta")
    claimed = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if isinstance(claimed, str) and head.text(b"mcp-protocol-version") != claimed:
        raise RpcError(HEADER_MISMATCH, "MCP-Protocol-Version does not match the request's protocol version")
    modern = is_modern(params)  # without an envelope the request is refused for that, below
    if modern and head.text(b"mcp-method") != method:
        raise RpcError(HEADER_MISMATCH, "Mcp-Method does not match the request's method")
    key = NAMED_BY.get(method)
    named = params.get(key) if key is not None and modern else None
    if named is not None and (head.raw(b"mcp-name") is None or _decoded(head.text(b"mcp-name")) != named):
        raise RpcError(HEADER_MISMATCH, f"Mcp-Name does not match params.{key}")
    check_envelope(params)


def _decoded(value: str) -> str | None:
    if not value.startswith("=?base64?"):
        return value
    from mcp.shared.inbound import decode_header_value

    return decode_header_value(value)


def _status_of(request: McpRequest, response: McpResponse) -> int:
    """The HTTP status of a response: only the modern era has any but 200 for errors."""
    code = response.error_code
    return 200 if code is None or not (request.modern or code == PARSE_ERROR) else _STATUS.get(code, 200)


def _send_error(responder: Responder, request_id: RequestId | None, error: RpcError) -> None:
    responder.respond(_STATUS.get(error.code, 200), error_response(request_id, error).pieces)
