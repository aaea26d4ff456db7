"""Send calls over a link, with a concurrency limit and a circuit breaker; decide when a server's process has to run.

In three cases the process of a working server does not run: the server has `start: onDemand` and was not called yet,
the process was started only to list its tools, or `idleTimeout` has passed. In each case, the link is idle until a
call or an administrator needs the process. Health checks, reconnects, polls and subscriptions do not start a process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, Protocol

import anyio
import anyio.to_thread

from gateway.config.server import ServerConfig
from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    ConnectionLost,
    CredentialsUnavailable,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    TooManyCalls,
    UnusableAnswer,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.telemetry.trace_context import note_event
from gateway.upstream.breaker import CLOSED
from gateway.upstream.link_states import LinkState, Ready
from gateway.upstream.session import UpstreamCall
from gateway.upstream.upstream_credentials import NotSignedIn, SignInRequired, SignInSource

# How often to check whether a subscription or task still needs the process. The check is needed because the link is not
# notified when a subscription or task ends.
_CHECK_S: Final = 5.0
# A task keeps the process running for at most this long, in case the caller never requests its result.
_LONGEST_TASK_S: Final = 3_600.0
# The maximum number of tasks to track, because callers can start any number of tasks.
_MAX_TASKS: Final = 1_000
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class Demand:
    """Tracks whether calls, tasks or administrators need the process of one link.

    Attributes:
        on_demand: Whether the first call starts the process.
        waiting: The number of calls that wait for a connection.
    """

    def __init__(self, *, is_needed: bool) -> None:
        """Create the tracker.

        Args:
            is_needed: Whether to start the process without waiting for a call; true if a call has created the link.
        """
        self.on_demand = False
        self.waiting = 0
        self._idle_s = 0.0
        self._is_needed = is_needed
        self._has_rested = False
        self._is_called = is_needed
        self._used_s = time.monotonic()
        self._tasks: dict[str, float] = {}
        self._changed = anyio.Event()
        self._is_ending = False

    def use(self, config: ServerConfig) -> None:
        """Apply the settings of a configuration entry."""
        self.on_demand, self._idle_s = config.starts_on_demand, config.idle_s
        if not self._idle_s and not self.on_demand:
            self._has_rested = False
        # Wake `wait_idle`, because the timeout may have become shorter.
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @property
    def tracks(self) -> bool:
        """True if the process runs only while it is needed; false if it always runs."""
        return self.on_demand or self._idle_s > 0

    @property
    def starts_for_call(self) -> bool:
        """True if the process runs only while it is needed, and a call started it."""
        return self.tracks and self._is_called

    def is_needed(self, *, is_listed: bool) -> bool:
        """Return whether the process has to run now.

        Args:
            is_listed: Whether the gateway already has the server's tools; if not, the process has to run to list them.
        """
        if self.waiting or self._is_needed:
            return True
        return not (is_listed and (self.on_demand or self._has_rested))

    def begin_start(self) -> None:
        """Reset the state, because an attempt to connect begins."""
        self._is_needed = self._is_ending = False
        self._is_called = self._is_called or bool(self.waiting) or not self.on_demand
        self._has_rested = False
        self._tasks.clear()

    def request_start(self) -> None:
        """Make `is_needed` return true although no call needs the process, so that the tools are listed again."""
        self._is_needed = True

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a call that waits for the connection."""
        self.waiting += 1
        self._is_called = True
        try:
            yield
        finally:
            self.waiting -= 1
            self._used_s = time.monotonic()

    def note_result(self, call: UpstreamCall, result: Any) -> None:
        """Note the end of a call, and track the task that the call has started or ended."""
        self._is_called, self._used_s = True, time.monotonic()
        if type(result) is not dict or not isinstance(task_id := result.get("taskId"), str):
            return
        if result.get("status") in _ENDED or call.method == "tasks/cancel":
            self._tasks.pop(task_id, None)
        elif result.get("resultType") == "task" and len(self._tasks) < _MAX_TASKS:
            ttl_ms = result.get("ttlMs")
            ttl_s = ttl_ms / 1000 if isinstance(ttl_ms, int | float) and ttl_ms > 0 else _LONGEST_TASK_S
            self._tasks[task_id] = self._used_s + min(ttl_s, _LONGEST_TASK_S)

    async def wait_idle(self, is_busy: Callable[[], bool], *, is_listed: Callable[[], bool]) -> None:
        """Return once the process is no longer needed.

        There is no await between the last check and the return, so no call can begin in the meantime.

        Args:
            is_busy: Returns whether a call is in flight or a subscription is open.
            is_listed: Returns whether all lists of the server have been fetched.
        """
        self._used_s = time.monotonic()
        while True:
            if not self.tracks:
                await self._changed.wait()
                continue
            now_s = time.monotonic()
            limit_s = self._idle_s
            if not self._is_called and self.on_demand and is_listed():
                limit_s = 0.0  # the process was started only to list its tools
            elif not limit_s:
                limit_s = float("inf")
            self._tasks = {task_id: until_s for task_id, until_s in self._tasks.items() if until_s > now_s}
            if self.waiting or self._tasks or is_busy():
                self._is_called, self._used_s, left_s = True, now_s, min(self._idle_s or _CHECK_S, _CHECK_S)
            elif (left_s := self._used_s + limit_s - now_s) <= 0:
                break
            elif not self._is_called:
                left_s = min(left_s, _CHECK_S)
            with anyio.move_on_after(max(left_s, 0.01)):
                await self._changed.wait()
        self._is_ending, self._has_rested, self._is_called = True, True, False

    def has_ended(self) -> bool:
        """Return whether the connection was closed because the process was idle, and reset that state."""
        was_ending, self._is_ending = self._is_ending, False
        return was_ending


