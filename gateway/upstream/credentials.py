"""The seam between a transport and whatever proves to an upstream who we are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import GatewayError, HttpStatusError, UpstreamUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInLink:
    """Where somebody signs in.

    Attributes:
        url: To be opened in a browser.
        expires_at_s: Until when, by the wall clock.
    """

    url: str
    expires_at_s: float


class SignInFailed(GatewayError):
    """A sign-in cannot be begun, or was not ended; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInSource:
    """What there is to do about a sign-in that is needed.

    Attributes:
        begin: Makes a link; raises `SignInFailed`.
        changed: Returns once there may be other credentials than those of this version.
        version: Of the credentials that do not do.
        is_over: Whether there are others by now, perhaps from another process.
        owner: The caller who alone has to sign in, as `oauth.sign_ins.user_of` names it; empty where all share it.
        begin_for_caller: Makes a link for that caller; raises `SignInFailed`.
    """

    begin: Callable[[], Awaitable[SignInLink]]
    changed: Callable[[int], Awaitable[None]]
    version: int
    is_over: Callable[[int], Awaitable[bool]]
    owner: str = ""
    begin_for_caller: Callable[[], Awaitable[SignInLink]] | None = None


class NotSignedIn(HttpStatusError):
    """An upstream wants somebody to sign in; the request was not run.

    Attributes:
        source: What to do about it.
        step_up: What was granted does for other requests, and not for this one.
    """

    def __init__(self, reason: str, *, source: SignInSource, step_up: bool = False) -> None:
        super().__init__(403 if step_up else 401, reason)
        self.args = (reason,)
        self.source = source
        self.step_up = step_up


class SignInRequired(UpstreamUnavailable):
    """A call was not sent, because somebody has to sign in first.

    Attributes:
        source: What to do about it.
    """

    def __init__(self, server: str, message: str, *, source: SignInSource) -> None:
        super().__init__(server, message)
        self.source = source


def refuses_us(error: GatewayError) -> bool:
    """Whether an upstream has refused who we are, or what that permits."""
    return isinstance(error, HttpStatusError) and error.status in (401, 403)


class Credentials(Protocol):
    """Headers that prove who we are to one upstream, and may change while it is connected."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What to send at present, names in lower case."""

    @property
    def version(self) -> int:
        """Differs when `headers` do."""

    @property
    def ready(self) -> bool:
        """Whether `headers` can be sent without `prepare`; every request asks."""

    @property
    def anonymous(self) -> bool:
        """Whether there is nothing to send, and nothing to prepare; every request asks."""

    @property
    def proves(self) -> bool:
        """Whether requests need a `proof`; every request asks."""

    async def prepare(self) -> None:
        """Have something to send that is good as far as is known.

        Raises:
            NotSignedIn: Somebody has to sign in.
            GatewayError: It cannot be had at present.
        """

    def proof(self, method: str, url: str) -> Mapping[str, str] | None:
        """Headers for this request alone, that prove whose token it is sent with; None where none are needed."""

    async def refused(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """Take note of a refusal; whether the request may be sent once more, with other headers.

        Args:
            status: 401 or 403.
            challenge: The WWW-Authenticate header.
            version: Of the headers that were sent.
            nonce: The DPoP-Nonce header.

        Raises:
            NotSignedIn: Somebody has to sign in.
            GatewayError: There is no telling at present.
        """

    async def settled(self) -> None:
        """Return once nobody is obtaining other credentials."""

    def accepted(self, version: int) -> None:
        """Take note that the upstream has answered a request with headers of this version; every answer tells."""

    async def keep(self) -> None:
        """Renew what ends, for as long as the connection lives; returns where the credentials were taken away."""
