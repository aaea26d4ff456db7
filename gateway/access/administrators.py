"""Authentication of administrators: tokens with roles, browser sessions, one-time links and login rate limits."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from gateway.access.signing import BadSignature, Signer
from gateway.config.operation_config import ROLES, AdminToken, Role
from gateway.process.files import ForeignFile, make_private_folder, read_private
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

FILE_NAME: Final = "admin-token"
# A token has a few dozen characters; a much larger file is not a token file.
_MAX_BYTES: Final = 4096


class UntrustedFile(Exception):
    """The token file cannot be trusted; the message gives the reason and the remedy."""


def stored_token(path: Path) -> str | None:
    """Return the token in this file, or None if the file is missing or empty.

    Raises:
        UntrustedFile: Another user may have written the file or can read the file, or the file has no valid token.
    """
    try:
        content = read_private(path, most_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return None
    except ForeignFile as error:
        # Another user who wrote or read the token could administer this gateway.
        raise UntrustedFile(
            f"{error}; remove it for a new token, make it your own with chmod 600, or name another state directory"
        ) from None
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror}); remove it, or name another state directory"
        raise UntrustedFile(reason) from None
    if len(content) > _MAX_BYTES or not content.isascii():
        raise UntrustedFile(f"{path} does not contain a token; remove the file")
    return content.decode("ascii").strip() or None


# The number of consecutive failures before the first delay: enough for typing errors and scripts with an old token, and
# far too few to guess a token.
FREE_ATTEMPTS: Final = 5
# The first delay. Each further failure doubles the delay, up to one minute. A million guesses therefore take two years.
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
# The failure count of an address is reset after this time without a failure.
_FORGOTTEN_S: Final = 15 * 60.0
# This limits memory use. An attacker with more addresses could make five attempts from each of them in any case.
_MAX_ADDRESSES: Final = 1024
# A larger exponent could overflow. The delay reaches `_LONGEST_WAIT_S` before the exponent reaches this limit.
_MAX_DOUBLINGS: Final = 10
# A customer or machine usually controls a whole /64 network, so failures over IPv6 are counted by network.
_IPV6_PREFIX: Final = 64


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class FailedLogins:
    """Counts failed logins by address, and computes how long an address has to wait before the next attempt.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_address)

    def wait_s(self, peer: str) -> float:
        """Return how many seconds this peer has to wait before the next attempt; 0 if the peer need not wait."""
        failures = self._by_address.get(source_address(peer))
        return 0.0 if failures is None else max(0.0, failures.until_s - self._clock())

    def failed(self, peer: str) -> None:
        """Count a failure of this peer (`host:port`; empty for a local socket)."""
        now_s, address = self._clock(), source_address(peer)
        failures = self._by_address.pop(address, None)
        if failures is None or now_s - failures.last_s > _FORGOTTEN_S:
            failures = _Failures()
        failures.count, failures.last_s = failures.count + 1, now_s
        excess = failures.count - FREE_ATTEMPTS
        if excess >= 0:
            failures.until_s = now_s + min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(excess, _MAX_DOUBLINGS))
        self._by_address[address] = failures
        if len(self._by_address) > _MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        log.warning("a log-in to the admin API failed: %s, %d in a row", address, failures.count)

    def succeeded(self, peer: str) -> None:
        """Reset the failure count of this peer."""
        if self._by_address:
            self._by_address.pop(source_address(peer), None)


def source_address(peer: str) -> str:
    """Return the address under which a peer (`host:port`) is counted: the IPv4 address, or the IPv6 network."""
    host = peer.rpartition(":")[0].strip("[]")
    if not host:
        return "a local socket"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)


