"""The admin API on an address of its own: a port, or a socket in the file system."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from gateway.config.model import Config
from gateway.downstream.http.asgi import AsgiHandler
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.host_check import LOOPBACK, HostCheck
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.router import AdminRouter
from gateway.errors import ConfigError
from gateway.serving.listen import bind, source_of

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 200
"""Administrators, scripts and scrapers at once: beside callers, their descriptors must not count."""
_UNIX: Final = "unix:"
_KEY: Final = "gateway.admin.listen"
# Of administrators; the kernel refuses more that wait.
_BACKLOG: Final = 64


def bind_admin(config: Config) -> socket.socket | None:
    """The socket that the configuration names for the admin API, listening; None where there is none.

    Raises:
        ConfigError: The address is taken, or cannot be used.
    """
    address = config.gateway.admin.listen
    if address is None:
        return None
    if address.startswith(_UNIX):
        return _bind_unix(Path(address.removeprefix(_UNIX)), source_of(config))
    host, _, port = address.rpartition(":")
    return bind(host, int(port), source_of(config), key=_KEY)


def unbind_admin(listener: socket.socket | None, config: Config) -> None:
    """Close the socket that `bind_admin` returned, and remove its file where it has one."""
    if listener is None:
        return
    # Whoever served on it may have closed it already: its own name is not to be had from it any more.
    listener.close()
    address = config.gateway.admin.listen or ""
    if address.startswith(_UNIX):
        with suppress(OSError):
            os.unlink(address.removeprefix(_UNIX))


@asynccontextmanager
async def serving_admin(
    listener: socket.socket, config: Config, handler: AsgiHandler, connections: Connections
) -> AsyncIterator[None]:
    """Answer administrators on this socket until left; `connections` are watched by whoever owns them."""
    listen = config.gateway.listen
    name = listener.getsockname()
    hosts: frozenset[str] | None = None
    if not isinstance(name, str):
        named = frozenset({*LOOPBACK, *(host.lower() for host in listen.allowed_hosts)})
        hosts = named if name[0] in LOOPBACK or listen.allowed_hosts else None
    router = AdminRouter(HostCheck(hosts, frozenset(origin.lower() for origin in listen.allowed_origins)), handler)
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if isinstance(name, str) else loop.create_server
    server = await create(lambda: HttpProtocol(connections, router), sock=listener, backlog=_BACKLOG)
    log.info("the admin API is at %s", _shown(listener))
    try:
        yield
    finally:
        server.close()


def _bind_unix(path: Path, source: str) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("there are no such sockets on this platform; expected HOST:PORT", file=source, key=_KEY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # Nobody can connect between the two: it does not listen yet.
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {path} ({reason}); choose another path", file=source, key=_KEY) from None
    listener.set_inheritable(False)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a gateway that was killed; one that somebody listens on, and any other file, stay."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def _shown(listener: socket.socket) -> str:
    name = listener.getsockname()
    if isinstance(name, str):
        return f"{_UNIX}{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
