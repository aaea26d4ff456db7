"""Send calls over a link, with a concurrency limit and a circuit breaker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

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
from gateway.upstream.demand import Demand
from gateway.upstream.link_states import LinkState, Ready
from gateway.upstream.session import UpstreamCall
from gateway.upstream.upstream_credentials import NotSignedIn, SignInRequired, SignInSource

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