SESSION_S: Final = 8 * 60 * 60.0
"""The lifetime of a browser session: one working day, so that a forgotten tab does not stay signed in."""
CODE_S: Final = 60.0
"""The lifetime of a sign-in link, which is usually opened at once."""
CODE_PREFIX: Final = "once_"
OWNER: Final = "admin"
"""The administrator name for the gateway's own token."""
# The maximum number of ids of ended sessions and used links in memory. An id is dropped when its session or link would
# have expired.
_MAX_ENDED: Final = 4_096
_FOLDER: Final = "ended-admin-sessions"
_ID_BYTES: Final = 12
# Hexadecimal digits of a token's SHA-256 digest: enough to distinguish a token from its replacement.
_FINGERPRINT_CHARS: Final = 32
_SESSION: Final = "a session of an administrator"
_CODE: Final = "a link of an administrator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Administrator:
    """A user of the admin API.

    Attributes:
        name: The name of the token.
        session: The id of the browser session; empty for a token in a header.
        until_s: When the session ends, in seconds since 1970; 0 for a token.
    """

    name: str
    role: Role
    session: str = ""
    until_s: float = 0.0

    def may(self, role: Role) -> bool:
        """Return whether this administrator has at least the permissions of `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)


class EndedSessions:
    """The ids of ended sessions and used links, shared by all processes with the same state directory.

    Each id is stored as an empty file whose modification time is the expiry of the id. Creating the file is atomic, so
    only one of several processes can use a link.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a store.

        Args:
            state_dir: The directory for the ids; None to store them only in memory.
            on_change: Called when this process has added an id.
            clock: Returns seconds since 1970.
        """
        self._folder = state_dir / _FOLDER if state_dir is not None else None
        self._until_s: OrderedDict[str, float] = OrderedDict()
        self._on_change = on_change
        self._clock = clock

    def __contains__(self, identity: str) -> bool:
        return identity in self._until_s or (self._folder is not None and (self._folder / identity).exists())

    def add(self, identity: str, until_s: float) -> bool:
        """Invalidate a session or link.

        Args:
            identity: The id of the session or link.
            until_s: When the session or link would have expired, in seconds since 1970.

        Returns:
            False if the id had already been added, by any process.
        """
        if identity in self:
            return False
        self._remember(identity, until_s)
        is_first = self._folder is None or self._write(self._folder, identity, until_s)
        self._on_change()
        return is_first

    def fields(self) -> dict[str, float]:
        """Return the unexpired ids in this process's memory, with their expiry times."""
        now_s = self._clock()
        return {identity: until_s for identity, until_s in self._until_s.items() if until_s >= now_s}

    def apply(self, fields: Mapping[str, float]) -> None:
        """Add the ids that other replicas have reported."""
        for identity, until_s in fields.items():
            if identity not in self._until_s:
                self._remember(identity, until_s)

    def _remember(self, identity: str, until_s: float) -> None:
        now_s = self._clock()
        while self._until_s and (len(self._until_s) >= _MAX_ENDED or next(iter(self._until_s.values())) < now_s):
            self._until_s.popitem(last=False)
        self._until_s[identity] = until_s

    def _write(self, folder: Path, identity: str, until_s: float) -> bool:
        try:
            make_private_folder(folder)
            self._delete_old(folder)
            path = folder / identity
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                return False
            os.utime(path, (until_s, until_s))
        except OSError as error:
            log.error(
                "the end of an admin session is lost at a restart: %s cannot be written (%s)",
                folder,
                error,
            )
        return True

    def _delete_old(self, folder: Path) -> None:
        now_s = self._clock()
        for entry in os.scandir(folder):
            with suppress(OSError):  # another process may have deleted the file
                if entry.stat(follow_symlinks=False).st_mtime < now_s:
                    os.unlink(entry.path)


