"""What one worker has of the others before its gateway exists: who they are, and how to reach them."""

from __future__ import annotations

import hashlib
from typing import Final

import anyio

from gateway.access.quotas import Quotas
from gateway.cluster import single_process_only
from gateway.cluster.approvals_relay import RelayedBook
from gateway.cluster.assignment import FIRST, Assignment
from gateway.cluster.call_stats_relay import CallStatsRelay
from gateway.cluster.parent_store import ParentStore
from gateway.cluster.peers import Peers
from gateway.cluster.role import Role
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.shared_running import SharedRunning
from gateway.cluster.status import StoreStatus
from gateway.downstream.http.connections import Connections
from gateway.downstream.sessions import random_session_id

# Only workers of ours connect to the private socket, and each opens as many connections as it has callers to carry.
_MOST: Final = 100_000
# The first worker knows how long a call may wait for a person; this only ends what it never answers, after a day.
_APPROVAL_S: Final = 86_400.0


class Team:
    """One worker's place in the team.

    Attributes:
        role: What its gateway has to know.
        peers: The other workers.
        connections: Those on which the others ask this one.
        relay: Carries what calls say of tools to the first worker; None in that one.
        notes_changed: Set when notes have changed that the others should have.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.peers = Peers(assignment)
        self.connections = Connections(most=_MOST)
        self.relay = None if assignment.index == FIRST else CallStatsRelay(self.peers)
        self.notes_changed = anyio.Event()
        self.role = Role(
            # A digest: the secret itself is for the workers alone.
            instance=hashlib.sha256(assignment.secret.encode()).hexdigest()[:16],
            name=assignment.prefix,
            new_session_id=lambda: assignment.prefix + random_session_id(),
            signing_key=bytes.fromhex(assignment.signing_key),
            writes=assignment.index == FIRST,
            admits=single_process_only.check_server,
            on_failure=None if self.relay is None else self.relay.failed,
            book=None if self.relay is None else lambda own: RelayedBook(self.peers, _APPROVAL_S),
            on_cleared=self._note_cleared if self.relay is None else self.relay.cleared,
        )

    def share_limits(self, quotas: Quotas) -> tuple[SharedLimits, SharedRunning]:
        """Count the calls and the requests of callers together with the other workers."""
        store = ParentStore(self.assignment)
        limits = SharedLimits(str(self.assignment.index), quotas, store, StoreStatus())
        quotas.ledger = limits
        # A connection of its own: nobody's request waits for a report of calls.
        running = SharedRunning(self.assignment.count, ParentStore(self.assignment))
        quotas.share_running(running)
        return limits, running

    def _note_cleared(self, server: str, tool: str) -> None:
        self.notes_changed.set()
