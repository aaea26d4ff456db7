"""Upstream connections that belong to one downstream session or one caller.

Most upstreams have one connection that all callers share. An upstream has further connections if it may ask callers
for input during a call (`elicitation`), if each caller has to sign in, or if each session or caller has a separate
process (`instances`). A root is a folder that a host has reported; a separate process may run in a root.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.config.server import ServerConfig
from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import GatewayError, QuotaExceeded, UpstreamUnavailable
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import Idle, LinkPorts, ListedLink, Waiting, ignore_listing
from gateway.upstream.mcp_connectors import credentials_of
from gateway.upstream.oauth.account_linking import user_of
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.session import HostSession, RawListing, SessionPorts, UpstreamSession, WatchedKind, connector_of
from gateway.upstream.upstream_credentials import NotSignedIn, SignInFailed, SignInLink, SignInSource

log = logging.getLogger(__name__)

# Each link uses a socket, or a process with three pipes. A thousand links stay within the usual limits of a system.
MAX_PRIVATE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The owner of one process of a server with `instances`, and the root in which the process runs.

    Attributes:
        account: The caller's account, whose quota limits the number of processes.
        session_id: The session that owns the process; empty if all requests of the caller share the process.
        root: The root of the host in which the process runs; empty if the entry does not use roots.
    """

    principal: Principal
    account: Account
    session_id: str = ""
    root: str = ""

    @property
    def key(self) -> str:
        """A string that differs between instances that must not share a process."""
        owner = f"session {self.session_id}" if self.session_id else f"caller {self.principal.identity}"
        return f"{owner}\n{self.root}"


class PrivateLinks:
    """The links of downstream sessions to upstreams with `elicitation`, each opened by the first call that needs it.

    Each session has one link to each such upstream, or one link for each root in which the session uses the upstream.
    """

    def __init__(self, group: TaskGroup, client: HttpClient, sign_ins: SignIns, users: UserLinks) -> None:
        self._group = group
        self._client = client
        self._sign_ins = sign_ins
        self._users = users
        # The keys consist of session id, server alias, and root of the host.
        self._links: dict[tuple[str, str, str], UpstreamLink] = {}
        self._accounts: dict[tuple[str, str, str], Account] = {}
        self._handshake_refused: set[str] = set()

    def __len__(self) -> int:
        return len(self._links) + self._users.instances

    async def get(
        self, owner: Instance, alias: str, config: ServerConfig, host: HostSession, *, user: str = ""
    ) -> UpstreamLink | None:
        """Return the session's own link; None if the upstream speaks only a version without a handshake.

        First wait until the first attempt to connect has ended. If that attempt failed, the link is not connected.

        Args:
            owner: The session, and the root of the host in which the process runs.
            config: The server's configuration entry.
            user: The caller whose credentials to use, as returned by `user_of`; empty if callers share credentials.

        Raises:
            UpstreamUnavailable: There are too many links, in total or for this caller, or the first attempt to connect
                did not end in time.
        """
        # The upstream has rejected the handshake in another session, and would reject it in this session too.
        if alias in self._handshake_refused:
            return None
        link = self._links.get((owner.session_id, alias, owner.root)) or self._open(owner, alias, config, host, user)
        with anyio.move_on_after(link.patience_s):
            await link.tried.wait()
        if not link.tried.is_set():
            # A limit of 0 s only raises the error that a call would get, unless the link has just connected.
            await link.wait_ready(0)
        if not link.handshake_refused:
            return link
        # Remember the refusal until the configuration of the upstream changes.
        self._handshake_refused.add(alias)
        self.drop_server(alias, forget=False)
        return None

    def links_to(self, server: str) -> Iterator[UpstreamLink]:
        """Return every open link to a server."""
        return (link for (_, alias, _), link in self._links.items() if alias == server)

    async def notify(self, session_id: str, method: str) -> None:
        """Forward a notification of the host to every upstream connected for this session."""
        for (owner, alias, _), link in list(self._links.items()):
            # Skip links that are not connected: on reconnecting, they report the current state of the host.
            if owner == session_id and link.session is not None:
                try:
                    await link.session.notify(method)
                except (GatewayError, TimeoutError):
                    log.debug("notification not sent", extra={"server": alias})

    def drop(self, session_id: str) -> None:
        """Close every connection of a session."""
        for key in [key for key in self._links if key[0] == session_id]:
            self._pop(key).close()
        self._users.drop_session(session_id)

    def drop_server(self, alias: str, *, forget: bool = True) -> None:
        """Close every connection to an upstream once its calls have ended.

        Args:
            forget: Whether to forget a rejected handshake, because the configuration may have changed.
        """
        for key in [key for key in self._links if key[1] == alias]:
            self._group.start_soon(self._pop(key).close_when_idle)
        if forget:
            self._handshake_refused.discard(alias)

    def _pop(self, key: tuple[str, str, str]) -> UpstreamLink:
        link, account = self._links.pop(key), self._accounts.pop(key)
        account.close_private_connection()
        return link

    def _open(self, owner: Instance, alias: str, config: ServerConfig, host: HostSession, user: str) -> UpstreamLink:
        for key in [key for key, link in self._links.items() if _is_resting(link)]:
            self._pop(key).close()
        if len(self._links) >= MAX_PRIVATE:
            raise UpstreamUnavailable(
                alias,
                f"Not called: server '{alias}' requires a connection for each session, and {MAX_PRIVATE} are open.",
            )
        _count_connection(owner.account, alias)
        config = config.in_root(owner.root)
        credentials = credentials_of(alias, config, self._sign_ins, user=user)
        connector = connector_of(alias, config, self._client, host=host, credentials=credentials)
        # The link needs no callbacks, because the shared link lists and watches the same upstream.
        link = UpstreamLink(alias, config, connector, LinkPorts(), lists=False)
        key = owner.session_id, alias, owner.root
        self._links[key] = link
        self._accounts[key] = owner.account
        self._group.start_soon(link.run)
        return link


