"""Verify access tokens, and cache the results until the tokens expire."""

from __future__ import annotations

import base64
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import anyio

from gateway.access.oauth.claims import (
    MAX_TOKEN_BYTES,
    SKEW_S,
    Rejected,
    invalid,
    is_signed_by,
    principal_of,
    read_signed,
)
from gateway.access.oauth.key_set import Fetch, FetchFailed, Key, KeySet, fetch_object
from gateway.access.principal import Principal, Refusal, UnverifiedCredentials
from gateway.config.auth_config import Introspection, Issuer, OAuthConfig

log = logging.getLogger(__name__)

KNOWN_S: Final = 60.0
"""How long an introspection result is cached, and thus how long a revoked token may remain usable."""
# Enough for all users who reconnect after a restart; bounds the load that clients can cause at the issuer.
_MAX_AT_ONCE: Final = 16
# The maximum number of queued introspection requests, which would take seconds to process.
_MAX_WAITING: Final = 512
# The longest time in the queue; together with `FETCH_S` it stays below the timeout of callers.
_WAIT_S: Final = 5.0


class Introspector:
    """Introspects opaque tokens at one issuer (RFC 7662)."""

    def __init__(self, config: Introspection, fetch: Fetch) -> None:
        self._config = config
        self._fetch = fetch
        self._places = anyio.CapacityLimiter(_MAX_AT_ONCE)
        # RFC 6749, section 2.3.1: form-encode both parts first.
        pair = f"{quote_plus(config.client_id)}:{quote_plus(config.client_secret.get_secret_value())}"
        self._headers = {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    async def claims(self, token: str) -> dict[str, Any] | None:
        """Return the introspection response for a token; None if it is not an active bearer token.

        Raises:
            FetchFailed: The issuer cannot be reached, or too many requests are queued.
        """
        if self._places.statistics().tasks_waiting >= _MAX_WAITING:
            raise FetchFailed("too many tokens are being looked up")
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        acquired = False
        try:
            with anyio.move_on_after(_WAIT_S):
                await self._places.acquire()
                acquired = True
            if not acquired:
                raise FetchFailed("too many tokens are being looked up")
            answer = await fetch_object(self._fetch, self._config.endpoint, headers=self._headers, form=form)
        finally:
            if acquired:
                self._places.release()
        # Require the boolean: any string would be truthy, even "false".
        if answer.get("active") is not True:
            return None
        kind = answer.get("token_type", "Bearer")
        # Reject refresh tokens, which some issuers mark by their type, and tokens that are bound to a key.
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "access_token", "at+jwt"):
            return None
        return answer


# Several times the usual number of concurrent callers; each entry takes a few kilobytes.
_MAX_GOOD: Final = 4096
# Cached separately, so that made-up tokens cannot evict valid ones. Helps with clients that repeat a rejected token.
_MAX_BAD: Final = 1024
# Short, because a token may have been rejected as not yet valid by a slow clock.
_BAD_S: Final = 30.0
# Recently revoked tokens; everything opened with a token is closed long before its entry is evicted.
_MAX_REVOKED: Final = 4096
# The maximum number of keys to try for a token without a key id; issuers with many keys send key ids.
_MAX_TRIED: Final = 8
# Wait for a fetch that was already in progress, and for one more.
_MAX_ROUNDS: Final = 2
# Open streams are closed within this time after their token has expired.
_POLL_S: Final = 2.0
# Tokens of open streams are introspected again at this interval, so that a stream is closed soon after its token was
# revoked. For calls, `KNOWN_S` is enough.
_ROLL_CALL_S: Final = 5.0
# The number of tokens introspected per interval, oldest result first; limits the load on the issuer. Tokens beyond this
# number are introspected when their cached result is about to expire.
_MOST_LOOKED_UP: Final = 32


@dataclass(slots=True)
class _VerifiedToken:
    """A valid token.

    Attributes:
        until_s: When this entry expires, in seconds since 1970.
        key: The key that signed the token; None for an introspected token.
    """

    principal: Principal
    text: str
    until_s: float
    key: Key | None


