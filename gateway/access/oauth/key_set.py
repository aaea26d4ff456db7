"""Fetch an issuer's metadata and keys (RFC 8414, RFC 7517), and refresh the keys without rejecting valid tokens."""

from __future__ import annotations

import codecs
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import anyio

from gateway.config.auth_config import Issuer, fully_specified, is_trusted_url
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError

log = logging.getLogger(__name__)

FETCH_S: Final = 5.0
"""The timeout of a fetch. A distant issuer answers within one second, and callers wait for the result."""
# The maximum size of metadata and key sets. The largest in use have a few dozen kilobytes.
MAX_DOCUMENT_BYTES: Final = 256 * 1024


class FetchFailed(Exception):
    """An issuer did not return the requested document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An HTTP response."""

    status: int
    body: bytes


class Fetch(Protocol):
    """Sends one HTTP request with its own timeout, and does not follow redirects to other origins."""

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        """Return the response.

        Raises:
            GatewayError: The request failed, or the body is larger than `limit_bytes`.
            TimeoutError: The request took too long.
        """


async def fetch_object(
    fetch: Fetch, url: str, *, headers: Mapping[str, str] | None = None, form: bytes | None = None
) -> dict[str, Any]:
    """Fetch a JSON object by GET, or by POST if `form` is given.

    Raises:
        FetchFailed: The request failed, or the response is not a JSON object.
    """
    head = {"accept": "application/json", **(headers or {})}
    if form is not None:
        head["content-type"] = "application/x-www-form-urlencoded"
    try:
        answer = await fetch("GET" if form is None else "POST", url, head, form or b"", limit_bytes=MAX_DOCUMENT_BYTES)
    except (GatewayError, TimeoutError, ValueError) as error:
        raise FetchFailed(f"{url}: {error}") from None
    if answer.status != 200:
        raise FetchFailed(f"{url}: HTTP {answer.status}")
    try:
        value = json_bytes.loads(answer.body.removeprefix(codecs.BOM_UTF8))
    except json_bytes.MalformedJson:
        raise FetchFailed(f"{url}: the answer is not JSON") from None
    if not isinstance(value, dict):
        raise FetchFailed(f"{url}: the answer is not a JSON object")
    return value


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the URLs at which an issuer may publish its metadata, in the order to try.

    Source: MCP 2026-07-28, "Authorization", "Authorization Server Metadata Discovery"; RFC 8414, section 3.
    """
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    names = ("oauth-authorization-server", "openid-configuration")
    inserted = [f"{origin}/.well-known/{name}{path}" for name in names]
    return (*inserted, f"{origin}{path}/.well-known/{names[1]}") if path else tuple(inserted)


async def find_jwks_uri(fetch: Fetch, issuer: str) -> str:
    """Return the URL of an issuer's keys, from its metadata.

    Raises:
        FetchFailed: The metadata are missing, belong to another issuer, or have no valid `jwks_uri`.
    """
    problems: list[str] = []
    for url in metadata_urls(issuer):
        try:
            metadata = await fetch_object(fetch, url)
        except FetchFailed as error:
            problems.append(str(error))
            continue
        # RFC 8414, section 3.3: the issuer must be identical, or the metadata may be another issuer's.
        if metadata.get("issuer") != issuer:
            problems.append(f"{url}: the metadata is for another issuer")
            continue
        jwks_uri = metadata.get("jwks_uri")
        # Keys fetched over http could be forged, unless the issuer and the keys are on this machine.
        if isinstance(jwks_uri, str) and is_trusted_url(jwks_uri) and (_is_secure(jwks_uri) or not _is_secure(issuer)):
            return jwks_uri
        problems.append(f"{url}: jwks_uri is not an https URL")
    raise FetchFailed("; ".join(problems))


def _is_secure(url: str) -> bool:
    return urlsplit(url).scheme == "https"


REFRESH_S: Final = 300.0
"""The interval between fetches of the keys. Issuers expect withdrawn keys to stay in caches for about as long."""
UNKNOWN_KEY_S: Final = 60.0
"""The minimum interval between fetches for unknown key ids. It is needed because any client can make up a key id."""
GRACE_S: Final = 4 * 3600.0
"""How long keys stay valid while the issuer is unreachable: longer than most outages and token lifetimes."""
# The pause after a failed fetch. It is short, because the gateway may have started just before the issuer.
_RETRY_S: Final = 15.0
# The shortest pause between fetches while no keys are known. Callers wait for the keys, but a failing issuer must not
# get a request for each caller.
_FIRST_RETRY_S: Final = 2.0
# The longest time that a caller waits for an unknown key; a working issuer answers within a second.
_ASK_S: Final = 6.0
# The timeout for up to three metadata URLs and the keys together; each request also has its own timeout.
_REFRESH_WITHIN_S: Final = 12.0
# Issuers publish two or three keys; a large issuer with one key per application publishes a few dozen.
_MAX_KEYS: Final = 100
# NIST SP 800-131A requires 2048 bits. The time to verify grows with the square of the length: 0.5 ms for 8192 bits.
_RSA_BITS: Final = range(2048, 8192 + 1)
_MAX_EXPONENT_BITS: Final = 32
# The key type and the curve that each algorithm requires. None: the key type has no curves.
_KINDS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "Ed25519": ("OKP", "Ed25519"),
    "Ed448": ("OKP", "Ed448"),
}
# Algorithm names that the library does not know, mapped to the library's names for the same algorithms.
_LIBRARY_NAMES: Final = {"Ed25519": "EdDSA", "Ed448": "EdDSA", "ESP256": "ES256", "ESP384": "ES384", "ESP512": "ES512"}


class Key:
    """One published key.

    Attributes:
        id: The `kid` of the key; None if the issuer does not publish one.
        good_until_s: When the key stops being trusted, in seconds since 1970.
    """

    def __init__(self, published: Mapping[str, Any], good_until_s: float) -> None:
        self._jwk = published
        self._key_objects: dict[str, Any] = {}
        key_id = published.get("kid")
        self.id = key_id if isinstance(key_id, str) else None
        self.good_until_s = good_until_s

    def is_for(self, algorithms: Collection[str]) -> bool:
        """Return whether the key can verify one of these algorithms (RFC 7517, sections 4.1 to 4.4).

        Args:
            algorithms: Fully specified algorithms, which imply the type of key and the curve.
        """
        published = self._jwk
        operations = published.get("key_ops", "verify")
        if published.get("use", "sig") != "sig":
            return False
        if "verify" not in (operations if isinstance(operations, list) else [operations]):
            return False
        algorithm = published.get("alg")
        accepted = set(algorithms) if algorithm is None else fully_specified(str(algorithm)).intersection(algorithms)
        kind, curve = published.get("kty"), published.get("crv")
        return any(kind == key_type and on in (None, curve) for key_type, on in map(_KINDS.__getitem__, accepted))

    def for_algorithm(self, algorithm: str) -> Any:
        """Return the key object for an algorithm.

        Raises:
            ValueError: The key cannot be used with this algorithm.
        """
        key_object = self._key_objects.get(algorithm)
        if key_object is None:
            key_object = self._key_objects[algorithm] = _public_key(algorithm, self._jwk)
        return key_object

    def is_same(self, published: Mapping[str, Any]) -> bool:
        """Return whether this key was created from the same JSON object as the published key."""
        return self._jwk == published


class KeySet:
    """The keys of one issuer.

    Attributes:
        problem: Why the last fetch failed; empty if the last fetch succeeded.
    """

    def __init__(self, issuer: Issuer, fetch: Fetch, *, clock: Callable[[], float] = time.time) -> None:
        """Create an empty set; `run` fetches the keys."""
        self.issuer = issuer
        self.problem = "its keys have not been fetched yet"
        self._fetch = fetch
        self._clock = clock
        self._keys: list[Key] = []
        self._jwks_uri = issuer.jwks_uri
        self._tried_s = self._unknown_s = -GRACE_S
        self._failures = 0
        self._fetching = False
        self._fetch_requested, self._fetched = anyio.Event(), anyio.Event()

    @property
    def available(self) -> bool:
        """True if there are trusted keys."""
        now_s = self._clock()
        return any(key.good_until_s > now_s for key in self._keys)

    def candidates(self, key_id: str | None, algorithms: Collection[str]) -> list[Key]:
        """Return the keys that may have signed a token with one of these algorithms.

        If `key_id` is None, return all keys for the algorithms. Otherwise return the keys with this id or, if there are
        none, the keys without an id.
        """
        now_s = self._clock()
        usable = [key for key in self._keys if key.good_until_s > now_s and key.is_for(algorithms)]
        if key_id is None:
            return usable
        return [key for key in usable if key.id == key_id] or [key for key in usable if key.id is None]

    @property
    def may_request_fetch(self) -> bool:
        """True if a token may cause another fetch of the keys, or can wait for a fetch in progress."""
        now_s = self._clock()
        if self._fetching or self._fetch_requested.is_set():
            return True
        if not self.available:
            return now_s - self._tried_s >= _FIRST_RETRY_S
        return now_s - self._unknown_s >= UNKNOWN_KEY_S

    async def request_fetch(self) -> None:
        """Request a fetch of the keys because of a token, and wait at most `_ASK_S` seconds for the result.

        `run` fetches the keys once for all waiting callers, so a cancelled caller does not affect the others.
        """
        if not self._fetching and not self._fetch_requested.is_set():
            if self.available:
                self._unknown_s = self._clock()
                # Look up the key URL again: it may have changed while the old keys are still published at the old URL.
                self._jwks_uri = self.issuer.jwks_uri
            self._fetch_requested.set()
        fetched = self._fetched
        with anyio.move_on_after(_ASK_S):
            await fetched.wait()

    async def run(self) -> None:
        """Fetch the keys at once, periodically and on request, until cancelled."""
        while True:
            self._fetching = True
            try:
                await self.refresh()
            finally:
                self._fetching = False
                self._fetched.set()
                self._fetch_requested, self._fetched = anyio.Event(), anyio.Event()
            with anyio.move_on_after(_RETRY_S if self._failures else REFRESH_S):
                await self._fetch_requested.wait()

    async def refresh(self) -> None:
        """Fetch the keys. If the fetch fails, the keys of earlier fetches stay valid until their `good_until_s`."""
        self._tried_s = self._clock()
        try:
            with anyio.fail_after(_REFRESH_WITHIN_S):
                published = await self._fetch_published_keys()
        except (FetchFailed, TimeoutError) as error:
            self._failures += 1
            self.problem = str(error) or f"no keys within {_REFRESH_WITHIN_S:g} s"
            # Log only the first of consecutive failures.
            if self._failures == 1:
                log.warning("issuer keys cannot be fetched: %s: %s", self.issuer.issuer, self.problem)
            if self.issuer.jwks_uri is None:
                self._jwks_uri = None  # look up the key URL again, because it may have changed
            return
        if self._failures:
            log.info("issuer keys fetched again: %s", self.issuer.issuer)
        self._failures, self.problem = 0, ""
        self._apply(published)

    async def _fetch_published_keys(self) -> list[dict[str, Any]]:
        if self._jwks_uri is None:
            self._jwks_uri = await find_jwks_uri(self._fetch, self.issuer.issuer)
        document = await fetch_object(self._fetch, self._jwks_uri)
        published_keys = document.get("keys")
        if not isinstance(published_keys, list):
            raise FetchFailed(f"{self._jwks_uri}: the key set has no keys")
        # Ignore keys of unknown types (RFC 7517, section 5).
        usable_keys = [
            key for each in published_keys if isinstance(each, dict) and _is_usable(key := _without_nulls(each))
        ]
        if len(usable_keys) > _MAX_KEYS:
            raise FetchFailed(f"{self._jwks_uri}: the key set has more than {_MAX_KEYS} keys")
        if not usable_keys:
            raise FetchFailed(f"{self._jwks_uri}: the key set has no usable key")
        return usable_keys

    def _apply(self, published: list[dict[str, Any]]) -> None:
        now_s = self._clock()
        withdrawn: list[Key] = []
        for key in self._keys:
            if not any(key.is_same(each) for each in published):
                # The issuer has withdrawn this key. Trust the key a little longer for tokens already in use. Other
                # services do the same, because they cache keys.
                key.good_until_s = min(key.good_until_s, now_s + REFRESH_S)
                if key.good_until_s > now_s:
                    withdrawn.append(key)
        held_keys = {id(each): key for each in published for key in self._keys if key.is_same(each)}
        fresh = [held_keys.get(id(each)) or Key(each, 0.0) for each in published]
        for key in fresh:
            key.good_until_s = now_s + GRACE_S
        # The published keys come first, then at most `_MAX_KEYS` withdrawn keys, the most recently withdrawn first.
        self._keys = [*fresh, *withdrawn[:_MAX_KEYS]]


def _without_nulls(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key without its null members: some serializers write null for absent members."""
    return {name: value for name, value in key.items() if value is not None}


