"""Calls over a link: bounded in number, refused while the upstream keeps failing, repeated once where that is safe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

import anyio.to_thread

from gateway import wire
from gateway.config.server import ServerConfig
from gateway.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    Congested,
    ConnectionLost,
    CredentialsUnavailable,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.instruments.current import note_event
from gateway.secrets import SECRETS
from gateway.upstream.breaker import CLOSED
from gateway.upstream.credentials import NotSignedIn, SignInRequired, SignInSource
from gateway.upstream.deadline import Deadline
from gateway.upstream.link_states import LinkState, Ready
from gateway.upstream.session import UpstreamCall

# What one of several callers may take of an upstream's places: so many slow calls leave room for everybody else's.
_SHARE: Final = 0.75
# From this status on it may be a proxy that answers, and what it gave up waiting for may run all the same.
_SERVER_FAILED: Final = 500
_UNAUTHORIZED: Final = 401
# Bad gateway, service unavailable, gateway time-out: soon it may be another answer.
_PASSING: Final = frozenset({502, 503, 504})
# Looking for the secrets of a usual configuration takes a tenth of a millisecond in it; more is for a thread.
_INLINE_BYTES: Final = 64 * 1024


class ReadyLink(Protocol):
    """What calls need of a link."""

    server: str

    @property
    def state(self) -> LinkState: ...

    @property
    def patience_s(self) -> float: ...

    async def wait_ready(self, wait_s: float) -> Ready:
        """The connection; raises `UpstreamUnavailable` where there is none within the bound."""

    def drop(self, connection: Ready, reason: str) -> None:
        """Use this connection no more: it was found to be lost."""

    def list_again(self) -> None:
        """List again soon."""

    def sign_in_required(self, source: SignInSource, reason: str | None = None) -> SignInRequired:
        """The error of a call that waits for somebody to sign in."""


class CallSender:
    """Sends the calls of one upstream.

    Attributes:
        in_flight: Calls that were admitted and have not ended.
    """

    def __init__(self, link: ReadyLink, *, chance: Callable[[], float] = random.random) -> None:
        self._link = link
        self._chance = chance
        self._breaker = CLOSED
        self._of_principal: dict[str, int] = {}
        self._places = 0
        self._limit_s = 0.0
        self.in_flight = 0

    def use(self, config: ServerConfig) -> None:
        """Keep to the bounds of this entry; calls in flight keep theirs."""
        self._places, self._limit_s = config.max_concurrency, config.call_timeout

    def reconnected(self) -> None:
        """Admit a probe at once where calls are refused: there is a new connection."""
        self._breaker = self._breaker.reconnected(time.monotonic())

    async def call(self, call: UpstreamCall) -> Any:
        """Send one request and return the raw result.

        Raises:
            UpstreamUnavailable: Nothing was sent.
            UpstreamTimeout: The deadline passed, progress or not.
            UpstreamLost: The connection ended after sending; the outcome is unknown.
            UpstreamProtocolError: The answer was not MCP.
            RpcError: The upstream's own error.
        """
        now_s = time.monotonic()
        link = self._link
        if self.in_flight >= self._places:
            raise self._unavailable(
                f"server '{link.server}' already has {self.in_flight} calls in flight. "
                "Nothing was sent; try again when some have ended."
            )
        if call.principal:
            own = self._of_principal.get(call.principal, 0)
            if own >= max(1, int(self._places * _SHARE)):
                raise self._unavailable(
                    f"{own} of your calls are in flight at server '{link.server}', and the other places are kept for "
                    "other callers. Nothing was sent; try again when some have ended."
                )
        breaker = self._breaker
        if breaker is not CLOSED:
            if not breaker.admits(now_s):
                raise self._unavailable(
                    f"server '{link.server}' has failed {breaker.failures} times in a row "
                    "and is left alone for some seconds. Nothing was sent."
                )
            self._breaker = breaker.probing(now_s)
        # Nothing is awaited between the check and this.
        self.in_flight += 1
        if call.principal:
            self._of_principal[call.principal] = own + 1
        # How the first attempt ended, if it may have reached the upstream.
        lost: ConnectionLost | None = None
        was_lost, forgotten, is_first = False, False, True
        try:
            # At most three attempts: one follows a lost connection, and one a forgotten session.
            while True:
                state = link.state
                if isinstance(state, Ready) and is_first:
                    connection = state
                else:
                    connection = await self._next_connection(call, lost)
                is_first = False
                # Each attempt has the whole time; progress and questions move the deadline through the callbacks.
                limit_s = self._limit_s
                deadline = call.callbacks.deadline = Deadline(limit_s)
                try:
                    with deadline:
                        result = await connection.session.send(call)
                except ConnectionLost as error:
                    lost = self._after_loss(error, call, connection, began_s=now_s, before=lost, last=was_lost)
                    was_lost, now_s = True, time.monotonic()
                except SessionForgotten as error:
                    self._after_forgetting(error, connection, lost=lost, last=forgotten)
                    forgotten = True
                except (TimeoutError, Congested, HttpStatusError) as error:
                    self._after_refusal(error, call, connection, limit_s=limit_s)
                except RpcError as error:
                    # Any answer, an error too, shows that the connection works.
                    self._breaker = self._breaker.succeeded()
                    if error.code in (INVALID_PARAMS, HEADER_MISMATCH):
                        # Evidence that our listing is no longer true.
                        link.list_again()
                    raise
                else:
                    if self._breaker is not CLOSED:
                        self._breaker = self._breaker.succeeded()
                    connection.served = True
                    # Of results only failures are looked into: a server repeats in them what it was sent.
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
            if call.principal and (left := self._of_principal.pop(call.principal) - 1):
                self._of_principal[call.principal] = left

    async def _next_connection(self, call: UpstreamCall, lost: ConnectionLost | None) -> Ready:
        """The connection of an attempt that has to wait for one, or that follows another attempt."""
        link = self._link
        try:
            connection = await link.wait_ready(link.patience_s)
            # A new connection brings a new listing, in which this may be wrong.
            if call.confirm is not None:
                await call.confirm()
        except UpstreamUnavailable:
            # Not "nothing was sent": the first attempt may have been.
            if lost is not None:
                raise self._lost(lost) from None
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
        """Raise what is told of a call that was lost with its connection; return how, where it may be sent again."""
        if isinstance(error, CredentialsUnavailable):
            # The connection itself may be sound, and another attempt would wait for the same token.
            raise (self._no_credentials(error) if before is None else self._lost(before)) from None
        if isinstance(error, UnusableAnswer):
            self._breaker = self._breaker.succeeded()
        else:
            self._breaker = self._breaker.failed(time.monotonic(), self._chance(), began_s=began_s)
        if not error.sent or not connection.session.independent_requests:
            # Of independent requests only one was lost; elsewhere it was the connection of all.
            self._link.drop(connection, str(error))
        if error.sent and (not call.repeatable or call.callbacks.begun):
            raise self._lost(error, repeatable=call.repeatable) from None
        if last:
            raise self._lost(before or error, repeated=before is not None and error.sent) from None
        note_event("retry", reason=str(error))
        return error if error.sent else None

    def _after_forgetting(
        self, error: SessionForgotten, connection: Ready, *, lost: ConnectionLost | None, last: bool
    ) -> None:
        """Have a new session opened, for the call to be sent again: it was refused before it was run.

        Raises:
            GatewayError: A new session was refused in the same way.
        """
        self._link.drop(connection, str(error))
        if not last:
            note_event("retry", reason="session forgotten")
            return
        if lost is not None:
            raise self._lost(lost) from None
        server = self._link.server
        raise UpstreamUnavailable(
            server,
            f"Not called: {error}, and it refused the call again in a new session. Its operator has to look at server "
            f"'{server}'.",
        ) from None

    def _after_refusal(
        self,
        error: TimeoutError | Congested | HttpStatusError,
        call: UpstreamCall,
        connection: Ready,
        *,
        limit_s: float,
    ) -> NoReturn:
        """Raise the error that is reported for a call without an answer."""
        link = self._link
        if isinstance(error, TimeoutError):
            raise UpstreamTimeout(
                link.server,
                f"Server '{link.server}' gave no answer within {limit_s:g} s and the call was given up; "
                "it may still have taken effect there.",
            ) from None
        if isinstance(error, Congested):
            raise self._unavailable(f"server '{link.server}' is overloaded ({error}). Nothing was sent.") from None
        # Whatever it says, it came over a connection that works.
        self._breaker = self._breaker.succeeded()
        if isinstance(error, NotSignedIn):
            # Refused before it was run.
            if not error.step_up:
                link.drop(connection, str(error))
            raise link.sign_in_required(error.source, str(error)) from None
        if error.status == _UNAUTHORIZED:
            # A listing shows whether our credentials are refused altogether; other calls go on meanwhile.
            link.list_again()
        if error.status < _SERVER_FAILED or call.repeatable:
            again = " Calling this tool again is safe." if error.status in _PASSING else ""
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
            text = wire.dumps(value)
        except wire.MalformedJson as error:
            raise UpstreamProtocolError.unreadable(self._link.server, error) from None
        if len(text) <= _INLINE_BYTES:
            return SECRETS.holds_secret(text)
        return await anyio.to_thread.run_sync(SECRETS.holds_secret, text)

    async def _without_secrets(self, result: dict[str, Any]) -> dict[str, Any]:
        content = result.get("content")
        if type(content) is wire.PassedOn:
            await anyio.to_thread.run_sync(content.change_rest, SECRETS.scrub)
            others = {name: value for name, value in result.items() if value is not content}
            return {"content": content, **await self._without_secrets(others)}
        if not await self._holds_secret(result):
            return result
        try:
            whole = wire.whole(result)
        except wire.MalformedJson as error:
            raise UpstreamProtocolError.unreadable(self._link.server, error) from None
        scrubbed: dict[str, Any] = await anyio.to_thread.run_sync(SECRETS.scrub_value, whole)
        return scrubbed

    def _lost(self, error: ConnectionLost, *, repeated: bool = False, repeatable: bool = False) -> GatewayError:
        server = self._link.server
        if not error.sent:
            return self._unavailable(f"server '{server}' is not reachable right now ({error}). Nothing was sent.")
        # Only what does no harm twice has been sent twice.
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
