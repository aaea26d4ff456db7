"""The parts of a gateway whose state all its processes share, except for approvals (`shared_state`).

Each part converts its state to named fields, and applies the fields of other replicas (`shared_changes.SharedPart`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from gateway.access.administrators import EndedSessions
from gateway.access.credentials import ApiKeys
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
