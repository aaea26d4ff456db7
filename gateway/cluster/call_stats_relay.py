"""What calls at any worker say of tools, relayed to the first: it alone sees what fails again and again."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final

import anyio

from gateway import wire
from gateway.calls.call_stats import CallStats, Failure
from gateway.cluster.assignment import FIRST
from gateway.cluster.peers import PeerLost, Peers
from gateway.operator_notes import OperatorNotes

log = logging.getLogger(__name__)

TARGET: Final = "/shared/call-stats"
# A burst of failures while the first worker is starting again; more would say nothing new.
_MAX_WAITING: Final = 10_000
# Failures come in bursts: one message for each burst.
_GATHER_S: Final = 0.05


class CallStatsRelay:
    """Failures of calls, and notes that calls have made untrue, on their way to the first worker."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._failures: deque[list[str]] = deque(maxlen=_MAX_WAITING)
        self._cleared: dict[tuple[str, str], None] = {}
        self._changed = anyio.Event()
        self._sending = anyio.Lock()

    async def run(self) -> None:
        """Relay until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Return once everything that has happened so far was relayed."""
        async with self._sending:
            self._changed = anyio.Event()
            failures, cleared = list(self._failures), list(self._cleared)
            self._failures.clear()
            self._cleared.clear()
            if not failures and not cleared:
                return
            try:
                await self._peers.ask(
                    FIRST, "POST", TARGET, body=wire.dumps({"failures": failures, "cleared": cleared})
                )
            except PeerLost as lost:
                log.warning("%d failures are not counted: %s", len(failures), lost)

    def failed(self, wrapper: str, server: str, tool: str, failure: Failure, who: str) -> None:
        """Relay a failed call."""
        self._failures.append([wrapper, server, tool, failure.kind, failure.detail, who])
        self._changed.set()

    def cleared(self, server: str, tool: str) -> None:
        """Relay that the notes of failures of a tool are true no more."""
        self._cleared[server, tool] = None
        self._changed.set()


def take(document: dict[str, Any], call_stats: CallStats, notes: OperatorNotes) -> bool:
    """Count what another worker relays; returns whether notes have changed."""
    for wrapper, server, tool, kind, detail, who in document["failures"]:
        call_stats.add_failure(wrapper, server, tool, Failure(kind=kind, detail=detail), who)
    changed = [notes.clear(server, tool) for server, tool in document["cleared"]]
    return any(changed)
