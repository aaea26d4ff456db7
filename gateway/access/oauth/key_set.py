"""The keys of one issuer (RFC 7517): fetched aside, rotated without a failed call, kept through an outage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final

import anyio

from gateway.access.oauth.documents import Fetch, Unobtainable, fetch_object, find_jwks_uri
from gateway.config.issuers import Issuer, fully_specified

log = logging.getLogger(__name__)

REFRESH_S: Final = 300.0
"""How often keys are fetched while nothing is wrong. An issuer that withdraws one expects others to keep it as long."""
UNKNOWN_KEY_S: Final = 60.0
"""How often they are fetched because of a key that is not among them: anybody can make up its id."""
GRACE_S: Final = 4 * 3600.0
"""How long keys stay good while their issuer cannot be asked: an outage is shorter, and tokens do not last longer."""
# After a fetch has failed; a start may have been a moment too early.
_RETRY_S: Final = 15.0
# Whoever presents a token waits for the first keys; an issuer that is down must not be asked for each of them.
_FIRST_RETRY_S: Final = 2.0
# Whoever presents a token of a new key waits no longer; an issuer that answers at all does so within a second.
_ASK_S: Final = 6.0
# Metadata at up to three places, and the keys: each has seconds of its own, all together no more than this.
_REFRESH_WITHIN_S: Final = 12.0
# Issuers publish two or three; a large one that has a key for each of its applications, some dozens.
_MAX_KEYS: Final = 100
# NIST SP 800-131A asks for 2048 bits. Verifying takes time with the square of the length: 8192 bits take 0.5 ms.
_RSA_BITS: Final = range(2048, 8192 + 1)
_MAX_EXPONENT_BITS: Final = 32
_KINDS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "Ed25519": ("OKP", "Ed25519"),
    "Ed448": ("OKP", "Ed448"),
}
# Names that the library does not know, and those under which it has the algorithm.
_LIBRARY_NAMES: Final = {"Ed25519": "EdDSA", "Ed448": "EdDSA", "ESP256": "ES256", "ESP384": "ES384", "ESP512": "ES512"}


class Key:
    """One published key.

    Attributes:
        id: How tokens name it; None where its issuer does not say.
        good_until_s: Until when what it signs is believed.
    """

    def __init__(self, published: Mapping[str, Any], good_until_s: float) -> None:
        self._published = published
        self._made: dict[str, Any] = {}
        found = published.get("kid")
        self.id = found if isinstance(found, str) else None
        self.good_until_s = good_until_s

    def is_for(self, algorithms: Collection[str]) -> bool:
        """Whether it verifies signatures of one of these algorithms (RFC 7517, sections 4.1 to 4.4).

        Args:
            algorithms: Fully specified ones: the kind of key and the curve follow from each.
        """
        published = self._published
        operations = published.get("key_ops", "verify")
        if published.get("use", "sig") != "sig":
            return False
        if "verify" not in (operations if isinstance(operations, list) else [operations]):
            return False
        named = published.get("alg")
        meant = set(algorithms) if named is None else fully_specified(str(named)).intersection(algorithms)
        kind, curve = published.get("kty"), published.get("crv")
        return any(kind == wanted and on in (None, curve) for wanted, on in map(_KINDS.__getitem__, meant))

    def for_algorithm(self, algorithm: str) -> Any:
        """The key as the algorithm takes it.

        Raises:
            ValueError: It cannot be used.
        """
        made = self._made.get(algorithm)
        if made is None:
            made = self._made[algorithm] = _public_key(algorithm, self._published)
        return made

    def is_same(self, published: Mapping[str, Any]) -> bool:
        """Whether this is the published key."""
        return self._published == published


class KeySet:
    """The keys of one issuer.

    Attributes:
        issuer: The issuer.
        problem: Why the last fetch failed; empty where it did not.
    """

    def __init__(self, issuer: Issuer, fetch: Fetch, *, clock: Callable[[], float] = time.time) -> None:
        """Know no key before the first fetch.

        Args:
            issuer: The issuer.
            fetch: Makes requests.
            clock: Seconds since 1970.
        """
        self.issuer = issuer
        self.problem = "its keys were not fetched yet"
        self._fetch = fetch
        self._clock = clock
        self._keys: list[Key] = []
        self._jwks_uri = issuer.jwks_uri
        self._tried_s = self._unknown_s = -GRACE_S
        self._failures = 0
        self._fetching = False
        self._wanted, self._fetched = anyio.Event(), anyio.Event()

    @property
    def available(self) -> bool:
        """Whether there are keys that may be believed."""
        now_s = self._clock()
        return any(key.good_until_s > now_s for key in self._keys)

    def candidates(self, key_id: str | None, algorithms: Collection[str]) -> list[Key]:
        """The keys that may have signed a token by one of these algorithms.

        Those that the token names, or else those without a name; all where the token names none.
        """
        now_s = self._clock()
        usable = [key for key in self._keys if key.good_until_s > now_s and key.is_for(algorithms)]
        if key_id is None:
            return usable
        return [key for key in usable if key.id == key_id] or [key for key in usable if key.id is None]

    @property
    def may_ask(self) -> bool:
        """Whether it would be of use, and is not too soon, to ask the issuer because of a token."""
        now_s = self._clock()
        if self._fetching or self._wanted.is_set():
            return True
        if not self.available:
            return now_s - self._tried_s >= _FIRST_RETRY_S
        return now_s - self._unknown_s >= UNKNOWN_KEY_S

    async def ask(self) -> None:
        """Have the keys fetched because of a token, and wait for them, as long as a caller can.

        `run` fetches them, once for all who wait: a caller that leaves does not take the answer from others.
        """
        if not self._fetching and not self._wanted.is_set():
            if self.available:
                self._unknown_s = self._clock()
                # An issuer that moves may publish its new keys elsewhere, and the old ones still where they were.
                self._jwks_uri = self.issuer.jwks_uri
            self._wanted.set()
        fetched = self._fetched
        with anyio.move_on_after(_ASK_S):
            await fetched.wait()

    async def run(self) -> None:
        """Fetch the keys now, regularly, and when they are asked for, until cancelled."""
        while True:
            self._fetching = True
            try:
                await self.refresh()
            finally:
                self._fetching = False
                self._fetched.set()
                self._wanted, self._fetched = anyio.Event(), anyio.Event()
            with anyio.move_on_after(_RETRY_S if self._failures else REFRESH_S):
                await self._wanted.wait()

    async def refresh(self) -> None:
        """Fetch the keys; where that fails, those that are known stay good for their time."""
        self._tried_s = self._clock()
        try:
            with anyio.fail_after(_REFRESH_WITHIN_S):
                published = await self._published()
        except (Unobtainable, TimeoutError) as error:
            self._failures += 1
            self.problem = str(error) or f"no keys within {_REFRESH_WITHIN_S:g} s"
            # Once, and not again with each attempt.
            if self._failures == 1:
                log.warning("the keys of the issuer %s cannot be fetched: %s", self.issuer.issuer, self.problem)
            if self.issuer.jwks_uri is None:
                self._jwks_uri = None  # it may have moved
            return
        if self._failures:
            log.info("the keys of the issuer %s are fetched again", self.issuer.issuer)
        self._failures, self.problem = 0, ""
        self._take(published)

    async def _published(self) -> list[dict[str, Any]]:
        if self._jwks_uri is None:
            self._jwks_uri = await find_jwks_uri(self._fetch, self.issuer.issuer)
        document = await fetch_object(self._fetch, self._jwks_uri)
        found = document.get("keys")
        if not isinstance(found, list):
            raise Unobtainable(f"{self._jwks_uri}: it has no keys")
        # What kinds there will be is for others to know (RFC 7517, section 5).
        sound = [key for each in found if isinstance(each, dict) and _usable(key := _without_nulls(each))]
        if len(sound) > _MAX_KEYS:
            raise Unobtainable(f"{self._jwks_uri}: it has more than {_MAX_KEYS} keys")
        if not sound:
            raise Unobtainable(f"{self._jwks_uri}: it has no key that can be used")
        return sound

    def _take(self, published: list[dict[str, Any]]) -> None:
        now_s = self._clock()
        kept: list[Key] = []
        for key in self._keys:
            if not any(key.is_same(one) for one in published):
                # Withdrawn. Tokens that it has signed are on their way still, and every other service that keeps keys
                # would believe it as long.
                key.good_until_s = min(key.good_until_s, now_s + REFRESH_S)
                if key.good_until_s > now_s:
                    kept.append(key)
        known = {id(one): key for one in published for key in self._keys if key.is_same(one)}
        fresh = [known.get(id(one)) or Key(one, 0.0) for one in published]
        for key in fresh:
            key.good_until_s = now_s + GRACE_S
        # New ones first; of those that are withdrawn no more are kept than may be published.
        self._keys = [*fresh, *kept[-_MAX_KEYS:]]


def _without_nulls(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key without members that say nothing: serializers write null for what is absent."""
    return {name: value for name, value in key.items() if value is not None}


def _usable(key: Mapping[str, Any]) -> bool:
    """Whether it is a public key of a kind that is verified with; the rest is seen when it is needed."""
    # A shared secret has no place here, and a private key would mean that anybody can sign.
    return key.get("kty") in ("RSA", "EC", "OKP") and "d" not in key


@cache
def algorithms() -> Mapping[str, Any]:
    """Return what verifies signatures, by every name under which it is accepted."""
    # Late: it brings cryptography, which a gateway without issuers does without.
    from jwt.algorithms import get_default_algorithms

    known = get_default_algorithms()
    return {**{name: known[named] for name, named in _LIBRARY_NAMES.items()}, **known}


def _public_key(algorithm: str, published: Mapping[str, Any]) -> Any:
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    try:
        made = algorithms()[algorithm].from_jwk(dict(published))
    except (jwt.PyJWTError, KeyError, TypeError, AttributeError, OverflowError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the key is malformed: {error}") from None
    if isinstance(made, RSAPublicKey):
        exponent_bits = made.public_numbers().e.bit_length()
        if made.key_size not in _RSA_BITS or exponent_bits > _MAX_EXPONENT_BITS:
            raise ValueError("the key is too short, or made to keep us busy")
    return made
