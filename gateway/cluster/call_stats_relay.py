"""What calls at any worker say of tools, told to the first: it alone sees what fails again and again."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from gateway import wire
from gateway.calls.call_stats import Failure
from gateway.cluster.assignment import FIRST
from gateway.cluster.peers import PeerLost, Peers

if TYPE_CHECKING:
    from gateway.app import Gateway

log = logging.getLogger(__name__)

TARGET: Final = "/shared/told"
_MAX_WAITING: Final = 10_000
_GATHER_S: Final = 0.05


class Telling:
    """Failures of calls, and notes that calls have made untrue, on their way to the first worker."""

    def __init__(self, gateway: Gateway, peers: Peers) -> None:
        self._peers = peers
        self._failures: deque[list[str]] = deque(maxlen=_MAX_WAITING)
        self._cleared: dict[tuple[str, str], None] = {}
        self._stirred = anyio.Event()
        self._turn = anyio.Lock()
        gateway.call_stats.relay_failure = self._failed
        gateway.notes.on_cleared = self._went_well

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._stirred.wait()
            await anyio.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Return once all is told that has happened so far."""
        async with self._turn:
            self._stirred = anyio.Event()
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

    def _failed(self, wrapper: str, server: str, tool: str, failure: Failure, who: str) -> None:
        self._failures.append([wrapper, server, tool, failure.kind, failure.detail, who])
        self._stirred.set()

    def _went_well(self, server: str, tool: str) -> None:
        self._cleared[server, tool] = None
        self._stirred.set()


def take(gateway: Gateway, told: dict[str, Any]) -> bool:
    """Take note of what another worker tells; says whether notes have changed."""
    for wrapper, server, tool, kind, detail, who in told["failures"]:
        gateway.call_stats.add_failure(wrapper, server, tool, Failure(kind=kind, detail=detail), who)
    changed = [gateway.notes.clear(server, tool) for server, tool in told["cleared"]]
    return any(changed)
