"""Whose tokens are accepted: authorization servers, and what their tokens have to say."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import Section, absent, fault, is_http_url, suggestion

# What PyJWT verifies with a public key. A shared secret (HS256) would be as good for forging as for verifying, and
# whoever takes one where public keys are published may be handed the public key as that secret.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448",
    "ESP256", "ESP384", "ESP512",
)  # fmt: skip
# RFC 9864: EdDSA leaves the curve open, and COSE has names of its own for ECDSA, which some issuers write.
_FULLY_SPECIFIED: Final = {
    "EdDSA": frozenset({"Ed25519", "Ed448"}),
    "ESP256": frozenset({"ES256"}),
    "ESP384": frozenset({"ES384"}),
    "ESP512": frozenset({"ES512"}),
}
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
# RFC 6749, section 3.3 "Access Token Scope".
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_PATH_OF_PROFILE: Final = re.compile(r"/mcp/([^/?#]+)/?$")
_HTTPS: Final = "an https URL, or one with http of this machine"


def fully_specified(algorithm: str) -> frozenset[str]:
    """Return the algorithms of one kind of key each that a name stands for."""
    return _FULLY_SPECIFIED.get(algorithm, frozenset({algorithm}))


def is_trusted_url(url: str) -> bool:
    """Whether what is read from this URL comes from whom it names: over https, or from this machine."""
    if not is_http_url(url):
        return False
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in _LOOPBACK


def profile_of_audience(audience: str, resource: str | None) -> str | None:
    """The profile whose path an audience is the resource of; None for any other audience.

    Args:
        audience: The audience.
        resource: What callers see of us, as configured; where that is not known, every URL may be ours.
    """
    if resource is not None:
        start = f"{base_of(resource)}/mcp/"
        name = audience.removeprefix(start).removesuffix("/")
        return name if audience.startswith(start) and name and "/" not in name else None
    found = _PATH_OF_PROFILE.search(audience)
    return found[1] if found is not None and is_http_url(audience) else None


def base_of(resource: str) -> str:
    """The URL below which `/mcp` is; it may be given with or without that."""
    return resource.rstrip("/").removesuffix("/mcp")


class ClaimNames(Section):
    """Which claims of a token say what."""

    subject: str = Field(default="sub", min_length=1)
    """The claim that names the caller; it must never be given to somebody else."""
    groups: str = Field(default="groups", min_length=1)
    """The claim that lists the groups of the caller; with dots for one inside others, as realm_access.roles."""
    client: str = Field(default="azp", min_length=1)
    """The claim that names the client which the token was issued to; where it is absent, client_id does."""


class Introspection(Section):
    """How opaque tokens are looked up (RFC 7662)."""

    endpoint: str
    """The introspection endpoint."""
    client_id: str = Field(min_length=1)
    """The client that typegate is to the issuer."""
    client_secret: SecretStr = Field(min_length=1)
    """Its secret, sent by HTTP Basic authentication."""

    @field_validator("endpoint")
    @classmethod
    def _is_trusted(cls, url: str) -> str:
        if not is_trusted_url(url):
            raise fault("is no address for a secret", _HTTPS)
        return url


class IdentityClient(Section):
    """The client that the gateway is to an issuer, which asks it who sits at a browser."""

    client_id: str = Field(min_length=1)
    """What the issuer knows the gateway by; the address to come back to is /oauth/callback of the gateway."""
    client_secret: SecretStr | None = Field(default=None, min_length=1)
    """Secret of that client."""
    scopes: list[str] = Field(default_factory=lambda: ["openid"])
    """What to ask for; more than openid where the claim that names callers needs it, as email."""


class Issuer(Section):
    """An authorization server whose access tokens are accepted."""

    issuer: str
    """Its issuer identifier, to the letter as in its tokens and its metadata."""
    audiences: list[str] = Field(default_factory=list)
    """What its tokens must name as their audience: one of these. One that is the address of a profile, as
    https://gateway.example.test/mcp/NAME, opens that profile only; any other opens all."""
    algorithms: list[str] = Field(default_factory=lambda: ["RS256", "ES256"])
    """How its tokens may be signed. EdDSA is Ed25519 or Ed448; either name is accepted in tokens and keys."""
    claims: ClaimNames = absent(ClaimNames)
    """Which claims say what."""
    required_scopes: list[str] = Field(default_factory=list)
    """Scopes that every token must have."""
    jwks_uri: str | None = None
    """Where its keys are published; by default its metadata say so."""
    introspection: Introspection | None = None
    """How its opaque tokens are looked up; without it only signed ones (JWT) are accepted."""
    sign_in: IdentityClient | None = None
    """How callers show at a browser who they are, where they sign in to a server for themselves (perUser). By default
    the gateway registers itself, where the issuer takes that."""

    @field_validator("issuer")
    @classmethod
    def _is_an_issuer(cls, url: str) -> str:
        parts = urlsplit(url) if is_trusted_url(url) else None
        # RFC 8414, section 2: no query and no fragment. An @ would make SUBJECT@ISSUER ambiguous.
        if parts is None or parts.query or parts.fragment or "?" in url or "#" in url or "@" in url:
            raise fault("is no issuer", f"{_HTTPS}, without query, fragment and @")
        return url

    @field_validator("algorithms")
    @classmethod
    def _algorithms_are_safe(cls, algorithms: list[str]) -> list[str]:
        if not algorithms:
            raise fault("is empty", f"some of: {', '.join(ALGORITHMS)}")
        for place, name in enumerate(algorithms):
            if name not in ALGORITHMS:
                key = f"[{place}]"
                if name.casefold() == "none" or name.upper().startswith("HS"):
                    raise fault(f"is forged by anybody ({name})", f"one of: {', '.join(ALGORITHMS)}", key=key)
                raise fault(f"is no algorithm ({name})", suggestion(name, list(ALGORITHMS)), key=key)
        return algorithms

    @field_validator("required_scopes")
    @classmethod
    def _scopes_are_scopes(cls, scopes: list[str]) -> list[str]:
        for place, scope in enumerate(scopes):
            if not _SCOPE.fullmatch(scope):
                raise fault("is no scope", "one word for each", key=f"[{place}]")
            if scope == "offline_access":
                # It is between client and issuer; a challenge must not ask for it (MCP, "Authorization").
                raise fault(
                    "is no scope of a resource (offline_access)", "scopes that permit something", key=f"[{place}]"
                )
        return scopes

    @field_validator("jwks_uri")
    @classmethod
    def _is_trusted(cls, url: str | None) -> str | None:
        if url is not None and not is_trusted_url(url):
            raise fault("is no address for keys", _HTTPS)
        return url

    @model_validator(mode="after")
    def _audiences_are_given(self) -> Issuer:
        # Without one, what this issuer gives out for any other service would open this one.
        if not self.audiences or any(not audience.strip() or audience == "*" for audience in self.audiences):
            expected = "what tokens for this gateway have as aud, as its address with /mcp"
            raise fault("names no audience", expected, key="audiences")
        return self

    def accepts(self, algorithm: str) -> frozenset[str]:
        """Return the algorithms that a token may be signed with which names this one; none where it is not accepted."""
        accepted = frozenset[str]().union(*map(fully_specified, self.algorithms))
        return fully_specified(algorithm) & accepted

    @property
    def name(self) -> str:
        """What stands behind the @ in the names of its callers."""
        return self.issuer.partition("://")[2].rstrip("/")


