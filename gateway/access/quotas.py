"""What each principal uses at present, within its limits: one that wants more is refused, and nobody else feels it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from gateway.access.principal import LOCAL, Principal
from gateway.config.quotas import QuotaLimits, QuotasConfig
from gateway.errors import QuotaExceeded

MAX_HELD_BYTES: Final = 192 * 1024 * 1024
"""What the requests of all callers may take while they arrive and run. Twice the share of one principal, and with what
their processing adds still below 300 MB."""
_MAX_ACCOUNTS: Final = 10_000
"""Accounts that are kept before those of principals who use nothing are dropped: a few MiB."""
MIB: Final = 1024 * 1024

# Nobody can be told from anybody else: these only keep all callers together within what one machine bears.
_LIMITS_OF_LOCAL: Final = {
    "in_flight": None,
    "sessions": 10_000,
    "streams": 4_096,
    "private_connections": 128,
    "held_mebibytes": MAX_HELD_BYTES // MIB,
}
_USUAL: Final = QuotaLimits()
# Callers who have not said who they are hold unfinished heads only, which come in one or two packets.
_LIMITS_OF_NOBODY: Final = QuotaLimits(held_mebibytes=32)
_LISTEN: Final = "subscriptions/listen"
# Whoever lists, pings or negotiates is answered from memory; these cost an upstream something. What ends a task or a
# subscription is always taken.
_COUNTED: Final = frozenset(
    {"tools/call", "prompts/get", "resources/read", "completion/complete", "resources/subscribe", _LISTEN}
    | {"tasks/get", "tasks/update"}
)
MINUTE_S: Final = 60.0
# The calls of a burst are added up as floating-point numbers: the last one must not fail for their rounding.
_ROUNDING_S: Final = 1e-4


class Ledger(Protocol):
    """Counts the calls of accounts together with other processes.

    Attributes:
        slack_s: How much later than it was made a call may be counted, in seconds.
    """

    @property
    def slack_s(self) -> float: ...

    def may_pass(self, account: Account, per_minute: int) -> bool:
        """Return whether a call may be made without asking other processes."""

    def count(self, account: Account, per_minute: int) -> None:
        """Count one call that was made without asking."""

    async def ask(self, account: Account, per_minute: int) -> float | None:
        """Ask whether one more call may be made, and count it if so.

        Returns:
            0 if the call may be made; otherwise in how many seconds it may. None if there is no answer.
        """


class RunningLedger(Protocol):
    """Counts the requests in flight of accounts together with other processes."""

    def unasked(self, most: int) -> int:
        """Return how many requests of one account may run here without asking."""

    async def ask(self, account: Account, most: int) -> bool | None:
        """Ask whether a request may run that is in `in_flight` already; None if there is no answer."""

    def ended(self, account: Account) -> None:
        """Note that a request has ended for which other processes were asked."""


class Account:
    """What one principal uses.

    Attributes:
        name: The name of the principal.
        groups, knows_groups: Those of the principal that its limits were made for.
        limits: What it may use.
        in_flight: Its requests that run.
        sessions: Its sessions of the handshake era.
        streams: Its streams of notifications.
        private_connections: Its connections to upstreams that belong to one session.
        held_bytes: Memory that its requests take.
    """

    __slots__ = (
        "_full_s", "_most_in_flight", "_per_minute", "_quotas", "_unasked", "groups", "held_bytes", "in_flight",
        "knows_groups", "limits", "name", "private_connections", "sessions", "streams",
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
        # When the quota of calls will be whole again, if nothing more is called.
        self._full_s = 0.0

    @property
    def unused(self) -> bool:
        """Whether nothing is lost when the account is forgotten."""
        used = self.in_flight or self.sessions or self.streams or self.private_connections or self.held_bytes
        return not used and self._full_s <= self._quotas.clock()

    def change_limits(self, limits: QuotaLimits) -> None:
        """Apply other limits; what was used stays used."""
        before, after = self.limits.calls_per_minute, limits.calls_per_minute
        self._use(limits)
        if before is not None and after is not None:
            now_s = self._quotas.clock()
            self._full_s = now_s + max(0.0, self._full_s - now_s) * before / after

    def _use(self, limits: QuotaLimits) -> None:
        self.limits = limits
        # Every request asks for these, and to read a field of a configuration model takes as long as ten attributes.
        self._most_in_flight, self._per_minute = limits.in_flight, limits.calls_per_minute
        running = self._quotas.running
        # Of requests in flight, those that other processes are not asked about; None where there are none to ask.
        self._unasked = None if running is None or limits.in_flight is None else running.unasked(limits.in_flight)

    def begin(self, method: str) -> bool:
        """Count a request that is about to run; `end` has to follow.

        Returns:
            False if the request was not counted, since other processes have to be asked: `begin_asked` does that.

        Raises:
            QuotaExceeded: The principal has too much of this kind already.
        """
        if method == _LISTEN:
            self.open_stream()
            try:
                if self._per_minute is not None:
                    # Alone, also beside other processes: there are few, and each lasts.
                    self._count_alone(self._per_minute)
            except QuotaExceeded:
                self.streams -= 1
                raise
            return True
        if self._most_in_flight is not None and self.in_flight >= self._most_in_flight:
            raise self._too_many_in_flight(self.in_flight)
        if self._unasked is not None and self.in_flight >= self._unasked:
            return False
        if self._per_minute is not None and method in _COUNTED and not self._count_call(self._per_minute):
            return False
        self.in_flight += 1
        return True

    async def begin_asked(self, method: str) -> None:
        """Count a request for which `begin` has returned False; `end` has to follow.

        Raises:
            QuotaExceeded: The principal has made too many calls, or has too many requests in flight.
        """
        ledger, per_minute = self._quotas.ledger, self._per_minute
        self.in_flight += 1
        try:
            await self._ask_to_run()
            is_counted = per_minute is None or method not in _COUNTED or self._count_call(per_minute)
            if not is_counted and ledger is not None and per_minute is not None:
                wait_s = await ledger.ask(self, per_minute)
                if wait_s is None:
                    self._count_alone(per_minute)
                elif wait_s > 0:
                    raise self._too_many(per_minute, wait_s)
        except BaseException:
            self._leave()
            raise

    async def _ask_to_run(self) -> None:
        running, most = self._quotas.running, self._most_in_flight
        if running is None or most is None or self._unasked is None or self.in_flight <= self._unasked:
            return
        may_run = await running.ask(self, most)
        if may_run is False or (may_run is None and self.in_flight > most):
            raise self._too_many_in_flight(most)

    def _leave(self) -> None:
        self.in_flight -= 1
        if self._unasked is not None and self.in_flight >= self._unasked and self._quotas.running is not None:
            self._quotas.running.ended(self)

    def end(self, method: str) -> None:
        """Count a request as ended."""
        if method == _LISTEN:
            self.streams -= 1
        else:
            self._leave()

    def open_stream(self) -> None:
        """Count a stream of notifications; whoever closes it subtracts it from `streams`.

        Raises:
            QuotaExceeded: The principal has too many.
        """
        if self.streams >= self.limits.streams:
            raise QuotaExceeded(f"{self.name} has {self.streams} streams open, which is its quota. Close some first.")
        self.streams += 1

    def open_private_connection(self) -> None:
        """Count a connection that belongs to one session; whoever closes it subtracts it from `private_connections`.

        Raises:
            QuotaExceeded: The principal has too many.
        """
        if self.private_connections >= self.limits.private_connections:
            raise QuotaExceeded(
                f"Not called: {self.name} has {self.private_connections} connections to servers that belong to one "
                "session each, which is its quota. End sessions that are not needed."
            )
        self.private_connections += 1

    def hold(self, size_bytes: int) -> None:
        """Reserve memory; `release` has to follow.

        Raises:
            QuotaExceeded: The principal, or all principals together, would hold too much.
        """
        quotas = self._quotas
        if self.held_bytes + size_bytes > self.limits.held_mebibytes * MIB:
            raise QuotaExceeded(
                f"Not run: the requests of {self.name} that are in flight would take more than "
                f"{self.limits.held_mebibytes} MiB of memory, which is its quota. Send fewer or smaller ones at a time."
            )
        if quotas.held_bytes + size_bytes > MAX_HELD_BYTES:
            raise QuotaExceeded("Not run: the gateway is busy with large requests. Try again soon.", own=False)
        self.held_bytes += size_bytes
        quotas.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give reserved memory back."""
        self.held_bytes -= size_bytes
        self._quotas.held_bytes -= size_bytes

    def _count_call(self, per_minute: int) -> bool:
        """Count one call, unless other processes have to be asked.

        Raises:
            QuotaExceeded: There were too many.
        """
        full_s = self._full_with_one_more(per_minute)
        ledger = self._quotas.ledger
        if ledger is not None:
            if not ledger.may_pass(self, per_minute):
                return False
            ledger.count(self, per_minute)
        self._full_s = full_s
        return True

    def _count_alone(self, per_minute: int) -> None:
        self._full_s = self._full_with_one_more(per_minute)

    def _full_with_one_more(self, per_minute: int) -> float:
        # A bucket that holds a minute's calls and is filled steadily, as one number: the time at which it is full.
        now_s = self._quotas.clock()
        full_s = max(self._full_s, now_s) + MINUTE_S / per_minute
        ledger = self._quotas.ledger
        if full_s - now_s > MINUTE_S + (_ROUNDING_S if ledger is None else ledger.slack_s):
            raise self._too_many(per_minute, full_s - now_s - MINUTE_S)
        return full_s

    def _too_many_in_flight(self, count: int) -> QuotaExceeded:
        return QuotaExceeded(
            f"Not run: {self.name} has {count} requests in flight, which is its quota. Try again when some have ended."
        )

    def _too_many(self, per_minute: int, wait_s: float) -> QuotaExceeded:
        whole_s = max(1, math.ceil(wait_s))
        return QuotaExceeded(
            f"Not run: {self.name} has made {per_minute} calls within a minute, which is its quota. "
            f"Try again in {whole_s} s.",
            retry_after_s=whole_s,
        )

    def set_full_at(self, full_s: float) -> None:
        """Apply what other processes have counted: when the quota of calls will be full again, by our clock."""
        self._full_s = full_s


