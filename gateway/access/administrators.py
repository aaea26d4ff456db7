"""Who administers: tokens with roles, the sessions of browsers, and links that are good once."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from gateway import wire
from gateway.access.signing import BadSignature, Signer
from gateway.config.admin import ROLES, AdminToken, Role
from gateway.files import make_private_folder

log = logging.getLogger(__name__)

SESSION_S: Final = 8 * 60 * 60.0
"""How long a browser stays signed in: a working day, after which a forgotten tab can do nothing."""
CODE_S: Final = 60.0
"""How long a link is good: it is opened at once, or not at all."""
CODE_PREFIX: Final = "once_"
OWNER: Final = "admin"
"""The name of whoever has the token of the gateway itself."""
# Sessions that were ended, and links that were used; each is forgotten when it would have ended.
_MAX_ENDED: Final = 4_096
_FOLDER: Final = "ended-admin-sessions"
_ID_BYTES: Final = 12
# Of a SHA-256: enough to tell a token from the one that has taken its place.
_FINGERPRINT_CHARS: Final = 32
_SESSION: Final = "a session of an administrator"
_CODE: Final = "a link of an administrator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Administrator:
    """Somebody who may use the admin API.

    Attributes:
        name: Of the token.
        role: What it allows.
        session: The id of the browser's session; empty for a token in a header.
        until_s: When the session ends, in seconds since 1970; 0 for a token.
    """

    name: str
    role: Role
    session: str = ""
    until_s: float = 0.0

    def may(self, role: Role) -> bool:
        """Whether what this role may do is allowed."""
        return ROLES.index(self.role) >= ROLES.index(role)


class EndedSessions:
    """The ids of sessions that were ended and of links that were used, for all processes of a state directory.

    Each id is an empty file, whose modification time says when the id can be forgotten: creating a file tells two
    processes which of them was the first.

    Attributes:
        on_change: Called when an id was added here.
    """

    def __init__(self, state_dir: Path | None = None) -> None:
        """Keep ids in this directory; without one they are kept in memory."""
        self._folder = state_dir / _FOLDER if state_dir is not None else None
        self._until_s: OrderedDict[str, float] = OrderedDict()
        self.on_change: Callable[[], None] = lambda: None

    def __contains__(self, identity: str) -> bool:
        return identity in self._until_s or (self._folder is not None and (self._folder / identity).exists())

    def add(self, identity: str, until_s: float) -> bool:
        """Note that a session or link is good for nothing from now on.

        Args:
            identity: Its id.
            until_s: When it would have ended by itself, in seconds since 1970.

        Returns:
            False if it was noted before, by any process.
        """
        if identity in self:
            return False
        self._remember(identity, until_s)
        is_first = self._folder is None or self._write(self._folder, identity, until_s)
        self.on_change()
        return is_first

    def fields(self) -> dict[str, float]:
        """Return the ids that this process knows of, with the time until which each counts."""
        now_s = time.time()
        return {identity: until_s for identity, until_s in self._until_s.items() if until_s >= now_s}

    def apply(self, fields: Mapping[str, float]) -> None:
        """Take over the ids that other replicas have noted."""
        for identity, until_s in fields.items():
            if identity not in self._until_s:
                self._remember(identity, until_s)

    def _remember(self, identity: str, until_s: float) -> None:
        now_s = time.time()
        while self._until_s and (len(self._until_s) >= _MAX_ENDED or next(iter(self._until_s.values())) < now_s):
            self._until_s.popitem(last=False)
        self._until_s[identity] = until_s

    def _write(self, folder: Path, identity: str, until_s: float) -> bool:
        try:
            make_private_folder(folder)
            self._delete_old(folder)
            path = folder / identity
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.utime(path, (until_s, until_s))
        except FileExistsError:
            return False
        except OSError as error:
            log.error("an ended session is valid again after a restart: %s cannot be written (%s)", folder, error)
        return True

    def _delete_old(self, folder: Path) -> None:
        now_s = time.time()
        for entry in os.scandir(folder):
            if entry.stat(follow_symlinks=False).st_mtime < now_s:
                os.unlink(entry.path)


class Administrators:
    """Knows tokens, sessions and links. Sessions are signed, so that every process with the key knows them.

    Attributes:
        ended: The sessions that were ended, and the links that were used.
    """

    def __init__(
        self,
        token: str,
        tokens: Callable[[], Sequence[AdminToken]],
        signer: Signer,
        *,
        ended: EndedSessions | None = None,
    ) -> None:
        """Let these in.

        Args:
            token: That of the gateway itself, for everything.
            tokens: Those of the configuration at present.
            signer: Has the key that all processes share.
            ended: Sessions that were ended before; None to keep them in memory.
        """
        self._token = token.encode()
        self._fingerprint = hashlib.sha256(self._token).hexdigest()[:_FINGERPRINT_CHARS]
        self._tokens = tokens
        self._signer = signer
        self.ended = ended if ended is not None else EndedSessions()

    @property
    def guessable_chars(self) -> int:
        """The length of the token of the gateway itself, by which it could be guessed or not."""
        return len(self._token)

    def by_token(self, authorization: str) -> Administrator | None:
        """Whose token an Authorization header has."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        sent = token.strip().encode()
        # In constant time: how long a refusal takes must not tell how much of a guess was right.
        if hmac.compare_digest(sent, self._token):
            return Administrator(name=OWNER, role="admin")
        digest = hashlib.sha256(sent).hexdigest()
        for each in self._tokens():
            if hmac.compare_digest(digest, each.token_hash.removeprefix("sha256:")):
                return Administrator(name=each.name, role=each.role)
        return None

    # links

    def new_code(self, administrator: Administrator) -> str:
        """What a link holds that signs a browser in, once."""
        payload = wire.dumps([secrets.token_hex(_ID_BYTES), administrator.name, self._fingerprint_of(administrator)])
        return CODE_PREFIX + self._codes.sign(payload.decode(), _CODE)

    def by_code(self, authorization: str, *, take: bool) -> Administrator | None:
        """Whose link an Authorization header has the content of; with `take` it is good for nothing from now on."""
        code = authorization.partition(" ")[2].strip()
        if not code.startswith(CODE_PREFIX):
            return None
        try:
            identity, name, fingerprint = wire.loads(self._codes.verify(code.removeprefix(CODE_PREFIX), _CODE).encode())
        except (BadSignature, UnicodeEncodeError):
            return None
        found = self._named(name, fingerprint)
        if found is None or identity in self.ended:
            return None
        if take and not self.ended.add(identity, time.time() + 2 * CODE_S):
            return None
        return found

    # sessions

    @cached_property
    def cookie(self) -> str:
        """The name of the cookie: browsers share those of one host between all of its ports."""
        return f"typegate_{self._signer.mark('the name of the cookie')[:8]}"

    def new_session(self, administrator: Administrator) -> tuple[Administrator, str]:
        """Begin a session; returns it, and what the cookie holds."""
        identity, now_s = secrets.token_hex(_ID_BYTES), time.time()
        payload = wire.dumps([identity, administrator.name, self._fingerprint_of(administrator), now_s])
        session = Administrator(
            name=administrator.name, role=administrator.role, session=identity, until_s=now_s + SESSION_S
        )
        return session, self._sessions.sign(payload.decode(), _SESSION)

    def by_cookie(self, header: str) -> Administrator | None:
        """Whose session a Cookie header names; None where it has ended, or its token is another one by now."""
        if self.cookie not in header:
            return None
        try:
            morsel = SimpleCookie(header).get(self.cookie)
            if morsel is None:
                return None
            identity, name, fingerprint, began_s = wire.loads(self._sessions.verify(morsel.value, _SESSION).encode())
        except (CookieError, BadSignature, UnicodeEncodeError):
            return None
        found = self._named(name, fingerprint)
        if found is None or identity in self.ended:
            return None
        return Administrator(name=found.name, role=found.role, session=identity, until_s=began_s + SESSION_S)

    def end_session(self, administrator: Administrator) -> None:
        """Let a session be good for nothing from now on."""
        if administrator.session:
            self.ended.add(administrator.session, administrator.until_s)

    def csrf_token(self, administrator: Administrator) -> str:
        """What changes in this session have to present: a page of another site cannot read it."""
        return self._signer.mark(administrator.session, _SESSION) if administrator.session else ""

    def _named(self, name: object, fingerprint: object) -> Administrator | None:
        if name == OWNER and fingerprint == self._fingerprint:
            return Administrator(name=OWNER, role="admin")
        for each in self._tokens():
            if each.name == name and _fingerprint(each) == fingerprint:
                return Administrator(name=each.name, role=each.role)
        return None

    def _fingerprint_of(self, administrator: Administrator) -> str:
        named = next((each for each in self._tokens() if each.name == administrator.name), None)
        return self._fingerprint if named is None else _fingerprint(named)

    # Late: the key is a file, which a gateway that nobody administers by a browser does not need.

    @cached_property
    def _sessions(self) -> Signer:
        return Signer(key=self._signer.key, max_age_s=SESSION_S)

    @cached_property
    def _codes(self) -> Signer:
        return Signer(key=self._signer.key, max_age_s=CODE_S)


def _fingerprint(token: AdminToken) -> str:
    return token.token_hash.removeprefix("sha256:")[:_FINGERPRINT_CHARS]
