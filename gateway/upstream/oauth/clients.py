"""How an authorization server knows us, and how we prove it. Pure, but for the time and the random id of an assertion.

Sources: RFC 7591; RFC 7523; RFC 6749, section 2.3; OAuth Client ID Metadata Document, draft 00.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

from gateway import wire
from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.upstream.oauth.discovery import MetadataRefused, ServerMetadata

AuthMethod = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
METHODS: Final[tuple[AuthMethod, ...]] = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
CLIENT_NAME: Final = "typegate"
CALLBACK_PATH: Final = "/oauth/callback"
"""Where browsers come back to after a sign-in."""
DOCUMENT_PATH: Final = "/.well-known/oauth-client/typegate.json"
_GRANTS: Final = ("authorization_code", "refresh_token")
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# Signed for one request that is sent at once; clocks differ by less.
_ASSERTION_S: Final = 120
_EDWARDS: Final = ("Ed25519", "Ed448")
_MAX_CHARS: Final = 4_096
# Of seconds since 1970: the year 33658.
_MAX_DIGITS: Final = 13


class NoClient(ValueError):
    """There is no way to be known there without the operator; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What one authorization server knows us by.

    Attributes:
        origin: How it came about: `configured`, `document` or `registered`.
        redirect_uri: The only address that it was registered with; empty where that is not known.
        expires_at_s: When its secret ends; None for never.
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

    def is_good(self, *, redirect_uri: str, now_s: float) -> bool:
        """Whether a sign-in that comes back to this address may use it still."""
        expired = self.expires_at_s is not None and now_s >= self.expires_at_s
        return not expired and (self.origin != "registered" or self.redirect_uri == redirect_uri)

    def document(self) -> dict[str, Any]:
        """As it is kept: what the configuration holds is not."""
        kept = asdict(self)
        if self.origin == "configured":
            kept["secret"] = kept["private_key"] = None
        return kept

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Client:
        """Read what `document` has written."""
        return cls(**document)


def method_for(
    offered: Sequence[str] | None, *, secret: bool, private_key: bool, wanted: AuthMethod | None = None
) -> AuthMethod:
    """How a client of the operator's proves itself.

    Args:
        offered: What the authorization server takes; None where it does not say, which means basic (RFC 8414).
        secret, private_key: What there is to prove it with.
        wanted: The operator's choice.
    """
    if wanted is not None:
        return wanted
    if private_key:
        return "private_key_jwt"
    if not secret:
        return "none"
    basic = offered is None or "client_secret_basic" in offered or "client_secret_post" not in offered
    return "client_secret_basic" if basic else "client_secret_post"


def registration_method(offered: Sequence[str] | None) -> AuthMethod:
    """How a client that is registered now will prove itself: with as little to keep as the server takes."""
    known = ("client_secret_basic",) if offered is None else offered
    choices: tuple[AuthMethod, ...] = ("none", "client_secret_basic", "client_secret_post")
    return next((one for one in choices if one in known), "none")


def client_metadata(redirect_uris: Sequence[str], *, method: str, scopes: Sequence[str] = ()) -> dict[str, Any]:
    """What we say of ourselves, registered or in a document."""
    local = all(urlsplit(uri).scheme == "http" for uri in redirect_uris)
    return {
        "client_name": CLIENT_NAME,
        "redirect_uris": list(redirect_uris),
        "grant_types": list(_GRANTS),
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        # OpenID Connect Registration, section 2: only native clients have loopback addresses.
        "application_type": "native" if local else "web",
        **({"scope": " ".join(scopes)} if scopes else {}),
    }


def client_document(url: str, redirect_uri: str) -> dict[str, Any]:
    """The document whose URL is our id."""
    return {"client_id": url, **client_metadata([redirect_uri], method="none")}


