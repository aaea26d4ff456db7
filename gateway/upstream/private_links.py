"""Connections that belong to one downstream session, for upstreams that may ask its user."""

from __future__ import annotations

import logging
from typing import Final

import anyio
from anyio.abc import TaskGroup

from gateway.config.model import ServerConfig
from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.upstream.callbacks import Host
from gateway.upstream.link import UpstreamLink
from gateway.upstream.mcp_session import RawListing
from gateway.upstream.transport.http_client import HttpClient

log = logging.getLogger(__name__)

MAX_PRIVATE: Final = 1_000


class PrivateLinks:
    """One link for each pair of downstream session and upstream, opened by the first call that needs it."""

    def __init__(self, group: TaskGroup, client: HttpClient) -> None:
        self._group = group
        self._client = client
        self._links: dict[tuple[str, str], tuple[UpstreamLink, anyio.CancelScope]] = {}
        self._unwilling: set[str] = set()

    def __len__(self) -> int:
        return len(self._links)

    async def get(self, session_id: str, alias: str, config: ServerConfig, host: Host) -> UpstreamLink | None:
        """The session's own link, connected or trying to; None where the upstream does not speak the handshake era.

        Raises:
            UpstreamUnavailable: There are too many, or it does not come up in time.
        """
        if alias in self._unwilling:
            return None
        known = self._links.get((session_id, alias))
        link = known[0] if known is not None else self._open(session_id, alias, config, host)
        with anyio.move_on_after(link.patience_s):
            await link.tried.wait()
        if not link.tried.is_set():
            await link.wait_ready(0)
        if not link.unwilling:
            return link
        # It will not learn it while it is configured as it is.
        self._unwilling.add(alias)
        self.drop_server(alias, forget=False)
        return None

    async def notify(self, session_id: str, method: str) -> None:
        """Pass a notification of the host on to every upstream that it has a connection to."""
        for (owner, alias), (link, _) in list(self._links.items()):
            if owner == session_id and link.session is not None:
                try:
                    await link.session.channel.notify(method)
                except (GatewayError, TimeoutError):
                    log.debug("a notification could not be sent", extra={"server": alias})

    def drop(self, session_id: str) -> None:
        """End every connection of a session."""
        for key in [key for key in self._links if key[0] == session_id]:
            self._links.pop(key)[1].cancel()

    def drop_server(self, alias: str, *, forget: bool = True) -> None:
        """End every connection to an upstream, each when its calls are done."""
        for key in [key for key in self._links if key[1] == alias]:
            self._group.start_soon(_ended, *self._links.pop(key))
        if forget:
            self._unwilling.discard(alias)

    def _open(self, session_id: str, alias: str, config: ServerConfig, host: Host) -> UpstreamLink:
        if len(self._links) >= MAX_PRIVATE:
            raise UpstreamUnavailable(
                alias, f"Not called: server '{alias}' wants a connection for each session, and {MAX_PRIVATE} are open."
            )
        link = UpstreamLink(alias, config, self._client, on_listing=_unlisted, on_lost=_unheard, host=host)
        scope = anyio.CancelScope()
        self._links[session_id, alias] = (link, scope)

        async def own() -> None:
            with scope:
                await link.run()

        self._group.start_soon(own)
        return link


async def _ended(link: UpstreamLink, scope: anyio.CancelScope) -> None:
    await link.drained()
    scope.cancel()


async def _unlisted(link: UpstreamLink, listing: RawListing) -> None:
    """A private connection is never listed."""


def _unheard(link: UpstreamLink) -> None:
    """What a private connection loses, its next call finds out."""
