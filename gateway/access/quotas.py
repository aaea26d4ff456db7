"""Count the resources that each caller uses, and enforce the caller's limits.

Several gateway processes, called workers, can serve the same callers. Workers share the counters of calls and of
running requests (`Ledger` and `RunningLedger`). Each worker enforces an equal share of the other limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from gateway.access.principal import LOCAL, Principal
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.auth_config import QuotaLimits, QuotasConfig
from gateway.protocol.gateway_errors import QuotaExceeded

MAX_HELD_BYTES: Final = 192 * 1024 * 1024
"""Maximum memory for the requests of all callers that are arriving or running: twice the default limit of one
principal. With the overhead of processing, the total stays below 300 MB."""
_MAX_ACCOUNTS: Final = 10_000
"""The number of accounts above which unused accounts are dropped. This many accounts take a few MiB."""
MIB: Final = 1024 * 1024

# All local callers share one account. These limits are high, because they only have to protect the machine.
_LIMITS_OF_LOCAL: Final = {
    "in_flight": None,
    "sessions": 10_000,
    "streams": 4_096,
    "private_connections": 128,
    "held_mebibytes": MAX_HELD_BYTES // MIB,
}
_DEFAULT_LIMITS: Final = QuotaLimits()
# Unauthenticated callers use memory only for unfinished header blocks, which arrive in one or two packets.
_ANONYMOUS_LIMITS: Final = QuotaLimits(held_mebibytes=32)
_LISTEN: Final = "subscriptions/listen"
# Methods that count as calls, because they cause work at an upstream. List requests, `ping` and version negotiation are
# answered from memory. Requests that end a task or a subscription are never refused.
_COUNTED: Final = frozenset(
    {"tools/call", "prompts/get", "resources/read", "completion/complete", "resources/subscribe", _LISTEN}
    | {"tasks/get", "tasks/update"}
)
MINUTE_S: Final = 60.0
# Limits that are divided by the number of workers; each worker enforces its share.
_DIVIDED: Final = ("sessions", "streams", "private_connections")
# This tolerance prevents floating-point rounding from rejecting the last call of a burst.
_ROUNDING_S: Final = 1e-4


class Ledger(Protocol):
    """A counter of calls that is shared with other processes.

    Attributes:
        slack_s: Calls may be counted this many seconds late without refusing a caller that stays within its limit.
    """

    @property
    def slack_s(self) -> float: ...

    def may_pass(self, account: Account, per_minute: int) -> bool:
        """Return whether a call may be made without asking other processes."""

    def count(self, account: Account, per_minute: int) -> None:
        """Count one call that was made without asking other processes."""

    async def request_call(self, account: Account, per_minute: int) -> float | None:
        """Ask the other processes whether one more call may be made, and count the call if so.

        Returns:
            0 if the call may be made, otherwise the seconds to wait; None if the other processes do not respond.
        """


class RunningLedger(Protocol):
    """A counter of running requests that is shared with other processes."""

    def local_allowance(self, most: int) -> int:
        """Return how many of an account's requests may run in this process without asking other processes.

        Args:
            most: The account's limit of running requests in all processes.
        """

    async def request_run(self, account: Account, most: int) -> bool | None:
        """Ask the other processes whether a request may run. `account.in_flight` already includes the request.

        Returns:
            True if the request may run; None if the other processes do not respond.
        """

    def ended(self, account: Account) -> None:
        """Record the end of a request that needed permission from `request_run`."""


class Account:
    """Resource usage of one principal.

    Attributes:
        groups, knows_groups: The principal's attributes from which `limits` was derived.
        in_flight: Number of running requests.
        sessions: Number of MCP sessions, which exist only in protocol versions with an `initialize` request.
        streams: Number of open notification streams.
        private_connections: Number of upstream connections that belong to a single session or caller.
        held_bytes: Memory reserved for requests.
    """

    __slots__ = (
        "_full_at_s", "_local_allowance", "_most_in_flight", "_per_minute", "_quotas", "groups", "held_bytes",
        "in_flight", "knows_groups", "limits", "name", "private_connections", "sessions", "streams",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        limits: QuotaLimits,
        quotas: Quotas,
        *,
        groups: frozenset[str] = frozenset(),
        knows_groups: bool = True,
    ) -> None:
        self.name = name
        self.groups = groups
        self.knows_groups = knows_groups
        self._quotas = quotas
        self._use(limits)
        self.in_flight = self.sessions = self.streams = self.private_connections = self.held_bytes = 0
        # Time at which the call quota is fully restored if no more calls are made.
        self._full_at_s = 0.0

    @property
    def unused(self) -> bool:
        """True if the account can be dropped without losing state."""
        used = self.in_flight or self.sessions or self.streams or self.private_connections or self.held_bytes
        return not used and self._full_at_s <= self._quotas.clock()

    @property
    def share(self) -> str:
        """The noun phrase for a per-worker limit in error messages."""
        workers = self._quotas.workers
        return "its quota" if workers == 1 else f"its share of its quota at one of {workers} workers"

    def change_limits(self, limits: QuotaLimits) -> None:
        """Apply new limits without resetting the counters."""
        before, after = self.limits.calls_per_minute, limits.calls_per_minute
        self._use(limits)
        if before is not None and after is not None:
            now_s = self._quotas.clock()
            self._full_at_s = now_s + max(0.0, self._full_at_s - now_s) * before / after

    def _use(self, limits: QuotaLimits) -> None:
        self.limits = limits
        # Copy the limits, because reading a field of a configuration model is ten times slower than an attribute.
        self._most_in_flight, self._per_minute = limits.in_flight, limits.calls_per_minute
        running = self._quotas.running
        # Number of requests that may run without asking other processes; None if no other process has to be asked.
        self._local_allowance = (
            None if running is None or limits.in_flight is None else running.local_allowance(limits.in_flight)
        )

    def start_request(self, method: str) -> bool:
        """Count a request that is about to run.

        Returns:
            True if the request was counted: call `end_request` when the request has finished. False if other processes
            have to be asked first: call `start_asked_request` instead.

        Raises:
            QuotaExceeded: The principal has reached a limit.
        """
        if method == _LISTEN:
            self.open_stream()
            try:
                if self._per_minute is not None:
                    # Count the request only in this process, because listen requests are few and long-lived.
                    self._count_alone(self._per_minute)
            except QuotaExceeded:
                self.streams -= 1
                raise
            return True
        if self._most_in_flight is not None and self.in_flight >= self._most_in_flight:
            raise self._too_many_in_flight(self.in_flight)
        if self._local_allowance is not None and self.in_flight >= self._local_allowance:
            return False
        if self._per_minute is not None and method in _COUNTED and not self._count_call(self._per_minute):
            return False
        self.in_flight += 1
        return True

    async def start_asked_request(self, method: str) -> None:
        """Count a request for which `start_request` returned false. Call `end_request` when the request has finished.

        Raises:
            QuotaExceeded: The principal has made too many calls, or has too many requests in flight.
        """
        ledger, per_minute = self._quotas.ledger, self._per_minute
        self.in_flight += 1
        try:
            await self._ask_to_run()
            is_counted = per_minute is None or method not in _COUNTED or self._count_call(per_minute)
            if not is_counted and ledger is not None and per_minute is not None:
                wait_s = await ledger.request_call(self, per_minute)
                if wait_s is None:
                    self._count_alone(per_minute)
                elif wait_s > 0:
                    raise self._too_many(per_minute, wait_s)
        except BaseException:
            self._leave()
            raise

    async def _ask_to_run(self) -> None:
        running, most = self._quotas.running, self._most_in_flight
        if running is None or most is None or self._local_allowance is None or self.in_flight <= self._local_allowance:
            return
        may_run = await running.request_run(self, most)
        if may_run is False or (may_run is None and self.in_flight > most):
            raise self._too_many_in_flight(most)

    def _leave(self) -> None:
        self.in_flight -= 1
        if (
            self._local_allowance is not None
            and self.in_flight >= self._local_allowance
            and self._quotas.running is not None
        ):
            self._quotas.running.ended(self)

    def end_request(self, method: str) -> None:
        """Record the end of a request."""
        if method == _LISTEN:
            self.streams -= 1
        else:
            self._leave()

    def open_stream(self) -> None:
        """Count a notification stream. Call `close_stream` when the stream closes.

        Raises:
            QuotaExceeded: The principal has too many streams.
        """
        if self.streams >= self.limits.streams:
            raise QuotaExceeded(
                f"{self.name} has {self.streams} streams open, the most that {self.share} allows. Close some first."
            )
        self.streams += 1

    def close_stream(self) -> None:
        """Stop counting a notification stream."""
        self.streams -= 1

    def open_private_connection(self) -> None:
        """Count an upstream connection that belongs to a single session or caller.

        Call `close_private_connection` when the connection closes.

        Raises:
            QuotaExceeded: The principal has too many private connections.
        """
        if self.private_connections >= self.limits.private_connections:
            raise QuotaExceeded(
                f"Not called: {self.name} has {self.private_connections} connections to servers that belong to one "
                f"session or caller each, the most that {self.share} allows. End sessions that are not needed."
            )
        self.private_connections += 1

    def close_private_connection(self) -> None:
        """Stop counting a private connection."""
        self.private_connections -= 1

    def open_session(self) -> None:
        """Count a session. The collection of sessions, not this method, enforces the limit."""
        self.sessions += 1

    def close_session(self) -> None:
        """Stop counting a session."""
        self.sessions -= 1

    def hold(self, size_bytes: int) -> None:
        """Reserve memory for a request. Call `release` when the request has finished.

        Raises:
            QuotaExceeded: The request would exceed the memory limit of the principal, or of all principals together.
        """
        quotas = self._quotas
        most_bytes = self.limits.held_mebibytes * MIB
        # A request may use the undivided limit, because it runs on one worker. It is refused if the memory that is
        # already reserved exceeds this worker's share.
        if self.held_bytes + size_bytes > most_bytes or self.held_bytes > most_bytes // quotas.workers:
            raise QuotaExceeded(
                f"Not run: the requests of {self.name} that are in flight would take more memory than "
                f"{self.share} of {self.limits.held_mebibytes} MiB allows. Send fewer or smaller ones at a time."
            )
        if quotas.held_bytes + size_bytes > MAX_HELD_BYTES:
            raise QuotaExceeded("Not run: the gateway is busy with large requests. Try again soon.", own=False)
        self.held_bytes += size_bytes
        quotas.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release reserved memory."""
        self.held_bytes -= size_bytes
        self._quotas.held_bytes -= size_bytes

    def _count_call(self, per_minute: int) -> bool:
        """Count one call and return true, or return false if other processes have to be asked first.

        Raises:
            QuotaExceeded: The principal has made too many calls.
        """
        full_at_s = self._full_at_after_call_s(per_minute)
        ledger = self._quotas.ledger
        if ledger is not None:
            if not ledger.may_pass(self, per_minute):
                return False
            ledger.count(self, per_minute)
        self._full_at_s = full_at_s
        return True

    def _count_alone(self, per_minute: int) -> None:
        self._full_at_s = self._full_at_after_call_s(per_minute)

    def _full_at_after_call_s(self, per_minute: int) -> float:
        # This is a token bucket that holds the calls of one minute. Only the time at which it will be full is stored.
        now_s = self._quotas.clock()
        full_at_s = max(self._full_at_s, now_s) + MINUTE_S / per_minute
        ledger = self._quotas.ledger
        if full_at_s - now_s > MINUTE_S + (_ROUNDING_S if ledger is None else ledger.slack_s):
            raise self._too_many(per_minute, full_at_s - now_s - MINUTE_S)
        return full_at_s

    def _too_many_in_flight(self, count: int) -> QuotaExceeded:
        return QuotaExceeded(
            f"Not run: {self.name} has {count} requests in flight, the most that its quota allows. "
            "Try again when some have ended."
        )

    def _too_many(self, per_minute: int, wait_s: float) -> QuotaExceeded:
        whole_s = max(1, math.ceil(wait_s))
        return QuotaExceeded(
            f"Not run: {self.name} has made {per_minute} calls within a minute, the most that its quota allows. "
            f"Try again in {whole_s} s.",
            retry_after_s=whole_s,
        )

    def set_full_at(self, full_at_s: float) -> None:
        """Set the time at which the call quota is fully restored, which another process has computed."""
        self._full_at_s = full_at_s


