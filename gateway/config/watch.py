"""Detect changes to the files of a configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from gateway.process.tasks import HANGUP, open_signals

# Editors write a file in several steps, tens of milliseconds apart. Waiting avoids a reload of a partial file.
_DEBOUNCE_MS: Final = 100
# Interval at which the watching thread checks for events and for the stop event. It delays a reload by at most half of
# the debounce time.
_STEP_MS: Final = 50

# After this time, watching has certainly started. The files are then compared, to detect earlier changes.
_SETTLED_MS: Final = 500


def digest_of(path: Path) -> bytes | None:
    """Return the SHA-256 of a file's content; None if the file cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def folders_of(path: Path) -> frozenset[Path]:
    """Return the directories to watch for a file: its directory and, for a symbolic link, the target's directory."""
    return frozenset({path.absolute().parent, path.resolve().parent})


class ReloadRequests:
    """Pending requests for a reload. Requests that arrive before the next reload are combined into one."""

    def __init__(self) -> None:
        self._requested = anyio.Event()
        self._forced = False

    def add(self, *, forced: bool) -> None:
        """Request a reload. A forced reload happens even if no file has changed."""
        self._forced = self._forced or forced
        self._requested.set()

    async def next(self) -> bool:
        """Wait for a request and return true if any of the combined requests was forced."""
        await self._requested.wait()
        forced, self._forced, self._requested = self._forced, False, anyio.Event()
        return forced


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """Paths to watch in addition to the main file.

    Attributes:
        files: The files, whether they exist or not.
        folders: Folders in which further files may appear.
    """

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()


async def follow(
    path: Path,
    changed: Callable[[], Awaitable[None]],
    *,
    hangups: bool,
    other_files: Callable[[], Awaitable[OtherFiles]],
    seen: Mapping[Path, bytes | None] | None = None,
) -> None:
    """Call `changed` whenever the content of a file changes, until cancelled.

    Args:
        path: The main file. While it does not exist, changes are ignored.
        changed: The callback. Calls do not overlap.
        hangups: Whether SIGHUP also triggers a call, even if no file has changed.
        other_files: Returns the other files to watch at present.
        seen: Digests of files at the time they were read, to detect changes between then and this call.
    """
    # Requests during a reload are combined: the next reload reads the files again and covers all of them.
    requests = ReloadRequests()
    now = await other_files()
    digests = digests_of((path, *now.files))
    digests |= {file: digest for file, digest in (seen or {}).items() if file in digests}
    stopped = anyio.Event()
    watched = _folders(path, now)
    ended = False

    async def watch_files() -> None:
        nonlocal stopped, watched
        from watchfiles import awatch  # imported lazily: the first request does not need it

        while not ended:
            # Watch folders instead of files: when a file is replaced by a rename, a watch would stay on the old inode.
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
                # Compare in the first iteration even without events: changes before the watch cause no events.
                if changes or is_new:
                    requests.add(forced=False)
                is_new = False
            stopped = anyio.Event()

    async def stop_watching() -> None:
        nonlocal ended
        # The watching thread cannot be cancelled; without this event it would delay the shutdown by seconds.
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
            now = await other_files()
            current = digests_of((path, *now.files))
            if forced or (current[path] is not None and current != digests):
                digests = current
                await changed()
                # The reload may have changed which files are watched. A new file in an included folder may have
                # appeared after the reload read the folder, so leave it without a digest: the next comparison differs.
                now = await other_files()
                new = digests_of(file for file in now.files if file not in digests and file.parent not in now.folders)
                # Forget unchanged files that are no longer watched. Remember a file that was deleted during the reload,
                # so that the next comparison differs and causes another reload, without the file.
                still_watched = {
                    file: digest
                    for file, digest in digests.items()
                    if file in (path, *now.files) or digest_of(file) != digest
                }
                digests = still_watched | new
            if _folders(path, now) != watched:
                stopped.set()


def digests_of(files: Iterable[Path]) -> dict[Path, bytes | None]:
    """Return the digest of each file."""
    return {file: digest_of(file) for file in files}


def _folders(path: Path, other_files: OtherFiles) -> frozenset[Path]:
    # The creation of a missing folder is noticed as a change in its parent folder, if the parent is watched.
    folders = {*other_files.folders, *(folder for file in (path, *other_files.files) for folder in folders_of(file))}
    return frozenset(folder for folder in folders if folder.is_dir())
