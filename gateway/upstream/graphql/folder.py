"""A folder of operations: its files, within bounds, and a call when one has changed."""

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

from gateway.errors import GatewayError

log = logging.getLogger(__name__)

SUFFIXES: Final = (".graphql", ".gql")
# Far above folders in use (hundreds of files of some kilobytes); who names `/` by mistake gets a reason.
MAX_FILES: Final = 10_000
MAX_FILE_BYTES: Final = 512 * 1024
MAX_FOLDER_BYTES: Final = 64 * 1024 * 1024
_MAX_DEPTH: Final = 32
# How soon a folder that is gone is looked for: between the two steps of a replacement there is none.
_RETRY_S: Final = 1.0
# How often it is looked at where the system gives no watch.
_UNWATCHED_S: Final = 10.0
# Changes within this time are one: an editor writes a file in several steps.
_DEBOUNCE_MS: Final = 100
_STEP_MS: Final = 50
# How long the thread takes to notice that it is to end, or that the folder is another one.
_WAKE_MS: Final = 500

FileStamp = tuple[int, ...] | None
"""Equal for equal states of a file; None while there is none."""


class FilesUnusable(GatewayError):
    """The folder of operations, or the file of the schema, is not there or of no use; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file, named by its path inside the folder; without its content where that is refused."""

    name: str
    data: bytes = field(default=b"", repr=False)
    digest: bytes = b""
    refused: str | None = None


def read_folder(folder: Path) -> tuple[SourceFile, ...]:
    """Every `.graphql` and `.gql` file of a folder and its subfolders, in the order of their names.

    What begins with a dot is left out. A link is followed only to a file inside the folder, so that a folder
    shows nothing but itself; as Kubernetes mounts them, files are such links.

    Raises:
        FilesUnusable: It is not there, or no folder.
    """
    try:
        root = folder.resolve(strict=True)
        found = sorted(_walk(root, "", 0))
    except OSError as error:
        raise FilesUnusable(f"operations: {folder}: {error.strerror or error}") from None
    files: list[SourceFile] = []
    room = MAX_FOLDER_BYTES  # what is left of it
    for name in found[:MAX_FILES]:
        file = _read(root, name, room)
        room -= len(file.data)
        files.append(file)
    if len(found) > MAX_FILES:
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


def _read(root: Path, name: str, room: int) -> SourceFile:
    try:
        path = (root / name).resolve(strict=True)
        if not path.is_relative_to(root):
            return SourceFile(name=name, refused="a link that leads out of the folder")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return SourceFile(name=name, refused="no ordinary file")
        limit = min(MAX_FILE_BYTES, room)
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, RuntimeError) as error:
        return SourceFile(name=name, refused=f"it cannot be read ({getattr(error, 'strerror', None) or error})")
    if len(data) > limit:
        what = f"it has more than {MAX_FILE_BYTES} bytes" if limit == MAX_FILE_BYTES else "the folder holds too much"
        return SourceFile(name=name, refused=what)
    return SourceFile(name=name, data=data, digest=hashlib.sha256(data).digest())


async def watch_paths(folder: Path | None, file: Path | None, changed: Callable[[], None]) -> None:
    """Call `changed` soon after anything in the folder, or the file, may have changed, until cancelled.

    Other files in the folder, or next to it, do not count: our own state may be there.
    """
    own = frozenset(path for path in (folder, file) if path is not None)
    async with anyio.create_task_group() as group:
        if folder is not None:
            group.start_soon(_watch, frozenset({folder}), None, changed)
        if own:
            group.start_soon(_watch, _beside(own), own, changed)


def _beside(own: frozenset[Path]) -> frozenset[Path]:
    """The folders in which one of these can be replaced, or a link to it."""
    return frozenset({path.parent for path in own} | {path.resolve().parent for path in own if path.is_symlink()})


async def _watch(folders: frozenset[Path], own: frozenset[Path] | None, changed: Callable[[], None]) -> None:
    """Watch folders: whole, or for these few that are directly in them."""
    # A thread of its own: those that all share would run out with some dozens of folders.
    limiter = anyio.CapacityLimiter(1)
    while True:
        stop = threading.Event()
        try:
            able = await anyio.to_thread.run_sync(
                _wait_for_changes, folders, own, changed, stop, limiter=limiter, abandon_on_cancel=True
            )
        finally:
            stop.set()
        # Gone, or not there yet: a folder that is put in its place is another one to the system.
        await anyio.sleep(_RETRY_S if able else _UNWATCHED_S)
        if any(folder.exists() for folder in folders):
            changed()


def _wait_for_changes(
    folders: frozenset[Path], own: frozenset[Path] | None, changed: Callable[[], None], stop: threading.Event
) -> bool:
    """Report changes until a folder is another one than at the beginning; False where none can be watched."""
    from watchfiles import watch  # late: nothing that a first answer needs

    before = _stamps(folders)
    if None in before.values():
        return True
    stamps = _stamps(own or ())
    try:
        for changes in watch(
            *folders, watch_filter=_is_relevant if own is None else None, recursive=own is None,
            debounce=_DEBOUNCE_MS, step=_STEP_MS, rust_timeout=_WAKE_MS,
            stop_event=stop, raise_interrupt=False, yield_on_timeout=True,
        ):  # fmt: skip
            if stop.is_set():
                break
            if changes and (own is None or _stamps(own) != stamps):
                stamps = _stamps(own or ())
                anyio.from_thread.run_sync(changed)
            if _stamps(folders) != before:
                break
    except (OSError, RuntimeError) as error:
        # As where a system has no more watches to give: then the folder is looked at now and then.
        log.debug("watching ended: %s", error)
        return False
    return True


def _is_relevant(change: object, path: str) -> bool:
    """Whether it may be a file of ours, a folder with some, or a link to one, as `..data` of Kubernetes."""
    name = os.path.basename(path)
    if name.endswith(SUFFIXES):
        return True
    if name.startswith(".") and not name.startswith(".."):
        return False
    return os.path.islink(path) or not os.path.isfile(path)


def _stamps(paths: Iterable[Path]) -> dict[Path, FileStamp]:
    return {path: stamp_of(path) for path in paths}


def stamp_of(path: Path) -> FileStamp:
    """Differs for another file in its place and after each write; for a folder only where another is in its place."""
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return status.st_dev, status.st_ino
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
