"""Configure authentication and quotas: API keys, token issuers and limits per caller."""

from __future__ import annotations

import math
import re
import string
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, WithJsonSchema, field_validator, model_validator

from gateway.config.section import Count, Section, default_section, fault, is_http_url, suggestion

# The algorithms that PyJWT verifies with a public key. HS256 is excluded: anyone who can verify such a token can also
# forge one, and an attacker could use the public key of another algorithm as the shared secret.
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
    "Ed448",
    "ESP256",
    "ESP384",
    "ESP512",
)
# RFC 9864: EdDSA does not specify the curve, and some issuers use the COSE names of the ECDSA algorithms.
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
_HTTPS: Final = "an https URL, or an http URL of this machine"


def fully_specified(algorithm: str) -> frozenset[str]:
    """Return the fully-specified algorithms (RFC 9864) that a name stands for."""
    return _FULLY_SPECIFIED.get(algorithm, frozenset({algorithm}))


def is_trusted_url(url: str) -> bool:
    """Return true if responses from `url` cannot be forged on the network: https, or http to this machine."""
    if not is_http_url(url):
        return False
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in _LOOPBACK


def profile_of_audience(audience: str, resource: str | None) -> str | None:
    """Return the profile whose URL equals `audience`, or None if `audience` is not the URL of a profile.

    Args:
        audience: The audience of a token.
        resource: The configured URL of the gateway. If it is None, any URL ending in /mcp/NAME is accepted.
    """
    if resource is not None:
        start = f"{base_of(resource)}/mcp/"
        name = audience.removeprefix(start).removesuffix("/")
        return name if audience.startswith(start) and name and "/" not in name else None
    match = _PATH_OF_PROFILE.search(audience)
    return match[1] if match is not None and is_http_url(audience) else None


def base_of(resource: str) -> str:
    """Return the base URL of the gateway, without the `/mcp` that `resource` may end with."""
    return resource.rstrip("/").removesuffix("/mcp")


class ClaimNames(Section):
    """The names of the claims to read from a token."""

    subject: str = Field(default="sub", min_length=1)
    """Claim that identifies the caller. The issuer must never reassign its value to another person."""
    groups: str = Field(default="groups", min_length=1)
    """Claim that lists the groups of the caller. Use dots for a nested claim, such as realm_access.roles."""
    client: str = Field(default="azp", min_length=1)
    """Claim that names the client to which the token was issued. If it is absent, client_id is used."""


class Introspection(Section):
    """Validation of opaque tokens by introspection (RFC 7662)."""

    endpoint: str
    """URL of the introspection endpoint."""
    client_id: str = Field(min_length=1)
    """Client id with which the gateway is registered at the issuer."""
    client_secret: SecretStr = Field(min_length=1)
    """Client secret, sent with HTTP Basic authentication."""

    @field_validator("endpoint")
    @classmethod
    def _is_trusted(cls, url: str) -> str:
        if not is_trusted_url(url):
            raise fault("is not a URL that may receive a secret", _HTTPS)
        return url


class IdentityClient(Section):
    """The OpenID Connect client with which the gateway identifies the user of a browser."""

    client_id: str = Field(min_length=1)
    """Client id with which the gateway is registered at the issuer. Its redirect URI is /oauth/callback of the
    gateway."""
    client_secret: SecretStr | None = Field(default=None, min_length=1)
    """Client secret; omit it for a public client."""
    scopes: list[str] = Field(default_factory=lambda: ["openid"])
    """Scopes to request: openid, and the scopes that the claim identifying callers requires, such as email."""