class OAuthConfig(Section):
    """Access tokens of authorization servers."""

    issuers: list[Issuer] = Field(default_factory=list)
    """The authorization servers whose tokens are accepted."""
    resource: str | None = None
    """The address of this gateway as callers see it, as https://gateway.example.test; required where it listens for
    other machines. Its metadata, and what clients ask tokens for, are made from it."""

    @field_validator("resource")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and (not is_trusted_url(url) or urlsplit(url).query or urlsplit(url).fragment):
            raise fault("is no address of a gateway", f"{_HTTPS}, without query and fragment")
        return url

    @model_validator(mode="after")
    def _issuers_are_told_apart(self) -> OAuthConfig:
        if not self.issuers:
            raise fault("is missing", "a list of issuers whose tokens are accepted", key="issuers")
        seen: set[str] = set()
        for place, issuer in enumerate(self.issuers):
            if issuer.name.casefold() in seen:
                # Callers are named by it: those of one would be those of the other.
                raise fault(f"is there twice ({issuer.name})", "each issuer once", key=f"issuers[{place}].issuer")
            seen.add(issuer.name.casefold())
        asked = [place for place, issuer in enumerate(self.issuers) if issuer.introspection is not None]
        if len(asked) > 1:
            # Each would see the tokens of the other, and could use them.
            what = "is there for a second issuer; an opaque token does not say whose it is"
            raise fault(what, "one at most", key=f"issuers[{asked[1]}].introspection")
        return self
