"""The interface through which a transport gets the gateway's credentials for an upstream.

This module also defines the errors for a required sign-in, and credentials printed by a command (`headersCommand`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.protocol.gateway_errors import GatewayError, HttpStatusError, UpstreamUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInLink:
    """A link at which a user signs in.

    Attributes:
        url: The URL to open in a browser.
        expires_at_s: When the link expires, in seconds since 1970.
    """

    url: str
    expires_at_s: float


class SignInFailed(GatewayError):
    """A sign-in could not be started or completed; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInSource:
    """Functions to start a required sign-in, and to wait until a user has signed in.

    Attributes:
        create_link: Creates a sign-in link; raises `SignInFailed`.
        wait_changed: Waits until credentials newer than the given version may exist.
        version: The version of the rejected credentials.
        has_newer_credentials: Returns whether credentials newer than the given version exist; another process may have
            obtained them.
        owner: The caller who has to sign in, as returned by `user_of`; empty if callers share the credentials.
        create_link_for_caller: Creates a sign-in link for the owner; raises `SignInFailed`.
    """

    create_link: Callable[[], Awaitable[SignInLink]]
    wait_changed: Callable[[int], Awaitable[None]]
    version: int
    has_newer_credentials: Callable[[int], Awaitable[bool]]
    owner: str = ""
    create_link_for_caller: Callable[[], Awaitable[SignInLink]] | None = None


class NotSignedIn(HttpStatusError):
    """The upstream requires a sign-in; the request did not run.

    Attributes:
        source: Creates sign-in links.
        step_up: Whether only this request needs further permissions; the credentials then stay valid for other
            requests.
    """

    def __init__(self, reason: str, *, source: SignInSource, step_up: bool = False) -> None:
        super().__init__(403 if step_up else 401, reason)
        self.args = (reason,)
        self.source = source
        self.step_up = step_up


class SignInRequired(UpstreamUnavailable):
    """A call was not sent, because a user has to sign in first."""

    def __init__(self, server: str, message: str, *, source: SignInSource) -> None:
        super().__init__(server, message)
        self.source = source


def rejects_credentials(error: GatewayError) -> bool:
    """Return whether an upstream answered 401 or 403: the credentials are invalid or lack a permission."""
    return isinstance(error, HttpStatusError) and error.status in (401, 403)


def refusal_text(*, is_anonymous: bool, keys: str = "`headers` or `auth`") -> str:
    """Return an error text for the statuses 401 and 403.

    The text of the response is not used, because it may repeat credentials.

    Args:
        is_anonymous: Whether the request had no credentials.
        keys: The configuration keys for credentials of this type of server.
    """
    if is_anonymous:
        return f"no credentials are configured for this server; add them to its entry under {keys}"
    return "the credentials were refused"


SubjectToken = Callable[[], str | None]
"""Returns the access token of the current caller, for token exchange; None if the caller has no access token."""


class Credentials(Protocol):
    """The headers that authenticate the gateway to one upstream; they may change during a connection.

    The properties are read for every request, so they must be fast.
    """

    @property
    def headers(self) -> Mapping[str, str]:
        """The current headers, with lower-case names."""

    @property
    def version(self) -> int:
        """A number that changes whenever `headers` change."""

    @property
    def ready(self) -> bool:
        """True if `headers` can be sent without calling `prepare`."""

    @property
    def anonymous(self) -> bool:
        """True if the gateway currently has no credentials for the upstream and cannot prepare any."""

    @property
    def needs_proof(self) -> bool:
        """True if each request needs the headers that `proof` returns."""

    async def prepare(self) -> None:
        """Make sure that `headers` contain credentials that are not known to be invalid.

        Raises:
            NotSignedIn: A user has to sign in.
            GatewayError: The credentials are currently unavailable.
        """

    def proof(self, method: str, url: str) -> Mapping[str, str] | None:
        """Return the headers that prove possession of the token for this request (DPoP); None if none are needed."""

    async def handle_refusal(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """Handle a 401 or 403, and return whether to send the request again with other headers.

        Args:
            challenge: The WWW-Authenticate header.
            version: The version of the headers that were sent.
            nonce: The DPoP-Nonce header.

        Raises:
            NotSignedIn: A user has to sign in.
            GatewayError: Other credentials are currently unavailable.
        """

    async def wait_for_renewal(self) -> None:
        """Wait for a renewal of the credentials that is in progress, if any."""

    def note_accepted(self, version: int) -> None:
        """Note that the upstream has accepted headers of this version; called for every answer except 401 and 403."""

    async def renew_while_connected(self) -> None:
        """Renew expiring credentials while the connection lasts; return if the credentials were revoked."""
