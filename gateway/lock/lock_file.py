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
from registry.lock.lockfile import MAX_BYTES, Lockfile, configuration_in, parse_lockfile

FILE_NAME: Final = "typegate.lock"
"""Its name where the configuration gives it none."""
OF_OTHERS: Final = (
    "names no configuration and has none of the servers of {name}, so that all of them are held. If it belongs to "
    "another configuration, run `typegate lock --config FILE` with that one, which writes its name; {name} gets a lock "
    "file of its own then. Otherwise remove it"
)
"""Of a lock file that is likely another configuration's; `name` is the file name of this one."""
_DECODED_BYTES: Final = 1024 * 1024
# The name of the configuration is the first member.
_BEGINNING_BYTES: Final = 4_096


def lock_path(config: Config) -> Path | None:
    """Where the lock file of a configuration is, whether it is there or not; None where there is no place for one.

    Two configurations of a folder have two lock files: each names the one that it belongs to.
    """
    folder = config.path.parent if config.path is not None else None
    named = config.gateway.lock.file
    if named is None:
        return None if folder is None or config.path is None else _usual_path(config.path)
    path = expand_home(named)
    if folder is None and not path.is_absolute():
        return None
    return path if folder is None else folder / path


def _usual_path(config: Path) -> Path:
    """Return where the lock file of a configuration is by default.

    It is typegate.lock, unless this one is of another configuration in the same folder. The file of a configuration
    that is gone is used: it was renamed, and its servers are to stay locked.
    """
    usual, own = config.parent / FILE_NAME, config.parent / f"typegate.{config.name}.lock"
    return own if own.is_file() or other_configuration(usual, config) else usual


def other_configuration(path: Path, config: Path | None) -> str:
    """Return the other configuration that a lock file belongs to; empty where it is none, or is gone."""
    try:
        with path.open("rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return ""
            beginning = stream.read(_BEGINNING_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""  # reported where it is read as a whole
    name = configuration_in(beginning)
    other = path.parent / name
    is_other = bool(name) and config is not None and other.is_file() and not _is_same(other, config)
    return name if is_other else ""


def name_in(path: Path, config: Path) -> str:
    """Return how a lock file names a configuration."""
    return Path(os.path.relpath(config.absolute(), path.absolute().parent)).as_posix()


def lock_notes(config: Config, lockfile: Lockfile | None) -> list[str]:
    """Return what people have to know where several configurations may have one lock file.

    Args:
        config: The configuration.
        lockfile: What its lock file says; None where there is none.
    """
    path = lock_path(config)
    if path is None or config.path is None:
        return []
    name = config.path.name
    usual = config.path.parent / FILE_NAME
    if lockfile is None:
        if path != usual and (other := other_configuration(usual, config.path)):
            return [
                f"{usual} is the lock file of {other}, and {name} has none: what its servers list is trusted until "
                f"`typegate lock --config {config.path}` has written {path.name}"
            ]
        return []
    if other := other_configuration(path, config.path):
        return [
            f"{path} is the lock file of {other}, and {name} uses it too, by gateway.lock.file: servers that only "
            f"{name} has are held, and `typegate lock` drops those that only {other} has"
        ]
    if is_of_others(config, lockfile):
        return [f"{path} {OF_OTHERS.format(name=name)}"]
    return []


def is_of_others(config: Config, lockfile: Lockfile) -> bool:
    """Whether a lock file names no configuration and has none of the servers of this one, but others."""
    known = {*config.servers, *config.left_out}
    return not lockfile.configuration and bool(lockfile.servers) and bool(known) and known.isdisjoint(lockfile.servers)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


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
