"""Headers that a program of the operator's prints: run before the first request, and when they are refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from gateway import wire
from gateway.errors import ConnectionLost
from gateway.secrets import SECRETS
from gateway.upstream.transport.child_environment import child_environment

# A look into a vault over the network; the handshake still has time within `connectTimeout`.
_RUN_S: Final = 5.0
# Headers have some kilobytes.
_MAX_BYTES: Final = 64 * 1024
# A server that refuses everything does not have a program started for each request.
_AGAIN_S: Final = 2.0


class HeadersCommand:
    """See `Credentials`."""

    def __init__(self, server: str, command: str | Sequence[str], env: Mapping[str, str | None]) -> None:
        self._env = env
        self._server = server
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._running = anyio.Lock()
        self._ran_at_s = 0.0
        self.headers: Mapping[str, str] = {}
        self.version = 0
        self.ready = self.proves = self.anonymous = False

    async def prepare(self) -> None:
        """See `Credentials.prepare`."""
        async with self._running:
            if not self.ready:
                await self._run()

    def proof(self, method: str, url: str) -> None:
        """See `Credentials.proof`: what is printed is all there is."""

    async def refused(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """See `Credentials.refused`; a 403 is no matter of who we are."""
        if status != 401:
            return False
        async with self._running:
            if version != self.version:
                return True
            if time.monotonic() - self._ran_at_s < _AGAIN_S:
                return False
            await self._run()
            return version != self.version

    async def settled(self) -> None:
        """See `Credentials.settled`."""
        async with self._running:
            pass

    def accepted(self, version: int) -> None:
        """See `Credentials.accepted`."""

    async def keep(self) -> None:
        """See `Credentials.keep`: nobody knows when these end."""
        await anyio.sleep_forever()

    async def _run(self) -> None:
        """Run the command; a caller that leaves meanwhile ends it, and the next caller runs it again."""
        try:
            await self._read_printed()
        except ConnectionLost:
            self._ran_at_s = time.monotonic()
            raise
        self._ran_at_s = time.monotonic()

    async def _read_printed(self) -> None:
        printed: bytes | None = None
        try:
            with anyio.move_on_after(_RUN_S):
                # What it says on standard error may hold what it was asked for.
                done = await anyio.run_process(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    env=child_environment(self._env, os.environ),
                )
                if done.returncode != 0:
                    what = f"headersCommand ended with exit code {done.returncode}"
                    raise ConnectionLost(f"{what}; of the environment it gets what headersEnv names", sent=False)
                printed = done.stdout
        except OSError as error:
            raise ConnectionLost(f"headersCommand cannot be run ({error.strerror})", sent=False) from None
        if printed is None:
            raise ConnectionLost(f"headersCommand did not end within {_RUN_S:g} s", sent=False)
        headers = read_headers(printed)
        values = [*headers.values(), *(value.rpartition(" ")[2] for value in headers.values())]
        SECRETS.hide_latest(f"headers {self._server}", values)
        if headers != self.headers:
            self.headers = headers
            self.version += 1
        self.ready = True


def read_headers(printed: bytes) -> dict[str, str]:
    """Read what a program printed: a JSON object, or lines of `Name: value`; names become lower case.

    Raises:
        ConnectionLost: It is neither.
    """
    wrong = ConnectionLost(
        "headersCommand prints no headers; expected a JSON object, or lines of Name: value", sent=False
    )
    if len(printed) > _MAX_BYTES:
        raise wrong
    found: dict[str, str] = {}
    try:
        document = wire.loads(printed)
        pairs = list(document.items()) if isinstance(document, dict) else []
    except wire.MalformedJson:
        lines = [line for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    for name, value in pairs:
        sound = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value)
        if (
            not sound
            or not name.isascii()
            or not name.strip()
            or any(c.isspace() or c in ':"(),/;<=>?@[\\]{}' for c in name)
        ):
            raise wrong
        found[name.lower()] = value
    if not found:
        raise wrong
    return found
