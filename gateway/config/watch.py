"""Hear of changes of the configuration file, however it is changed: written, renamed over, or swapped by a link."""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

log = logging.getLogger(__name__)


def digest_of(path: Path) -> bytes | None:
    """What tells one content of a file from another; None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def folders_of(path: Path) -> frozenset[Path]:
    """The directories to watch for a file: its own, and that of what it links to."""
    return frozenset({path.absolute().parent, path.resolve().parent})


async def follow(path: Path, changed: Callable[[], Awaitable[None]], *, hangups: bool) -> None:
    """Call `changed` whenever the file has another content than at the time before, until cancelled.

    Args:
        path: The file.
        changed: One call ends before the next begins.
        hangups: Whether SIGHUP calls it too, whatever the file holds.
    """
    sender, receiver = anyio.create_memory_object_stream[bool](1)
    known = digest_of(path)

    def stir(forced: bool) -> None:
        try:
            sender.send_nowait(forced)
        except anyio.WouldBlock:
            log.debug("a reload is waiting already")

    async def watch_files() -> None:
        from watchfiles import awatch  # late: nothing that a first answer needs

        async for _ in awatch(*folders_of(path), recursive=False, debounce=100, step=50, rust_timeout=1_000):
            stir(False)

    async def watch_signal() -> None:
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            async for _ in signals:
                stir(True)

    async with sender, receiver, anyio.create_task_group() as group:
        group.start_soon(watch_files)
        if hangups:
            group.start_soon(watch_signal)
        async for forced in receiver:
            current = digest_of(path)
            if forced or (current is not None and current != known):
                known = current
                await changed()
