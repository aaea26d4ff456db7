"""The seam to how an upstream is reached: each type of upstream has a connector of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Protocol

from gateway.config.server import ServerConfig
from gateway.upstream.credentials import Credentials
from gateway.upstream.request_callbacks import HostSession
from gateway.upstream.session import SessionPorts, UpstreamSession
from gateway.upstream.transport.http_client import HttpClient


class Connector(Protocol):
    """A way to reach one upstream; it outlives its sessions, and remembers what they taught it."""

    def open(self, ports: SessionPorts) -> AbstractAsyncContextManager[UpstreamSession]:
        """Connect within `connectTimeout`; the session ends when this is left.

        Raises:
            GatewayError: It did not come about; the message says why.
        """


def connector_of(
    server: str,
    config: ServerConfig,
    client: HttpClient,
    *,
    host: HostSession | None = None,
    credentials: Credentials | None = None,
) -> Connector:
    """The connector that the upstream's type names.

    Args:
        server: The alias.
        config: Its entry.
        client: What HTTP requests are sent with.
        host: The downstream session whose own connection it is to be; None where callers share it.
        credentials: What proves who we are, where that may change while it is connected.
    """
    # Late: a host waits for the first answer of `typegate stdio`, and no configuration uses every type.
    module, _, name = config.connector.partition(":")
    connector: Callable[..., Connector] = getattr(import_module(module), name)
    client = client.via(config.proxy_choice)
    return connector(server, config, client, host=host, credentials=credentials)
