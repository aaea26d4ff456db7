"""Connections that belong to one caller, for servers to which each caller signs in for itself."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.access.principal import Principal
from gateway.config.server import ServerConfig
from gateway.errors import UpstreamUnavailable
from gateway.upstream.connector import connector_of
from gateway.upstream.credential_sources import credentials_of
from gateway.upstream.credentials import NotSignedIn, SignInFailed, SignInLink, SignInSource
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_ports import LinkPorts
from gateway.upstream.link_states import Waiting
from gateway.upstream.oauth.connecting import user_of
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.session import SessionPorts, UpstreamSession
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.watch_list import WatchedKind

MAX_USER_LINKS: Final = 512
"""Two servers of each of 256 callers, which is as many as have lists of their own (`registry.catalog.store`). Each link
is a socket or two and some tasks."""
# Longer than a person thinks between two requests; whoever comes back later waits for a handshake.
IDLE_S: Final = 600.0
_LOOK_S: Final = 15.0


@dataclass(slots=True)
class _Own:
    """The link of one caller, and how that caller came last."""

    link: UpstreamLink
    principal: Principal
    user: str
    used_s: float


class UserLinks:
    """One link for each pair of caller and server, opened by what first needs it and closed when it is idle.

    What a caller sends goes over its own link only, which holds the credentials of that caller and no others.
    """

    def __init__(
        self,
        group: TaskGroup,
        client: HttpClient,
        sign_ins: SignIns,
        shared: Mapping[str, UpstreamLink],
        *,
        most: int = MAX_USER_LINKS,
        idle_s: float = IDLE_S,
        look_s: float = _LOOK_S,
    ) -> None:
        """Begin without any.

        Args:
            group: Runs every link.
            client: Sends HTTP requests.
            sign_ins: What callers are signed in with.
            shared: The link of each server, by alias.
            most: Links that there may be at once.
            idle_s: After how long without a request one is closed.
            look_s: How often that is looked for.
        """
        self._most, self._idle_s, self._look_s = most, idle_s, look_s
        self._group = group
        self._client = client
        self._sign_ins = sign_ins
        self._shared = shared
        self._own: dict[tuple[str, str], _Own] = {}
        self._sweeping = False
        self.ports = LinkPorts()
        self.on_update: Callable[[str, WatchedKind, str, dict[str, Any]], None] = lambda server, kind, key, params: None
        self.token_of: Callable[[Principal], str | None] = lambda principal: None
        self.epoch_of: Callable[[str, str], int] = lambda server, owner: 0

    def __len__(self) -> int:
        return len(self._own)

    @property
    def are_used(self) -> bool:
        """Whether there is a server to which each caller signs in for itself."""
        return any(link.per_user for link in self._shared.values())

    def get(self, server: str, principal: Principal) -> UpstreamLink | None:
        """The link that requests of this caller go over; None where there is no such server.

        Raises:
            UpstreamUnavailable: There are too many links.
        """
        shared = self._shared.get(server)
        return shared if shared is None or not shared.per_user else self.own(shared, principal)

    def own(self, shared: UpstreamLink, principal: Principal) -> UpstreamLink:
        """The link of this caller to a server to which each signs in for itself.

        Raises:
            UpstreamUnavailable: There are too many, or the caller is not there itself.
        """
        if principal.assumed:
            text = f"Not called: each caller signs in to '{shared.server}' for itself, and nobody else acts as them."
            raise UpstreamUnavailable(shared.server, text)
        own = self._own.get((shared.server, _user_key(shared.config, principal)))
        if own is None:
            own = self._open(shared, principal)
        elif own.principal.token != principal.token and isinstance(own.link.state, Waiting):
            # What was made of its token before was refused: with this one it may be otherwise.
            own.link.refresh()
        # Its latest credentials: those that it came with before may have ended.
        own.principal, own.used_s = principal, time.monotonic()
        return own.link

    def opened(self, server: str, owner: str) -> UpstreamLink | None:
        """A link of a caller, if there is one at present."""
        return next((link for link in self.of_server(server) if link.owner == owner), None)

    def is_open(self, link: object) -> bool:
        """Whether this is the link of a caller at present."""
        return any(own.link is link for own in self._own.values())

    def present(self, server: str, owner: str) -> UpstreamLink | None:
        """The link that requests of a caller would go over, if there is one at present."""
        return self.opened(server, owner) or self._shared.get(server)

    def of_server(self, server: str) -> Iterator[UpstreamLink]:
        """Every link to a server that is open at present."""
        return (own.link for (alias, _), own in self._own.items() if alias == server)

    def key_of(self, server: str, principal: Principal) -> str:
        """What a caller's subscriptions at a server are kept under: the server's alias where all share one link."""
        shared = self._shared.get(server)
        if shared is None or not shared.per_user:
            return server
        try:
            self.own(shared, principal)
        except UpstreamUnavailable:
            return server  # where nothing ever arrives
        return _link_key(server, _user_key(shared.config, principal))

    def at(self, key: str) -> UpstreamLink | None:
        """The link that `key_of` speaks of, while there is one."""
        server, _, user = key.partition("\n")
        if not user:
            return self._shared.get(server)
        own = self._own.get((server, user))
        return own.link if own is not None else None

    async def connect_signed_in(self, principal: Principal, wait_s: float) -> None:
        """Connect this caller to every server that it is signed in to, waiting for their listings, bounded."""
        opening: list[UpstreamLink] = []
        for server, shared in self._shared.items():
            if not shared.per_user:
                continue
            present = self._own.get((server, _user_key(shared.config, principal)))
            if present is None and not shared.config.exchanges_callers:
                sign_in = self._sign_ins.of(server, shared.config, user=user_of(principal))
                if sign_in is None:
                    continue
                await sign_in.look()
                if not sign_in.signed_in:
                    self._sign_ins.release(server, user_of(principal))
                    continue
            try:
                opening.append(self.own(shared, principal))
            except UpstreamUnavailable:
                continue
        with anyio.move_on_after(wait_s):
            for link in opening:
                await link.tried.wait()

    def adjust(self, server: str, config: ServerConfig) -> None:
        """Use another entry of the same reach."""
        for link in self.of_server(server):
            link.use(config)

    def drop_server(self, server: str) -> None:
        """End every link to a server, each when its calls are done."""
        for key in [key for key in self._own if key[0] == server]:
            self._close(key)

    def _close(self, key: tuple[str, str]) -> None:
        own = self._own.pop(key)
        own.link.retire()
        self._sign_ins.release(key[0], own.user)
        self._group.start_soon(own.link.close_when_idle)

    def _open(self, shared: UpstreamLink, principal: Principal) -> _Own:
        server, config, owner = shared.server, shared.config, principal.name
        key = _user_key(config, principal)
        # A token that was given for one client of a person is of no use to another, which may have lesser rights.
        user = key if config.exchanges_callers else user_of(principal)
        if len(self._own) >= self._most and not self._make_room():
            text = f"Not called: server '{server}' wants a connection for each caller, and {self._most} are in use."
            raise UpstreamUnavailable(server, text)
        credentials = credentials_of(server, config, self._sign_ins, user=user)
        connector = connector_of(server, config, self._client, credentials=credentials)
        epoch = self.epoch_of(server, owner)
        ports = replace(self.ports, on_update=partial(self.on_update, _link_key(server, key)))
        link = UpstreamLink(server, config, connector, ports, epoch=epoch, owner=owner)
        own = self._own[server, key] = _Own(link, principal, user, time.monotonic())
        if isinstance(credentials, SignIn):
            credentials.obtaining.subject = lambda: self.token_of(own.principal)
        self._group.start_soon(link.run)
        if not self._sweeping:
            self._sweeping = True
            self._group.start_soon(self._close_idle)
        return own

    def _make_room(self) -> bool:
        """Close the link that was idle for longest; whether there was one."""
        idle = [(own.used_s, key) for key, own in self._own.items() if _is_idle(own.link)]
        if not idle:
            return False
        self._close(min(idle)[1])
        return True

    async def _close_idle(self) -> None:
        while True:
            await anyio.sleep(self._look_s)
            now_s = time.monotonic()
            for key, own in list(self._own.items()):
                if now_s - own.used_s >= self._idle_s and _is_idle(own.link):
                    self._close(key)


class NobodysConnector:
    """Stands where each caller has a connection of its own: it opens none, and says so."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._source = SignInSource(begin=self._begin, changed=_never, version=0, is_over=_is_not_over)

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        """See `Connector.open`."""
        raise NotSignedIn("each caller signs in for itself", source=self._source)
        yield  # type: ignore[unreachable]  # what makes it a generator

    async def _begin(self) -> SignInLink:
        raise SignInFailed(f"each caller signs in to '{self._server}' for itself")


async def _never(version: int) -> None:
    await anyio.sleep_forever()


async def _is_not_over(version: int) -> bool:
    return False


def _user_key(config: ServerConfig, principal: Principal) -> str:
    """What tells the connections of callers apart: a person's, or those of each client where its token is exchanged."""
    if not config.exchanges_callers:
        return principal.name
    scopes = sorted(value for name, value in principal.claims if name == "scope")
    return f"{principal.identity}\n{' '.join(scopes)}"


def _link_key(server: str, user: str) -> str:
    # No alias has a line break.
    return f"{server}\n{user}"


def _is_idle(link: UpstreamLink) -> bool:
    return not link.in_flight and not any(link.watch_list.keys.values())