def independent_account() -> Account:
    """Return an account of the local caller that has default limits and does not belong to the gateway's `Quotas`."""
    return Quotas(QuotasConfig()).account(LOCAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The counters that several processes share.

    Attributes:
        ledger: Counter of calls; None if this process counts calls alone.
        running: Counter of running requests; None if this process counts running requests alone.
        workers: Number of workers by which the per-worker limits are divided.
    """

    ledger: Ledger | None = None
    running: RunningLedger | None = None
    workers: int = 1


class Quotas(Reconfigurable):
    """Accounts of all principals.

    Attributes:
        clock: Monotonic clock, in seconds.
        held_bytes: Memory reserved for the requests of all principals.
        anonymous: Account of unauthenticated callers.
        ledger: Shared counter of calls; None if this process counts calls alone.
        running: Shared counter of running requests; None if this process counts running requests alone.
        workers: Number of workers by which the per-worker limits are divided.
        dropped: How often unused accounts were dropped. When this number changes, code that has cached an account must
            call `account` again.
    """

    def __init__(
        self, config: QuotasConfig, *, clock: Callable[[], float] = time.monotonic, sharing: Sharing | None = None
    ) -> None:
        self._config = config
        self._accounts: dict[str, Account] = {}
        self.dropped = 0
        self.clock = clock
        self.held_bytes = 0
        self.ledger = sharing.ledger if sharing is not None else None
        self.running = sharing.running if sharing is not None else None
        self.workers = sharing.workers if sharing is not None else 1
        self.anonymous = Account("a caller without credentials", _ANONYMOUS_LIMITS, self)

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self.replace, change.after.gateway.quotas)

    def replace(self, config: QuotasConfig) -> None:
        """Apply new limits at once. Running requests above the new limits may finish."""
        self._config = config
        for account in self._accounts.values():
            account.change_limits(self._limits(account.name, account.groups, account.knows_groups))

    def account(self, principal: Principal) -> Account:
        """Return the account of a principal."""
        account = self._accounts.get(principal.name)
        if account is None:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                self._accounts = {name: each for name, each in self._accounts.items() if not each.unused}
                self.dropped += 1
            limits = self._limits(principal.name, principal.groups, principal.knows_groups)
            account = Account(
                principal.name, limits, self, groups=principal.groups, knows_groups=principal.knows_groups
            )
            self._accounts[principal.name] = account
        elif account.groups is not principal.groups or account.knows_groups is not principal.knows_groups:
            before = account.groups, account.knows_groups
            account.groups, account.knows_groups = after = principal.groups, principal.knows_groups
            if before != after:
                # The caller has a newer token, which lists other groups.
                account.change_limits(self._limits(principal.name, *after))
        return account

    def _limits(self, name: str, groups: frozenset[str], knows_groups: bool) -> QuotaLimits:
        limits = self._whole_limits(name, groups, knows_groups)
        if self.workers == 1:
            return limits
        # Round up: a share of 0 would reject every request.
        return limits.model_copy(update={key: -(-getattr(limits, key) // self.workers) for key in _DIVIDED})

    def _whole_limits(self, name: str, groups: frozenset[str], knows_groups: bool) -> QuotaLimits:
        default = self._config.default
        stated = {key: getattr(default, key) for key in default.model_fields_set} if default is not None else {}
        if name == LOCAL.name:
            return QuotaLimits.model_validate({**_LIMITS_OF_LOCAL, **stated})
        own = [limits for group, limits in self._config.groups.items() if group in groups or not knows_groups]
        for key in QuotaLimits.model_fields:
            values = [getattr(limits, key) for limits in own if key in limits.model_fields_set]
            if values and not knows_groups:
                # The caller may be in any group, so apply the smallest of the groups' limits and the default limit.
                values.append(stated.get(key, getattr(_DEFAULT_LIMITS, key)))
                given_values = [value for value in values if value is not None]
                stated[key] = min(given_values) if given_values else None
            elif values:
                stated[key] = None if None in values else max(values)
        return QuotaLimits.model_validate(stated)
