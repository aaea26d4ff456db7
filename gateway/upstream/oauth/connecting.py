"""The link by which a caller of a shared gateway signs in to a server, and what makes sure that nobody else uses it.

Whoever follows the link is asked who it is before anything else: by the issuer that gave the caller its token, or for
its API key. Only then, and only in that browser, the sign-in to the server begins: a link that is sent to somebody else
would give its sender what that person may do there.

Source: MCP 2025-11-25, "Elicitation", "Phishing" and "Safe URL Handling".
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from gateway.access.credentials import Credentials
from gateway.access.oauth.key_set import KeySet
from gateway.access.principal import LOCAL, Principal
from gateway.config.issuers import Issuer, OAuthConfig
from gateway.upstream.credentials import SignInFailed, SignInLink
from gateway.upstream.oauth.addresses import Addresses
from gateway.upstream.oauth.authorization import Returned
from gateway.upstream.oauth.identity_login import IdentityLogin
from gateway.upstream.oauth.obtaining import LINK_S
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.store import Store, StoreFailed

log = logging.getLogger(__name__)

_RANDOM_BYTES: Final = 32
# Of a mark that a browser brings, which anybody can write.
_MARK_CHARS: Final = range(32, 65)
_NOT_GOOD: Final = "this link was not made here, was used already, or is older than ten minutes; call the tool again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerChecks:
    """What tells who callers are.

    Attributes:
        issuers: The issuers of their tokens.
        keys_of: The keys of an issuer.
        holder_of: The name of who has an API key, as `user_of` names callers; None for a key that is none.
    """

    issuers: Callable[[], list[Issuer]] = list
    keys_of: Callable[[str], KeySet | None] = lambda issuer: None
    holder_of: Callable[[str], str | None] = lambda key: None


def checks_by(credentials: Credentials, oauth: Callable[[], OAuthConfig | None]) -> CallerChecks:
    """What tells who callers are where these admit them."""

    def issuers() -> list[Issuer]:
        config = oauth()
        return config.issuers if config is not None else []

    def holder_of(key: str) -> str | None:
        found = credentials.keys.principal(f"Bearer {key}") if credentials.keys.required else None
        return user_of(found) if found is not None else None

    return CallerChecks(issuers=issuers, keys_of=credentials.tokens.keys_of, holder_of=holder_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a browser that follows a link is asked.

    Attributes:
        server: What it is to be signed in to.
        go_to: The issuer that tells who sits there; None where the page asks for an API key.
        mark: What the browser has to bring from now on.
    """

    server: str
    go_to: str | None
    mark: str


