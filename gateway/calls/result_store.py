"""Store results that were cut, and issue handles with which callers read the rest.

A handle is encrypted, and bound to the caller and the profile, so another caller cannot use it. The handle contains the
name of the process that stores the result, so that every other worker and replica can fetch the result from that
process, or name the process in an error.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio

from gateway.access.signing import BadSignature, Signer
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.operation_config import StoredResultsConfig
from gateway.protocol import json_bytes
from registry.schema.display_text import excerpt

HANDLE_PREFIX: Final = "typegate:result/"
# Handles have about 90 characters. A longer text is not a handle.
MAX_HANDLE_CHARS: Final = 1_000
# 64 bits suffice: an id only has to be unique in its process. It cannot be guessed, because handles are encrypted.
_ID_BYTES: Final = 8
# 128 bits of a hash, so that an upstream cannot construct two results of a task that have the same id.
_TASK_ID_CHARS: Final = 32
_PURPOSE: Final = "typegate: stored results"
# Larger arguments are not stored. In that case, the result cannot be read if rules depend on the arguments.
_MAX_ARGUMENTS_BYTES: Final = 64 * 1024
# Memory that an entry needs in addition to its value.
_ENTRY_BYTES: Final = 1_000
_QUOTED_CHARS: Final = 60
# Seconds between deletions of expired results. Expired results are also deleted before each use of the store.
_SWEEP_S: Final = 30.0


class HandleRefused(Exception):
    """The handle cannot be used. The text tells the model why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The caller and profile that may read a result.

    Attributes:
        identity: The identity of the caller (`Principal.identity`).
        profile: The profile of the call.
        who: `Caller.who`, the key of the memory limit per caller. It also distinguishes callers without credentials.
    """

    identity: str
    profile: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """One stored result.

    Attributes:
        wrapper: The tool that returned the result.
        value: The value as JSON.
        arguments: The arguments of the call as JSON, for rules that depend on arguments; None if they are too large.
        until_s: The time at which the result expires, in seconds since 1970.
    """

    wrapper: str
    value: bytes
    arguments: bytes | None
    until_s: float

    def packed(self) -> bytes:
        """Return the result as bytes, for another process."""
        head = {"wrapper": self.wrapper, "arguments": None, "until": self.until_s}
        if self.arguments is not None:
            head["arguments"] = self.arguments.decode()
        return json_bytes.dumps(head) + b"\n" + self.value

    @classmethod
    def unpacked(cls, text: bytes) -> StoredResult:
        """Return the result from the bytes that `packed` has returned in another process."""
        head, _, value = text.partition(b"\n")
        members = json_bytes.loads(head)
        arguments = members["arguments"]
        return cls(
            wrapper=members["wrapper"],
            value=value,
            arguments=None if arguments is None else arguments.encode(),
            until_s=members["until"],
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    owner: Owner
    result: StoredResult

    @property
    def size(self) -> int:
        return len(self.result.value) + len(self.result.arguments or b"") + _ENTRY_BYTES


Fetch = Callable[[str, str], Awaitable[bytes | None]]
"""Fetches a packed result, given the name of a process and the result's id; None if the process does not respond."""