# One caller may use at most this share of an upstream's concurrent calls, so that slow calls of one caller do not
# block other callers.
_SHARE: Final = 0.75
# Statuses from 500 may come from a proxy that has stopped waiting while the call still runs.
_SERVER_FAILED: Final = 500
_UNAUTHORIZED: Final = 401
# Errors that are usually temporary: bad gateway, service unavailable, gateway timeout.
_TEMPORARY: Final = frozenset({502, 503, 504})
# Scanning this much text for the secrets of a typical configuration takes 0.1 ms; larger texts go to a thread.
_INLINE_BYTES: Final = 64 * 1024


class ReadyLink(Protocol):
    """The part of an `UpstreamLink` that a `CallSender` uses."""

    server: str

    @property
    def state(self) -> LinkState: ...

    @property
    def patience_s(self) -> float: ...

    async def wait_ready(self, wait_s: float) -> Ready:
        """Return the connection; raise `UpstreamUnavailable` if the upstream does not connect within `wait_s`."""

    def drop(self, connection: Ready, reason: str) -> None:
        """Close a connection that no longer works."""

    def list_again(self) -> None:
        """Request the upstream's lists again soon."""

    def sign_in_required(self, source: SignInSource, reason: str | None = None) -> SignInRequired:
        """Return the error for a call that requires a user to sign in first."""


