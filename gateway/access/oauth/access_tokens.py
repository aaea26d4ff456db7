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
# The maximum number of concurrent introspection requests. It is enough for all users who reconnect after a restart, and
# limits the load that clients can cause at the issuer.
_MAX_AT_ONCE: Final = 16
# The maximum number of queued introspection requests. Processing a longer queue would take many seconds.
_MAX_WAITING: Final = 512
# The longest time that a request waits in the queue. The sum of `_WAIT_S` and `FETCH_S` is less than callers' timeouts.
_WAIT_S: Final = 5.0


class Introspector:
    """Introspects opaque tokens at one issuer (RFC 7662)."""

    def __init__(self, config: Introspection, fetch: Fetch) -> None:
        self._config = config
        self._fetch = fetch
        self._places = anyio.CapacityLimiter(_MAX_AT_ONCE)
        # RFC 6749, section 2.3.1: form-encode the client id and the secret before joining them.
        pair = f"{quote_plus(config.client_id)}:{quote_plus(config.client_secret.get_secret_value())}"
        self._headers = {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    async def claims(self, token: str) -> dict[str, Any] | None:
        """Return the introspection response for a token; None if the token is not an active bearer token.

        Raises:
            FetchFailed: The issuer cannot be reached, or too many requests are queued.
        """
        if self._places.statistics().tasks_waiting >= _MAX_WAITING:
            raise FetchFailed("too many tokens are being looked up")
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        with anyio.move_on_after(_WAIT_S) as waiting:
            await self._places.acquire()
        if waiting.cancelled_caught:
            raise FetchFailed("too many tokens are being looked up")
        try:
            answer = await fetch_object(self._fetch, self._config.endpoint, headers=self._headers, form=form)
        finally:
            self._places.release()
        # Require the boolean: any string would be truthy, even "false".
        if answer.get("active") is not True:
            return None
        kind = answer.get("token_type", "Bearer")
        # Reject refresh tokens, which some issuers mark by `token_type`, and tokens that are bound to a key.
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "access_token", "at+jwt"):
            return None
        return answer


# The maximum number of cached valid tokens: several times the usual number of callers. Each takes a few kilobytes.
_MAX_GOOD: Final = 4096
# The maximum number of cached rejected tokens. Rejected tokens have a separate cache, so that made-up tokens cannot
# evict valid tokens.
_MAX_BAD: Final = 1024
# How long a rejection is cached. The time is short, because a token that is not valid yet may become valid soon.
_BAD_S: Final = 30.0
# The maximum number of stored digests of revoked tokens. Streams are closed long before a digest is evicted.
_MAX_REVOKED: Final = 4096
# The maximum number of keys to try for a token without a key id; issuers with many keys send key ids.
_MAX_TRIED: Final = 8
# The maximum number of fetches to wait for. The first fetch may already be in progress, and may miss the newest key.
_MAX_ROUNDS: Final = 2
# Open streams are closed within this time after their token has expired.
_POLL_S: Final = 2.0
# Tokens of open streams are introspected again at this interval, so that a stream is closed soon after its token was
# revoked. The tokens of calls are introspected again after `KNOWN_S`, which is longer.
_REINTROSPECT_S: Final = 5.0
# The number of tokens introspected per interval, starting with the oldest result. It limits the load on the issuer.
# Further tokens are introspected only if their cached result is about to expire.
_MAX_REINTROSPECTED: Final = 32


@dataclass(slots=True)
class _VerifiedToken:
    """The cached result for a valid token.

    Attributes:
        until_s: When this cache entry expires, in seconds since 1970.
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
        outcome: The result; None if the verification was cancelled.
    """

    ended: anyio.Event = field(default_factory=anyio.Event)
    outcome: Principal | Refusal | None = None


