"""Register the gateway as an OAuth client, and authenticate it at the token endpoint.

Sources: RFC 7591; RFC 7523; RFC 6749, section 2.3; OAuth Client ID Metadata Document, draft 00.
"""

from __future__ import annotations

import base64
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import parse_qs, quote, urlsplit

from gateway.config.upstream_types.sign_in_config import SignInConfig
from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.oauth.authorization import Addresses
from gateway.upstream.oauth.guarded_requests import AddressRefused, GuardedRequests
from gateway.upstream.oauth.metadata_discovery import InvalidMetadata, ServerMetadata, SignInUpstream
from gateway.upstream.oauth.token_store import Conflict, StoreFailed, TokenStore
from gateway.upstream.upstream_credentials import SignInFailed

log = logging.getLogger(__name__)

AuthMethod = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
METHODS: Final[tuple[AuthMethod, ...]] = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
CLIENT_NAME: Final = "typegate"
_GRANTS: Final = ("authorization_code", "refresh_token")
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# Lifetime of a client assertion. The assertion is sent at once, so the lifetime only has to cover clock differences.
_ASSERTION_S: Final = 120
_EDWARDS: Final = ("Ed25519", "Ed448")
_MAX_CHARS: Final = 4_096
# An expiry string of this length or more is ignored: 12 digits of seconds since 1970 already reach the year 33658.
_MAX_DIGITS: Final = 13


CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})
"""OAuth error codes for a client that is unknown, or is not allowed to use the grant."""
# HTTP statuses with which authorization endpoints typically reject an unknown client. 403 and 404 usually have other
# causes.
_CLIENT_REJECTED: Final = frozenset({400, 401, 422})


class ClientAssertionFailed(ValueError):
    """The configured private key cannot sign a client assertion; the message says what the key should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The gateway as a client of one authorization server.

    Attributes:
        origin: How the authorization server learned of the client: `configured` (the operator registered the client),
            `document` (the client ID is the URL of a client ID metadata document) or `registered` (the gateway
            registered itself dynamically).
        redirect_uri: The registered redirect URI; empty if unknown.
        expires_at_s: Expiry of the secret, in seconds since 1970; None if it does not expire.
    """

    client_id: str
    origin: Literal["configured", "document", "registered"]
    method: AuthMethod
    secret: str | None = None
    private_key: str | None = None
    key_id: str | None = None
    algorithm: str | None = None
    redirect_uri: str = ""
    expires_at_s: float | None = None

    def is_usable(self, *, redirect_uri: str, now_s: float) -> bool:
        """Return whether a sign-in with this redirect URI can use the client."""
        expired = self.expires_at_s is not None and now_s >= self.expires_at_s
        return not expired and (self.origin != "registered" or self.redirect_uri == redirect_uri)

    def document(self) -> dict[str, Any]:
        """Return the client as a JSON object for the store, without secrets that are in the configuration."""
        stored = asdict(self)
        if self.origin == "configured":
            stored["secret"] = stored["private_key"] = None
        return stored

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Client:
        """Restore a client from the JSON object that `document` returned."""
        return cls(**document)


def method_for(
    offered: Sequence[str] | None, *, secret: bool, private_key: bool, configured: AuthMethod | None = None
) -> AuthMethod:
    """Choose the authentication method of a configured client.

    Args:
        offered: Methods that the authorization server supports; None if its metadata states none, which means
            `client_secret_basic` (RFC 8414).
        secret, private_key: Whether the configuration has a secret or a private key.
        configured: Method that the operator has configured; None to choose a method.
    """
    if configured is not None:
        return configured
    if private_key:
        return "private_key_jwt"
    if not secret:
        return "none"
    basic = offered is None or "client_secret_basic" in offered or "client_secret_post" not in offered
    return "client_secret_basic" if basic else "client_secret_post"


def registration_method(offered: Sequence[str] | None) -> AuthMethod:
    """Choose the authentication method of a new registration: preferably `none`, which needs no stored secret."""
    accepted = ("client_secret_basic",) if offered is None else offered
    choices: tuple[AuthMethod, ...] = ("none", "client_secret_basic", "client_secret_post")
    return next((method for method in choices if method in accepted), "none")


