"""The interface through which a transport gets the gateway's credentials for an upstream.

This module also defines the errors for a required sign-in, and credentials printed by a command (`headersCommand`).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConnectionLost, GatewayError, HttpStatusError, UpstreamUnavailable
from gateway.upstream.transport.process_start import child_environment


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


# The timeout of the command. It suffices for a vault lookup over the network, and leaves enough of `connectTimeout` for
# the handshake.
_RUN_S: Final = 5.0
# The limit of the command's output. Servers usually accept only a few kilobytes of headers.
_MAX_BYTES: Final = 64 * 1024
# The minimum interval between two runs after refusals. Without the interval, a server that rejects every request would
# cause a run for each request.
_MIN_INTERVAL_S: Final = 2.0


class HeadersCommand:
    """Credentials printed by the `headersCommand` of an upstream."""

    def __init__(self, server: str, command: str | Sequence[str], env: Mapping[str, str | None]) -> None:
        self._env = env
        self._server = server
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._run_lock = anyio.Lock()
        self._ran_at_s = 0.0
        self.headers: Mapping[str, str] = {}
        self.version = 0
        self.ready = self.needs_proof = self.anonymous = False

    async def prepare(self) -> None:
        async with self._run_lock:
            if not self.ready:
                await self._run()

    def proof(self, method: str, url: str) -> None:
        """Return None: the printed headers need no proof."""

    async def handle_refusal(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """Run the command again after a 401, but not after a 403: new headers would have the same permissions."""
        if status != 401:
            return False
        async with self._run_lock:
            if version != self.version:
                return True
            if time.monotonic() - self._ran_at_s < _MIN_INTERVAL_S:
                return False
            await self._run()
            return version != self.version

    async def wait_for_renewal(self) -> None:
        async with self._run_lock:
            pass

    def note_accepted(self, version: int) -> None:
        """Do nothing: the command needs no confirmation."""

    async def renew_while_connected(self) -> None:
        """Wait forever: the gateway does not know when the printed headers expire."""
        await anyio.sleep_forever()

    async def _run(self) -> None:
        """Run the command, then note the time. A cancellation stops the command, and the time is not noted."""
        try:
            await self._read_printed()
        except ConnectionLost:
            self._ran_at_s = time.monotonic()
            raise
        self._ran_at_s = time.monotonic()

    async def _read_printed(self) -> None:
        printed: bytes | None = None
        try:
            with anyio.move_on_after(_RUN_S):
                # Discard standard error, which may contain the credentials.
                completed = await anyio.run_process(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    env=child_environment(self._env, os.environ),
                )
                if completed.returncode != 0:
                    what = f"headersCommand ended with exit code {completed.returncode}"
                    raise ConnectionLost(f"{what}; its environment has only the variables in headersEnv", sent=False)
                printed = completed.stdout
        except OSError as error:
            raise ConnectionLost(f"headersCommand cannot be run ({error.strerror})", sent=False) from None
        if printed is None:
            raise ConnectionLost(f"headersCommand did not end within {_RUN_S:g} s", sent=False)
        headers = read_headers(printed)
        values = [*headers.values(), *(value.rpartition(" ")[2] for value in headers.values())]
        SECRETS.hide_latest(f"headers {self._server}", values)
        if headers != self.headers:
            self.headers = headers
            self.version += 1
        self.ready = True


def read_headers(printed: bytes) -> dict[str, str]:
    """Parse the output of a command: a JSON object, or lines of `Name: value`; names are lower-cased.

    Raises:
        ConnectionLost: The output has neither form, is too large, or contains an invalid header.
    """
    malformed = ConnectionLost(
        "the output of headersCommand has no headers; expected a JSON object, or lines of Name: value", sent=False
    )
    if len(printed) > _MAX_BYTES:
        raise malformed
    headers: dict[str, str] = {}
    try:
        document = json_bytes.loads(printed)
        pairs = list(document.items()) if isinstance(document, dict) else []
    except json_bytes.MalformedJson:
        lines = [line for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    for name, value in pairs:
        is_valid = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value)
        if (
            not is_valid
            or not name.isascii()
            or not name.strip()
            or any(c.isspace() or c in ':"(),/;<=>?@[\\]{}' for c in name)
        ):
            raise malformed
        headers[name.lower()] = value
    if not headers:
        raise malformed
    return headers
