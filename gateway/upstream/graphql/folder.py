"""Read a folder of operations within size limits, and watch the folder for changes."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.from_thread
import anyio.to_thread

from gateway.protocol.gateway_errors import GatewayError

log = logging.getLogger(__name__)

SUFFIXES: Final = (".graphql", ".gql")
# These limits are far above the size of real folders, which contain hundreds of files of a few kilobytes. If, for
# example, `/` is configured by mistake, the gateway stops reading at these limits and reports the error.
MAX_FILES: Final = 10_000
MAX_FILE_BYTES: Final = 512 * 1024
MAX_FOLDER_BYTES: Final = 64 * 1024 * 1024
_MAX_DEPTH: Final = 32
# How often to check whether a missing folder exists again. A folder that is being replaced is missing only briefly.
_RETRY_S: Final = 1.0
# The poll interval if the system cannot watch the folder.
_UNWATCHED_S: Final = 10.0
# All changes within this time are reported as a single change, because an editor writes a file in several steps.
_DEBOUNCE_MS: Final = 100
_STEP_MS: Final = 50
# The longest delay until the watching thread notices that it should stop, or that the folder was replaced.
_WAKE_MS: Final = 500

FileStamp = tuple[int, ...] | None
"""A value that changes whenever the file changes; None if the file does not exist."""


class FilesUnusable(GatewayError):
    """The folder of operations or the schema file is missing or unusable; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file in the folder of operations.

    Attributes:
        name: The path relative to the folder.
        data: The content; empty for a rejected file.
        digest: The SHA-256 digest of the content; empty for a rejected file.
        refused: The reason why the file was rejected; None for an accepted file.
    """

    name: str
    data: bytes = field(default=b"", repr=False)
    digest: bytes = b""
    refused: str | None = None


def read_folder(folder: Path) -> tuple[SourceFile, ...]:
    """Read every `.graphql` and `.gql` file of a folder and its subfolders, sorted by name.

    Skip names that start with a dot. Follow a link only to a file inside the folder, so that a link cannot expose other
    files. Kubernetes mounts files as links inside the folder.

    Raises:
        FilesUnusable: The folder does not exist, or is not a folder.
    """
    try:
        root = folder.resolve(strict=True)
        names = sorted(_walk(root, "", 0))
    except OSError as error:
        raise FilesUnusable(f"operations: {folder}: {error.strerror or error}") from None
    files: list[SourceFile] = []
    room = MAX_FOLDER_BYTES  # bytes left
    for name in names[:MAX_FILES]:
        file = _read_file(root, name, room)
        room -= len(file.data)
        files.append(file)
    if len(names) > MAX_FILES:
        files.append(SourceFile(name="(folder)", refused=f"more than {MAX_FILES} files; the others are not read"))
    return tuple(files)


def _walk(root: Path, below: str, depth: int) -> Iterator[str]:
    with os.scandir(root / below) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{below}{entry.name}"
            if entry.name.endswith(SUFFIXES):
                yield name
            elif depth < _MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                yield from _walk(root, f"{name}/", depth + 1)


def _read_file(root: Path, name: str, room: int) -> SourceFile:
    try:
        path = (root / name).resolve(strict=True)
        if not path.is_relative_to(root):
            return SourceFile(name=name, refused="a link to a file outside the folder")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return SourceFile(name=name, refused="not a regular file")
        limit = min(MAX_FILE_BYTES, room)
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, RuntimeError) as error:
        return SourceFile(name=name, refused=f"it cannot be read ({getattr(error, 'strerror', None) or error})")
    if len(data) > limit:
        what = (
            f"it has more than {MAX_FILE_BYTES} bytes"
            if limit == MAX_FILE_BYTES
            else f"the folder has more than {MAX_FOLDER_BYTES} bytes"
        )
        return SourceFile(name=name, refused=what)
    return SourceFile(name=name, data=data, digest=hashlib.sha256(data).digest())


async def watch_paths(folder: Path | None, file: Path | None, changed: Callable[[], None]) -> None:
    """Call `changed` shortly after the folder or the file may have changed, until cancelled.

    Ignore other files in or next to the folder: the gateway may write its own state there.
    """
    own = frozenset(path for path in (folder, file) if path is not None)
    async with anyio.create_task_group() as group:
        if folder is not None:
            group.start_soon(_watch, frozenset({folder}), None, changed)
        if own:
            group.start_soon(_watch, _parent_folders(own), own, changed)


def _parent_folders(own: frozenset[Path]) -> frozenset[Path]:
    """Return the parent folders of these paths. For each path that is a link, add the parent folder of its target."""
    return frozenset({path.parent for path in own} | {path.resolve().parent for path in own if path.is_symlink()})


async def _watch(folders: frozenset[Path], own: frozenset[Path] | None, changed: Callable[[], None]) -> None:
    """Call `changed` when `folders` may have changed, until cancelled.

    Args:
        own: The only paths to watch, directly inside `folders`; None to watch the whole folders.
    """
    # Do not use the default limiter, because a few dozen watched folders would occupy all its threads.
    limiter = anyio.CapacityLimiter(1)
    while True:
        stop = threading.Event()
        try:
            able = await anyio.to_thread.run_sync(
                _wait_for_changes, folders, own, changed, stop, limiter=limiter, abandon_on_cancel=True
            )
        finally:
            stop.set()
        # The folder is missing, cannot be watched, or was replaced. A replaced folder has to be watched again.
        await anyio.sleep(_RETRY_S if able else _UNWATCHED_S)
        if any(folder.exists() for folder in folders):
            changed()


def _wait_for_changes(
    folders: frozenset[Path], own: frozenset[Path] | None, changed: Callable[[], None], stop: threading.Event
) -> bool:
    """Call `changed` after each change until a folder is replaced; return false if the folders cannot be watched."""
    from watchfiles import watch  # imported lazily: not needed for the first response

    before = _stamps(folders)
    if None in before.values():
        return True
    stamps = _stamps(own or ())
    try:
        for changes in watch(
            *folders,
            watch_filter=_is_relevant if own is None else None,
            recursive=own is None,
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            rust_timeout=_WAKE_MS,
            stop_event=stop,
            raise_interrupt=False,
            yield_on_timeout=True,
        ):
            if stop.is_set():
                break
            if changes and (own is None or _stamps(own) != stamps):
                stamps = _stamps(own or ())
                anyio.from_thread.run_sync(changed)
            if _stamps(folders) != before:
                break
    except (OSError, RuntimeError) as error:
        # The caller polls after this error, which occurs, for example, if the user has no inotify watches left.
        log.debug("watching ended: %s", error)
        return False
    return True


def _is_relevant(change: object, path: str) -> bool:
    """Return whether the path may be an operation file, a folder, or a link, such as `..data` of Kubernetes."""
    name = os.path.basename(path)
    if name.endswith(SUFFIXES):
        return True
    if name.startswith(".") and not name.startswith(".."):
        return False
    return os.path.islink(path) or not os.path.isfile(path)


def _stamps(paths: Iterable[Path]) -> dict[Path, FileStamp]:
    return {path: stamp_of(path) for path in paths}


def stamp_of(path: Path) -> FileStamp:
    """Return a value that changes when a file is written or replaced, or when a folder is replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return status.st_dev, status.st_ino
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
