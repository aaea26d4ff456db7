"""What a call knows about the side that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Account, account_of_its_own
from gateway.protocol import LOG_LEVELS, MODERN_VERSIONS, QUESTIONS
from gateway.upstream.request_callbacks import Ask, HostSession, OnParams, RequestCallbacks
from gateway.upstream.transport.jsonrpc import ResultStream
from registry.views.view import View


class Caller(Struct, frozen=True, kw_only=True, eq=False):
    """The side that calls us.

    Attributes:
        principal: Who it is.
        account: What it uses at present.
        view: What it may see and call; the same for the whole call.
        version: The protocol version that it speaks.
        owner: Equal for requests that may see each other's log messages.
        request_id: The JSON-RPC id of this request, as it came.
        session_id: Of its session, in versions with a handshake; None in modern ones, which have no sessions.
        host: The same session, as seen by upstreams that get a connection for each.
        capabilities: Those that it declares.
        answers: It sends answers of its user to questions of the upstream, or the state of an earlier round.
        log_level: The least severe level of log messages that it wants; None for no messages.
        on_progress: Takes progress params, if the caller asked for progress.
        on_log: Takes the params of log messages.
        on_pause: Is told when an upstream wants it to come back for the answer; None where it could not.
        results: Takes a large result in pieces; None where its transport cannot carry that.
        ask: Sends it a request of the upstream's; None where it cannot be asked.
        found: Takes the names of tools that a search has found, the most important last, and the view that it was made
            in; None where lists must not depend on earlier requests.
        trace: Its trace context, as HTTP headers.
        peer: The address of the other end of its connection, with its port.
        client_info: How it introduces itself, in versions without a handshake.
    """

    principal: Principal
    account: Account = field(default_factory=account_of_its_own)
    view: View
    version: str = MODERN_VERSIONS[-1]
    owner: object = field(default_factory=object)  # unlike any other: nobody shares log messages by default
    request_id: str | int | float | None = None
    session_id: str | None = None
    host: HostSession | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    answers: bool = False
    log_level: str | None = None
    on_progress: OnParams | None = None
    on_log: OnParams | None = None
    on_pause: Callable[[int], None] | None = None
    results: ResultStream | None = None
    ask: Ask | None = None
    found: Callable[[list[str], View], None] | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    client_info: object = None

    @property
    def modern(self) -> bool:
        """Whether it speaks 2026-07-28 or later; otherwise a version with a handshake."""
        return self.version in MODERN_VERSIONS

    @property
    def can_be_asked(self) -> bool:
        """Whether an upstream may ask its user, or its model, in the middle of a call."""
        return any(name in self.capabilities for name in QUESTIONS.values())

    @property
    def who(self) -> str:
        """Whoever it is as far as callers can be told apart: by key, else by session, else by address."""
        return self.principal.name if self.principal is not LOCAL else self.session_id or self.peer

    def request_callbacks(self, results: ResultStream | None = None) -> RequestCallbacks:
        """The way of one request back to this caller; `results` takes a large result in pieces."""
        on_log = self._log if self.on_log is not None and self.log_level is not None else None
        return RequestCallbacks(self.owner, self.on_progress, on_log, self.on_pause, self.ask, results)

    def _log(self, params: dict[str, Any]) -> None:
        # An unknown level passes: one message too many is better than a lost one.
        level = params.get("level")
        wanted = LOG_LEVELS.index(self.log_level) if self.log_level in LOG_LEVELS else 0
        if self.on_log is not None and (level not in LOG_LEVELS or LOG_LEVELS.index(level) >= wanted):
            self.on_log(params)
