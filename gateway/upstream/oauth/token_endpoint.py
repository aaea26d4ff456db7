"""Request tokens with each supported grant, parse the responses, and prove possession of a key (DPoP).

A grant is the authorization code, refresh token, assertion or client authentication for which the server issues tokens.

Sources: RFC 6749, 7523 (jwt-bearer), 8693 (token exchange), 8707 (resource), 7009 (revocation); RFC 9449 (DPoP),
sections 4.2, 5, 7.1, 8 and 9.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.oauth.client_registration import (
    CLIENT_ERRORS,
    Client,
    ClientAssertionFailed,
    client_authentication,
)
from gateway.upstream.oauth.guarded_requests import AddressRefused, GuardedRequests, OAuthResponse
from gateway.upstream.oauth.metadata_discovery import ServerMetadata
from registry.schema.display_text import excerpt

REFRESH_AT: Final = 0.8
"""Fraction of a token's lifetime after which it is refreshed; the rest allows for an unavailable server."""
# Tokens of large providers have a few KiB; most servers reject header blocks above 8 to 64 KiB.
_MAX_TOKEN_CHARS: Final = 32 * 1024
# One year. A longer lifetime is ignored, as if none were stated: the token is used until the upstream rejects it.
_MAX_LIFE_S: Final = 366 * 24 * 60 * 60.0
_MAX_ERROR_CHARS: Final = 300
_SECONDS: Final = re.compile(r"\d{1,11}(\.\d{0,6})?")
# Error codes with which a server rejects the grant itself, so that a retry cannot succeed.
_GRANT_ERRORS: Final = frozenset({"invalid_grant", "bad_refresh_token", "invalid_refresh_token"})
# Token types that require a proof (RFC 9449; OAuth token type registry) or are not access tokens (RFC 8693).
_NOT_BEARER: Final = frozenset({"dpop", "pop", "mac", "n_a"})
# Error codes of temporary failures.
_TEMPORARY_ERRORS: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})