def is_document_url(url: str) -> bool:
    """Whether a URL may be the id of a client: https, with a path."""
    parts = urlsplit(url)
    return parts.scheme == "https" and bool(parts.hostname) and parts.path not in ("", "/") and not parts.fragment


def read_registration(document: object, *, asked: AuthMethod, redirect_uri: str) -> Client:
    """Read the answer of a registration endpoint.

    Raises:
        MetadataRefused: It is none.
    """
    body = document if isinstance(document, dict) else {}
    client_id, secret = body.get("client_id"), body.get("client_secret") or None
    if isinstance(client_id, int) and not isinstance(client_id, bool):
        client_id = str(client_id)
    for value in (client_id, *([] if secret is None else [secret])):
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_CHARS or not value.isprintable():
            raise MetadataRefused("the registration gave no client that can be used")
    given = body.get("token_endpoint_auth_method", asked)
    method: AuthMethod = next((one for one in METHODS if one == given), asked)
    if secret is None:
        method = "none"
    expires = body.get("client_secret_expires_at")
    if isinstance(expires, str) and expires.isdecimal() and len(expires) < _MAX_DIGITS:
        expires = int(expires)
    ends_s = float(expires) if isinstance(expires, int | float) and not isinstance(expires, bool) else 0.0
    return Client(
        client_id=str(client_id),
        origin="registered",
        method=method,
        secret=secret if method != "none" else None,
        redirect_uri=redirect_uri,
        # RFC 7591, section 3.2.1: 0 means never.
        expires_at_s=ends_s if ends_s > 0 else None,
    )


def proof_of(
    client: Client, server: ServerMetadata | None, *, now_s: float, issuer: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """What proves a client at the token endpoint: headers, and parameters of the form.

    Args:
        client: The client.
        server: The authorization server; None where only its endpoint is known.
        now_s: The time.
        issuer: Whom an assertion is for, where `server` does not say.

    Raises:
        NoClient: The key cannot sign.
    """
    match client.method:
        case "client_secret_basic":
            # RFC 6749, section 2.3.1: both are encoded as in a form before they are joined.
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
    # Late: few upstreams want it.
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
            signer.register_algorithm(algorithm, OKPAlgorithm())  # the library knows only the name EdDSA
        return signer.encode(wire.dumps(claims), pem, algorithm, {"kid": client.key_id} if client.key_id else None)
    except (ValueError, TypeError, NotImplementedError, jwt.PyJWTError) as error:
        # Its text could hold parts of the key.
        raise NoClient(
            f"auth.privateKey cannot sign ({type(error).__name__}); expected a PEM of a private key"
        ) from None


def _algorithm_for(kind: str, key: Any, offered: Sequence[str]) -> str:
    edwards = next((name for name in _EDWARDS if name in kind), None)
    if edwards is not None:
        # By its new name (RFC 9864) only where the server does not know the old one.
        return edwards if edwards in offered and "EdDSA" not in offered else "EdDSA"
    if "RSA" in kind:
        return next((one for one in ("PS256", "RS256") if one in offered), "RS256")
    return {256: "ES256", 384: "ES384", 521: "ES512"}.get(getattr(key, "key_size", 0), "ES256")


_METHODS_BY_WORD: Final[dict[str, AuthMethod]] = {
    "none": "none",
    "basic": "client_secret_basic",
    "post": "client_secret_post",
    "privateKeyJwt": "private_key_jwt",
}


def configured_client(config: SignInConfig, server: ServerMetadata) -> Client:
    """The client that the operator has registered by hand."""
    method = method_for(
        server.auth_methods,
        secret=config.client_secret is not None,
        private_key=config.private_key is not None,
        wanted=_METHODS_BY_WORD[config.client_auth] if config.client_auth is not None else None,
    )
    return with_secret(Client(client_id=config.client_id or "", origin="configured", method=method), config)


def with_secret(client: Client, config: SignInConfig) -> Client:
    """A client with what proves it, which is kept nowhere but in the configuration."""
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
