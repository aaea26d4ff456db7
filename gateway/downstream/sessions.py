"""Sessions of the handshake era, bounded in number and in idle time.

Source: MCP 2025-11-25, "Transports", "Session Management".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from cachetools import TTLCache

from gateway.access.principal import Principal
from gateway.downstream.changes import Announcer

MAX_SESSIONS: Final = 10_000
IDLE_S: Final = 1800.0
_CHANGED: Final = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One handshake-era caller: who it is, what it runs, and its stream of notifications."""

    id: str
    principal: Principal
    running: dict[str | int | float, anyio.CancelScope] = field(default_factory=dict)
    emit: Callable[[dict[str, Any]], None] | None = None
    hang_up: Callable[[], None] | None = None
    pending: bool = False
    silence: Callable[[], None] = lambda: None

    def announce(self) -> None:
        """Tell of a changed list, now or when the caller opens its stream."""
        if self.emit is None:
            self.pending = True
        else:
            self.emit(dict(_CHANGED))

    def end(self) -> None:
        """Stop everything that belongs to it."""
        self.silence()
        for scope in list(self.running.values()):
            scope.cancel()
        if self.hang_up is not None:
            self.hang_up()


class _Table(TTLCache[str, Session]):
    def popitem(self) -> tuple[str, Session]:
        key, session = super().popitem()
        session.end()
        return key, session

    def expire(self, time: float | None = None) -> list[tuple[str, Session]]:
        expired = super().expire(time)
        for _, session in expired or ():
            session.end()
        return expired


class SessionTable:
    """All sessions. The least recently used one makes room for a new one."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._sessions = _Table(MAX_SESSIONS, IDLE_S)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, principal: Principal) -> Session:
        """A new session."""
        session = Session(id=secrets.token_hex(16), principal=principal)
        session.silence = self._announcer.listen(session.announce)
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str, principal: Principal) -> Session | None:
        """The session, if it is this caller's; to anyone else it does not exist."""
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            return None
        # Setting it again starts its idle time anew.
        self._sessions[session_id] = session
        return session

    def close(self, session: Session) -> None:
        """End a session; its id is unknown from now on."""
        self._sessions.pop(session.id, None)
        session.end()
