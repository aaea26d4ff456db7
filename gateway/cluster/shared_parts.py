"""The parts of a gateway whose state all replicas share.

Each part converts its state to named fields, and applies the fields of other replicas (`shared_changes.SharedPart`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from gateway.access.administrators import EndedSessions
from gateway.access.credentials import ApiKeys
from gateway.calls.approval_store import ApprovalStore, Decision, Lasts, Question
from gateway.cluster.shared_store import SharedStore, StoreStatus, StoreTrouble
from gateway.cluster.worker_state import apply_lock
from gateway.config.overlay import Change, Edit
from gateway.fleet.fleet import Fleet
from gateway.fleet.lock_file import LockDecision, LockDecisions
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader

Sync = Callable[[bool], Awaitable[None]]
# Seconds for which an approval stays claimed after a replica has used it. A question never waits this long.
_CLAIMED_S: Final = 86_400.0
# Maximum number of question ids to remember: more than calls can wait for approval at all replicas together.
_MOST_ASKED: Final = 10_000


class ClusterApprovals:
    """Approvals shared by all replicas (implements `ApprovalBackend`).

    Args:
        own: The approval store of this replica, whose state `sync` exchanges with the other replicas.
        sync: Exchanges state with the other replicas; with True, reads the store even if its version has not changed.
        store: The store in which a replica claims an approval before using it, so that no other replica uses it too.
        status: The status of the store.
    """

    def __init__(self, own: ApprovalStore, sync: Sync, store: SharedStore, status: StoreStatus) -> None:
        self._own = own
        self._sync = sync
        self._store = store
        self._status = status
        # The ids of questions registered at this replica. It may use their approvals even if the store is down.
        self._asked_here: dict[str, None] = {}

    async def register(self, question: Question) -> bool:
        if await self._own.register(question):
            return True
        self._asked_here[question.id] = None
        while len(self._asked_here) > _MOST_ASKED:
            del self._asked_here[next(iter(self._asked_here))]
        # Sync before the caller gets a response, because the caller may send its next request to any replica.
        await self._sync(False)
        return False

    async def wait(self, question: Question) -> Decision:
        if not self._own.knows(question.id):
            await self._sync(True)
        decision = await self._own.wait(question)
        if decision.kind == "allowed" and not await self._claim_question(question.id):
            # Another replica has used the approval, or may have used it if the store does not respond.
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