class Issuer(Section):
    """An authorization server whose access tokens are accepted."""

    issuer: str
    """Issuer identifier, exactly as in the tokens and the metadata of the issuer."""
    audiences: list[str] = Field(default_factory=list)
    """Accepted audiences; a token must contain at least one of them. An audience that is the URL of a profile, such as
    https://gateway.example.test/mcp/NAME, gives access to that profile only; any other gives access to all profiles."""
    algorithms: list[str] = Field(default_factory=lambda: ["RS256", "ES256"])
    """Accepted signature algorithms. EdDSA covers Ed25519 and Ed448; tokens and keys may use either name."""
    claims: ClaimNames = default_section(ClaimNames)
    """Names of the claims to read."""
    required_scopes: list[str] = Field(default_factory=list)
    """Scopes that every token must have."""
    jwks_uri: str | None = None
    """URL of the issuer's signing keys. By default it is read from the issuer's metadata."""
    introspection: Introspection | None = None
    """Introspection of opaque tokens. Without it, only signed tokens (JWT) are accepted."""
    sign_in: IdentityClient | None = None
    """Client with which callers sign in to the page /me, and identify themselves before they sign in to a server with
    perUser. By default the gateway registers itself, if the issuer supports dynamic registration."""

    @field_validator("issuer")
    @classmethod
    def _is_an_issuer(cls, url: str) -> str:
        parts = urlsplit(url) if is_trusted_url(url) else None
        # RFC 8414, section 2, forbids a query and a fragment. An @ would make SUBJECT@ISSUER ambiguous.
        if parts is None or parts.query or parts.fragment or "?" in url or "#" in url or "@" in url:
            raise fault("is not a valid issuer", f"{_HTTPS}, without query, fragment and @")
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
                    raise fault(f"allows forged tokens ({name})", f"one of: {', '.join(ALGORITHMS)}", key=key)
                raise fault(f"is not a known algorithm ({name})", suggestion(name, list(ALGORITHMS)), key=key)
        return algorithms

    @field_validator("required_scopes")
    @classmethod
    def _scopes_are_valid(cls, scopes: list[str]) -> list[str]:
        for place, scope in enumerate(scopes):
            if not _SCOPE.fullmatch(scope):
                raise fault("is not a valid scope", "one word per scope", key=f"[{place}]")
            if scope == "offline_access":
                # This scope concerns only client and issuer. A challenge must not request it (MCP, "Authorization").
                what = "is not a scope of a resource (offline_access)"
                raise fault(what, "scopes that grant access to the gateway", key=f"[{place}]")
        return scopes

    @field_validator("jwks_uri")
    @classmethod
    def _is_trusted(cls, url: str | None) -> str | None:
        if url is not None and not is_trusted_url(url):
            raise fault("is not a URL for signing keys", _HTTPS)
        return url

    @model_validator(mode="after")
    def _audiences_are_given(self) -> Issuer:
        # Without an audience, tokens that this issuer issues for other services would be accepted here.
        if not self.audiences or any(not audience.strip() or audience == "*" for audience in self.audiences):
            expected = "the aud claim of tokens for this gateway, such as its URL with /mcp"
            raise fault("names no audience", expected, key="audiences")
        return self

    def accepts(self, algorithm: str) -> frozenset[str]:
        """Return the accepted algorithms for a token whose header names `algorithm`; empty if it is not accepted."""
        accepted = frozenset[str]().union(*map(fully_specified, self.algorithms))
        return fully_specified(algorithm) & accepted

    @property
    def name(self) -> str:
        """The part after the @ in the names of this issuer's callers."""
        return self.issuer.partition("://")[2].rstrip("/")


class OAuthConfig(Section):
    """Authentication of callers with OAuth access tokens."""

    issuers: list[Issuer] = Field(default_factory=list)
    """Authorization servers whose tokens are accepted."""
    resource: str | None = None
    """URL of this gateway as callers see it, such as https://gateway.example.test. Required if the gateway listens for
    other machines. The protected resource metadata contains this URL, and clients request tokens for it."""

    @field_validator("resource")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and (not is_trusted_url(url) or urlsplit(url).query or urlsplit(url).fragment):
            raise fault("is not the URL of a gateway", f"{_HTTPS}, without query and fragment")
        return url

    @model_validator(mode="after")
    def _issuers_are_distinct(self) -> OAuthConfig:
        if not self.issuers:
            raise fault("is missing", "a list of issuers whose tokens are accepted", key="issuers")
        seen: set[str] = set()
        for place, issuer in enumerate(self.issuers):
            if issuer.name.casefold() in seen:
                # Names of callers contain the name of the issuer, so callers of the two issuers would be confused.
                raise fault(f"is given twice ({issuer.name})", "each issuer once", key=f"issuers[{place}].issuer")
            seen.add(issuer.name.casefold())
        introspected = [place for place, issuer in enumerate(self.issuers) if issuer.introspection is not None]
        if len(introspected) > 1:
            # The gateway would send each token to both issuers, and the wrong issuer could use it.
            what = "is given for a second issuer; an opaque token does not name its issuer"
            raise fault(what, "at most one", key=f"issuers[{introspected[1]}].introspection")
        return self


