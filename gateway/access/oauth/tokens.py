"""What is known of each token, until it ends: a dictionary look-up for every request but the first."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from gateway.access.authenticator import Refusal, Unverified
from gateway.access.oauth.claims import SKEW_S, Rejected, invalid, principal_of
from gateway.access.oauth.documents import Fetch, Unobtainable
from gateway.access.oauth.introspection import KNOWN_S, Introspector
from gateway.access.oauth.key_set import Key, KeySet
from gateway.access.oauth.signatures import MAX_TOKEN_BYTES, is_signed_by, read_signed
from gateway.access.principal import Principal
from gateway.config.issuers import Issuer, OAuthConfig

log = logging.getLogger(__name__)

# Callers who are there at a time, several times over; each takes some kilobytes with its claims.
_MAX_GOOD: Final = 4096
# Apart from good ones, so that nobody who makes tokens up can push those out. A client in a loop repeats one.
_MAX_BAD: Final = 1024
# A token that was refused too early, by a clock that is behind, is looked at again soon.
_BAD_S: Final = 30.0
# Those that were revoked lately; all that was open with them has ended by the time one is forgotten.
_MAX_REVOKED: Final = 4096
# A token that names no key is tried with each that could have signed it; issuers with several name them.
_MAX_TRIED: Final = 8
# One that had begun, and one of its own.
_MAX_ROUNDS: Final = 2
# Whoever has a stream open loses it this soon after the end of the token.
_POLL_S: Final = 2.0
# Tokens of open streams are looked up again this often, so that a stream ends soon after its token was revoked. A call
# would be refused at the end of its token's minute; a stream would go on till then, and the next look.
_ROLL_CALL_S: Final = 5.0
# At most so many each time, those first whose look is the oldest: some requests a second at the issuer, however many
# streams there are. Where there are more than these, each has its turn within its minute all the same.
_MOST_LOOKED_UP: Final = 32


@dataclass(slots=True)
class _Known:
    """A good token.

    Attributes:
        principal: Who it speaks for.
        text: The token.
        until_s: Until when all this is believed.
        key: What it was signed with; None where its issuer was asked.
    """

    principal: Principal
    text: str
    until_s: float
    key: Key | None


@dataclass(slots=True)
class _Look:
    """A token that is being looked up.

    Attributes:
        ended: Set when that is over.
        refusal: Why the token is not good; None where it is, or where the caller that asked has left.
    """

    ended: anyio.Event = field(default_factory=anyio.Event)
    refusal: Refusal | None = None


class Tokens:
    """The access tokens of callers.

    Attributes:
        accepted: Whether there are issuers.
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
            config: The issuers; None for no tokens at all.
            fetch: Makes requests to them.
            clock: Seconds since 1970.
            poll_s: How often ends of tokens are looked for.
            most_good, most_bad: How many tokens of callers, and refused ones, are remembered.
        """
        self._poll_s = poll_s
        self._most_good = most_good
        self._most_bad = most_bad
        self._fetch = fetch
        self._clock = clock
        self._good: OrderedDict[bytes, _Known] = OrderedDict()
        self._bad: OrderedDict[bytes, tuple[Refusal, float]] = OrderedDict()
        self._revoked: OrderedDict[bytes, None] = OrderedDict()
        self._asking: dict[bytes, _Look] = {}
        self._in_use: set[bytes] = set()
        self._on_change: list[Callable[[], None]] = []
        self._resource: str | None = None
        self._key_sets: dict[str, KeySet] = {}
        self._introspected: tuple[Issuer, Introspector] | None = None
        self._replaced = anyio.Event()
        self.accepted = False
        self._take(config)

    def replace(self, config: OAuthConfig | None) -> None:
        """Accept tokens of other issuers, or others of theirs, at once."""
        before, self._good = self._good, OrderedDict()
        self._bad.clear()
        self._take(config)
        for digest, known in before.items():
            # Nobody keeps what the new issuers, audiences and scopes would not give.
            if known.key is None:
                same = self._introspected is not None and self._introspected[0].issuer == known.principal.issuer
                if same:
                    self._good[digest] = known
                    known.until_s = 0.0
            else:
                try:
                    same = self._look(known.text, digest) == known.principal
                except Rejected:
                    same = False
            if not same:
                self._revoke(digest)
        self._replaced.set()
        self._replaced = anyio.Event()
        self._announce()

    def _take(self, config: OAuthConfig | None) -> None:
        issuers = config.issuers if config is not None else []
        before, self._key_sets = self._key_sets, {}
        self._introspected = None
        for issuer in issuers:
            known = before.get(issuer.issuer)
            if known is None or known.issuer.jwks_uri != issuer.jwks_uri:
                known = KeySet(issuer, self._fetch, clock=self._clock)
            known.issuer = issuer
            self._key_sets[issuer.issuer] = known
            if issuer.introspection is not None:
                self._introspected = (issuer, Introspector(issuer.introspection, self._fetch))
        self._resource = config.resource if config is not None else None
        self.accepted = config is not None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have this called whenever a token may have ended."""
        self._on_change.append(callback)

    def knows(self, principal: Principal) -> bool:
        """Whether the token of a caller is still good, by the second: clocks may differ, but a stream is long.

        Whoever asks is taken to hold something open with it.
        """
        if principal.expires_s <= self._clock() or not self.may_finish(principal):
            return False
        known = self._good.get(principal.token)
        if known is not None and known.key is None:
            self._in_use.add(principal.token)
        # One that was forgotten for want of room can be looked up again by its caller only.
        return known is not None or self._introspected is None

    def may_finish(self, principal: Principal) -> bool:
        """Whether a token has not been revoked, whether or not it has ended."""
        return principal.issuer in self._key_sets and principal.token not in self._revoked

    def principal(self, token: str, digest: bytes) -> Principal | Refusal | Unverified:
        """Who a token speaks for."""
        known = self._good.get(digest)
        if known is not None and known.until_s > self._clock():
            return known.principal
        refused = self._bad.get(digest)
        if refused is not None:
            if refused[1] > self._clock():
                return refused[0]
            del self._bad[digest]
        try:
            return self._look(token, digest)
        except Rejected as error:
            return self._refuse(digest, error)

    async def run(self) -> None:
        """Keep keys fresh, and notice tokens that end, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._notice_ends)
            while True:
                async with anyio.create_task_group() as fetching:
                    for each in self._key_sets.values():
                        fetching.start_soon(each.run)
                    await self._replaced.wait()
                    fetching.cancel_scope.cancel()

    def keys_of(self, issuer: str) -> KeySet | None:
        """The keys of an issuer whose tokens are accepted."""
        return self._key_sets.get(issuer)

    def text_of(self, principal: Principal) -> str | None:
        """The token by which a caller was admitted, for as long as it is known; None for who has come otherwise."""
        known = self._good.get(principal.token)
        return known.text if known is not None else None

    # the first look

    def _look(self, token: str, digest: bytes) -> Principal | Unverified:
        """Look at a token that is not known.

        Raises:
            Rejected: It is not good.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise invalid("the token is too long")
        signed = read_signed(token)
        if signed is None:
            if not token or self._introspected is None:
                raise invalid("the token is malformed")
            return _Asking(self, token, digest, None)
        key_set = self._key_sets.get(signed.issuer)
        if key_set is None:
            raise invalid("the token is from an issuer that is not accepted here")
        issuer, refused, principal = key_set.issuer, None, None
        algorithms = issuer.accepts(signed.algorithm)
        if not algorithms:
            raise invalid("the token is signed by an algorithm that is not accepted")
        # Before its signature, which takes longer, and before its key, which may have to be fetched: what does not pass
        # here passes with no signature.
        try:
            principal = principal_of(signed.claims, issuer, resource=self._resource, now_s=self._clock(), token=digest)
        except Rejected as error:
            if error.refusal.status != 403:
                raise
            refused = error  # that it permits too little is for those to hear who have a real one
        candidates = key_set.candidates(signed.key_id, algorithms)
        for key in candidates[:_MAX_TRIED]:
            if is_signed_by(signed, key):
                if principal is None:
                    assert refused is not None
                    raise refused
                self._remember(digest, _Known(principal, token, principal.expires_s + SKEW_S, key))
                return principal
        if signed.key_id is not None and any(key.id == signed.key_id for key in candidates):
            raise invalid("the signature of the token is wrong")
        if key_set.may_ask:
            return _Asking(self, token, digest, key_set)
        if not key_set.available:
            raise _unavailable(f"the keys of {issuer.issuer} cannot be fetched")
        raise invalid("the token is signed with a key that its issuer does not publish", for_good=False)

    async def verify(self, token: str, digest: bytes, key_set: KeySet | None) -> Principal | Refusal:
        """Complete the look at a token by asking; equal tokens are asked about once."""
        while (asked := self._asking.get(digest)) is not None:
            await asked.ended.wait()
            known = self._good.get(digest)
            if known is not None and known.until_s > self._clock():
                return known.principal
            if asked.refusal is not None:
                return asked.refusal
            # The caller that asked has left before there was an answer: another one asks.
        asking = self._asking[digest] = _Look()
        try:
            if key_set is None:
                return await self._introspect(token, digest)
            # Keys may have arrived since the first look; and a fetch that had begun then may be older than the key.
            for _ in range(_MAX_ROUNDS):
                if isinstance(found := self._look(token, digest), Principal):
                    return found
                await key_set.ask()
            if isinstance(found := self._look(token, digest), Principal):
                return found
            raise _unavailable(f"the keys of {key_set.issuer.issuer} cannot be fetched")
        except Rejected as error:
            asking.refusal = self._refuse(digest, error)
            return asking.refusal
        finally:
            del self._asking[digest]
            asking.ended.set()

    async def _introspect(self, token: str, digest: bytes) -> Principal:
        """Ask the issuer about an opaque token.

        Raises:
            Rejected: It is not good, or that cannot be told.
        """
        introspected = self._introspected
        if introspected is None:
            raise invalid("the token is malformed")
        issuer, introspector = introspected
        try:
            claims = await introspector.claims(token)
        except Unobtainable as error:
            log.warning("a token cannot be looked up: %s", error)
            # What is open stays so until the issuer says otherwise, or the token ends.
            raise _unavailable("the issuer of the token cannot be asked") from None
        try:
            if claims is None or claims.get("iss", issuer.issuer) != issuer.issuer:
                raise invalid("the token is not known to its issuer, has ended or was revoked")
            if introspected is not self._introspected:
                raise _unavailable("the configuration has changed meanwhile")
            now_s = self._clock()
            principal = principal_of(claims, issuer, resource=self._resource, now_s=now_s, token=digest, ends=False)
        except Rejected:
            if digest in self._good:
                self._revoke(digest)
            raise
        known = self._good.get(digest)
        if known is not None and known.principal == principal:
            principal = known.principal
        self._remember(digest, _Known(principal, token, min(now_s + KNOWN_S, principal.expires_s + SKEW_S), None))
        return principal

    def _remember(self, digest: bytes, known: _Known) -> None:
        if digest not in self._good and not known.principal.knows_groups:
            log.warning(
                "a token leaves out groups of its caller: rules and quotas of any group may apply, none allows",
                extra={"principal": known.principal.name},
            )
        self._revoked.pop(digest, None)
        self._good[digest] = known
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

    # what changes by itself

    async def _notice_ends(self) -> None:
        before_s = called_s = self._clock()
        while True:
            await anyio.sleep(self._poll_s)
            now_s = self._clock()
            gone = False
            for digest, known in list(self._good.items()):
                gone = gone or before_s < known.principal.expires_s <= now_s
                if known.principal.expires_s + SKEW_S <= now_s:
                    del self._good[digest]
                elif known.key is not None and known.key.good_until_s <= now_s:
                    self._revoke(digest)
                    gone = True
            before_s = now_s
            if self._introspected is not None and now_s - called_s >= _ROLL_CALL_S:
                called_s = now_s
                self._in_use.clear()
                self._announce()  # whoever has something open asks for its token, and so names it
                gone = await self._ask_again() or gone
            if gone:
                self._announce()

    async def _ask_again(self) -> bool:
        """Look up the tokens of what is open again; whether one has ended."""
        soon_s = self._clock() + 2 * _ROLL_CALL_S
        open_ = [digest for digest in self._in_use if digest in self._good and digest not in self._asking]
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
class _Asking:
    """A token that its issuer has to be asked about, or whose key it may have."""

    tokens: Tokens
    token: str
    digest: bytes
    key_set: KeySet | None

    async def verify(self) -> Principal | Refusal:
        """Ask."""
        return await self.tokens.verify(self.token, self.digest, self.key_set)


def _unavailable(description: str) -> Rejected:
    return Rejected(
        Refusal(status=503, description=description, bearer_of_token=True, retry_after_s=2), for_good=False
    )  # fmt: skip