class WrongCaller(SignInFailed):
    """Somebody else has followed the link of a caller.

    Attributes:
        about: What the link was made for.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__(
            "this link was made for another caller than the one that you are here; nothing was signed in. "
            "If you called the tool yourself, call it again and sign in as the account that your host uses"
        )
        self.about = about


class Connecting:
    """Makes links for callers, and finds out who follows them."""

    def __init__(self, store: Store, addresses: Addresses, checks: CallerChecks) -> None:
        self._store = store
        self._addresses = addresses
        self._checks = checks
        self._logins: dict[str, IdentityLogin] = {}

    def close(self) -> None:
        """Drop every idle connection."""
        for login in self._logins.values():
            login.close()

    async def link(self, sign_in: SignIn) -> SignInLink:
        """A link for the caller whose sign-in it is.

        Raises:
            SignInFailed: No browser comes to this process.
        """
        base = self._addresses.connect_url()
        if base is None:
            raise SignInFailed(f"`typegate login {sign_in.server} --user '{sign_in.principal}'` signs in")
        ticket, expires_at_s = secrets.token_urlsafe(_RANDOM_BYTES), time.time() + LINK_S
        about = {"server": sign_in.server, "url": sign_in.url, "user": sign_in.principal, "expires": expires_at_s}
        try:
            await self._store.sweep("pending", LINK_S)
            await self._store.save(_key(ticket), about, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return SignInLink(url=f"{base}?{urlencode({'ticket': ticket})}", expires_at_s=expires_at_s)

    async def ask(self, ticket: str, mark: str | None) -> Asked:
        """What to ask a browser that follows a link; what looks at links uses none up.

        Args:
            ticket: Of the link.
            mark: What the browser brought from an earlier one.

        Raises:
            SignInFailed: The link is not good, or the issuer cannot be asked.
        """
        try:
            kept = await self._store.load(_key(ticket))
        except StoreFailed as error:
            raise SignInFailed(f"{error}; follow the link again") from None
        if kept is None or kept.document["expires"] < time.time():
            raise SignInFailed(_NOT_GOOD)
        mark = mark if mark is not None and len(mark) in _MARK_CHARS else secrets.token_urlsafe(_RANDOM_BYTES)
        user, server = str(kept.document["user"]), str(kept.document["server"])
        login = self._login_of(user)
        go_to = None
        if login is not None:
            go_to = await login.begin({"ticket": ticket, "browser": digest_of(mark)})
        return Asked(server=server, go_to=go_to, mark=mark)

    async def identified(self, returned: Returned, pending: Mapping[str, Any], mark: str | None) -> Mapping[str, Any]:
        """What a link was made for, whose caller has come back from the issuer.

        Raises:
            SignInFailed: It is somebody else, or another browser.
        """
        login = self._login_at(str(pending["identity"]))
        about = pending["about"]
        if login is None:
            raise SignInFailed(_NOT_GOOD)
        check_browser(about["browser"], mark)
        return await self._take(str(about["ticket"]), await login.end(returned, pending))

    async def proved(self, ticket: str, key: str) -> Mapping[str, Any]:
        """What a link was made for, whose caller has given its API key. A wrong one uses the link up.

        Raises:
            SignInFailed: It is somebody else's, or none.
        """
        return await self._take(ticket, self._checks.holder_of(key))

    async def _take(self, ticket: str, user: str | None) -> Mapping[str, Any]:
        try:
            about = await self._store.take(_key(ticket))
        except StoreFailed as error:
            raise SignInFailed(f"{error}; follow the link again") from None
        if about is None or about["expires"] < time.time():
            raise SignInFailed(_NOT_GOOD)
        if user is None or user != about["user"]:
            log.warning("somebody else followed the link of a caller", extra={"server": about["server"]})
            raise WrongCaller(about)
        return about

    def _login_of(self, user: str) -> IdentityLogin | None:
        for issuer in self._checks.issuers():
            if user.endswith(f"@{issuer.name}"):
                return self._login_at(issuer.issuer)
        return None

    def _login_at(self, name: str) -> IdentityLogin | None:
        issuer = next((one for one in self._checks.issuers() if one.issuer == name), None)
        known = self._logins.get(name)
        if known is not None and known.issuer == issuer:
            return known
        if known is not None:
            self._logins.pop(name).close()
        if issuer is None:
            return None
        login = self._logins[name] = IdentityLogin(issuer, self._checks.keys_of, self._store, self._addresses)
        return login


def user_of(principal: Principal) -> str:
    """Whom a sign-in belongs to: a person, whatever client it comes with, or whoever has a key.

    Another host, or one that has registered itself anew, is the same person, who has signed in already.
    """
    # A key may have the name that stands for whoever has started this process.
    return f"{principal.name} (key)" if principal.name == LOCAL.name and principal is not LOCAL else principal.name


def digest_of(mark: str) -> str:
    """What is kept of a browser's mark."""
    return hashlib.sha256(mark.encode("utf-8", "replace")).hexdigest()


def check_browser(digest: object, mark: str | None) -> None:
    """Refuse a browser other than the one that a sign-in was begun in.

    Raises:
        SignInFailed: It is another one.
    """
    if digest is not None and not hmac.compare_digest(str(digest), digest_of(mark or "")):
        raise SignInFailed("this sign-in was begun in another browser; call the tool again, and stay in one")


def _key(ticket: str) -> str:
    # Beside the other sign-ins that were begun and not ended, which are swept away in time.
    return f"pending:connect-{ticket}"
