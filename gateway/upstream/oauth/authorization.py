"""Build OAuth authorization requests and parse authorization responses.

Sources: RFC 6749, section 4.1; RFC 7636 (PKCE); RFC 8707 (resource); RFC 9207 (iss).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio

from gateway.config.model import GatewayConfig
from gateway.upstream.oauth.metadata_discovery import OFFLINE, origin_of

CALLBACK_PATH: Final = "/oauth/callback"
"""Path of the redirect URI, to which browsers return after a sign-in."""
DOCUMENT_PATH: Final = "/.well-known/oauth-client/typegate.json"
"""Path of the client ID metadata document."""
CONNECT_PATH: Final = "/oauth/connect"
"""Path of the page on which callers identify themselves before they sign in to an upstream."""


# Timeout for opening a local port. Opening takes milliseconds, but the task that opens the port may be busy.
_OPEN_S: Final = 5.0


class BrowserOrigin:
    """The origin at which browsers reach this gateway.

    Attributes:
        url: The origin, such as `http://127.0.0.1:8765`; None if browsers cannot reach the gateway.
        needed: An event that is set as soon as a user has to sign in to any upstream.
    """

    def __init__(self, url: str | None = None, *, opens_on_demand: bool = False) -> None:
        """Initialize the origin.

        Args:
            opens_on_demand: Whether the gateway opens a port, and calls `open`, only after `needed` was set.
        """
        self.url = url
        self.needed = anyio.Event()
        self._opened = anyio.Event() if opens_on_demand else None

    def open(self, url: str | None) -> None:
        """Set the origin with the port that was opened on demand; None if no port could be opened."""
        self.url = url
        if self._opened is not None:
            self._opened.set()

    async def until_open(self) -> None:
        """If the port opens on demand, request the port and wait until it is open, for `_OPEN_S` at most."""
        if self._opened is not None:
            self.needed.set()
            with anyio.move_on_after(_OPEN_S):
                await self._opened.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """URLs at which browsers and authorization servers reach this gateway.

    Attributes:
        redirect_uri: Returns the redirect URI for browsers; None if no HTTP server runs.
        document_url: Returns the URL of the client ID metadata document; None without a public HTTPS URL.
        connect_url: Returns the URL of the page on which callers identify themselves; None if no HTTP server runs.
    """

    redirect_uri: Callable[[], str | None] = lambda: None
    document_url: Callable[[], str | None] = lambda: None
    connect_url: Callable[[], str | None] = lambda: None


def public_url_of(settings: GatewayConfig) -> str | None:
    """Return the configured public URL, or else the origin of the OAuth resource URL; None if neither is configured."""
    if settings.public_url is None and settings.auth.oauth is not None and settings.auth.oauth.resource is not None:
        # MCP clients reach the gateway at its resource URL, so browsers can use the origin of this URL.
        return origin_of(settings.auth.oauth.resource)
    return settings.public_url


def addresses_at(public_url: Callable[[], str | None], origin: Callable[[], str | None]) -> Addresses:
    """Create the addresses of a gateway.

    Args:
        public_url: Returns the configured public URL; None without one.
        origin: Returns the URL on which the gateway listens, which is used if no public URL is configured.
    """

    def at(path: str) -> str | None:
        base = public_url() or origin()
        return f"{base.rstrip('/')}{path}" if base is not None else None

    def document_url() -> str | None:
        public = public_url()
        # The authorization server fetches the document, so the URL must be public, and TLS must protect the document.
        return f"{public.rstrip('/')}{DOCUMENT_PATH}" if public is not None and public.startswith("https:") else None

    return Addresses(
        redirect_uri=lambda: at(CALLBACK_PATH), document_url=document_url, connect_url=lambda: at(CONNECT_PATH)
    )


# 256 bits, as RFC 7636, section 7.1, recommends for a code verifier; also used for `state` and `nonce`.
_RANDOM_BYTES: Final = 32
# Limit for an error text from the query string of a redirect. Anyone can send a request with such a query string.
_MAX_ERROR_CHARS: Final = 200


class InvalidAuthorizationResponse(ValueError):
    """The authorization response is not valid or reports an error; the message gives the reason."""


def new_verifier() -> str:
    """Create a PKCE code verifier."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def new_state() -> str:
    """Create a random value for `state`, which identifies one sign-in, or for `nonce`."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def code_challenge(verifier: str) -> str:
    """Return the S256 code challenge of a code verifier."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")


