"""Where a gateway listens, for whom, and who may administer it: decided before anything is served."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.access.admin_token import FILE_NAME, UntrustedFile, kept_token
from gateway.config.auth import STRONG_BITS
from gateway.config.model import Config
from gateway.config.per_user import check_per_user
from gateway.downstream.http.host_check import LOOPBACK
from gateway.errors import ConfigError
from gateway.files import make_private_folder, write_whole

log = logging.getLogger(__name__)

DRAIN_S: Final = 6.0
"""How long calls in flight may go on once the end is asked for."""
_BACKLOG: Final = 2048
# Of the command line that is named in an error: enough to recognise a program.
_COMMAND_CHARS: Final = 120
# The command lines of gateways that listen.
_GATEWAY: Final = re.compile(r"(?:(?:^|[/ ])typegate|-m gateway) (?:serve|demo)\b|-m gateway\.serving\.worker")
_SEND_BUFFER_BYTES: Final = 128 * 1024


def check_reach(config: Config, *, host: str, insecure: bool) -> None:
    """Refuse to be open to the network without any API key, or with one that can be guessed, unless that is wanted.

    Raises:
        ConfigError: It would be.
    """
    auth = config.gateway.auth
    if host not in LOOPBACK and not auth.required and not insecure:
        raise ConfigError(
            f"listening on {host} lets everyone on the network call every tool; "
            "set gateway.auth.apiKeys or gateway.auth.oauth, or say --insecure",
            file=source_of(config),
            key="gateway.listen.host",
        )
    if host not in LOOPBACK and auth.oauth is not None and auth.oauth.resource is None:
        # It would be taken from the Host that each caller names, and tell others where to get their tokens.
        raise ConfigError(
            "is missing; expected the address of this gateway as callers see it, as https://gateway.example.test",
            file=source_of(config),
            key="gateway.auth.oauth.resource",
        )
    if host not in LOOPBACK and not auth.required:
        check_per_user(config.servers, file=source_of(config))
    for place, key in enumerate(auth.api_keys):
        if key.bits >= STRONG_BITS:
            continue
        what = f"the key of {key.name} has at most {key.bits:.0f} bits, so that it could be found by trying"
        if host not in LOOPBACK and not insecure:
            raise ConfigError(
                f"{what}; expected {STRONG_BITS}: `typegate key new {key.name}` makes one",
                file=source_of(config),
                key=f"gateway.auth.apiKeys[{place}].key",
            )
        log.warning("%s; `typegate key new` makes a strong one", what)


def source_of(config: Config) -> str:
    """Where a configuration is from, for messages."""
    return str(config.path or "command line")


def url_of(host: str, listener: socket.socket) -> str:
    """The address of MCP on a socket."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/mcp"


def bind(host: str, port: int, source: str, *, shared: bool = False, key: str | None = None) -> socket.socket:
    """A socket that listens.

    Args:
        host: The address.
        port: The port; 0 for any.
        source: Where the address is from, for a message.
        shared: Several sockets of ours have the same address, and the kernel spreads connections over them.
        key: The key of the configuration that the address is from, where it is from one alone.

    Raises:
        ConfigError: The address is taken, or none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # On Windows it would let two programs have one port.
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Inherited by each connection: an answer is written in two parts, and Nagle would hold the second 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # So is this: what a caller does not read waits where it is seen and bounded, not in the kernel, 4 MiB for each.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind((host.strip("[]"), port))
        # At once: whoever reads our address may come before uvicorn does.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        another = "choose another --port" if key is None else "choose another address"
        if error.errno == errno.EADDRINUSE and (holder := holder_of(port)):
            reason = f"{reason} by {holder}"
        raise ConfigError(f"cannot listen on {host}:{port} ({reason}); {another}", file=source, key=key) from None
    listener.set_inheritable(False)
    return listener


def holder_of(port: int) -> str | None:
    """Return which process of this user listens on a TCP port, as `python -m gateway serve (process 42)`.

    Linux only, from `/proc`; None where it cannot be told. A gateway does not let others see its files, so that another
    gateway of this user is named where no other process has the port.
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
            gateways = [one for one in hidden if one.name != str(os.getpid()) and _is_own_gateway(one)]
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
    except OSError:  # ended meanwhile
        return False


def _open_files(process: Path) -> set[str] | None:
    """Return what a process has open; None if this process may not see it."""
    found: set[str] = set()
    try:
        for file in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(file))
    except PermissionError:
        return None
    except OSError:  # the process has ended
        return found
    return found


def admin_token(config: Config, state_dir: Path) -> str:
    """The admin token: environment, then configuration, then one of our own, kept for the command line.

    Raises:
        ConfigError: The one that is kept may be somebody else's.
    """
    named = os.environ.get("TYPEGATE_ADMIN_TOKEN")
    if named:
        return named
    if config.gateway.admin.token is not None:
        return config.gateway.admin.token.get_secret_value()
    path = state_dir / FILE_NAME
    try:
        if kept := kept_token(path):
            return kept
    except UntrustedFile as error:
        raise ConfigError(str(error), file=source_of(config), key="gateway.admin.token") from None
    token = secrets.token_urlsafe(24)
    try:
        make_private_folder(state_dir)
        write_whole(path, f"{token}\n".encode(), mode=0o600)
    except OSError as error:
        log.warning("the admin token cannot be kept: %s", error)
    print(f"admin token: {token}", file=sys.stderr)
    return token