class ResultStore(Reconfigurable):
    """The results that this process stores, within a memory limit per caller and a limit in total."""

    def __init__(
        self,
        settings: StoredResultsConfig,
        signer: Signer,
        *,
        process: str = "",
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty store.

        Args:
            settings: The lifetime of results and the memory limits.
            signer: Encrypts handles with the key that all processes of the gateway share.
            process: The name of this process among the workers or replicas.
            fetch: Fetches results from other processes; None if there is only this process.
            clock: Returns seconds since 1970.
        """
        self._settings = settings
        self._signer = signer
        self._process = process
        self._fetch = fetch
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._used: Counter[str] = Counter()
        self._total = 0

    @property
    def count(self) -> int:
        """Return the number of stored results."""
        self._delete_expired()
        return len(self._entries)

    @property
    def total_bytes(self) -> int:
        """Return the memory that all stored results take, in bytes."""
        self._delete_expired()
        return self._total

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each caller, profile and tool with stored results, for administrators."""
        self._delete_expired()
        rows_by_key: dict[tuple[str, str, str], dict[str, Any]] = {}
        for entry in self._entries.values():
            # An identity ends with the name of the caller.
            key = entry.owner.identity.rpartition("\n")[2], entry.owner.profile, entry.result.wrapper
            caller, profile, wrapper = key
            row = rows_by_key.setdefault(
                key, {"caller": caller, "profile": profile, "wrapper": wrapper, "results": 0, "bytes": 0, "until": 0.0}
            )
            row["results"] += 1
            row["bytes"] += entry.size
            row["until"] = max(row["until"], round(entry.result.until_s, 3))
        return list(rows_by_key.values())

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._apply, change.after.gateway.results)

    def _apply(self, settings: StoredResultsConfig) -> None:
        self._settings = settings
        now_s = self._clock()
        # A shorter lifetime also applies to results that are already stored.
        for key, entry in list(self._entries.items()):
            until_s = min(entry.result.until_s, now_s + settings.lifetime)
            self._entries[key] = replace(entry, result=replace(entry.result, until_s=until_s))
        self._delete_expired()

    async def run(self) -> None:
        """Delete expired results until cancelled."""
        while True:
            await anyio.sleep(_SWEEP_S)
            self._delete_expired()

    def new_handle(self, owner: Owner, task: str = "", text: bytes = b"") -> tuple[str, str]:
        """Return the id of a result that is about to be stored, and the result's handle.

        Args:
            task: Identifies the task of the result; empty for the result of a call. Callers may request a task's result
                repeatedly, so its id is derived from the task and the result, which is then stored only once. The id of
                any other result is random.
            text: The result as JSON.
        """
        result_id = secrets.token_hex(_ID_BYTES)
        if task:
            name = json_bytes.dumps([owner.identity, owner.profile, owner.who, task])
            result_id = hashlib.sha256(name + text).hexdigest()[:_TASK_ID_CHARS]
        sealed = self._signer.sign(f"{self._process}/{result_id}", _PURPOSE, owner.identity, owner.profile)
        return result_id, HANDLE_PREFIX + sealed

    def store(self, result_id: str, owner: Owner, wrapper: str, value: bytes, arguments: Any) -> bool:
        """Store a result. To stay within the limits, delete the oldest results, those of the same caller first.

        Returns:
            False if the result alone exceeds a limit, so that it was not stored.
        """
        self._delete_expired()
        packed = json_bytes.dumps(arguments)
        result = StoredResult(
            wrapper=wrapper,
            value=value,
            arguments=packed if len(packed) <= _MAX_ARGUMENTS_BYTES else None,
            until_s=self._clock() + self._settings.lifetime,
        )
        entry = _Entry(owner, result)
        if result_id in self._entries:
            self._delete(result_id)  # the result of a task, requested again
        if entry.size > min(self._settings.memory, self._settings.total_memory):
            return False
        while self._used[owner.who] + entry.size > self._settings.memory:
            self._delete(next(key for key, stored in self._entries.items() if stored.owner.who == owner.who))
        while self._total + entry.size > self._settings.total_memory:
            self._delete(next(iter(self._entries)))
        self._entries[result_id] = entry
        self._used[owner.who] += entry.size
        self._total += entry.size
        return True

    async def load(self, handle: str, owner: Owner) -> StoredResult:
        """Return the result of a handle, from this process or from the process that stores the result.

        Args:
            handle: The handle, without a pointer.
            owner: The caller that uses the handle.

        Raises:
            HandleRefused: The handle was not issued to this caller in this profile, the result was deleted, or the
                process that stores the result does not respond.
        """
        quoted = excerpt(handle, _QUOTED_CHARS)
        try:
            is_possible = handle.startswith(HANDLE_PREFIX) and len(handle) <= MAX_HANDLE_CHARS
            sealed = handle.removeprefix(HANDLE_PREFIX) if is_possible else ""
            text = self._signer.verify(sealed, _PURPOSE, owner.identity, owner.profile)
        except BadSignature:
            raise HandleRefused(
                f"'{quoted}' is not a handle that was issued to you in this profile. Copy the handle exactly, or call "
                "the tool again"
            ) from None
        process, _, result_id = text.rpartition("/")
        if process == self._process:
            self._delete_expired()
            entry = self._entries.get(result_id)
            if entry is not None:
                return entry.result
        else:
            packed = None if self._fetch is None else await self._fetch(process, result_id)
            if packed is None:
                raise HandleRefused(
                    f"the result is stored by another process of this gateway ({excerpt(process, _QUOTED_CHARS)}), "
                    "which cannot be asked. Try again, or call the tool again"
                )
            if packed:
                return StoredResult.unpacked(packed)
        raise HandleRefused(
            f"the result is not stored any more: results are deleted after {self._settings.lifetime:g} s, and earlier "
            "when newer ones need the memory. Call the tool again"
        )

    def packed(self, result_id: str) -> bytes:
        """Return a packed result for another process, which has verified the handle; empty if it was deleted."""
        self._delete_expired()
        entry = self._entries.get(result_id)
        return b"" if entry is None else entry.result.packed()

    def _delete_expired(self) -> None:
        now_s = self._clock()
        # The oldest entry always expires first, because `_apply` limits all entries if the lifetime becomes shorter.
        while self._entries and next(iter(self._entries.values())).result.until_s <= now_s:
            self._delete(next(iter(self._entries)))

    def _delete(self, key: str) -> None:
        entry = self._entries.pop(key)
        self._total -= entry.size
        self._used[entry.owner.who] -= entry.size
        if self._used[entry.owner.who] <= 0:
            del self._used[entry.owner.who]
