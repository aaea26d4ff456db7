"""Connections that belong to one downstream session, for upstreams that may ask its user."""

from __future__ import annotations

import logging
from typing import Final

import anyio
from anyio.abc import TaskGroup

from gateway.access.quotas import Account
from gateway.config.server import ServerConfig
from gateway.errors import GatewayError, QuotaExceeded, UpstreamUnavailable
from gateway.upstream.connector import connector_of
from gateway.upstream.credential_sources import credentials_of
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_ports import LinkPorts
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.request_callbacks import HostSession
from gateway.upstream.transport.http_client import HttpClient

log = logging.getLogger(__name__)

# Each one is a socket, or a process and three pipes: a thousand fit into the usual limits of a system.
MAX_PRIVATE: Final = 1_000


class PrivateLinks:
    """One link for each pair of downstream session and upstream, opened by the first call that needs it."""

    def __init__(self, group: TaskGroup, client: HttpClient, sign_ins: SignIns) -> None:
        self._group = group
        self._client = client
        self._sign_ins = sign_ins
        self._links: dict[tuple[str, str], UpstreamLink] = {}
        self._accounts: dict[tuple[str, str], Account] = {}
        self._handshake_refused: set[str] = set()

    def __len__(self) -> int:
        return len(self._links)

    async def get(
        self,
        session_id: str,
        alias: str,
        config: ServerConfig,
        host: HostSession,
        account: Account,
        *,
        user: str = "",
    ) -> UpstreamLink | None:
        """The session's own link, connected or trying to; None where the upstream has no handshake.

        Args:
            session_id, alias, config, host, account: The session, and the upstream.
            user: Whose credentials it has, as `user_of` names callers; empty where callers share them.

        Raises:
            UpstreamUnavailable: There are too many, all in all or of this caller, or it does not come up in time.
        """
        # Known from another session: without an attempt, so that no call waits for it.
        if alias in self._handshake_refused:
            return None
        link = self._links.get((session_id, alias)) or self._open(session_id, alias, config, host, account, user)
        with anyio.move_on_after(link.patience_s):
            await link.tried.wait()
        if not link.tried.is_set():
            # The error that a call would get, without another wait.
            await link.wait_ready(0)
        if not link.handshake_refused:
            return link
        # It will not learn it while it is configured as it is.
        self._handshake_refused.add(alias)
        self.drop_server(alias, forget=False)
        return None

    async def notify(self, session_id: str, method: str) -> None:
        """Pass a notification of the host on to every upstream that it has a connection to."""
        for (owner, alias), link in list(self._links.items()):
            # One that is not connected negotiates anew, with what the host declares then.
            if owner == session_id and link.session is not None:
                try:
                    await link.session.notify(method)
                except (GatewayError, TimeoutError):
                    log.debug("a notification could not be sent", extra={"server": alias})

    def drop(self, session_id: str) -> None:
        """End every connection of a session."""
        for key in [key for key in self._links if key[0] == session_id]:
            self._pop(key).close()

    def drop_server(self, alias: str, *, forget: bool = True) -> None:
        """End every connection to an upstream, each when its calls are done.

        Args:
            alias: The upstream.
            forget: What it refused is tried again: it may be configured in another way.
        """
        for key in [key for key in self._links if key[1] == alias]:
            self._group.start_soon(self._pop(key).close_when_idle)
        if forget:
            self._handshake_refused.discard(alias)

    def _pop(self, key: tuple[str, str]) -> UpstreamLink:
        link, account = self._links.pop(key), self._accounts.pop(key)
        account.private_connections -= 1
        return link

    def _open(
        self,
        session_id: str,
        alias: str,
        config: ServerConfig,
        host: HostSession,
        account: Account,
        user: str,
    ) -> UpstreamLink:
        if len(self._links) >= MAX_PRIVATE:
            raise UpstreamUnavailable(
                alias, f"Not called: server '{alias}' wants a connection for each session, and {MAX_PRIVATE} are open."
            )
        try:
            account.open_private_connection()
        except QuotaExceeded as error:
            raise UpstreamUnavailable(alias, error.message) from None
        credentials = credentials_of(alias, config, self._sign_ins, user=user)
        connector = connector_of(alias, config, self._client, host=host, credentials=credentials)
        # Nobody takes its reports: the shared link lists and watches the same upstream.
        link = UpstreamLink(alias, config, connector, LinkPorts(), lists=False)
        self._links[session_id, alias] = link
        self._accounts[session_id, alias] = account
        self._group.start_soon(link.run)
        return link