class TokenRequestFailed(Exception):
    """The token endpoint did not return a usable token.

    Attributes:
        code: OAuth error code; empty if the response has none.
        is_temporary: Whether the error is temporary, so that the grant remains valid.
    """

    def __init__(self, reason: str, *, code: str = "", is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.is_temporary = is_temporary

    @property
    def is_grant_invalid(self) -> bool:
        """True if the grant is no longer valid."""
        return self.code in _GRANT_ERRORS

    @property
    def is_client_rejected(self) -> bool:
        """True if the client is unknown to the server, or is not allowed to use this type of grant."""
        return self.code in CLIENT_ERRORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """An access token and a refresh token, with their properties.

    Attributes:
        scopes: Granted scopes; None if the response does not state them.
        obtained_at_s: Time of the token request, in seconds since 1970, so that the time is meaningful after a restart.
        expires_at_s: Expiry in seconds since 1970; None if the token is used until the upstream rejects it.
        scheme: Authentication scheme: `Bearer`, or `DPoP` if each request needs a proof of possession.
    """

    access: str
    refresh: str | None = None
    scopes: tuple[str, ...] | None = None
    obtained_at_s: float
    expires_at_s: float | None = None
    scheme: str = "Bearer"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secrets that must not appear in logs or error texts."""
        return (self.access,) if self.refresh is None else (self.access, self.refresh)

    @property
    def refresh_at_s(self) -> float | None:
        """Time at which to refresh the access token; None if its expiry is unknown."""
        if self.expires_at_s is None:
            return None
        return self.obtained_at_s + REFRESH_AT * (self.expires_at_s - self.obtained_at_s)

    def is_expired(self, now_s: float) -> bool:
        """Return whether the access token is known to have expired."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def is_due(self, now_s: float) -> bool:
        """Return whether the access token should be refreshed."""
        due_s = self.refresh_at_s
        return due_s is not None and now_s >= due_s

    def document(self) -> dict[str, Any]:
        """Return the tokens as a JSON object for the store."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Tokens:
        """Restore tokens from the JSON object that `document` returned."""
        scopes = document.get("scopes")
        return cls(
            access=str(document["access"]),
            refresh=document.get("refresh"),
            scopes=tuple(scopes) if scopes is not None else None,
            obtained_at_s=float(document["obtained_at_s"]),
            expires_at_s=document.get("expires_at_s"),
            scheme=str(document.get("scheme", "Bearer")),
        )


def read_tokens(
    status: int,
    document: object,
    *,
    now_s: float,
    before: Tokens | None = None,
    bearer: bool = True,
    proven: bool = False,
) -> Tokens:
    """Parse the response of a token endpoint.

    Args:
        status: HTTP status.
        document: Parsed body, as in `OAuthResponse`.
        now_s: Time of the request, so that a slow response does not extend the lifetime of a token.
        before: The previous tokens, if this is a refresh; they supply values that the response omits.
        bearer: Whether the gateway will send the token to an upstream. Otherwise the token's type is not checked.
        proven: Whether the request had a proof of possession, so that the token may be bound to the key of the proof.

    Raises:
        TokenRequestFailed: The response has no usable token.
    """
    body = document if isinstance(document, dict) else {}
    if not 200 <= status < 300 or body.get("access_token") in (None, ""):
        raise _refusal(status, body)
    access = body["access_token"]
    kind = str(body.get("token_type") or "bearer").strip().lower()
    bound = proven and kind == "dpop"
    # Other values, such as `user` or `JWT`, are server-specific names for bearer tokens.
    if bearer and not bound and kind in _NOT_BEARER:
        raise TokenRequestFailed("the token endpoint returned a token that is not a bearer token")
    refresh = body.get("refresh_token") or None
    for token in (access, *([] if refresh is None else [refresh])):
        # The token becomes a header value, so a line break would inject another header.
        is_valid = isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN_CHARS and token.isascii()
        if not is_valid or not token.isprintable() or " " in token:
            raise TokenRequestFailed(
                "the token endpoint returned a token with characters that are not allowed in a header"
            )
    scope = body.get("scope")
    scopes = tuple(scope.split()) if isinstance(scope, str) else None
    return Tokens(
        access=access,
        refresh=refresh or (before.refresh if before is not None else None),
        scopes=scopes if scopes is not None or before is None else before.scopes,
        obtained_at_s=now_s,
        expires_at_s=_expiry(body.get("expires_in"), now_s),
        scheme="DPoP" if bound else "Bearer",
    )


def _expiry(life: object, now_s: float) -> float | None:
    # Some servers send the number as a string. Exclude booleans, which are integers in Python.
    if isinstance(life, str) and _SECONDS.fullmatch(life.strip()):
        life = float(life)
    if isinstance(life, bool) or not isinstance(life, int | float) or not 0 < life <= _MAX_LIFE_S:
        return None
    return now_s + life


def _refusal(status: int, body: Mapping[str, Any]) -> TokenRequestFailed:
    code = body.get("error")
    code = code if isinstance(code, str) and code.isascii() and code.isprintable() and len(code) < 100 else ""
    described = body.get("error_description")
    detail = f": {excerpt(described, _MAX_ERROR_CHARS)}" if isinstance(described, str) and described else ""
    if code and status < 500:
        reason = f"the token endpoint returned {code}{detail}"
        return TokenRequestFailed(reason, code=code, is_temporary=code in _TEMPORARY_ERRORS or status == 429)
    is_temporary = status >= 500 or status in (408, 425, 429)
    return TokenRequestFailed(f"the token endpoint returned HTTP {status} without a token", is_temporary=is_temporary)


# ECDSA with P-256, the algorithm that servers are most likely to support (RFC 7518, section 3.1: "Recommended+").
ALGORITHM: Final = "ES256"
_RANDOM_BYTES: Final = 16
# Limit for a server's nonce, which the gateway sends back in a header.
_MAX_NONCE_CHARS: Final = 1_024


def new_dpop_key() -> str:
    """Create a private key for DPoP proofs, and return it in PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private_key = ec.generate_private_key(ec.SECP256R1())
    return private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class DpopKey:
    """Signs DPoP proofs with one private key.

    Attributes:
        nonce: The latest nonce from the server, which each proof must contain; None if the server has sent none.
    """

    def __init__(self, pem: str) -> None:
        self._pem = pem
        self.nonce: str | None = None

    def use_nonce(self, nonce: str) -> bool:
        """Use this nonce in further proofs, and return whether it is valid and new."""
        if not nonce or len(nonce) > _MAX_NONCE_CHARS or nonce == self.nonce:
            return False
        self.nonce = nonce
        return True

    def proof(self, method: str, url: str, *, token: str | None = None) -> str:
        """Create the proof for one request.

        Args:
            method, url: HTTP method and URL of the request.
            token: The access token that the request contains; None for a request to the token endpoint.
        """
        import jwt

        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(_RANDOM_BYTES),
            "htm": method,
            "htu": urlunsplit(urlsplit(url)._replace(query="", fragment="")),
            "iat": int(time.time()),
        }
        if token is not None:
            claims["ath"] = _encode_digest(hashlib.sha256(token.encode("ascii")).digest())
        if self.nonce is not None:
            claims["nonce"] = self.nonce
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self._public})

    @cached_property
    def _key(self) -> Any:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        return load_pem_private_key(self._pem.encode(), password=None)

    @cached_property
    def _public(self) -> dict[str, str]:
        from jwt.algorithms import ECAlgorithm

        jwk = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        return {name: jwk[name] for name in ("kty", "crv", "x", "y")}