class Tokens:
    """Verifies the access tokens of callers.

    Attributes:
        accepted: True if access tokens are accepted at all.
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
        most_revoked: int = _MAX_REVOKED,
    ) -> None:
        """Accept tokens of these issuers.

        Args:
            config: The issuers; None to accept no tokens.
            clock: Returns seconds since 1970.
            poll_s: The interval between checks for expired tokens.
            most_good, most_bad: The maximum number of cached valid and rejected tokens.
            most_revoked: The maximum number of stored digests of revoked tokens.
        """
        self._poll_s = poll_s
        self._most_good = most_good
        self._most_bad = most_bad
        self._most_revoked = most_revoked
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
        self._apply(config)

    def replace(self, config: OAuthConfig | None) -> None:
        """Apply a new configuration, and revoke the cached tokens that no longer identify the same principal."""
        before, self._good = self._good, OrderedDict()
        self._bad.clear()
        self._apply(config)
        for digest, verified in before.items():
            # Revoke every token that the new issuers, audiences and scopes reject or map to another principal.
            if verified.key is None:
                same = self._introspected is not None and self._introspected[0].issuer == verified.principal.issuer
                if same:
                    self._good[digest] = verified
                    verified.until_s = 0.0  # introspect the token again when it is sent
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
        """Call `callback` whenever tokens may have expired or been revoked."""
        self._on_change.append(callback)

    def knows(self, principal: Principal) -> bool:
        """Return whether the token of a caller is still valid, without tolerance for clock differences.

        Also mark an introspected token as used by an open stream, so that `run` introspects the token regularly.
        """
        if principal.expires_s <= self._clock() or not self.may_finish(principal):
            return False
        verified = self._good.get(principal.token)
        if verified is not None and verified.key is None:
            self._in_use.add(principal.token)
        # If introspection is configured, a token that is no longer cached is not valid: `run` cannot introspect such a
        # token again, because only the cache has the text of the token.
        return verified is not None or self._introspected is None

    def may_finish(self, principal: Principal) -> bool:
        """Return whether a caller's running requests may finish: the token may be expired, but not revoked."""
        return principal.issuer in self._key_sets and principal.token not in self._revoked

    def principal(self, token: str, digest: bytes) -> Principal | Refusal | UnverifiedCredentials:
        """Return the principal of a token, a refusal, or an object whose `verify` has to ask the issuer."""
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
        """Refresh the issuers' keys, and call the callbacks when tokens expire or are revoked, until cancelled."""
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
        """Return the text of a caller's access token; None if the caller has no token, or the token is not cached."""
        cached = self._good.get(principal.token)
        return cached.text if cached is not None else None

    # verification
    def _verify_locally(self, token: str, digest: bytes) -> Principal | UnverifiedCredentials:
        """Verify a token that is not cached, without requests to the issuer.

        Returns:
            The principal, or an object whose `verify` has to ask the issuer.

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
        # Check the claims first: verifying the signature takes longer and may require fetching a key, and a token with
        # invalid claims is rejected even if its signature is valid.
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
        """Complete a verification with requests to the issuer. Concurrent verifications of a token share the requests.

        Args:
            key_set: The keys of the token's issuer; None to introspect the token.
        """
        while (pending := self._pending.get(digest)) is not None:
            await pending.ended.wait()
            if pending.outcome is not None:
                return pending.outcome
            # The other verification was cancelled together with its request, so start a new verification.
        asking = self._pending[digest] = _Verification()
        try:
            if key_set is None:
                asking.outcome = await self._introspect(token, digest)
            else:
                asking.outcome = await self._verify_with_new_keys(token, digest, key_set)
        except Rejected as error:
            asking.outcome = self._refuse(digest, error)
        finally:
            del self._pending[digest]
            asking.ended.set()
        return asking.outcome

    async def _verify_with_new_keys(self, token: str, digest: bytes, key_set: KeySet) -> Principal:
        """Verify a signed token after fetching the keys of its issuer, if they have not arrived in the meantime.

        Raises:
            Rejected: The token is invalid, or the issuer is unavailable.
        """
        # A fetch that is already in progress may miss the newest key, so another round may be necessary.
        for _ in range(_MAX_ROUNDS):
            if isinstance(principal := self._verify_locally(token, digest), Principal):
                return principal
            await key_set.request_fetch()
        if isinstance(principal := self._verify_locally(token, digest), Principal):
            return principal
        raise _unavailable(f"the keys of {key_set.issuer.issuer} cannot be fetched")

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
            # Do not revoke the token: open streams continue until the issuer responds or the token expires.
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
        if len(self._revoked) > self._most_revoked:
            self._revoked.popitem(last=False)

    # expiry and revocation
    async def _notice_ends(self) -> None:
        before_s = introspected_s = self._clock()
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
            if self._introspected is not None and now_s - introspected_s >= _REINTROSPECT_S:
                introspected_s = now_s
                self._in_use.clear()
                self._announce()  # fills `_in_use`, because the callbacks call `knows` for each open stream
                has_ended = await self._reintrospect() or has_ended
            if has_ended:
                self._announce()

    async def _reintrospect(self) -> bool:
        """Introspect the tokens of open streams again, and return whether any token was revoked."""
        soon_s = self._clock() + 2 * _REINTROSPECT_S
        open_ = [(digest, verified) for digest, verified in self._good.items() if digest in self._in_use]
        oldest_first = sorted(open_, key=lambda pair: pair[1].until_s)
        due = [
            (digest, verified)
            for place, (digest, verified) in enumerate(oldest_first)
            if place < _MAX_REINTROSPECTED or verified.until_s < soon_s
        ]
        async with anyio.create_task_group() as group:
            for digest, verified in due:
                group.start_soon(self.verify, verified.text, digest, None)
        return any(digest in self._revoked for digest, _ in due)

    def _announce(self) -> None:
        for callback in self._on_change:
            callback()


@dataclass(frozen=True, slots=True)
class _PendingVerification:
    """A token whose verification needs a request to the issuer: introspection, or a fetch of the issuer's keys."""

    tokens: Tokens
    token: str
    digest: bytes
    key_set: KeySet | None

    async def verify(self) -> Principal | Refusal:
        return await self.tokens.verify(self.token, self.digest, self.key_set)


def _unavailable(description: str) -> Rejected:
    return Rejected(Refusal(status=503, description=description, bearer_of_token=True, retry_after_s=2), for_good=False)
