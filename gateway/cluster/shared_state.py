"""The state that a process shares with the other processes of its gateway, through a store.

The processes are replicas, with Valkey or Redis as the store, or workers, whose parent is the store. Each part converts
its state to named fields, and applies the fields of other processes (`shared_changes.SharedPart`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.access.administrators import EndedSessions
from gateway.access.credentials import ApiKeys
from gateway.calls.approval_store import ApprovalBackend, ApprovalStore, Decision, Lasts, Question
from gateway.cluster.shared_changes import AskPeers, SharedChanges, SharedPart
from gateway.cluster.shared_store import SharedStore, StoreStatus, StoreTrouble, ValueCipher
from gateway.config.overlay import Change, Edit
from gateway.fleet.fleet import Fleet
from gateway.fleet.lock_file import LockDecision, LockDecisions
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader
from gateway.process.tasks import run_in_thread
from gateway.protocol.gateway_errors import ConfigError
from registry.errors import LockfileRejected
from registry.lock.lockfile import parse_lockfile

log = logging.getLogger(__name__)


async def apply_lock(fleet: Fleet, text: str | None) -> None:
    """Use a lock file with this text from now on, or no lock file if the text is None. An invalid text is logged."""
    if text == fleet.lock.text:
        return
    lockfile = None
    if text is not None:
        try:
            lockfile = await run_in_thread(partial(parse_lockfile, text))
        except LockfileRejected as rejected:
            log.error("lock file of another process rejected", extra={"reason": str(rejected)})
            return
        await run_in_thread(partial(fleet.lock.expect, lockfile))
    await fleet.relock(lockfile)


class SharedOverlay:
    """The changes that administrators have made to the configuration. Each replica has its own configuration file."""

    prefix: Final = "change:"
    is_transient: Final = False

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader
        self._shared: tuple[Change, ...] = ()
        self._fields: dict[str, Any] = {}

    def fields(self) -> dict[str, Any]:
        # Called twice a second, so the fields are built only if the changes, which are immutable, were replaced.
        if (changes := self._reloader.overlay.changes) is not self._shared:
            self._shared, self._fields = changes, {each.id: asdict(each) for each in changes}
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        # Apply the difference to the changes that were shared last, so that newer local changes are not reverted.
        await self._reloader.change(Edit.from_difference(self._shared, (Change(**each) for each in fields.values())))
        return fields


class SharedNotes:
    """The operators' notes about tools."""

    prefix: Final = "note:"
    is_transient: Final = False

    def __init__(self, notes: OperatorNotes) -> None:
        self._notes = notes

    def fields(self) -> dict[str, Any]:
        return {str(entry["id"]): entry for entry in self._notes.entries()}

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self._notes.replace_all(list(fields.values()))
        return self.fields()


class SharedDecisions:
    """The decisions of administrators about changed tool definitions."""

    prefix: Final = "decision:"
    is_transient: Final = False

    def __init__(self, decisions: LockDecisions) -> None:
        self._decisions = decisions
        self._shared: tuple[LockDecision, ...] = ()
        self._fields: dict[str, Any] = {}

    def fields(self) -> dict[str, Any]:
        # Called twice a second, and decisions contain definitions, so the fields are built only after a change.
        if self._decisions.latest is not self._shared:
            self._shared = self._decisions.latest
            self._fields = {entry["id"]: entry for entry in self._decisions.entries()}
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self._decisions.replace_all(fields.values())
        return self.fields()


class SharedLock:
    """The lock file (approved tool definitions), if an administrator has changed it since the start.

    The lock file is shared only by replicas that started with the same lock file.
    """

    prefix: Final = "lock:"
    is_transient: Final = False

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._first = fleet.lock.text
        self._shared = fleet.lock.lockfile
        self._fields: dict[str, Any] = {}
        # The field's name is a digest of the initial lock file: replicas with another initial file use another field.
        self._name = hashlib.sha256((self._first or "").encode()).hexdigest()

    def fields(self) -> dict[str, Any]:
        # Called twice a second, and the text may be long, so the fields are built only after a change.
        if self._fleet.lock.lockfile is not self._shared:
            self._shared, text = self._fleet.lock.lockfile, self._fleet.lock.text
            self._fields = {} if text == self._first else {self._name: text}
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        await apply_lock(self._fleet, fields.get(self._name, self._first))
        return self.fields()


