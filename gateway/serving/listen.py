"""Bind the sockets of the gateway, refuse unsafe addresses, and determine the admin token."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import anyio.lowlevel

from gateway.access.administrators import FILE_NAME, UntrustedFile, stored_token
from gateway.admin.pages import PAGE_HEADERS, callback_page
from gateway.config.auth_config import STRONG_BITS
from gateway.config.model import Config
from gateway.config.server_entries import check_per_user
from gateway.downstream.admission import AdminRouter
from gateway.http.origins import LOOPBACK, HostCheck
from gateway.http.responder import AsgiHandler
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections
from gateway.process.files import make_private_folder, write_whole
from gateway.protocol.gateway_errors import ConfigError
from gateway.upstream.oauth.authorization import CALLBACK_PATH
from gateway.upstream.oauth.sign_ins import SignIns

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
# Maximum size of a header block: enough for the headers of a browser, and an authorization code and a state in the URL.
_MAX_HEAD_BYTES: Final = 32 * 1024
# Timeouts in seconds for receiving a request, which browsers send as soon as they connect, and for the whole exchange.
# The exchange includes the token request to the issuer, which has its own timeouts.
_READ_S: Final = 5.0
_REQUEST_S: Final = 60.0
# Maximum number of browser connections to serve at a time. A single browser opens several connections.
_MAX_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options for serving a configuration over HTTP.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.
        state_dir: The directory for state.
        insecure: Allow callers from other machines without a key, or with a weak key.
        strict: Reject a changed configuration file if the entry of any server is invalid.
    """

    host: str
    port: int = 0
    state_dir: Path
    insecure: bool = False
    strict: bool = False