def authorization_url(
    endpoint: str,
    *,
    client_id: str,
    redirect_uri: str,
    state: str,
    verifier: str,
    resource: str,
    scopes: Sequence[str],
    consent: bool = True,
    nonce: str | None = None,
) -> str:
    """Return the URL to open in the browser.

    Args:
        endpoint: Authorization endpoint; its query parameters are preserved, unless the request sets the same ones.
        consent: Whether to send `prompt=consent` together with the scope `offline_access`.
        nonce: Value that the identity token has to repeat; None if no identity token is requested.
    """
    parts = urlsplit(endpoint)
    added = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": code_challenge(verifier),
        "code_challenge_method": "S256",
        **({"resource": resource} if resource else {}),
        **({"nonce": nonce} if nonce is not None else {}),
    }
    if scopes:
        added["scope"] = " ".join(scopes)
    if OFFLINE in scopes and consent:
        # OpenID Connect Core, section 11: a refresh token requires the user's consent.
        added["prompt"] = "consent"
    existing = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in added]
    return urlunsplit(parts._replace(query=urlencode([*existing, *added.items()]), fragment=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationResponse:
    """An authorization response that was parsed, but whose issuer was not checked.

    Attributes:
        issuer: The parameter `iss`; None if the response does not name its issuer.
        error: The error code with its description; None if the response reports no error.
        error_code: The error code alone; empty if the response reports no error.
    """

    state: str
    code: str | None
    issuer: str | None
    error: str | None
    error_code: str = ""


def parse_authorization_response(query: str) -> AuthorizationResponse:
    """Parse the query string of a redirect.

    Raises:
        InvalidAuthorizationResponse: `state`, `code`, `iss` or `error` is repeated, or `state` is missing.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    parameters: dict[str, str] = {}
    for name, value in pairs:
        if name in parameters and name in ("state", "code", "iss", "error"):
            raise InvalidAuthorizationResponse(f"the authorization response repeats the parameter {name}")
        parameters[name] = value
    if not parameters.get("state"):
        raise InvalidAuthorizationResponse("the authorization response has no state")
    error = code = parameters.get("error")
    if error is not None:
        described = parameters.get("error_description", "")
        error = f"{error}: {described}" if described else error
        error = "".join(character for character in error if character.isprintable())[:_MAX_ERROR_CHARS]
    return AuthorizationResponse(
        state=parameters["state"],
        code=parameters.get("code") or None,
        issuer=parameters.get("iss"),
        error=error,
        error_code=code or "",
    )


def check_issuer(response: AuthorizationResponse, *, issuer: str, is_required: bool) -> None:
    """Check that the issuer named by an authorization response is exactly the expected issuer (RFC 9207).

    Responses that report an error need this check, too.

    Args:
        issuer: Issuer to which the authorization request was sent.
        is_required: Whether the server declares that its responses always name the issuer.

    Raises:
        InvalidAuthorizationResponse: The response names another issuer, or does not name the issuer but is required to.
    """
    if response.issuer is None and is_required:
        raise InvalidAuthorizationResponse(
            "the authorization response lacks `iss`, which this authorization server always sends"
        )
    if response.issuer is not None and response.issuer != issuer:
        raise InvalidAuthorizationResponse(
            "the authorization response is from a different issuer than the one the request was sent to"
        )


def authorization_code(response: AuthorizationResponse) -> str:
    """Return the authorization code of a response; call `check_issuer` first.

    Raises:
        InvalidAuthorizationResponse: The response reports an error, or has no code.
    """
    if response.error is not None:
        raise InvalidAuthorizationResponse(f"the authorization server rejected the request ({response.error})")
    if response.code is None:
        raise InvalidAuthorizationResponse("the authorization response has no code")
    return response.code
