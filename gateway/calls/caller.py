"""Information about the caller that a call needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Account, independent_account
from gateway.protocol.versions import LOG_LEVELS, MODERN_VERSIONS, QUESTIONS
from gateway.upstream.session import Ask, HostSession, OnParams, RequestCallbacks
from registry.schema.display_text import clean
from registry.views.view import View

# Longer than the name of any known host; the client chooses it, and it is stored with every call.
_CLIENT_CHARS: Final = 80


class Caller(Struct, frozen=True, kw_only=True, eq=False):
    """The client that makes a request.

    Attributes:
        principal: The authenticated identity.
        account: The caller's current resource usage.
        view: The tools that the caller may see and call, constant for the whole call.
        version: The caller's protocol version.
        owner: Equal for requests that may see each other's log messages.
        request_id: The unmodified JSON-RPC id of this request.
        session_id: The id of the session in versions with a handshake; None in modern ones, which have no sessions.
        host: The same session, for upstreams that get one connection per session.
        capabilities: The capabilities that the client declares.
        answers: Whether the request contains a user's answers to an upstream's questions, or the state of an earlier
            round.
        log_level: The least severe level of log messages to send; None for no messages.
        on_progress: Receives progress params, if the caller asked for progress.
        on_log: Receives the params of log messages.
        on_pause: Called when an upstream asks the caller to return later for the response; None if the caller cannot
            resume a response.
        ask: Sends a request of the upstream to the caller; None if the caller cannot be asked.
        found: Receives the names of tools found by a search, the most important last, and the view that was searched;
            None if lists must not depend on earlier requests.
        trace: The trace context, as HTTP headers.
        peer: The remote address and port of the connection.
        client_info: The client's description of itself, in versions without a handshake.
    """

    principal: Principal
    account: Account = field(default_factory=independent_account)
    view: View
    version: str = MODERN_VERSIONS[-1]
    owner: object = field(default_factory=object)  # unique, so that log messages are not shared by default
    request_id: str | int | float | None = None
    session_id: str | None = None
    host: HostSession | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    answers: bool = False
    log_level: str | None = None
    on_progress: OnParams | None = None
    on_log: OnParams | None = None
    on_pause: Callable[[int], None] | None = None
    ask: Ask | None = None
    found: Callable[[list[str], View], None] | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    client_info: object = None

    @property
    def modern(self) -> bool:
        """True if the caller speaks 2026-07-28 or later, rather than a version with a handshake."""
        return self.version in MODERN_VERSIONS

    @property
    def can_be_asked(self) -> bool:
        """True if an upstream may ask the caller's user or model during a call."""
        return any(name in self.capabilities for name in QUESTIONS.values())

    @property
    def client(self) -> str | None:
        """The name of the host, as it calls itself: unchecked, and cut."""
        info = self.host.client_info if self.host is not None else self.client_info
        name = info.get("name") if isinstance(info, dict) else None
        return clean(name[:_CLIENT_CHARS]) if isinstance(name, str) else None

    @property
    def who(self) -> str:
        """An identifier that distinguishes callers as far as possible: by key, else by session, else by address."""
        return self.principal.name if self.principal is not LOCAL else self.session_id or self.peer

    def request_callbacks(self) -> RequestCallbacks:
        """Return the callbacks of one request to this caller."""
        on_log = self._log if self.on_log is not None and self.log_level is not None else None
        return RequestCallbacks(self.owner, self.on_progress, on_log, self.on_pause, self.ask)

    def _log(self, params: dict[str, Any]) -> None:
        # Messages with an unknown level pass, because a superfluous message is better than a lost one.
        level = params.get("level")
        least_level = LOG_LEVELS.index(self.log_level) if self.log_level in LOG_LEVELS else 0
        if self.on_log is not None and (level not in LOG_LEVELS or LOG_LEVELS.index(level) >= least_level):
            self.on_log(params)
