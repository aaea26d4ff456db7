"""The client that makes a request: its identity, rights, protocol version and callbacks."""

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

# Maximum length of a client's name, which is stored with every call. All known hosts have shorter names.
_CLIENT_CHARS: Final = 80


class Caller(Struct, frozen=True, kw_only=True, eq=False):
    """The client that makes a request.

    Attributes:
        principal: The authenticated identity.
        account: The caller's current resource usage.
        view: The tools that the caller may see and call. The view does not change during a call.
        version: The caller's protocol version.
        owner: An object that is equal for requests that may receive each other's log messages.
        request_id: The unmodified JSON-RPC id of this request.
        session_id: The id of the session; None in protocol versions without sessions (2026-07-28 and later).
        host: The session's object, for upstreams that get one connection per session.
        capabilities: The capabilities that the client declares.
        answers: True if the request contains `inputResponses` or `requestState`: the client repeats a request that was
            answered with input requests of the upstream.
        log_level: The least severe level of log messages to send; None for no messages.
        on_progress: Receives progress params, if the caller asked for progress.
        on_log: Receives the params of log messages.
        on_pause: Called with the milliseconds after which an upstream wants to be polled for its response; None if the
            caller cannot resume a response.
        ask: Sends an upstream's request to the caller; None if the caller does not accept requests.
        found: Receives the names of tools found by a search, the most important last, and the view that was searched;
            None if the caller's tool list must not depend on earlier requests.
        trace: The trace context, as HTTP headers.
        peer: The remote address and port of the connection.
        client_info: The client's description of itself, in protocol versions without sessions.
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
        """True if the caller speaks 2026-07-28 or later, in which there are no sessions and no `initialize` request."""
        return self.version in MODERN_VERSIONS

    @property
    def can_be_asked(self) -> bool:
        """True if the client declares that an upstream may send it some kind of input request during a call."""
        return any(name in self.capabilities for name in QUESTIONS.values())

    @property
    def client(self) -> str | None:
        """The name that the host gives itself, unchecked and cut to a maximum length."""
        info = self.host.client_info if self.host is not None else self.client_info
        name = info.get("name") if isinstance(info, dict) else None
        return clean(name[:_CLIENT_CHARS]) if isinstance(name, str) else None

    @property
    def who(self) -> str:
        """An identifier of the caller: the principal's name, else the session id, else the remote address."""
        return self.principal.name if self.principal is not LOCAL else self.session_id or self.peer

    def request_callbacks(self) -> RequestCallbacks:
        """Return the callbacks of one request to this caller."""
        on_log = self._log if self.on_log is not None and self.log_level is not None else None
        return RequestCallbacks(self.owner, self.on_progress, on_log, self.on_pause, self.ask)

    def _log(self, params: dict[str, Any]) -> None:
        # Messages with an unknown level are sent, because a superfluous message is better than a lost message.
        level = params.get("level")
        least_level = LOG_LEVELS.index(self.log_level) if self.log_level in LOG_LEVELS else 0
        if self.on_log is not None and (level not in LOG_LEVELS or LOG_LEVELS.index(level) >= least_level):
            self.on_log(params)