SCOPES: Final = ("tools", "tools:read", "prompts", "prompts:read", "resources", "resources:read", "metrics")
"""Scopes of API keys; `tools:read` covers the tools that are marked as read-only."""
STRONG_BITS: Final = 128
"""Keys with fewer bits may be found by brute force. Source: NIST SP 800-57 part 1, minimum strength beyond 2030."""
KEY_PREFIX: Final = "tg_"
"""Prefix of generated keys, so that secret scanners recognize leaked ones."""
RESERVED_NAMES: Final = ("local", "stdio")
"""Names that rules and audit entries use for callers without a key."""
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_WILDCARDS: Final = frozenset("*?[]")


def _parse_time(value: object) -> object:
    """Parse an ISO 8601 date or time. A date means the end of that day; the default time zone is UTC."""
    if not isinstance(value, str):
        raise fault("is not a date", "a date or a time such as 2027-01-31 or 2027-01-31T12:00:00Z")
    try:
        if len(value) == len("2027-01-31"):
            return datetime.combine(date.fromisoformat(value), time.max, UTC)
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise fault("is not a date", "a date or a time such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class ApiKey(Section):
    """A key that callers may present."""

    name: str = Field(min_length=1, max_length=256)
    """Name of the caller: the principal in rules, quotas, hook conditions and logs. Two keys may share a name, so that
    keys can be rotated."""
    key: SecretStr | None = Field(default=None, min_length=1)
    """The key, which callers send as `Authorization: Bearer KEY`. Give either `key` or `keyHash`."""
    key_hash: str | None = None
    """SHA-256 of the key, as `typegate key new` prints it: `sha256:` and 64 hexadecimal digits. The secret is
    then not in the file."""
    profiles: list[str] | None = None
    """Profiles to which the key gives access, with `default` for /mcp. By default all. Other profiles answer as if they
    did not exist."""
    scopes: list[str] = Field(default_factory=list)
    """Scopes of the key: `tools`, `tools:read` (read-only tools), `prompts`, `resources`, `metrics`. Empty means no
    restriction. `prompts:read` and `resources:read` are synonyms of `prompts` and `resources`."""
    groups: list[str] = Field(default_factory=list)
    """Groups of the caller, for rules and quotas."""
    expires: Annotated[
        datetime | None,
        BeforeValidator(lambda value: None if value is None else _parse_time(value)),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = None
    """When the key expires: a date such as 2027-01-31, which means the end of that day in UTC, or a time such as
    2027-01-31T12:00:00Z. By default never."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        # A line break would split a log entry. It could also give a key the identity of a caller with a token, which
        # consists of two lines: the client and the name.
        if not name.isprintable():
            raise fault("has a character that cannot be printed", "a name of letters, digits and punctuation")
        if name.strip().casefold() in RESERVED_NAMES:
            what = f"is reserved ({name}) for callers without a key"
            raise fault(what, f"a name other than {' and '.join(RESERVED_NAMES)}")
        if not name.strip() or not _WILDCARDS.isdisjoint(name):
            # A rule for this name would be a pattern that also matches other callers.
            raise fault("is not a valid caller name", "a name without *, ?, [ and ], which are wildcards in rules")
        return name

    @field_validator("key_hash")
    @classmethod
    def _is_a_hash(cls, value: str | None) -> str | None:
        if value is not None and not _HASH.fullmatch(value):
            raise fault("is not the hash of a key", "sha256: and 64 hexadecimal digits, from `typegate key new`")
        return value

    @field_validator("scopes")
    @classmethod
    def _scopes_are_known(cls, scopes: list[str]) -> list[str]:
        for place, scope in enumerate(scopes):
            if scope not in SCOPES:
                raise fault(f"is not a scope ({scope})", suggestion(scope, list(SCOPES)), key=f"[{place}]")
        return scopes

    @model_validator(mode="after")
    def _has_one_secret(self) -> ApiKey:
        if (self.key is None) == (self.key_hash is None):
            what = "is missing" if self.key is None else "cannot be combined with keyHash"
            raise fault(what, "either key or keyHash", key="key")
        return self

    @property
    def bits(self) -> float:
        """An upper bound of the key's entropy in bits, from its length and classes of characters."""
        text = self.key.get_secret_value() if self.key is not None else ""
        if self.key is None:
            return math.inf
        kinds = (string.digits, "abcdef", "ghijklmnopqrstuvwxyz", "ABCDEF", "GHIJKLMNOPQRSTUVWXYZ")
        letters = sum(len(kind) for kind in kinds if any(character in kind for character in text))
        distinct_symbols = len(
            {character for character in text if character not in string.ascii_letters + string.digits}
        )
        return len(text) * math.log2(max(letters + distinct_symbols, 2))


class AuthConfig(Section):
    """Authentication of callers. Without API keys and issuers, anyone who can reach the port may call."""

    api_keys: list[ApiKey] = Field(default_factory=list)
    """API keys of callers. Without API keys and without `oauth`, anyone who can reach the port may call."""
    oauth: OAuthConfig | None = None
    """Authentication with access tokens of authorization servers (OAuth 2.1)."""

    @property
    def required(self) -> bool:
        """True if callers have to authenticate."""
        return bool(self.api_keys) or self.oauth is not None

    @field_validator("api_keys")
    @classmethod
    def _keys_are_distinct(cls, keys: list[ApiKey]) -> list[ApiKey]:
        rights: dict[str, Any] = {}
        for place, key in enumerate(keys):
            own = (key.profiles, sorted(key.scopes), sorted(key.groups))
            # A session belongs to a caller's name, so all keys with one name need the same rights.
            if rights.setdefault(key.name, own) != own:
                what = f"gives the name {key.name} to keys with different profiles, scopes or groups"
                raise fault(what, "the same for all keys of one name", key=f"[{place}].name")
        # If two callers had the same key, the second would act as the first, also in the logs.
        plain = [key.key.get_secret_value() for key in keys if key.key is not None]
        if len(set(plain)) < len(plain) or len({key.key_hash for key in keys if key.key is None}) < len(keys) - len(
            plain
        ):
            raise fault("has the same key twice", "each key once")
        return keys

    @model_validator(mode="after")
    def _names_are_distinct(self) -> AuthConfig:
        for issuer in self.oauth.issuers if self.oauth is not None else ():
            for place, key in enumerate(self.api_keys):
                if key.name.casefold().endswith(f"@{issuer.name}".casefold()):
                    # A caller of the issuer and the key could be mistaken for each other.
                    what = f"could be the name of a caller of {issuer.issuer}"
                    raise fault(what, f"a name without @{issuer.name}", key=f"apiKeys[{place}].name")
        return self


class QuotaLimits(Section):
    """The limits of one caller. A request beyond a limit is refused with an explanation.

    With `serve --workers N`, the limits apply to all workers together. callsPerMinute and inFlight are counted jointly.
    Each worker allows its share of sessions, streams and privateConnections, rounded up, and its share of heldMebibytes
    plus one request.
    """

    takes_null = True
    # By default there is no limit, because agents call in bursts, and only the operator knows what a call costs.
    calls_per_minute: Count | None = Field(default=None, ge=1)
    """Maximum number of requests in any 60 seconds: tool calls, prompts, resources, completions, task queries and new
    subscriptions. null means no limit."""
    # Enough for four upstreams that each run as many calls as the default maxConcurrency permits.
    in_flight: Count | None = Field(default=256, ge=1)
    """Maximum number of concurrent requests. null means no limit."""
    # Enough for a team that shares one key, with a few windows each. An idle session takes a few KiB.
    sessions: Count = Field(default=1_000, ge=1, le=10_000)
    """Maximum number of sessions, which exist in protocol versions up to 2025-11-25. Beyond the limit, the session that
    has been idle longest ends."""
    # Each stream occupies a connection, and a host opens one stream per window.
    streams: Count = Field(default=64, ge=1, le=4_096)
    """Maximum number of open notification streams."""
    # The default is low, because most of these connections are separate processes.
    private_connections: Count = Field(default=32, ge=1, le=1_000)
    """Maximum number of upstream connections that belong to a single session or caller, which servers with
    `elicitation: true` or `instances` require."""
    # Parsed JSON takes up to 45 times its length in memory; a file sent as one string takes five times its length.
    held_mebibytes: Count = Field(default=96, ge=1, le=1_024)
    """Maximum memory in MiB for requests that are arriving or running, estimated from their length."""

    @field_validator("sessions", "streams", "private_connections", "held_mebibytes", mode="before")
    @classmethod
    def _has_a_limit(cls, value: object) -> object:
        if value is None:
            raise fault("is null, but a limit is required", "a number")
        return value


class QuotasConfig(Section):
    """Limits per caller."""

    default: QuotaLimits | None = None
    """Limits of callers for which no group applies. Without API keys, all callers count as one caller, to which few
    limits apply unless they are given here."""
    groups: dict[str, QuotaLimits] = Field(default_factory=dict)
    """Limits for callers in a group, by group name. They override `default`; keys that are not given are taken from
    `default`. If a caller is in several groups, the largest value applies."""