MAX_USER_LINKS: Final = 512
"""Enough links to two servers for each of 256 callers, the number of callers whose lists `registry.catalog` stores.
A link takes one or two sockets and a few tasks."""
# A person rarely pauses for longer between two requests. After a longer pause, a request waits for a new handshake.
IDLE_S: Final = 600.0
# The interval between checks for idle links.
_CHECK_S: Final = 15.0


@dataclass(slots=True)
class _UserLink:
    """The link of one session or caller.

    Attributes:
        principal: The caller, with the credentials of the latest request.
        user: The name under which the caller's sign-in is stored; empty for a process.
        used_s: The monotonic time of the latest request.
        instance: The owner of the process; None if the link belongs to a caller who signs in to the server.
    """

    link: UpstreamLink
    principal: Principal
    user: str
    used_s: float
    instance: Instance | None = None


def _no_token(principal: Principal) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPorts:
    """The callbacks that `UserLinks` gives to its links; by default they ignore every event.

    Attributes:
        on_listing, has_listing: See `LinkPorts`.
        on_update: Called when a watched resource or task has changed, with the key of the link (see
            `UserLinks.key_of`), the kind, the URI or task id, and the params of the notification.
        token_of: Returns the caller's access token; the gateway exchanges the access token for a token of the upstream.
        epoch_of: Takes a server and the name of a caller; returns the number of the connection over which the gateway
            received the caller's listing, or 0 if there is no listing.
    """

    on_listing: Callable[[ListedLink, RawListing], Awaitable[bool]] = ignore_listing
    has_listing: Callable[[ListedLink], bool] = lambda link: False
    on_update: Callable[[str, WatchedKind, str, dict[str, Any]], None] = lambda server, kind, key, params: None
    token_of: Callable[[Principal], str | None] = _no_token
    epoch_of: Callable[[str, str], int] = lambda server, owner: 0


