"""Notice changes of the configuration file, however it is changed: written, renamed over, or swapped by a link."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio

from gateway.signals import HANGUP, open_signals

# Editors write a file in several steps, tens of milliseconds apart; each step alone would be a reload of half a file.
_DEBOUNCE_MS: Final = 100
# How often the watching thread looks for events, and for the end: half of the debounce, so it adds little to it.
_STEP_MS: Final = 50


def digest_of(path: Path) -> bytes | None:
    """The SHA-256 of a file's content; None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def folders_of(path: Path) -> frozenset[Path]:
    """The directories to watch for a file: its own, and that of what it links to."""
    return frozenset({path.absolute().parent, path.resolve().parent})


class ReloadRequests:
    """What asks for a reload. Any number of requests that wait are one, and the strongest of them counts."""

    def __init__(self) -> None:
        self._asked = anyio.Event()
        self._forced = False

    def add(self, *, forced: bool) -> None:
        """Ask for a reload; a forced one is made whatever the file holds."""
        self._forced = self._forced or forced
        self._asked.set()

    async def next(self) -> bool:
        """Wait for a request, and return whether one of those that waited was forced."""
        await self._asked.wait()
        forced, self._forced, self._asked = self._forced, False, anyio.Event()
        return forced


async def follow(path: Path, changed: Callable[[], Awaitable[None]], *, hangups: bool) -> None:
    """Call `changed` whenever the content of the file differs from the last one, until cancelled.

    Args:
        path: The file.
        changed: One call ends before the next begins.
        hangups: Whether SIGHUP calls it too, whatever the file holds.
    """
    # Those that wait while a reload runs are one: it reads the file when it starts, so it covers every change before.
    requests = ReloadRequests()
    known = digest_of(path)
    stopped = anyio.Event()

    async def watch_files() -> None:
        from watchfiles import awatch  # late: it is not needed to answer a first request

        # Folders, not the file: a file that is renamed over is another inode, and a watch stays with the old one.
        watched = folders_of(path)
        async for _ in awatch(*watched, recursive=False, debounce=_DEBOUNCE_MS, step=_STEP_MS, stop_event=stopped):
            requests.add(forced=False)

    async def stop_watching() -> None:
        # A thread watches, and is not cancelled: without this event it would hold up the end by seconds.
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async def watch_signal() -> None:
        assert HANGUP is not None
        with open_signals(HANGUP) as signals:
            async for _ in signals:
                requests.add(forced=True)

    async with anyio.create_task_group() as group:
        group.start_soon(watch_files)
        group.start_soon(stop_watching)
        if hangups and HANGUP is not None:
            group.start_soon(watch_signal)
        while True:
            forced = await requests.next()
            current = digest_of(path)
            if forced or (current is not None and current != known):
                known = current
                await changed()