@asynccontextmanager
async def open_redirect_port(sign_ins: SignIns) -> AsyncIterator[str | None]:
    """Serve OAuth redirects on a free loopback port, and yield the port's origin; None if no port can be opened.

    Every other request is refused. Requests are limited in size, time and number.
    """
    slots = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with slots, asyncio.timeout(_REQUEST_S):
                async with asyncio.timeout(_READ_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _respond(head, sign_ins))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("no request received from browser")
        finally:
            writer.close()

    try:
        listener = await asyncio.start_server(serve, _HOST, 0, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        log.warning("port for sign-in redirects not opened: %s", error.strerror)
        yield None
        return
    try:
        yield f"http://{_HOST}:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        # Do not wait for open connections, which are closed with the event loop.
        await anyio.lowlevel.checkpoint()


async def _respond(head: bytes, sign_ins: SignIns) -> bytes:
    lines = head.decode("latin-1").split("\r\n")
    method, _, target_and_version = lines[0].partition(" ")
    path, _, query = target_and_version.partition(" ")[0].partition("?")
    hosts = [line[5:].strip().lower() for line in lines[1:] if line.lower().startswith("host:")]
    # Protect against DNS rebinding: pages of other sites must not reach this port under the host name of their site.
    if len(hosts) != 1 or hosts[0].rpartition(":")[0] not in LOOPBACK:
        return _response(421, "")
    if path != CALLBACK_PATH or method not in ("GET", "HEAD"):
        return _response(404, "")
    if method == "HEAD":
        return _response(200, "")
    status, text, location = await callback_page(sign_ins, query)
    return _response(status, text, location)


def _response(status: int, text: str, location: str | None = None) -> bytes:
    body = text.encode()
    fields = {
        **PAGE_HEADERS,
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(body)),
        "connection": "close",
        **({"location": location} if location is not None else {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode("latin-1") + body


DRAIN_S: Final = 6.0
"""Seconds that calls in flight may take after the shutdown has begun."""
_BACKLOG: Final = 2048
# Length of a command line in an error message: enough to recognize the program.
_COMMAND_CHARS: Final = 120
# Matches the command line of a gateway process that listens on a port.
_GATEWAY: Final = re.compile(r"(?:(?:^|[/ ])typegate|-m gateway) (?:serve|demo)\b|-m gateway\.serving\.worker")
_SEND_BUFFER_BYTES: Final = 128 * 1024


def check_exposure(config: Config, *, host: str, insecure: bool) -> None:
    """Check that a gateway that other machines can reach requires keys that cannot be guessed.

    Args:
        host: The address to listen on.
        insecure: Allow a gateway without keys, or with weak keys.

    Raises:
        ConfigError: Other machines could use the gateway without a key or with a weak key, or a setting that the
            gateway needs in this case is missing.
    """
    auth = config.gateway.auth
    if host not in LOOPBACK and not auth.required and not insecure:
        raise ConfigError(
            f"listening on {host} lets everyone on the network call every tool; "
            "set gateway.auth.apiKeys or gateway.auth.oauth, or use --insecure",
            file=config_source(config),
            key="gateway.listen.host",
        )
    if host not in LOOPBACK and auth.oauth is not None and auth.oauth.resource is None:
        # Otherwise the gateway would take its address from the Host header, which callers choose, and clients would
        # request tokens for that address.
        raise ConfigError(
            "is missing; expected the address of this gateway as callers see it, such as https://gateway.example.test",
            file=config_source(config),
            key="gateway.auth.oauth.resource",
        )
    if host not in LOOPBACK and not auth.required:
        check_per_user(config.servers, file=config_source(config))
    for place, key in enumerate(auth.api_keys):
        if key.bits >= STRONG_BITS:
            continue
        what = f"the key of {key.name} has at most {key.bits:.0f} bits and could be guessed"
        if host not in LOOPBACK and not insecure:
            raise ConfigError(
                f"{what}; expected {STRONG_BITS}: `typegate key new {key.name}` creates such a key",
                file=config_source(config),
                key=f"gateway.auth.apiKeys[{place}].key",
            )
        log.warning("%s; `typegate key new` creates a strong key", what)


def config_source(config: Config) -> str:
    """Return the name of the configuration file, or of another source, for error messages."""
    return str(config.path or "command line")


def mcp_url(host: str, listener: socket.socket) -> str:
    """Return the URL of the MCP endpoint on a listening socket."""
    bracketed = f"[{host}]" if ":" in host else host
    return f"http://{bracketed}:{listener.getsockname()[1]}/mcp"


def bind(host: str, port: int, source: str, *, shared: bool = False, key: str | None = None) -> socket.socket:
    """Return a listening socket.

    Args:
        port: The port; 0 for any free port.
        source: The configuration file or other source of the address, for error messages.
        shared: Use SO_REUSEPORT, so that the kernel distributes connections over several sockets with this address.
        key: The configuration key of the address, for error messages; None for the command line.

    Raises:
        ConfigError: The address is in use, or this machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # On Windows, SO_REUSEADDR would let two programs share a port.
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Accepted connections inherit the next two options. A response is written in two parts, and Nagle's algorithm would
    # delay the second part by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Limit the kernel's buffer, which would otherwise hold up to 4 MiB of unread responses for each connection. The
    # gateway limits only its own buffers.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind((host.strip("[]"), port))
        # Listen at once, because a client that has read the address may connect before uvicorn starts.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        advice = "choose another --port" if key is None else "choose another address"
        if error.errno == errno.EADDRINUSE and (holder := find_port_holder(port)):
            reason = f"{reason} by {holder}"
        raise ConfigError(f"cannot listen on {host}:{port} ({reason}); {advice}", file=source, key=key) from None
    listener.set_inheritable(False)
    return listener


def find_port_holder(port: int) -> str | None:
    """Describe the process that listens on a TCP port, such as `python -m gateway serve (process 42)`.

    The result is None if no process is found in `/proc` (Linux only). Gateways hide their open files. If no process
    with visible files has the port, the port is assumed to belong to the only other gateway process of this user.
    """
    listening = "0A"
    try:
        tables = [Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table]
        sockets = {
            f"socket:[{row[9]}]" for row in rows if row[3] == listening and int(row[1].rpartition(":")[2], 16) == port
        }
        hidden: list[Path] = []
        for process in Path("/proc").glob("[0-9]*"):
            files = _open_files(process)
            if files is None:
                hidden.append(process)
            elif not sockets.isdisjoint(files):
                return f"{_command(process)[:_COMMAND_CHARS]} (process {process.name})"
        if sockets:
            gateways = [entry for entry in hidden if entry.name != str(os.getpid()) and _is_own_gateway(entry)]
            if len(gateways) == 1:
                [process] = gateways
                return f"{_command(process)[:_COMMAND_CHARS]} (probably: process {process.name})"
    except (OSError, ValueError, IndexError):
        return None
    return None


def _command(process: Path) -> str:
    words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    return " ".join(words).strip()


def _is_own_gateway(process: Path) -> bool:
    try:
        status = (process / "status").read_text(encoding="utf-8", errors="replace")
        return f"\nUid:\t{os.getuid()}\t" in status and _GATEWAY.search(_command(process)) is not None
    except OSError:  # the process has exited
        return False


def _open_files(process: Path) -> set[str] | None:
    """Return the open files of a process, or None if they are not visible."""
    files: set[str] = set()
    try:
        for file in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # the file was closed
                files.add(os.readlink(file))
    except PermissionError:
        return None
    except OSError:  # the process has exited
        return files
    return files


def admin_token(config: Config, state_dir: Path) -> str:
    """Return the admin token from the environment, the configuration or the state directory.

    If there is none, generate a token, store it in the state directory for the command line, and print it.

    Raises:
        ConfigError: Other users can change the stored token.
    """
    token = os.environ.get("TYPEGATE_ADMIN_TOKEN")
    if token:
        return token
    if config.gateway.admin.token is not None:
        return config.gateway.admin.token.get_secret_value()
    path = state_dir / FILE_NAME
    try:
        if stored := stored_token(path):
            return stored
    except UntrustedFile as error:
        raise ConfigError(str(error), file=config_source(config), key="gateway.admin.token") from None
    token = secrets.token_urlsafe(24)
    try:
        make_private_folder(state_dir)
        write_whole(path, f"{token}\n".encode(), mode=0o600)
    except OSError as error:
        log.warning("admin token not stored: %s", error)
    print(f"admin token: {token}", file=sys.stderr)
    return token


MAX_CONNECTIONS: Final = 200
"""Maximum number of admin connections: enough for administrators, scripts and scrapers, and few enough to leave file
descriptors for callers."""
_UNIX: Final = "unix:"
_KEY: Final = "gateway.admin.listen"
# Maximum number of admin connections that wait in the kernel to be accepted.
_ADMIN_BACKLOG: Final = 64


def bind_admin(config: Config) -> socket.socket | None:
    """Return the listening socket of `gateway.admin.listen`; None if it is not configured.

    Raises:
        ConfigError: The address is in use, or cannot be used.
    """
    address = config.gateway.admin.listen
    if address is None:
        return None
    if address.startswith(_UNIX):
        return _bind_unix(Path(address.removeprefix(_UNIX)), config_source(config))
    host, _, port = address.rpartition(":")
    return bind(host, int(port), config_source(config), key=_KEY)


def unbind_admin(listener: socket.socket | None, config: Config) -> None:
    """Close the socket that `bind_admin` returned, and remove the file of a Unix socket."""
    if listener is None:
        return
    # The server may have closed the socket already, so take its path from the configuration.
    listener.close()
    address = config.gateway.admin.listen or ""
    if address.startswith(_UNIX):
        with suppress(OSError):
            os.unlink(address.removeprefix(_UNIX))


@asynccontextmanager
async def serving_admin(
    listener: socket.socket, config: Config, handler: AsgiHandler, connections: Connections
) -> AsyncIterator[None]:
    """Serve the admin API on a socket until the context ends. The caller has to run `connections.watch`."""
    listen = config.gateway.listen
    address = listener.getsockname()
    hosts: frozenset[str] | None = None
    if not isinstance(address, str):
        allowed_hosts = frozenset({*LOOPBACK, *(host.lower() for host in listen.allowed_hosts)})
        hosts = allowed_hosts if address[0] in LOOPBACK or listen.allowed_hosts else None
    router = AdminRouter(HostCheck(hosts, frozenset(origin.lower() for origin in listen.allowed_origins)), handler)
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if isinstance(address, str) else loop.create_server
    server = await create(lambda: HttpProtocol(connections, router), sock=listener, backlog=_ADMIN_BACKLOG)
    log.info("admin API listening on %s", _address_of(listener))
    try:
        yield
    finally:
        server.close()


def _bind_unix(path: Path, source: str) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError(
            "Unix domain sockets are not available on this platform; expected HOST:PORT", file=source, key=_KEY
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # Set the permissions before the socket listens, so that no client can connect earlier.
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_ADMIN_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {path} ({reason}); choose another path", file=source, key=_KEY) from None
    listener.set_inheritable(False)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a killed gateway, but not a socket in use or any other file."""
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


def _address_of(listener: socket.socket) -> str:
    address = listener.getsockname()
    if isinstance(address, str):
        return f"{_UNIX}{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"
