"""The state that a process shares with the other processes of its gateway, through a store.

The processes are replicas, with Valkey or Redis as the store, or workers, whose parent is the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.access.administrators import EndedSessions
from gateway.access.credentials import ApiKeys
from gateway.calls.approval_store import ApprovalBackend, ApprovalStore, Decision, Lasts, Question
from gateway.cluster.shared_changes import AskPeers, SharedChanges, SharedPart
from gateway.cluster.shared_parts import SharedDecisions, SharedEndedSessions, SharedNotes, SharedRevocations
from gateway.cluster.shared_store import SharedStore, StoreStatus, StoreTrouble, ValueCipher
from gateway.fleet.fleet import Fleet
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader

Sync = Callable[[bool], Awaitable[None]]
# Seconds for which an approval stays claimed after a process has used it. A question never waits this long.
_CLAIMED_S: Final = 86_400.0
# Maximum number of question ids to remember: more than calls can wait for approval at all processes together.
_MOST_ASKED: Final = 10_000


class ClusterApprovals:
    """Approvals shared by all processes (implements `ApprovalBackend`).

    Args:
        own: The approval store of this process, whose state `sync` exchanges with the other processes.
        sync: Exchanges state with the other processes; with True, reads the store even if its version has not changed.
        store: The store in which a process claims an approval before using it, so that no other process uses it too.
        status: The status of the store.
    """

    def __init__(self, own: ApprovalStore, sync: Sync, store: SharedStore, status: StoreStatus) -> None:
        self._own = own
        self._sync = sync
        self._store = store
        self._status = status
        # The ids of questions registered at this process. It may use their approvals even if the store is down.
        self._asked_here: dict[str, None] = {}

    async def register(self, question: Question) -> bool:
        if await self._own.register(question):
            return True
        self._asked_here[question.id] = None
        while len(self._asked_here) > _MOST_ASKED:
            del self._asked_here[next(iter(self._asked_here))]
        # Sync before the caller gets a response, because the caller may send its next request to any process.
        await self._sync(False)
        return False

    async def wait(self, question: Question) -> Decision:
        if not self._own.knows(question.id):
            await self._sync(True)
        decision = await self._own.wait(question)
        if decision.kind == "allowed" and not await self._claim_question(question.id):
            # Another process has used the approval, or may have used it if the store does not respond.
            return Decision(kind="unknown")
        return decision

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        if not self._own.knows(question_id):
            await self._sync(True)
        is_decided = await self._own.decide(question_id, allow=allow, lasts=lasts, by=by)
        if is_decided:
            await self._sync(False)
        return is_decided

    async def withdraw(self, question: Question) -> None:
        await self._own.withdraw(question)

    async def allow_again(self, question: Question) -> None:
        await self._own.allow_again(question)
        await self._sync(False)

    async def _claim_question(self, question_id: str) -> bool:
        asked_here = question_id in self._asked_here
        self._asked_here.pop(question_id, None)
        try:
            claimed = await self._store.claim(f"approval:{question_id}", _CLAIMED_S)
        except StoreTrouble as trouble:
            self._status.failed("approvals", trouble)
            return asked_here
        self._status.answered("approvals")
        return claimed


class SharedApprovals:
    """The calls that wait for approval, and the granted approvals."""

    prefix: Final = "approval:"
    # Not written to files: if an approval is lost, a person is asked again.
    is_transient: Final = True

    def __init__(self, approval_store: ApprovalStore) -> None:
        self._approval_store = approval_store
        self._fields: dict[str, Any] | None = None

    def changed(self) -> None:
        """Discard the cached fields."""
        self._fields = None

    def fields(self) -> dict[str, Any]:
        # Called twice a second, and there may be ten thousand approvals, so the fields are built only after a change.
        if self._fields is None:
            self._fields = self._approval_store.fields()
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self._approval_store.replace_state(fields)
        self._fields = None
        return self.fields()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """The parts of a gateway whose state all its processes share.

    Attributes:
        reloader: The configuration with changes of administrators.
        fleet: The upstreams and the lock file.
        notes: The notes about tools.
        keys: The API keys of callers. Only the revocations of keys are shared.
        approvals: The calls that wait for approval, and the granted approvals.
        ended: The ended sessions of administrators.
    """

    reloader: Reloader
    fleet: Fleet
    notes: OperatorNotes
    keys: ApiKeys
    approvals: ApprovalStore
    ended: EndedSessions


class SharedState:
    """The state that this process shares with the other processes.

    Attributes:
        changes: This process's copy of the shared state; None before `join`.
    """

    def __init__(
        self,
        store: SharedStore,
        cipher: ValueCipher,
        status: StoreStatus,
        *,
        sync_others: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Prepare to share state; `join` names the state.

        Args:
            store: The shared store.
            cipher: Encrypts the values in the store.
            status: The status of the store.
            sync_others: Makes the other processes read the store, and returns once they have applied its state. None if
                the other processes only receive the events of the store.
        """
        self._store = store
        self._cipher = cipher
        self._status = status
        self._sync_others = sync_others
        self._approvals: SharedApprovals | None = None
        self.changes: SharedChanges | None = None

    def join(
        self,
        parts: SharedParts,
        files: tuple[SharedPart, ...],
        *,
        state_dir: Path | None = None,
        ask_peers: AskPeers | None = None,
        on_informed: Callable[[], None] = lambda: None,
    ) -> None:
        """Name the state to share; sharing starts with `SharedChanges.load`.

        Args:
            parts: The parts whose state all processes share.
            files: The parts of the configuration, which workers and replicas share in different ways. They are applied
                last, because applying them takes time. A part that was applied after them could change in the meantime,
                and that change would be lost.
            state_dir: The directory for a local copy of the shared state; None for no copy.
            ask_peers: Asks the other processes for their state; None if they do not answer.
            on_informed: Called when this process has the shared state.
        """
        self._approvals = SharedApprovals(parts.approvals)
        self.changes = SharedChanges(
            self._store,
            self._cipher,
            self._status,
            (
                SharedNotes(parts.notes),
                SharedDecisions(parts.fleet.lock.decisions),
                SharedRevocations(parts.keys),
                SharedEndedSessions(parts.ended),
                self._approvals,
                *files,
            ),
            state_dir=state_dir,
            ask_peers=ask_peers,
            on_informed=on_informed,
        )

    def share_approvals(self, own: ApprovalStore) -> ApprovalBackend:
        """Return the approvals of all processes, given the approval store of this process."""
        return ClusterApprovals(own, self.publish, self._store, self._status)

    def wake(self) -> None:
        """Share state that has changed, without waiting for the next poll."""
        if self.changes is not None:
            self.changes.wake()

    def approvals_changed(self) -> None:
        """Share the approvals, which have changed."""
        if self._approvals is not None:
            self._approvals.changed()
        self.wake()

    async def publish(self, always: bool = False) -> None:
        """Exchange state with the other processes.

        Args:
            always: Read the store even if its version has not changed.
        """
        if self.changes is not None and await self.changes.sync(always=always) and self._sync_others is not None:
            await self._sync_others()

    async def close(self) -> None:
        """Close the connections to the store."""
        await self._store.close()