class Administrators:
    """Verifies admin tokens, browser sessions and sign-in links.

    Sessions and links are signed, so that every process with the signing key can verify them.
    """

    def __init__(
        self,
        token: str,
        tokens: Callable[[], Sequence[AdminToken]],
        signer: Signer,
        *,
        ended: EndedSessions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Accept these tokens.

        Args:
            token: The gateway's own token, which has the role `admin`.
            tokens: Returns the tokens of the current configuration.
            signer: Signs with the key that all processes share.
            ended: The store of ended sessions and used links; None to store them in memory.
            clock: Returns seconds since 1970.
        """
        self._token = token.encode()
        self._fingerprint = hashlib.sha256(self._token).hexdigest()[:_FINGERPRINT_CHARS]
        self._tokens = tokens
        self._signer = signer
        self._clock = clock
        self.ended = ended if ended is not None else EndedSessions(clock=clock)

    @property
    def guessable_chars(self) -> int:
        """The length of the gateway's own token in bytes, for a warning about short tokens."""
        return len(self._token)

    def by_token(self, authorization: str) -> Administrator | None:
        """Return the administrator whose token an Authorization header contains."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        sent = token.strip().encode()
        # Compare in constant time, so that timing does not reveal how much of a guess is correct.
        if hmac.compare_digest(sent, self._token):
            return Administrator(name=OWNER, role="admin")
        digest = hashlib.sha256(sent).hexdigest()
        for each in self._tokens():
            if hmac.compare_digest(digest, each.token_hash.removeprefix("sha256:")):
                return Administrator(name=each.name, role=each.role)
        return None

    # links

    def new_code(self, administrator: Administrator) -> str:
        """Return a new code for a link that signs a browser in once."""
        payload = json_bytes.dumps(
            [secrets.token_hex(_ID_BYTES), administrator.name, self._fingerprint_of(administrator)]
        )
        return CODE_PREFIX + self._codes.sign(payload.decode(), _CODE)

    def by_code(self, authorization: str, *, take: bool) -> Administrator | None:
        """Return the administrator whose link code an Authorization header contains; None if the code is not valid.

        Args:
            take: Whether to invalidate the code, so that the link works only once.
        """
        code = authorization.partition(" ")[2].strip()
        if not code.startswith(CODE_PREFIX):
            return None
        try:
            identity, name, fingerprint = json_bytes.loads(
                self._codes.verify(code.removeprefix(CODE_PREFIX), _CODE).encode()
            )
        except (BadSignature, UnicodeEncodeError):
            return None
        administrator = self._find_administrator(name, fingerprint)
        if administrator is None or identity in self.ended:
            return None
        if take and not self.ended.add(identity, self._clock() + 2 * CODE_S):
            return None
        return administrator

    # sessions

    @cached_property
    def cookie(self) -> str:
        """The name of the session cookie, unique per gateway: browsers share cookies between the ports of a host."""
        return f"typegate_{self._signer.mark('the name of the cookie')[:8]}"

    def new_session(self, administrator: Administrator) -> tuple[Administrator, str]:
        """Start a browser session, and return the session and the value of the session's cookie."""
        identity, now_s = secrets.token_hex(_ID_BYTES), self._clock()
        payload = json_bytes.dumps([identity, administrator.name, self._fingerprint_of(administrator), now_s])
        session = Administrator(
            name=administrator.name, role=administrator.role, session=identity, until_s=now_s + SESSION_S
        )
        return session, self._sessions.sign(payload.decode(), _SESSION)

    def by_cookie(self, header: str) -> Administrator | None:
        """Return the session in a Cookie header; None without a valid session.

        A session is not valid after it has ended, or after the administrator's token has been replaced.
        """
        if self.cookie not in header:
            return None
        try:
            morsel = SimpleCookie(header).get(self.cookie)
            if morsel is None:
                return None
            identity, name, fingerprint, began_s = json_bytes.loads(
                self._sessions.verify(morsel.value, _SESSION).encode()
            )
        except (CookieError, BadSignature, UnicodeEncodeError):
            return None
        administrator = self._find_administrator(name, fingerprint)
        if administrator is None or identity in self.ended:
            return None
        return Administrator(
            name=administrator.name, role=administrator.role, session=identity, until_s=began_s + SESSION_S
        )

    def end_session(self, administrator: Administrator) -> None:
        """Invalidate the browser session of this administrator."""
        if administrator.session:
            self.ended.add(administrator.session, administrator.until_s)

    def csrf_token(self, administrator: Administrator) -> str:
        """Return the token that modifying requests of a browser session must contain; empty without a session.

        Pages of other sites cannot read this token, and therefore cannot send modifying requests.
        """
        return self._signer.mark(administrator.session, _SESSION) if administrator.session else ""

    def _find_administrator(self, name: object, fingerprint: object) -> Administrator | None:
        if name == OWNER and fingerprint == self._fingerprint:
            return Administrator(name=OWNER, role="admin")
        for each in self._tokens():
            if each.name == name and _fingerprint(each) == fingerprint:
                return Administrator(name=each.name, role=each.role)
        return None

    def _fingerprint_of(self, administrator: Administrator) -> str:
        with_name = next((each for each in self._tokens() if each.name == administrator.name), None)
        return self._fingerprint if with_name is None else _fingerprint(with_name)

    # Created lazily: without browser sign-ins the gateway does not need the key file.

    @cached_property
    def _sessions(self) -> Signer:
        return Signer(key=self._signer.key, max_age_s=SESSION_S, clock=self._clock)

    @cached_property
    def _codes(self) -> Signer:
        return Signer(key=self._signer.key, max_age_s=CODE_S, clock=self._clock)


def _fingerprint(token: AdminToken) -> str:
    return token.token_hash.removeprefix("sha256:")[:_FINGERPRINT_CHARS]