class UserLinks:
    """The links of callers to servers that they sign in to, and the links to processes of sessions and callers.

    Links are opened on first use, and closed when they are idle. The requests of a caller use only links of that
    caller, so they never use the credentials of another caller.
    """

    def __init__(
        self,
        group: TaskGroup,
        client: HttpClient,
        sign_ins: SignIns,
        shared: Mapping[str, UpstreamLink],
        *,
        ports: UserPorts = UserPorts(),
        most: int = MAX_USER_LINKS,
        idle_s: float = IDLE_S,
        look_s: float = _CHECK_S,
    ) -> None:
        """Create an empty collection.

        Args:
            group: Runs every link.
            sign_ins: The sign-ins of callers.
            shared: The shared link to each server, by alias.
            most: The maximum number of open links.
            idle_s: The seconds without a request after which a link is closed.
            look_s: The seconds between checks for idle links.
        """
        self._most, self._idle_s, self._look_s = most, idle_s, look_s
        self._group = group
        self._client = client
        self._sign_ins = sign_ins
        self._shared = shared
        self._own: dict[tuple[str, str], _UserLink] = {}
        self._sweeping = False
        self._ports = ports

    def __len__(self) -> int:
        return len(self._own)

    @property
    def instances(self) -> int:
        """The number of processes that belong to a session or caller."""
        return sum(own.instance is not None for own in self._own.values())

    @property
    def are_used(self) -> bool:
        """True if any server requires each caller to sign in."""
        return any(link.per_user for link in self._shared.values())

    def get(self, server: str, principal: Principal) -> UpstreamLink | None:
        """Return the link for requests of this caller; None if the server is unknown.

        Raises:
            UpstreamUnavailable: There are too many links.
        """
        shared = self._shared.get(server)
        return shared if shared is None or not shared.per_user else self.get_or_open(shared, principal)

    def get_or_open(self, shared: UpstreamLink, principal: Principal) -> UpstreamLink:
        """Return this caller's link to a server that requires each caller to sign in.

        Raises:
            UpstreamUnavailable: There are too many links, or an administrator simulates the caller.
        """
        if principal.is_simulated:
            text = f"Not called: each caller signs in to '{shared.server}' separately, so only that caller can call it."
            raise UpstreamUnavailable(shared.server, text)
        own = self._own.get((shared.server, _user_key(shared.config, principal)))
        if own is None:
            own = self._open(shared, principal)
        elif own.principal.token != principal.token and isinstance(own.link.state, Waiting):
            # The credentials may have been rejected because of the caller's previous token; retry with the new token.
            own.link.refresh()
        # Keep the latest credentials, because earlier ones may have expired.
        own.principal, own.used_s = principal, time.monotonic()
        return own.link

    def get_instance(self, shared: UpstreamLink, instance: Instance) -> UpstreamLink:
        """Return the link to the process of a session or caller; the process is started if it is not running.

        Raises:
            UpstreamUnavailable: There are too many links, or an administrator simulates the caller.
        """
        server = shared.server
        if instance.principal.is_simulated:
            text = f"Not called: each caller has its own process of '{server}', so only that caller can call it."
            raise UpstreamUnavailable(server, text)
        own = self._own.get((server, instance.key))
        if own is None:
            own = self._open_instance(shared, instance)
        elif isinstance(own.link.state, Idle):
            own.link.refresh()  # start the process, so that `_drop_resting` does not close the link
        own.used_s = time.monotonic()
        return own.link

    def latest_instance(self, server: str, instance: Instance) -> UpstreamLink | None:
        """Return the link that this session or caller used last, in any root; None if there is no link."""
        prefix = instance.key.removesuffix(instance.root)
        candidates = [
            (own.used_s, own.link)
            for (alias, key), own in self._own.items()
            if alias == server and own.instance is not None and key.removesuffix(own.instance.root) == prefix
        ]
        return max(candidates, key=lambda each: each[0])[1] if candidates else None

    def open_link(self, server: str, owner: str) -> UpstreamLink | None:
        """Return the caller's own link to a server; None if it is not open."""
        return next((link for link in self.links_to(server) if link.owner == owner), None)

    def current_link(self, server: str, owner: str) -> UpstreamLink | None:
        """Return the caller's own link if it is open, otherwise the shared link."""
        return self.open_link(server, owner) or self._shared.get(server)

    def links_to(self, server: str) -> Iterator[UpstreamLink]:
        """Return every open link to a server."""
        return (own.link for (alias, _), own in self._own.items() if alias == server)

    def key_of(self, server: str, principal: Principal) -> str:
        """Return the key of the link that a caller's subscriptions use: for a shared link, the alias of the server."""
        shared = self._shared.get(server)
        if shared is None or not shared.per_user:
            return server
        try:
            self.get_or_open(shared, principal)
        except UpstreamUnavailable:
            return server  # the shared link never connects, so no updates arrive for this key
        return _link_key(server, _user_key(shared.config, principal))

    def get_open(self, key: str) -> UpstreamLink | None:
        """Return the open link for a key from `key_of`."""
        server, _, user = key.partition("\n")
        if not user:
            return self._shared.get(server)
        own = self._own.get((server, user))
        return own.link if own is not None else None

    async def connect_signed_in(self, principal: Principal, wait_s: float) -> None:
        """Connect this caller to each server that it is signed in to, or for which its token is exchanged.

        Wait until the first attempts have ended, but at most `wait_s` seconds.
        """
        opening: list[UpstreamLink] = []
        for server, shared in self._shared.items():
            if not shared.per_user:
                continue
            present = self._own.get((server, _user_key(shared.config, principal)))
            if present is None and not shared.config.exchanges_callers:
                sign_in = self._sign_ins.get(server, shared.config, user=user_of(principal))
                if sign_in is None:
                    continue
                await sign_in.load_changes()
                if not sign_in.signed_in:
                    self._sign_ins.release(server, user_of(principal))
                    continue
            try:
                opening.append(self.get_or_open(shared, principal))
            except UpstreamUnavailable:
                continue
        with anyio.move_on_after(wait_s):
            for link in opening:
                await link.tried.wait()

    def adjust(self, server: str, config: ServerConfig) -> None:
        """Apply a changed configuration entry that requires no new connections."""
        for (alias, _), own in self._own.items():
            if alias == server:
                own.link.use(config.in_root(own.instance.root) if own.instance is not None else config)

    def drop_server(self, server: str) -> None:
        """Close every link to a server once its calls have ended."""
        for key in [key for key in self._own if key[0] == server]:
            self._close(key)

    def drop_session(self, session_id: str) -> None:
        """Close the links to every process of a session, without waiting for calls in flight."""
        for key, own in list(self._own.items()):
            if own.instance is not None and own.instance.session_id == session_id:
                self._close(key)
                own.link.close()

    def _close(self, key: tuple[str, str]) -> None:
        own = self._own.pop(key)
        own.link.retire()
        if own.instance is not None:
            own.instance.account.close_private_connection()
        else:
            self._sign_ins.release(key[0], own.user)
        self._group.start_soon(own.link.close_when_idle)

    def _open(self, shared: UpstreamLink, principal: Principal) -> _UserLink:
        server, config, owner = shared.server, shared.config, principal.name
        key = _user_key(config, principal)
        # Requests of one OAuth client must not use a token that was exchanged for another client of the same user,
        # because the other client may have more permissions.
        user = key if config.exchanges_callers else user_of(principal)
        self._require_room(server)
        subject = partial(self._token_of, server, key)
        credentials = credentials_of(server, config, self._sign_ins, user=user, subject=subject)
        connector = connector_of(server, config, self._client, credentials=credentials)
        epoch = self._ports.epoch_of(server, owner)
        ports = LinkPorts(
            on_listing=self._ports.on_listing,
            has_listing=self._ports.has_listing,
            on_update=partial(self._ports.on_update, _link_key(server, key)),
        )
        link = UpstreamLink(server, config, connector, ports, epoch=epoch, owner=owner)
        return self._run((server, key), _UserLink(link, principal, user, time.monotonic()))

    def _open_instance(self, shared: UpstreamLink, instance: Instance) -> _UserLink:
        server, config = shared.server, shared.config.in_root(instance.root)
        self._drop_resting()
        self._require_room(server)
        _count_connection(instance.account, server)
        connector = connector_of(server, config, self._client)
        # The link needs no callbacks, because the shared link lists the same server.
        link = UpstreamLink(server, config, connector, LinkPorts(), lists=False)
        return self._run((server, instance.key), _UserLink(link, instance.principal, "", time.monotonic(), instance))

    def _require_room(self, server: str) -> None:
        if len(self._own) >= self._most and not self._make_room():
            text = f"Not called: server '{server}' requires a connection for each caller, and {self._most} are in use."
            raise UpstreamUnavailable(server, text)

    def _run(self, key: tuple[str, str], own: _UserLink) -> _UserLink:
        self._own[key] = own
        self._group.start_soon(own.link.run)
        if not self._sweeping:
            self._sweeping = True
            self._group.start_soon(self._close_idle)
        return own

    def _token_of(self, server: str, key: str) -> str | None:
        """Return the latest access token of the caller who owns a link."""
        own = self._own.get((server, key))
        return self._ports.token_of(own.principal) if own is not None else None

    def _make_room(self) -> bool:
        """Close the link that has been idle for longest; return false if no link is idle."""
        # Never end a running process to make room for another process, because the running process may have state.
        idle = [(own.used_s, key) for key, own in self._own.items() if own.instance is None and _is_idle(own.link)]
        if not idle:
            return False
        self._close(min(idle)[1])
        return True

    async def _close_idle(self) -> None:
        while True:
            await anyio.sleep(self._look_s)
            self._drop_resting()
            now_s = time.monotonic()
            for key, own in list(self._own.items()):
                if own.instance is None and now_s - own.used_s >= self._idle_s and _is_idle(own.link):
                    self._close(key)

    def _drop_resting(self) -> None:
        """Close the links to processes that have ended because they were idle."""
        for key, own in list(self._own.items()):
            if own.instance is not None and _is_resting(own.link):
                self._close(key)