class SharedFiles:
    """The texts of the configuration file and the lock file, which the first worker reads for all workers."""

    prefix: Final = "file:"
    is_transient: Final = False

    def __init__(self, reloader: Reloader, fleet: Fleet, *, reads: bool) -> None:
        """Share the files.

        Args:
            reads: Whether this worker reads the files. The other workers only apply the texts.
        """
        self._reloader = reloader
        self._fleet = fleet
        self._reads = reads
        # In the other workers: the texts that the first worker has shared last.
        self._applied: Mapping[str, Any] = {}

    def fields(self) -> dict[str, Any]:
        if not self._reads:
            return dict(self._applied)
        return {
            "configuration": {"text": self._reloader.text, "stamp": self._reloader.stamp},
            "lock": {"text": self._fleet.lock.text},
        }

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        configuration, lock = fields.get("configuration"), fields.get("lock")
        try:
            if configuration is not None and self._must_load(configuration):
                await self._reloader.apply_text(configuration["text"], self._reloader.path, quiet=True)
        except ConfigError as error:
            log.error("configuration of the other workers rejected", extra={"reason": str(error)})
            if self._reads:
                # Do not share the configuration that this worker started with: the other workers have a newer one.
                return self.fields()
        # A restarted first worker has read the current lock file. If the file was removed, its content still applies.
        if lock is not None and (not self._reads or self._fleet.lock.lockfile is None):
            await apply_lock(self._fleet, lock["text"])
        self._applied = fields
        return fields

    def _must_load(self, configuration: Mapping[str, Any]) -> bool:
        if configuration["text"] != self._reloader.text:
            return True
        # The first worker notices itself that another file has changed.
        return not self._reads and configuration["stamp"] != self._reloader.stamp


class SharedRevocations:
    """The digests of revoked API keys. A revocation is permanent."""

    prefix: Final = "revoked:"
    is_transient: Final = False

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def fields(self) -> dict[str, Any]:
        return dict.fromkeys(self._keys.revoked, True)

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self._keys.revoke(fields)
        return self.fields()


class SharedEndedSessions:
    """The ended sessions of administrators, and the sign-in links that administrators have used."""

    prefix: Final = "ended:"
    # Not written to files, because sessions expire after eight hours.
    is_transient: Final = True

    def __init__(self, ended: EndedSessions) -> None:
        self._ended = ended

    def fields(self) -> dict[str, Any]:
        return self._ended.fields()

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self._ended.apply(fields)
        return self.fields()


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
        repetition = self._own.repetition(question)
        if repetition is not None and not await self._claim(repetition, question.id):
            self._own.drop_repetition(question)
        if await self._own.register(question):
            return True
        self._note_asked(question)
        # Sync before the caller gets a response, because the caller may send its next request to any process.
        await self._sync(False)
        return False

    async def wait(self, question: Question) -> Decision:
        if not self._own.knows(question.id):
            await self._sync(True)
        decision = await self._own.wait(question)
        if decision.kind == "allowed" and not await self._claim(question.id, question.id):
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
        self._note_asked(question)
        await self._own.allow_again(question)
        await self._sync(False)

    def _note_asked(self, question: Question) -> None:
        self._asked_here[question.id] = None
        while len(self._asked_here) > _MOST_ASKED:
            del self._asked_here[next(iter(self._asked_here))]

    async def _claim(self, permission: str, question_id: str) -> bool:
        """Claim a permission for one call; if the store does not respond, return whether this process has asked."""
        asked_here = question_id in self._asked_here
        self._asked_here.pop(question_id, None)
        try:
            claimed = await self._store.claim(f"approval:{permission}", _CLAIMED_S)
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
