"""A change of somebody's file: its difference, made only if the file is still the same, and taken back to the byte."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.config.source import MAX_FILE_BYTES
from gateway.errors import ConfigError, GatewayError
from gateway.files import make_private_folder, write_whole
from gateway.host_files.text import values_of
from gateway.secrets import SECRETS, secrets_in

# Claude Code keeps its whole history in its file; anything beyond is no settings file.
MAX_BYTES: Final = 16 * MAX_FILE_BYTES
_FOLDER: Final = "installed"
_BACKUPS: Final = "backups"
_MARK_CHARS: Final = 16
_NEVER_WRITTEN: Final = frozenset({"managed-mcp.json", "managed-settings.json"})


class Refused(GatewayError):
    """A file is not changed; the text says why. Exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file as it is, and as it is to be.

    Attributes:
        path: The file.
        before: Its bytes; None where there is none.
        after: Those it is to have.
    """

    path: Path
    before: bytes | None
    after: bytes

    @property
    def is_needed(self) -> bool:
        """Whether anything differs."""
        return self.before != self.after

    def difference(self) -> str:
        """The difference as `diff -u` shows it, without secrets."""
        texts = [(part or b"").decode("utf-8", "replace") for part in (self.before, self.after)]
        for text in texts:
            # Those of the host's own entries, which nothing else has read.
            with suppress(ConfigError):
                SECRETS.hide(secrets_in(values_of(text, self.path)))
        old, new = (text.splitlines() for text in texts)
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="", n=2)
        return "\n".join(SECRETS.scrub(line) for line in lines)

    def make(self) -> None:
        """Write the file.

        Raises:
            Refused: It has changed in the meantime, or is never to be written.
            OSError: It cannot be written.
        """
        if self.path.name in _NEVER_WRITTEN:
            raise Refused(f"{self.path} is a policy of an administrator, and is not written")
        if content_of(self.path) != self.before:
            raise Refused(f"{self.path} has changed in the meantime; nothing was written, try again")
        target = self.path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
        write_whole(target, self.after, mode=mode)


def content_of(path: Path) -> bytes | None:
    """The bytes of a file; None where there is none.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", file=str(path)) from None
    if len(content) > MAX_BYTES:
        raise ConfigError("is too big for a settings file", file=str(path))
    return content


def change_of(path: Path, edit: Callable[[str], str]) -> FileChange:
    """What an edit makes of a file; its line ends and its byte order mark stay.

    Raises:
        ConfigError: The file cannot be read, or the edit cannot be made.
    """
    before = content_of(path)
    try:
        text = (before or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 at byte {error.start}", file=str(path)) from None
    windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    changed = edit(text.replace("\r\n", "\n") if windows else text)
    return FileChange(path=path, before=before, after=(changed.replace("\n", "\r\n") if windows else changed).encode())


def keep_backup(state_dir: Path, change: FileChange) -> Path | None:
    """Keep what a file of ours was before it is changed; returns where, or None where there was none.

    Raises:
        OSError: It cannot be kept.
    """
    if change.before is None:
        return None
    folder = state_dir / _BACKUPS
    make_private_folder(folder)
    kept = folder / f"{_digest(change.before)[:_MARK_CHARS]}-{change.path.name}"
    write_whole(kept, change.before)
    return kept


class Installations:
    """Which files of hosts we have changed, with what they were before."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / _FOLDER

    def record(self, change: FileChange, *, name: str) -> Path:
        """Keep what a file was, before it is changed; returns where.

        Args:
            change: The file.
            name: The entry of ours in it.

        Raises:
            Refused: It was changed before, and that was not taken back.
        """
        if self.known(change.path) is not None:
            raise Refused(f"{change.path} was changed before; `typegate uninstall` takes that back first")
        backup, note = self._files(change.path)
        make_private_folder(self._folder)
        write_whole(backup, change.before or b"")
        kept = {
            "path": str(change.path),
            "existed": change.before is not None,
            "after": _digest(change.after),
            "name": name,
        }
        write_whole(note, json.dumps(kept).encode())
        return backup

    def known(self, path: Path) -> dict[str, Any] | None:
        """What is recorded of a file; None where nothing is."""
        try:
            found = json.loads(self._files(path)[1].read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def is_untouched(self, path: Path) -> bool:
        """Whether a file that we have changed is as we left it."""
        known, current = self.known(path), content_of(path)
        return known is not None and current is not None and _digest(current) == known["after"]

    def before(self, path: Path) -> bytes:
        """What a file was before it was changed.

        Raises:
            OSError: The backup is gone.
        """
        return self._files(path)[0].read_bytes()

    def undo(self, path: Path, *, force: bool = False, merge: Callable[[bytes, bytes], bytes] | None = None) -> str:
        """Take a change back, to the byte; returns what was done.

        Args:
            path: The file.
            force: Also where somebody has changed it since.
            merge: Given the file as it is and as it was, takes out of it only what is ours.

        Raises:
            Refused: Nothing is recorded of it, or it has changed since.
        """
        known = self.known(path)
        if known is None:
            raise Refused(f"nothing is known of a change of {path}")
        current, before = content_of(path), self.before(path)
        backup, note = self._files(path)
        if current is None or _digest(current) != known["after"]:
            if not force or merge is None or current is None:
                raise Refused(
                    f"{path} has changed since; `--force` takes only the entry of typegate out and puts the others "
                    f"back, and {backup} is how it was"
                )
            FileChange(path=path, before=current, after=merge(current, before)).make()
            done = "our entry taken out"
        elif known["existed"]:
            FileChange(path=path, before=current, after=before).make()
            done = "as it was"
        else:
            path.unlink()
            done = "removed, as there was none before"
        note.unlink(missing_ok=True)
        backup.unlink(missing_ok=True)
        return done

    def discard(self, path: Path) -> None:
        """Forget what was recorded of a file that was not changed after all."""
        for each in self._files(path):
            each.unlink(missing_ok=True)

    def _files(self, path: Path) -> tuple[Path, Path]:
        mark = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:_MARK_CHARS]
        return self._folder / f"{mark}.before", self._folder / f"{mark}.json"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