class CallSender:
    """Sends the calls of one upstream.

    Attributes:
        in_flight: The number of admitted calls that have not ended.
    """

    def __init__(self, link: ReadyLink, demand: Demand, *, chance: Callable[[], float] = random.random) -> None:
        self._link = link
        self._demand = demand
        self._chance = chance
        self._breaker = CLOSED
        self._calls_by_principal: dict[str, int] = {}
        self._max_calls = 0
        self._limit_s = 0.0
        self._tracks = False
        self.in_flight = 0

    def use(self, config: ServerConfig) -> None:
        """Apply the limits of this configuration entry to new calls."""
        self._max_calls, self._limit_s = config.max_concurrency, config.call_timeout
        self._demand.use(config)
        self._tracks = self._demand.tracks

    def reconnected(self) -> None:
        """If the breaker is open, let it admit a call at once, because there is a new connection."""
        self._breaker = self._breaker.reconnected(time.monotonic())

    async def call(self, call: UpstreamCall) -> Any:  # noqa: C901 - one branch per way to fail
        """Send one request and return the raw result.

        Raises:
            UpstreamUnavailable: The call was not sent.
            UpstreamTimeout: The upstream did not answer before the deadline.
            UpstreamLost: The connection ended after the call was sent; the outcome is unknown.
            UpstreamProtocolError: The answer was not valid MCP, or was an HTTP error.
            RpcError: The upstream answered with a JSON-RPC error.
        """
        now_s = time.monotonic()
        link = self._link
        if self.in_flight >= self._max_calls:
            raise self._unavailable(
                f"server '{link.server}' already has {self.in_flight} calls in flight. "
                "Nothing was sent; try again when some have ended."
            )
        if call.principal:
            own = self._calls_by_principal.get(call.principal, 0)
            if own >= max(1, int(self._max_calls * _SHARE)):
                raise self._unavailable(
                    f"{own} of your calls are in flight at server '{link.server}', and the remaining places are "
                    "reserved for other callers. Nothing was sent; try again when some have ended."
                )
        breaker = self._breaker
        if breaker is not CLOSED:
            if not breaker.admits(now_s):
                raise self._unavailable(
                    f"server '{link.server}' has failed {breaker.failures} times in a row "
                    "and is not called for some seconds. Nothing was sent."
                )
            self._breaker = breaker.probing(now_s)
        # There must be no await between the check of `in_flight` above and this increment.
        self.in_flight += 1
        if call.principal:
            self._calls_by_principal[call.principal] = own + 1
        # The error of an earlier attempt, if that attempt may have reached the upstream.
        earlier_loss: ConnectionLost | None = None
        result: Any = None
        was_lost, forgotten, is_first = False, False, True
        try:
            # Make at most three attempts: one retry after a lost connection, and one retry after a forgotten session.
            while True:
                state = link.state
                if isinstance(state, Ready) and is_first:
                    connection = state
                else:
                    connection = await self._next_connection(call, earlier_loss)
                is_first = False
                # Each attempt gets the whole timeout. The callbacks extend the deadline when the server reports
                # progress or requests input from the caller.
                limit_s = self._limit_s
                deadline = call.callbacks.start_deadline(limit_s)
                try:
                    with deadline:
                        result = await connection.session.send(call)
                except ConnectionLost as error:
                    earlier_loss = self._after_loss(
                        error, call, connection, began_s=now_s, before=earlier_loss, last=was_lost
                    )
                    was_lost, now_s = True, time.monotonic()
                except SessionForgotten as error:
                    self._after_forgetting(error, connection, earlier_loss=earlier_loss, last=forgotten)
                    forgotten = True
                except (TimeoutError, TooManyCalls, HttpStatusError) as error:
                    self._after_refusal(error, call, connection, limit_s=limit_s)
                except RpcError as error:
                    # Any answer shows that the connection works, even an error.
                    self._breaker = self._breaker.succeeded()
                    if error.code in (INVALID_PARAMS, HEADER_MISMATCH):
                        # The listing is probably out of date.
                        link.list_again()
                    raise
                else:
                    if self._breaker is not CLOSED:
                        self._breaker = self._breaker.succeeded()
                    if not connection.served:
                        connection.note_served()
                    # Remove secrets only from error results, because servers may repeat parts of the request in errors.
                    if type(result) is dict and result.get("isError"):
                        return await self._without_secrets(result)
                    return result
        except RpcError as error:
            if await self._holds_secret([error.message, error.data]):
                await anyio.to_thread.run_sync(SECRETS.scrub_error, error)
            raise
        except GatewayError as error:
            SECRETS.scrub_error(error)
            raise
        finally:
            self.in_flight -= 1
            if self._tracks:
                self._demand.note_result(call, result)
            if call.principal and (remaining := self._calls_by_principal.pop(call.principal) - 1):
                self._calls_by_principal[call.principal] = remaining

    async def _next_connection(self, call: UpstreamCall, earlier_loss: ConnectionLost | None) -> Ready:
        """Wait for a connection and return it; needed for retries, and at first if the link is not ready."""
        link = self._link
        try:
            connection = await link.wait_ready(link.patience_s)
            # The call was checked against the listing of an earlier connection; the lists may have changed since then.
            if call.confirm is not None:
                await call.confirm()
        except UpstreamUnavailable:
            # Do not report that nothing was sent: an earlier attempt may have reached the upstream.
            if earlier_loss is not None:
                raise self._lost_error(earlier_loss) from None
            raise
        return connection

    def _after_loss(
        self,
        error: ConnectionLost,
        call: UpstreamCall,
        connection: Ready,
        *,
        began_s: float,
        before: ConnectionLost | None,
        last: bool,
    ) -> ConnectionLost | None:
        """Handle a call whose connection was lost: raise the caller's error, or return if the call may be sent again.

        Args:
            began_s: When the lost attempt began.
            before: The error of an earlier attempt that may have reached the upstream.
            last: Whether the call must not be sent again.

        Returns:
            `error` if the lost attempt may have reached the upstream; None if nothing was sent.

        Raises:
            GatewayError: The call must not be sent again.
        """
        if isinstance(error, CredentialsUnavailable):
            # Do not drop the connection, which may still work, and do not retry: a retry would need the same token.
            raise (self._no_credentials(error) if before is None else self._lost_error(before)) from None
        if isinstance(error, UnusableAnswer):
            self._breaker = self._breaker.succeeded()
        else:
            self._breaker = self._breaker.failed(time.monotonic(), self._chance(), began_s=began_s)
        if not error.sent or not connection.session.independent_requests:
            # The connection is broken. If only one of several independent requests was lost, the connection is kept.
            self._link.drop(connection, str(error))
        if error.sent and not call.repeatable:
            raise self._lost_error(error, repeatable=call.repeatable) from None
        if last:
            raise self._lost_error(before or error, repeated=before is not None and error.sent) from None
        note_event("retry", reason=str(error))
        return error if error.sent else None

    def _after_forgetting(
        self, error: SessionForgotten, connection: Ready, *, earlier_loss: ConnectionLost | None, last: bool
    ) -> None:
        """Drop a session that the upstream has forgotten; if this returns, the call can be sent in a new session.

        Sending the call again is safe, because the upstream refused the call without running it.

        Raises:
            GatewayError: The upstream refused the call in a new session too.
        """
        self._link.drop(connection, str(error))
        if not last:
            note_event("retry", reason="session forgotten")
            return
        if earlier_loss is not None:
            raise self._lost_error(earlier_loss) from None
        server = self._link.server
        raise UpstreamUnavailable(
            server,
            f"Not called: {error}, and it refused the call again in a new session. Its operator has to look at server "
            f"'{server}'.",
        ) from None

    def _after_refusal(
        self,
        error: TimeoutError | TooManyCalls | HttpStatusError,
        call: UpstreamCall,
        connection: Ready,
        *,
        limit_s: float,
    ) -> NoReturn:
        """Raise the caller's error for a call that timed out, was not accepted, or got an HTTP error."""
        link = self._link
        if isinstance(error, TimeoutError):
            raise UpstreamTimeout(
                link.server,
                f"Server '{link.server}' gave no answer within {limit_s:g} s and the call was given up; "
                "it may still have taken effect there.",
            ) from None
        if isinstance(error, TooManyCalls):
            raise self._unavailable(f"server '{link.server}' is overloaded ({error}). Nothing was sent.") from None
        # Any HTTP response shows that the connection works.
        self._breaker = self._breaker.succeeded()
        if isinstance(error, NotSignedIn):
            # The upstream refused the call before running it.
            if not error.step_up:
                link.drop(connection, str(error))
            raise link.sign_in_required(error.source, str(error)) from None
        if error.status == _UNAUTHORIZED:
            # Listing again shows whether the upstream rejects the credentials for all requests, or only for this one.
            link.list_again()
        if error.status < _SERVER_FAILED or call.repeatable:
            again = " Calling this tool again is safe." if error.status in _TEMPORARY else ""
            raise UpstreamProtocolError(
                link.server, f"Server '{link.server}' answered with {error}; the call has no result.{again}"
            ) from None
        raise UpstreamLost(
            link.server,
            f"Server '{link.server}' answered with {error} after the call was sent; the call has no result. "
            "Its outcome is unknown, and it was not repeated. Check before you call again.",
        ) from None

    async def _holds_secret(self, value: Any) -> bool:
        try:
            text = json_bytes.dumps(value)
        except json_bytes.MalformedJson as error:
            raise UpstreamProtocolError.unreadable(self._link.server, error) from None
        if len(text) <= _INLINE_BYTES:
            return SECRETS.holds_secret(text)
        return await anyio.to_thread.run_sync(SECRETS.holds_secret, text)

    async def _without_secrets(self, result: dict[str, Any]) -> dict[str, Any]:
        if not await self._holds_secret(result):
            return result
        try:
            parsed = json_bytes.parse_members(result)
        except json_bytes.MalformedJson as error:
            raise UpstreamProtocolError.unreadable(self._link.server, error) from None
        scrubbed: dict[str, Any] = await anyio.to_thread.run_sync(SECRETS.scrub_value, parsed)
        return scrubbed

    def _lost_error(self, error: ConnectionLost, *, repeated: bool = False, repeatable: bool = False) -> GatewayError:
        server = self._link.server
        if not error.sent:
            return self._unavailable(f"server '{server}' is not reachable right now ({error}). Nothing was sent.")
        # A call is sent twice only if it is safe to repeat.
        safe = repeated or repeatable
        advice = "Calling this tool again is safe." if safe else "Check before you call again."
        return UpstreamLost(
            server,
            f"The connection to server '{server}' failed after the call was sent ({error}): its outcome is "
            f"unknown, and it was {'sent twice' if repeated else 'not repeated'}. {advice}",
        )

    def _no_credentials(self, error: CredentialsUnavailable) -> UpstreamUnavailable:
        server = self._link.server
        return self._unavailable(
            f"server '{server}' cannot be called right now ({error}). Nothing was sent; try again."
        )

    def _unavailable(self, reason: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(self._link.server, f"Not called: {reason}")