def client_metadata(redirect_uris: Sequence[str], *, method: str, scopes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the client metadata for a registration request or a client ID metadata document."""
    local = all(urlsplit(uri).scheme == "http" for uri in redirect_uris)
    return {
        "client_name": CLIENT_NAME,
        "redirect_uris": list(redirect_uris),
        "grant_types": list(_GRANTS),
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        # OpenID Connect Registration, section 2: only native clients register loopback URIs, which use plain HTTP.
        "application_type": "native" if local else "web",
        **({"scope": " ".join(scopes)} if scopes else {}),
    }


def client_document(url: str, redirect_uri: str) -> dict[str, Any]:
    """Return the client ID metadata document with this URL as its client ID."""
    return {"client_id": url, **client_metadata([redirect_uri], method="none")}


def is_document_url(url: str) -> bool:
    """Return whether a metadata document's URL can be a client ID: HTTPS, with a path and without a fragment."""
    parts = urlsplit(url)
    return parts.scheme == "https" and bool(parts.hostname) and parts.path not in ("", "/") and not parts.fragment


def read_registration(document: object, *, requested: AuthMethod, redirect_uri: str) -> Client:
    """Parse the response of a registration endpoint.

    Raises:
        InvalidMetadata: The response has no usable client.
    """
    body = document if isinstance(document, dict) else {}
    client_id, secret = body.get("client_id"), body.get("client_secret") or None
    if isinstance(client_id, int) and not isinstance(client_id, bool):
        client_id = str(client_id)
    for value in (client_id, *([] if secret is None else [secret])):
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_CHARS or not value.isprintable():
            raise InvalidMetadata("the registration response has no usable client_id or client_secret")
    returned = body.get("token_endpoint_auth_method", requested)
    method: AuthMethod = next((candidate for candidate in METHODS if candidate == returned), requested)
    if secret is None:
        method = "none"
    expires = body.get("client_secret_expires_at")
    if isinstance(expires, str) and expires.isdecimal() and len(expires) < _MAX_DIGITS:
        expires = int(expires)
    if not isinstance(expires, int | float) or isinstance(expires, bool) or expires >= 10 ** (_MAX_DIGITS - 1):
        expires = 0
    return Client(
        client_id=str(client_id),
        origin="registered",
        method=method,
        secret=secret if method != "none" else None,
        redirect_uri=redirect_uri,
        # RFC 7591, section 3.2.1: 0 means never.
        expires_at_s=float(expires) if expires > 0 else None,
    )


def client_authentication(
    client: Client, server: ServerMetadata | None, *, now_s: float, issuer: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and the form parameters that authenticate a client at the token endpoint.

    Args:
        server: Metadata of the authorization server; None if only its token endpoint is known.
        now_s: Current time, in seconds since 1970.
        issuer: Audience of a client assertion if `server` is None.

    Raises:
        ClientAssertionFailed: The private key cannot sign.
    """
    match client.method:
        case "client_secret_basic":
            # RFC 6749, section 2.3.1: client ID and secret are form-encoded before they are joined.
            pair = f"{quote(client.client_id, safe='')}:{quote(client.secret or '', safe='')}"
            return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {}
        case "client_secret_post":
            return {}, {"client_id": client.client_id, "client_secret": client.secret or ""}
        case "private_key_jwt":
            audience = server.issuer if server is not None else issuer
            assertion = _assertion(client, audience, server.signing_algorithms if server is not None else (), now_s)
            return {}, {
                "client_id": client.client_id,
                "client_assertion_type": _ASSERTION,
                "client_assertion": assertion,
            }
        case "none":
            return {}, {"client_id": client.client_id}


def _assertion(client: Client, audience: str, offered: Sequence[str], now_s: float) -> str:
    # Imported lazily: few upstreams use client assertions.
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from jwt.algorithms import OKPAlgorithm

    pem = (client.private_key or "").encode()
    try:
        key = load_pem_private_key(pem, password=None)
        algorithm = client.algorithm or _algorithm_for(type(key).__name__, key, offered)
        claims = {
            "iss": client.client_id,
            "sub": client.client_id,
            "aud": audience,
            "iat": int(now_s),
            "exp": int(now_s) + _ASSERTION_S,
            "jti": secrets.token_urlsafe(16),
        }
        signer = jwt.PyJWS()
        if algorithm in _EDWARDS:
            signer.register_algorithm(algorithm, OKPAlgorithm())  # PyJWT registers only the name EdDSA
        return signer.encode(
            json_bytes.dumps(claims), pem, algorithm, {"kid": client.key_id} if client.key_id else None
        )
    except (ValueError, TypeError, NotImplementedError, jwt.PyJWTError) as error:
        # The text of the original error may contain parts of the key.
        raise ClientAssertionFailed(
            f"auth.privateKey cannot sign ({type(error).__name__}); expected a private key in PEM format"
        ) from None


def _algorithm_for(kind: str, key: Any, offered: Sequence[str]) -> str:
    edwards = next((name for name in _EDWARDS if name in kind), None)
    if edwards is not None:
        # Use the new algorithm name (RFC 9864) only if the server supports that name and not `EdDSA`.
        return edwards if edwards in offered and "EdDSA" not in offered else "EdDSA"
    if "RSA" in kind:
        return next((algorithm for algorithm in ("PS256", "RS256") if algorithm in offered), "RS256")
    return {256: "ES256", 384: "ES384", 521: "ES512"}.get(getattr(key, "key_size", 0), "ES256")


_METHODS_BY_NAME: Final[dict[str, AuthMethod]] = {
    "none": "none",
    "basic": "client_secret_basic",
    "post": "client_secret_post",
    "privateKeyJwt": "private_key_jwt",
}


def configured_client(config: SignInConfig, server: ServerMetadata) -> Client:
    """Return the client that the operator has registered and configured."""
    method = method_for(
        server.auth_methods,
        secret=config.client_secret is not None,
        private_key=config.private_key is not None,
        configured=_METHODS_BY_NAME[config.client_auth] if config.client_auth is not None else None,
    )
    return with_secret(Client(client_id=config.client_id or "", origin="configured", method=method), config)


def with_secret(client: Client, config: SignInConfig) -> Client:
    """Return a configured client with its secrets, which come from the configuration and are never stored.

    Other clients are returned unchanged.
    """
    if client.origin != "configured":
        return client
    return replace(
        client,
        client_id=config.client_id or "",
        secret=config.client_secret,
        private_key=config.private_key,
        key_id=config.key_id,
        algorithm=config.algorithm,
    )


class ClientRegistration:
    """Registers the gateway at the authorization servers of one upstream.

    All users share the client that is registered at an authorization server.
    """

    def __init__(
        self,
        requests: GuardedRequests,
        store: TokenStore,
        upstream: SignInUpstream,
        addresses: Addresses,
        *,
        owner: str,
    ) -> None:
        """Create the registration without reading the store.

        Args:
            addresses: The URLs of this gateway.
            owner: Key under which client secrets are registered, so that logs and error texts omit them.
        """
        self._requests = requests
        self._store = store
        self._server = upstream.server
        self._url = upstream.url
        self._config = upstream.config
        self._addresses = addresses
        self._owner = owner

    def find_client(self, existing: Client | None, server: ServerMetadata, redirect_uri: str) -> Client | None:
        """Return the client that the gateway uses at an authorization server; None if the gateway must register first.

        Args:
            existing: The client from an earlier registration, which is returned if it is still usable.
        """
        config = self._config
        if config.client_id is not None:
            return configured_client(config, server)
        document_url = config.client_metadata_url or self._addresses.document_url()
        if server.takes_client_documents and document_url is not None and is_document_url(document_url):
            return Client(client_id=document_url, origin="document", method="none")
        is_usable = existing is not None and existing.is_usable(redirect_uri=redirect_uri, now_s=time.time())
        return existing if is_usable else None

    async def get_client(
        self, existing: Client | None, server: ServerMetadata, redirect_uri: str, scopes: tuple[str, ...]
    ) -> Client:
        """Return the client that the gateway uses at an authorization server; register the gateway if necessary.

        Raises:
            SignInFailed: The server does not register the gateway; the message gives the next step.
            InvalidMetadata: The registration response has no usable client.
            AddressRefused: The registration endpoint has an address that is not allowed.
        """
        client = self.find_client(existing, server, redirect_uri)
        if client is not None:
            return client
        if server.registration_endpoint is None:
            raise SignInFailed(
                f"{server.issuer[:200]} does not register clients dynamically; register a client with the redirect URI "
                f"{redirect_uri}, and set auth.clientId of server '{self._server}' to its client ID"
            )
        method = registration_method(server.auth_methods)
        body = client_metadata([redirect_uri], method=method, scopes=scopes)
        try:
            response = await self._requests.post_json(server.registration_endpoint, body)
        except AddressRefused:
            raise
        except GatewayError as error:
            raise SignInFailed(f"the registration endpoint cannot be reached ({error})") from None
        if not 200 <= response.status < 300:
            description = response.document.get("error_description") if isinstance(response.document, dict) else None
            reason = f": {str(description)[:200]}" if isinstance(description, str) else ""
            raise SignInFailed(
                f"the client registration failed (HTTP {response.status}{reason}); register a client there with the "
                f"redirect URI {redirect_uri}, and set auth.clientId of server '{self._server}' to its client ID"
            )
        client = read_registration(response.document, requested=method, redirect_uri=redirect_uri)
        SECRETS.hide_latest(f"{self._owner}: client", [client.secret] if client.secret else [])
        return client

    async def check_client(
        self,
        client: Client,
        server: ServerMetadata,
        redirect_uri: str,
        scopes: tuple[str, ...],
        url_for: Callable[[Client], str],
    ) -> Client:
        """Return a registered client, or register a new client if the authorization server no longer accepts this one.

        Args:
            client: The registered client.
            url_for: Returns the sign-in link for a client.

        Raises:
            SignInFailed, InvalidMetadata, AddressRefused: As from `get_client`.
        """
        if await self.is_accepted(client, url_for):
            return client
        log.info("client unknown to the authorization server, registering again", extra={"server": self._server})
        return await self.get_client(None, server, redirect_uri, scopes)

    async def is_accepted(self, client: Client, url_for: Callable[[Client], str]) -> bool:
        """Return whether the authorization endpoint accepts a client; False only if the endpoint rejects the client.

        Servers that store registrations in memory lose the registrations at each restart. Such a server reports the
        unknown client only to the browser (RFC 6749, section 4.1.2.1), so without this check every further sign-in
        would fail in the browser.

        Raises:
            AddressRefused: The URL is not allowed.
        """
        if client.origin != "registered":
            return True
        try:
            status, location = await self._requests.get_page(url_for(client))
        except AddressRefused:
            raise
        except GatewayError:
            return True  # the user will see the error in the browser
        error = parse_qs(urlsplit(location).query).get("error", [""])[0]
        return status not in _CLIENT_REJECTED and error not in CLIENT_ERRORS

    async def load(self, issuer: str) -> Client | None:
        """Return the client registered at an issuer; None if the store has no readable client."""
        stored = await self._store.load(self._key(issuer))
        if stored is None:
            return None
        try:
            client = Client.from_document(stored.document)
        except TypeError:
            return None
        SECRETS.hide_latest(f"client of {self._server}", [client.secret] if client.secret else [])
        return client

    async def store(self, issuer: str, client: Client) -> None:
        """Store a client registered at an issuer."""
        key = self._key(issuer)
        stored = await self._store.load(key)
        try:
            await self._store.save(key, client.document(), expected=stored.version if stored is not None else 0)
        except (Conflict, StoreFailed):
            log.debug("client registration not stored", extra={"server": self._server})

    async def delete(self, issuer: str) -> None:
        """Delete the client registered at an issuer, so that the next sign-in registers a new client."""
        try:
            await self._store.remove(self._key(issuer))
        except StoreFailed:
            log.debug("client registration not deleted", extra={"server": self._server})

    def _key(self, issuer: str) -> str:
        return f"client:{self._server}\n{self._url}\n{issuer}"