@dataclass(slots=True)
class _Verification:
    """A verification in progress.

    Attributes:
        ended: Set when the verification is over.
        refusal: Why the token is invalid; None if it is valid or if the verification was cancelled.
    """

    ended: anyio.Event = field(default_factory=anyio.Event)
    refusal: Refusal | None = None


class Tokens:
    """Verifies the access tokens of callers.

    Attributes:
        accepted: Whether access tokens are accepted at all.
    """

    def __init__(
        self,
        config: OAuthConfig | None,
        fetch: Fetch,
        *,
        clock: Callable[[], float] = time.time,
        poll_s: float = _POLL_S,
        most_good: int = _MAX_GOOD,
        most_bad: int = _MAX_BAD,
    ) -> None:
        """Accept tokens of these issuers.

        Args:
            config: The issuers; None to accept no tokens.
            clock: Returns seconds since 1970.
            poll_s: The interval between checks for expired tokens.
            most_good, most_bad: The maximum number of cached valid and rejected tokens.
        """
        self._poll_s = poll_s
        self._most_good = most_good
        self._most_bad = most_bad
        self._fetch = fetch
        self._clock = clock
        self._good: OrderedDict[bytes, _VerifiedToken] = OrderedDict()
        self._bad: OrderedDict[bytes, tuple[Refusal, float]] = OrderedDict()
        self._revoked: OrderedDict[bytes, None] = OrderedDict()
        self._pending: dict[bytes, _Verification] = {}
        self._in_use: set[bytes] = set()
        self._on_change: list[Callable[[], None]] = []
        self._resource: str | None = None
        self._key_sets: dict[str, KeySet] = {}
        self._introspected: tuple[Issuer, Introspector] | None = None
        self._replaced = anyio.Event()
        self.accepted = False
        self._apply(config)

    def replace(self, config: OAuthConfig | None) -> None:
        """Apply a new configuration, and revoke tokens that it does not accept."""
        before, self._good = self._good, OrderedDict()
        self._bad.clear()
        self._apply(config)
        for digest, verified in before.items():
            # Revoke every token that would have another result with the new issuers, audiences and scopes.
            if verified.key is None:
                same = self._introspected is not None and self._introspected[0].issuer == verified.principal.issuer
                if same:
                    self._good[digest] = verified
                    verified.until_s = 0.0
            else:
                try:
                    same = self._verify_locally(verified.text, digest) == verified.principal
                except Rejected:
                    same = False
            if not same:
                self._revoke(digest)
        self._replaced.set()
        self._replaced = anyio.Event()
        self._announce()

    def _apply(self, config: OAuthConfig | None) -> None:
        issuers = config.issuers if config is not None else []
        before, self._key_sets = self._key_sets, {}
        self._introspected = None
        for issuer in issuers:
            key_set = before.get(issuer.issuer)
            if key_set is None or key_set.issuer.jwks_uri != issuer.jwks_uri:
                key_set = KeySet(issuer, self._fetch, clock=self._clock)
            key_set.issuer = issuer
            self._key_sets[issuer.issuer] = key_set
            if issuer.introspection is not None:
                self._introspected = (issuer, Introspector(issuer.introspection, self._fetch))
        self._resource = config.resource if config is not None else None
        self.accepted = config is not None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register a callback for when tokens may have expired or been revoked."""
        self._on_change.append(callback)

    def knows(self, principal: Principal) -> bool:
        """Return whether the token of a caller is still valid, without tolerance for clock differences.

        Also marks the token as used by an open stream, so that it is introspected again.
        """
        if principal.expires_s <= self._clock() or not self.may_finish(principal):
            return False
        verified = self._good.get(principal.token)
        if verified is not None and verified.key is None:
            self._in_use.add(principal.token)
        # An evicted introspected token cannot be checked again before its caller sends it.
        return verified is not None or self._introspected is None

    def may_finish(self, principal: Principal) -> bool:
        """Return whether a token has not been revoked; it may have expired."""
        return principal.issuer in self._key_sets and principal.token not in self._revoked

    def principal(self, token: str, digest: bytes) -> Principal | Refusal | UnverifiedCredentials:
        """Return the principal of a token, a refusal, or an object that completes the verification asynchronously."""
        cached = self._good.get(digest)
        if cached is not None and cached.until_s > self._clock():
            return cached.principal
        refused = self._bad.get(digest)
        if refused is not None:
            if refused[1] > self._clock():
                return refused[0]
            del self._bad[digest]
        try:
            return self._verify_locally(token, digest)
        except Rejected as error:
            return self._refuse(digest, error)

    async def run(self) -> None:
        """Keep the keys current and report expired and revoked tokens, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._notice_ends)
            while True:
                async with anyio.create_task_group() as fetching:
                    for each in self._key_sets.values():
                        fetching.start_soon(each.run)
                    await self._replaced.wait()
                    fetching.cancel_scope.cancel()

    def keys_of(self, issuer: str) -> KeySet | None:
        """Return the keys of an accepted issuer."""
        return self._key_sets.get(issuer)

    def text_of(self, principal: Principal) -> str | None:
        """Return the token of a caller while it is cached; None for callers without one."""
        cached = self._good.get(principal.token)
        return cached.text if cached is not None else None

    # verification
    def _verify_locally(self, token: str, digest: bytes) -> Principal | UnverifiedCredentials:
        """Verify a token that is not cached, as far as possible without requests to the issuer.

        Raises:
            Rejected: The token is invalid.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise invalid("the token is too long")
        signed = read_signed(token)
        if signed is None:
            if not token or self._introspected is None:
                raise invalid("the token is malformed")
            return _PendingVerification(self, token, digest, None)
        key_set = self._key_sets.get(signed.issuer)
        if key_set is None:
            raise invalid("the token is from an issuer that is not accepted here")
        issuer, refused, principal = key_set.issuer, None, None
        algorithms = issuer.accepts(signed.algorithm)
        if not algorithms:
            raise invalid("the token is signed by an algorithm that is not accepted")
        # Check the claims before the signature, which takes longer and may require fetching a key: a token with invalid
        # claims is rejected whatever its signature.
        try:
            principal = principal_of(signed.claims, issuer, resource=self._resource, now_s=self._clock(), token=digest)
        except Rejected as error:
            if error.refusal.status != 403:
                raise
            refused = error  # report missing scopes only if the signature is valid
        candidates = key_set.candidates(signed.key_id, algorithms)
        for key in candidates[:_MAX_TRIED]:
            if is_signed_by(signed, key):
                if principal is None:
                    assert refused is not None
                    raise refused
                self._remember(digest, _VerifiedToken(principal, token, principal.expires_s + SKEW_S, key))
                return principal
        if signed.key_id is not None and any(key.id == signed.key_id for key in candidates):
            raise invalid("the signature of the token is wrong")
        if key_set.may_request_fetch:
            return _PendingVerification(self, token, digest, key_set)
        if not key_set.available:
            raise _unavailable(f"the keys of {issuer.issuer} cannot be fetched")
        raise invalid("the token is signed with a key that its issuer does not publish", for_good=False)

    async def verify(self, token: str, digest: bytes, key_set: KeySet | None) -> Principal | Refusal:
        """Complete a verification with requests to the issuer; concurrent verifications of one token share them."""
        while (pending := self._pending.get(digest)) is not None:
            await pending.ended.wait()
            verified = self._good.get(digest)
            if verified is not None and verified.until_s > self._clock():
                return verified.principal
            if pending.refusal is not None:
                return pending.refusal
            # The verification was cancelled with its caller, so this caller starts another one.
        asking = self._pending[digest] = _Verification()
        try:
            if key_set is None:
                return await self._introspect(token, digest)
            # Keys may have arrived since the first attempt, and a fetch already in progress may miss the newest key.
            for _ in range(_MAX_ROUNDS):
                if isinstance(principal := self._verify_locally(token, digest), Principal):
                    return principal
                await key_set.request_fetch()
            if isinstance(principal := self._verify_locally(token, digest), Principal):
                return principal
            raise _unavailable(f"the keys of {key_set.issuer.issuer} cannot be fetched")
        except Rejected as error:
            asking.refusal = self._refuse(digest, error)
            return asking.refusal
        finally:
            del self._pending[digest]
            asking.ended.set()

    async def _introspect(self, token: str, digest: bytes) -> Principal:
        """Introspect an opaque token.

        Raises:
            Rejected: The token is invalid, or the issuer is unavailable.
        """
        introspected = self._introspected
        if introspected is None:
            raise invalid("the token is malformed")
        issuer, introspector = introspected
        try:
            claims = await introspector.claims(token)
        except FetchFailed as error:
            log.warning("token introspection failed: %s", error)
            # Do not revoke: open streams continue until the issuer answers or the token expires.
            raise _unavailable("the issuer of the token cannot be reached") from None
        try:
            if claims is None or claims.get("iss", issuer.issuer) != issuer.issuer:
                raise invalid("the token is unknown to its issuer, has expired, or was revoked")
            if introspected is not self._introspected:
                raise _unavailable("the configuration has changed in the meantime")
            now_s = self._clock()
            principal = principal_of(claims, issuer, resource=self._resource, now_s=now_s, token=digest, ends=False)
        except Rejected:
            if digest in self._good:
                self._revoke(digest)
            raise
        earlier = self._good.get(digest)
        if earlier is not None and earlier.principal == principal:
            principal = earlier.principal
        self._remember(
            digest, _VerifiedToken(principal, token, min(now_s + KNOWN_S, principal.expires_s + SKEW_S), None)
        )
        return principal

    def _remember(self, digest: bytes, verified: _VerifiedToken) -> None:
        if digest not in self._good and not verified.principal.knows_groups:
            log.warning(
                "token omits groups: deny rules and quotas of all groups apply, allow rules of none",
                extra={"principal": verified.principal.name},
            )
        self._revoked.pop(digest, None)
        self._good[digest] = verified
        if len(self._good) > self._most_good:
            self._good.popitem(last=False)

    def _refuse(self, digest: bytes, error: Rejected) -> Refusal:
        if error.for_good:
            self._bad[digest] = (error.refusal, self._clock() + _BAD_S)
            if len(self._bad) > self._most_bad:
                self._bad.popitem(last=False)
        return error.refusal

    def _revoke(self, digest: bytes) -> None:
        self._good.pop(digest, None)
        self._revoked[digest] = None
        if len(self._revoked) > _MAX_REVOKED:
            self._revoked.popitem(last=False)

    # expiry and revocation
    async def _notice_ends(self) -> None:
        before_s = called_s = self._clock()
        while True:
            await anyio.sleep(self._poll_s)
            now_s = self._clock()
            has_ended = False
            for digest, verified in list(self._good.items()):
                has_ended = has_ended or before_s < verified.principal.expires_s <= now_s
                if verified.principal.expires_s + SKEW_S <= now_s:
                    del self._good[digest]
                elif verified.key is not None and verified.key.good_until_s <= now_s:
                    self._revoke(digest)
                    has_ended = True
            before_s = now_s
            if self._introspected is not None and now_s - called_s >= _ROLL_CALL_S:
                called_s = now_s
                self._in_use.clear()
                self._announce()  # open streams call `knows`, which fills `_in_use`
                has_ended = await self._ask_again() or has_ended
            if has_ended:
                self._announce()

    async def _ask_again(self) -> bool:
        """Introspect the tokens of open streams again, and return whether any was revoked."""
        soon_s = self._clock() + 2 * _ROLL_CALL_S
        open_ = [digest for digest in self._in_use if digest in self._good and digest not in self._pending]
        oldest_first = sorted(open_, key=lambda digest: self._good[digest].until_s)
        due = {
            digest: self._good[digest]
            for place, digest in enumerate(oldest_first)
            if place < _MOST_LOOKED_UP or self._good[digest].until_s < soon_s
        }
        async with anyio.create_task_group() as group:
            for digest, each in due.items():
                group.start_soon(self.verify, each.text, digest, None)
        return any(digest in self._revoked for digest in due)

    def _announce(self) -> None:
        for callback in self._on_change:
            callback()


@dataclass(frozen=True, slots=True)
class _PendingVerification:
    """A token that has to be introspected, or whose key has to be fetched first."""

    tokens: Tokens
    token: str
    digest: bytes
    key_set: KeySet | None

    async def verify(self) -> Principal | Refusal:
        return await self.tokens.verify(self.token, self.digest, self.key_set)


def _unavailable(description: str) -> Rejected:
    return Rejected(Refusal(status=503, description=description, bearer_of_token=True, retry_after_s=2), for_good=False)