def _is_usable(key: Mapping[str, Any]) -> bool:
    """Return whether this is a public key of a supported type. Its other members are checked when the key is used."""
    # Reject shared secrets and published private keys, with which anyone could sign.
    return key.get("kty") in ("RSA", "EC", "OKP") and "d" not in key


@cache
def algorithms() -> Mapping[str, Any]:
    """Return the signature algorithms by name; some algorithms have several names."""
    # Imported lazily: the import loads `cryptography`, which a gateway without issuers does not need.
    from jwt.algorithms import get_default_algorithms

    by_library_name = get_default_algorithms()
    return {**{name: by_library_name[library_name] for name, library_name in _LIBRARY_NAMES.items()}, **by_library_name}


def _public_key(algorithm: str, published: Mapping[str, Any]) -> Any:
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    try:
        public_key = algorithms()[algorithm].from_jwk(dict(published))
    except (jwt.PyJWTError, KeyError, TypeError, AttributeError, OverflowError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the key is malformed: {error}") from None
    if isinstance(public_key, RSAPublicKey):
        exponent_bits = public_key.public_numbers().e.bit_length()
        if public_key.key_size not in _RSA_BITS or exponent_bits > _MAX_EXPONENT_BITS:
            raise ValueError("the key is too short or too expensive to use")
    return public_key
