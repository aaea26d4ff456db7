"""Notice changes of the files of a configuration, however they are made: written, renamed over, swapped by a link."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from gateway.signals import HANGUP, open_signals

# Editors write a file in several steps, tens of milliseconds apart; each step alone would be a reload of half a file.
_DEBOUNCE_MS: Final = 100
# How often the watching thread looks for events, and for the end: half of the debounce, so it adds little to it.
_STEP_MS: Final = 50

# After so long a watch has begun, wherever it waits.
_SETTLED_MS: Final = 500


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """What is to be watched beside the main file.

    Attributes:
        files: The files, whether they are there or not.
        folders: Where further ones may appear.
    """

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()


async def follow(
    path: Path,
    changed: Callable[[], Awaitable[None]],
    *,
    hangups: bool,
    others: Callable[[], Awaitable[OtherFiles]],
    seen: Mapping[Path, bytes | None] | None = None,
) -> None:
    """Call `changed` whenever the content of a file differs from the last one, until cancelled.

    Args:
        path: The main file; while it is not there, nothing has changed.
        changed: One call ends before the next begins.
        hangups: Whether SIGHUP calls it too, whatever the files hold.
        others: The other files that count at present.
        seen: The digests of some of them when they were read, which was before this: a change since then counts.
    """
    # Those that wait while a reload runs are one: it reads the files when it starts, so it covers every change before.
    requests = ReloadRequests()
    now = await others()
    known = digests_of((path, *now.files))
    known |= {file: digest for file, digest in (seen or {}).items() if file in known}
    stopped = anyio.Event()
    watched = _folders(path, now)
    ended = False

    async def watch_files() -> None:
        nonlocal stopped, watched
        from watchfiles import awatch  # late: it is not needed to answer a first request

        while not ended:
            # Folders, not the files: one that is renamed over is another inode, and a watch stays with the old one.
            watched = _folders(path, now)
            is_new = True
            async for changes in awatch(
                *watched,
                recursive=False,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                rust_timeout=_SETTLED_MS,
                yield_on_timeout=True,
                stop_event=stopped,
            ):
                # Once without a change: what was written before the watch began is in no event.
                if changes or is_new:
                    requests.add(forced=False)
                is_new = False
            stopped = anyio.Event()

    async def stop_watching() -> None:
        nonlocal ended
        # A thread watches, and is not cancelled: without this event it would hold up the end by seconds.
        try:
            await anyio.sleep_forever()
        finally:
            ended = True
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
            now = await others()
            current = digests_of((path, *now.files))
            if forced or (current[path] is not None and current != known):
                known = current
                await changed()
                # Which files count may be another question now. One that has appeared meanwhile, or has changed, was
                # perhaps not read: then it is read once more.
                now = await others()
                new = digests_of(file for file in now.files if file not in known and file.parent not in now.folders)
                # Nor does one count any more that is as it was read; one that is gone since then has to be taken out.
                kept = {
                    file: digest
                    for file, digest in known.items()
                    if file in (path, *now.files) or digest_of(file) != digest
                }
                known = kept | new
            if _folders(path, now) != watched:
                stopped.set()


def digests_of(files: Iterable[Path]) -> dict[Path, bytes | None]:
    """The digest of each file."""
    return {file: digest_of(file) for file in files}


def _folders(path: Path, others: OtherFiles) -> frozenset[Path]:
    # One that is not there yet is noticed as a change of the folder above, if that is watched.
    wanted = {*others.folders, *(folder for file in (path, *others.files) for folder in folders_of(file))}
    return frozenset(folder for folder in wanted if folder.is_dir())