class NoSharedConnector:
    """The connector for the shared link to a server that each caller signs in to; always raises `NotSignedIn`."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._source = SignInSource(
            create_link=self._create_link, wait_changed=_wait_forever, version=0, has_newer_credentials=_has_no_newer
        )

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        """Raise `NotSignedIn`."""
        raise NotSignedIn("each caller signs in separately", source=self._source)
        yield  # type: ignore[unreachable]  # makes this function a generator

    async def _create_link(self) -> SignInLink:
        raise SignInFailed(
            f"each caller signs in to '{self._server}' separately; add `--user NAME` or `?principal=NAME`"
        )


async def _wait_forever(version: int) -> None:
    await anyio.sleep_forever()


async def _has_no_newer(version: int) -> bool:
    return False


def _user_key(config: ServerConfig, principal: Principal) -> str:
    """Return the key of a caller's connection: the user, or identity and scopes if tokens are exchanged."""
    if not config.exchanges_callers:
        return principal.name
    scopes = sorted(value for name, value in principal.claims if name == "scope")
    return f"{principal.identity}\n{' '.join(scopes)}"


def _link_key(server: str, user: str) -> str:
    # An alias never contains a line break, so `get_open` can split the key.
    return f"{server}\n{user}"


def _is_idle(link: UpstreamLink) -> bool:
    return not link.in_flight and not any(link.watch_list.keys.values())


def _is_resting(link: UpstreamLink) -> bool:
    """Return whether a link has no running process, and no call is about to start the process."""
    return isinstance(link.state, Idle) and not link.state.scope.cancel_called and not link.in_flight


def _count_connection(account: Account, server: str) -> None:
    """Count a new connection towards the caller's quota.

    Raises:
        UpstreamUnavailable: The caller has too many connections.
    """
    try:
        account.open_private_connection()
    except QuotaExceeded as error:
        raise UpstreamUnavailable(server, error.message) from None
