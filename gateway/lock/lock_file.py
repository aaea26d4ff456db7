"""The lock file on disk: where it is, reading and writing it."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from typing import Final

from gateway.config.model import Config
from gateway.errors import ConfigError
from gateway.files import expand_home, write_whole
from registry.errors import LockfileRejected
from registry.lock.lockfile import MAX_BYTES, Lockfile, parse_lockfile

FILE_NAME: Final = "typegate.lock"
"""Its name where the configuration gives it none."""
_DECODED_BYTES: Final = 1024 * 1024


def lock_path(config: Config) -> Path | None:
    """Where the lock file of a configuration is, whether it is there or not; None where there is no place for one."""
    folder = config.path.parent if config.path is not None else None
    named = config.gateway.lock.file
    if named is None:
        return None if folder is None else folder / FILE_NAME
    path = expand_home(named)
    if folder is None and not path.is_absolute():
        return None
    return path if folder is None else folder / path


def read_lockfile(path: Path | None) -> Lockfile | None:
    """What is approved; None where there is no lock file.

    Raises:
        ConfigError: It cannot be used.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            # What is no file may never end.
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError("is no regular file; expected a lock file", file=str(path))
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"cannot be read ({reason}); expected a lock file", file=str(path)) from None
    try:
        return parse_lockfile(_decoded(content))
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 at byte {error.start}; expected a lock file", file=str(path)) from None
    except LockfileRejected as rejected:
        raise ConfigError(rejected.detail, file=str(path), key=rejected.key) from None


def read_approved(config: Config) -> Lockfile | None:
    """What is approved, for a gateway that is about to serve by it; None where no lock file is configured or there.

    Raises:
        ConfigError: It cannot be used, or the configuration names a file that is not there.
    """
    path = lock_path(config)
    found = read_lockfile(path)
    if found is None and config.gateway.lock.file is not None:
        # A file that was lost, or a mistaken path, must not have everything trusted that was locked.
        raise ConfigError(
            f"there is no lock file at {path or config.gateway.lock.file}; `typegate lock --config FILE` writes it, "
            "and without gateway.lock.file everything that servers list is trusted",
            file=str(config.path or ""),
            key="gateway.lock.file",
        )
    return found


def _decoded(content: bytes) -> str:
    """Decode a megabyte at a time: other threads wait while one is decoded."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    parts = [content[start : start + _DECODED_BYTES] for start in range(0, len(content), _DECODED_BYTES)]
    try:
        return "".join([*map(decoder.decode, parts), decoder.decode(b"", final=True)])
    except UnicodeDecodeError:
        return content.decode("utf-8-sig")  # which says where in the whole


def write_lockfile(path: Path, lockfile: Lockfile) -> bool:
    """Write what is approved, whole; returns whether the file has changed.

    Raises:
        OSError: It cannot be written.
    """
    target = path.resolve()
    content = b"".join(piece.encode("utf-8") for piece in lockfile.pieces())
    try:
        if target.read_bytes() == content:
            return False
        mode = target.stat().st_mode & 0o7777
    except FileNotFoundError:
        # Nothing in it is secret: it is meant for git.
        mode = 0o644
    write_whole(target, content, mode=mode)
    return True