def _encode_digest(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TYPE: Final = "urn:ietf:params:oauth:token-type:"


class TokenEndpoint:
    """Sends requests to the token endpoint of one authorization server, authenticated as one client."""

    def __init__(
        self,
        requests: GuardedRequests,
        server: ServerMetadata,
        client: Client,
        *,
        resource: str,
        owner: str,
        proof_key: str | None = None,
    ) -> None:
        """Create the endpoint.

        Args:
            client: The OAuth client as which the gateway authenticates itself.
            resource: Resource indicator of the requested tokens (RFC 8707); empty to send none.
            owner: Key under which tokens are registered as secrets, so that logs and error texts omit them.
            proof_key: The private key, in PEM, to which tokens are bound; None for bearer tokens.
        """
        self._proof_key = DpopKey(proof_key) if proof_key is not None else None
        self._requests = requests
        self._owner = owner
        self._server = server
        self._client = client
        self._resource = resource

    async def exchange_code(self, code: str, *, verifier: str, redirect_uri: str) -> Tokens:
        """Exchange an authorization code for tokens.

        Raises:
            TokenRequestFailed: The server returned no usable token.
        """
        return await self._ask(self._code_form(code, verifier, redirect_uri))

    async def exchange_code_for_identity(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """Exchange an authorization code for an identity token, which the caller has to verify.

        Raises:
            TokenRequestFailed: The server returned no identity token.
        """
        requested_at_s = time.time()
        answer = await self._answer(self._code_form(code, verifier, redirect_uri), requested_at_s=requested_at_s)
        tokens = read_tokens(answer.status, answer.document, now_s=requested_at_s, before=None, bearer=False)
        identity_token = answer.document.get("id_token")
        if not isinstance(identity_token, str):
            raise TokenRequestFailed("the issuer returned no identity token")
        SECRETS.hide_latest(self._owner, [*tokens.secrets, identity_token])
        return identity_token

    def _code_form(self, code: str, verifier: str, redirect_uri: str) -> dict[str, str]:
        SECRETS.hide_latest(f"{self._owner}: code", [code, verifier])
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }

    async def refresh_tokens(self, tokens: Tokens) -> Tokens:
        """Request new tokens with the refresh token, which may be valid only once.

        Raises:
            TokenRequestFailed: The server returned no usable token.
        """
        return await self._ask({"grant_type": "refresh_token", "refresh_token": tokens.refresh or ""}, before=tokens)

    async def request_for_client(self, scopes: Sequence[str]) -> Tokens:
        """Request tokens with the client credentials grant.

        Raises:
            TokenRequestFailed: The server returned no usable token.
        """
        return await self._ask({"grant_type": "client_credentials", **_scope(scopes)})

    async def exchange_assertion(self, assertion: str, scopes: Sequence[str]) -> Tokens:
        """Request tokens with an assertion, a JWT that another issuer has signed (RFC 7523).

        Raises:
            TokenRequestFailed: The server returned no usable token.
        """
        return await self._ask({"grant_type": _JWT_BEARER, "assertion": assertion, **_scope(scopes)})

    async def exchange_token(
        self, subject: str, *, subject_type: str, requested_type: str, audience: str | None, scopes: Sequence[str]
    ) -> Tokens:
        """Exchange a token for a token of another type or audience (RFC 8693).

        Args:
            subject: Token to exchange.
            subject_type: Type of `subject`: the last part of a token type URN, such as `access_token`, or a full URN.
            requested_type: Type of the requested token, in the same form.
            audience: Audience of the requested token, in addition to the resource.

        Raises:
            TokenRequestFailed: The server returned no usable token.
        """
        SECRETS.hide_latest(f"{self._owner}: subject", [subject])
        form = {
            "grant_type": _EXCHANGE,
            "subject_token": subject,
            "subject_token_type": _urn(subject_type),
            "requested_token_type": _urn(requested_type),
            **({"audience": audience} if audience else {}),
            **_scope(scopes),
        }
        return await self._ask(form, bearer=requested_type == "access_token")

    async def revoke(self, tokens: Tokens) -> bool:
        """Revoke tokens, and return whether the server has confirmed the revocation."""
        endpoint = self._server.revocation_endpoint
        if endpoint is None:
            return False
        token, hint = (tokens.refresh, "refresh_token") if tokens.refresh else (tokens.access, "access_token")
        try:
            headers, proof = client_authentication(self._client, self._server, now_s=time.time())
            form = {"token": token, "token_type_hint": hint, **proof}
            return 200 <= (await self._requests.post_form(endpoint, form, headers)).status < 300
        except (GatewayError, ClientAssertionFailed):
            return False

    async def _ask(self, form: Mapping[str, str], *, before: Tokens | None = None, bearer: bool = True) -> Tokens:
        requested_at_s = time.time()
        answer = await self._answer(form, requested_at_s=requested_at_s)
        proven = self._proof_key is not None
        tokens = read_tokens(
            answer.status, answer.document, now_s=requested_at_s, before=before, bearer=bearer, proven=proven
        )
        SECRETS.hide_latest(self._owner, tokens.secrets)
        return tokens

    async def _post(self, form: Mapping[str, str], headers: Mapping[str, str]) -> OAuthResponse:
        url = self._server.token_endpoint
        proof = {"dpop": self._proof_key.proof("POST", url)} if self._proof_key is not None else {}
        return await self._requests.post_form(url, form, {**headers, **proof})

    async def _answer(self, form: Mapping[str, str], *, requested_at_s: float) -> OAuthResponse:
        try:
            headers, proof = client_authentication(self._client, self._server, now_s=requested_at_s)
        except ClientAssertionFailed as error:
            raise TokenRequestFailed(str(error)) from None
        proofs = [value for value in (self._client.secret, proof.get("client_assertion")) if value]
        SECRETS.hide_latest(f"{self._owner}: client", proofs)
        resource = {"resource": self._resource} if self._resource else {}
        parameters = {**form, **resource, **proof}
        try:
            answer = await self._post(parameters, headers)
            key = self._proof_key
            # RFC 9449, section 8: a request without the nonce has not used up the grant, so repeat it with the nonce.
            if key is not None and _wants_nonce(answer) and key.use_nonce(answer.nonce):
                answer = await self._post(parameters, headers)
            return answer
        except AddressRefused as error:
            raise TokenRequestFailed(str(error)) from None
        except GatewayError as error:
            raise TokenRequestFailed(f"the token endpoint cannot be reached ({error})", is_temporary=True) from None


def _wants_nonce(answer: OAuthResponse) -> bool:
    return isinstance(answer.document, dict) and answer.document.get("error") == "use_dpop_nonce"


def _scope(scopes: Sequence[str]) -> dict[str, str]:
    return {"scope": " ".join(scopes)} if scopes else {}


def _urn(kind: str) -> str:
    return kind if ":" in kind else f"{_TYPE}{kind}"