def account_of_its_own() -> Account:
    """An account with usual limits that shares nothing with others."""
    return Quotas(QuotasConfig()).account(LOCAL)


class Quotas:
    """The accounts of all principals.

    Attributes:
        clock: Seconds that only grow.
        held_bytes: Memory that all requests take.
        nobody: The account of callers who have not said yet who they are.
        ledger: Counts calls together with other processes; None where there are none.
        running: Counts requests in flight together with other processes; None where there are none.
        dropped: How often accounts that were not in use were dropped, so that whoever knows one has to ask again.
    """

    def __init__(self, config: QuotasConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Apply these limits.

        Args:
            config: The limits.
            clock: Seconds that only grow.
        """
        self._config = config
        self._accounts: dict[str, Account] = {}
        self.dropped = 0
        self.clock = clock
        self.held_bytes = 0
        self.ledger: Ledger | None = None
        self.running: RunningLedger | None = None
        self.nobody = Account("a caller without credentials", _LIMITS_OF_NOBODY, self)

    def share_running(self, running: RunningLedger) -> None:
        """Count requests in flight together with other processes from now on."""
        self.running = running
        self.replace(self._config)

    def replace(self, config: QuotasConfig) -> None:
        """Apply other limits at once; who is over them keeps what runs."""
        self._config = config
        for account in self._accounts.values():
            account.change_limits(self._limits(account.name, account.groups, account.knows_groups))

    def account(self, principal: Principal) -> Account:
        """The account of a principal."""
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
                # The next token of the same caller: she was put into another group.
                account.change_limits(self._limits(principal.name, *after))
        return account

    def _limits(self, name: str, groups: frozenset[str], knows_groups: bool) -> QuotaLimits:
        given = self._config.default
        stated = {key: getattr(given, key) for key in given.model_fields_set} if given is not None else {}
        if name == LOCAL.name:
            return QuotaLimits.model_validate({**_LIMITS_OF_LOCAL, **stated})
        own = [limits for group, limits in self._config.groups.items() if group in groups or not knows_groups]
        for key in QuotaLimits.model_fields:
            values = [getattr(limits, key) for limits in own if key in limits.model_fields_set]
            if values and not knows_groups:
                # Any group may be meant: the smallest limit counts, that of all callers included.
                values.append(stated.get(key, getattr(_USUAL, key)))
                given_values = [value for value in values if value is not None]
                stated[key] = min(given_values) if given_values else None
            elif values:
                stated[key] = None if None in values else max(values)
        return QuotaLimits.model_validate(stated)
