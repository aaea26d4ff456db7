"""Edit a host's settings file without losing comments or concurrent changes, and undo the edit."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from gateway.config.file_edits import holds_json, rewrite_values
from gateway.config.flow_text import Value, in_json, with_member, without_member
from gateway.config.source import MAX_FILE_BYTES, values
from gateway.process.files import make_private_folder, write_whole
from gateway.process.secrets import SECRETS, secrets_in
from gateway.protocol.gateway_errors import ConfigError, GatewayError

Keys = Sequence[str]
_PLACEHOLDER: Final = "_"


def parse_values(text: str, path: Path) -> dict[str, Any]:
    """Return the values of a JSON, YAML or TOML file.

    Raises:
        ConfigError: The file is malformed.
    """
    if not text.strip("\ufeff \t\r\n"):
        return {}
    if path.suffix == ".toml":
        import tomllib

        try:
            return tomllib.loads(text.removeprefix("\ufeff"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"is not TOML: {error}", file=str(path)) from None
    return values(text, file=str(path))


def edit_entries(
    text: str, path: Path, block: Keys, put: Mapping[str, Mapping[str, Any]], drop: Sequence[str] = ()
) -> str:
    """Return the text of a settings file after adding, replacing and removing server entries.

    Args:
        text: The current text; empty for a new file.
        path: The file, whose suffix determines the format.
        block: The path of keys to the object that contains the entries. Missing objects are created.
        put: Entries to add or replace, by name.
        drop: Names of entries to remove.

    Raises:
        ConfigError: The file is malformed, or the block is not an object.
    """
    root = parse_values(text, path)
    drop = [*drop]
    if not root and path.suffix in (".yaml", ".yml"):
        # Add a temporary entry, so that the YAML is written in block style and not in braces.
        text, root = f"{text}{block[0]}:\n  {_PLACEHOLDER}: {{}}\n", {block[0]: {_PLACEHOLDER: {}}}
        drop.append(_PLACEHOLDER)
    holder: Any = root
    for place, key in enumerate(block):
        holder = holder.get(key, {})
        if holder is None or not isinstance(holder, dict):
            raise ConfigError("is not an object", file=str(path), key=".".join(block[: place + 1]))
    removed = [name for name in drop if name in holder and name not in put]
    if path.suffix == ".toml":
        changed = _in_toml(text, block, put, removed)
    elif not root or holds_json(text, path):
        changed = _in_json(text or "{\n}\n", block, put, removed)
    else:
        return rewrite_values(text, path, root, _values_after_edit(root, block, put, removed), drops_comments=True)
    # Verify that the edit changed only the entries.
    if json.loads(json.dumps(parse_values(changed, path), default=str)) != _values_after_edit(
        root, block, put, removed
    ):
        raise ConfigError(
            "cannot be edited automatically, because other settings would change too; expected an edit by hand",
            file=str(path),
        )
    return changed


def _values_after_edit(
    before: dict[str, Any], block: Keys, put: Mapping[str, Any], removed: Sequence[str]
) -> dict[str, Any]:
    """Return the parsed values that the file must have after the edit."""
    expected: dict[str, Any] = json.loads(json.dumps(before, default=str))
    holder = expected
    for key in block:
        holder = holder.setdefault(key, {})
    for name in removed:
        holder.pop(name, None)
    holder.update({name: dict(entry) for name, entry in put.items()})
    return expected


def _in_json(text: str, block: Keys, put: Mapping[str, Any], removed: Sequence[str]) -> str:
    if not text.strip("\ufeff \t\r\n"):
        text = "{\n}\n"

    def locate(keys: Keys) -> Value | None:
        place = in_json(text)
        for key in keys:
            if key not in place.members:
                return None
            place = place.members[key][1]
        return place

    for name in removed:
        holder = locate(block)
        assert holder is not None
        text = without_member(text, holder, name)
    for name, entry in put.items():
        # Add the entry together with the missing outer objects.
        for depth in range(len(block), -1, -1):
            holder = locate(block[:depth])
            if holder is None:
                continue
            key, value = name, entry
            if depth < len(block):
                key = block[depth]
                value = {name: entry}
                for outer in reversed(block[depth + 1 :]):
                    value = {outer: value}
            text = with_member(text, holder, key, value)
            break
    return text


def _in_toml(text: str, block: Keys, put: Mapping[str, Any], removed: Sequence[str]) -> str:
    import tomlkit

    document: Any = tomlkit.parse(text)
    holder = document
    for key in block:
        if key not in holder:
            holder[key] = tomlkit.table(is_super_table=True)
        holder = holder[key]
    for name in removed:
        holder.remove(name)
    for name, entry in put.items():
        table = _inline(entry) if isinstance(holder, tomlkit.items.InlineTable) else _table(entry)
        if name in holder:
            holder[name] = table
        else:
            holder.add(name, table)
    return _with_comments(text, tomlkit.dumps(document))


def _table(entry: Mapping[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.table()
    for key, value in entry.items():
        table.add(key, value)
    return table


def _inline(entry: Mapping[str, Any]) -> Any:
    """Return an inline table, as required inside another inline table."""
    import tomlkit

    table = tomlkit.inline_table()
    for key, value in entry.items():
        table.append(key, _inline(value) if isinstance(value, Mapping) else value)
    return table


def _with_comments(before: str, after: str) -> str:
    """Return the text `after` with the comment lines of `before` that were removed together with a table.

    They are restored because a comment at the end of a table usually describes the next table.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines: list[str] = []
    for action, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        added = new[new_from:new_to]
        lines += added
        gap: list[str] = []
        for line in old[old_from:old_to] if action in ("delete", "replace") else ():
            gap = [*gap, line] if not line.strip() else gap
            if line.lstrip().startswith("#") and line not in added:
                lines += [*(gap if lines and lines[-1].strip() else ()), line]
            gap = gap if not line.strip() else []
    return "".join(lines)


# Claude Code stores its whole history in its settings file, so the limit is generous.
MAX_BYTES: Final = 16 * MAX_FILE_BYTES
_FOLDER: Final = "installed"
_BACKUPS: Final = "backups"
_MARK_CHARS: Final = 16
_NEVER_WRITTEN: Final = frozenset({"managed-mcp.json", "managed-settings.json"})


class Refused(GatewayError):
    """A file was not changed. The text gives the reason, and the command exits with code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A planned change of a file.

    Attributes:
        before: The current content; None if the file does not exist.
        after: The new content.
    """

    path: Path
    before: bytes | None
    after: bytes

    @property
    def is_needed(self) -> bool:
        """True if the content changes."""
        return self.before != self.after

    def difference(self) -> str:
        """Return a unified diff of the change, with secrets removed."""
        texts = [(part or b"").decode("utf-8", "replace") for part in (self.before, self.after)]
        for text in texts:
            # Register the secrets in the host's own entries, so that `scrub` removes them from the diff.
            with suppress(ConfigError):
                SECRETS.hide(secrets_in(parse_values(text, self.path)))
        old, new = (text.splitlines() for text in texts)
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="", n=2)
        return "\n".join(SECRETS.scrub(line) for line in lines)

    def apply(self) -> None:
        """Write the file.

        Raises:
            Refused: The file was changed concurrently, or must not be written.
            OSError: The file cannot be written.
        """
        if self.path.name in _NEVER_WRITTEN:
            raise Refused(f"{self.path} is a policy of the machine's administrator and was not changed")
        if read_content(self.path) != self.before:
            raise Refused(f"{self.path} was changed by another program in the meantime; nothing was written, try again")
        target = self.path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
        write_whole(target, self.after, mode=mode)


def read_content(path: Path) -> bytes | None:
    """Return the content of a file; None if the file does not exist.

    Raises:
        ConfigError: The file cannot be read.
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


def plan_edit(path: Path, edit: Callable[[str], str]) -> FileChange:
    """Plan an edit of a file, preserving its line endings and byte order mark.

    Raises:
        ConfigError: The file cannot be read or edited.
    """
    before = read_content(path)
    try:
        text = (before or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 at byte {error.start}", file=str(path)) from None
    has_crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    changed = edit(text.replace("\r\n", "\n") if has_crlf else text)
    return FileChange(path=path, before=before, after=(changed.replace("\n", "\r\n") if has_crlf else changed).encode())


def back_up(state_dir: Path, change: FileChange) -> Path | None:
    """Back up the old content of a changed file, and return the path of the backup; None for a new file.

    Raises:
        OSError: The backup cannot be written.
    """
    if change.before is None:
        return None
    folder = state_dir / _BACKUPS
    make_private_folder(folder)
    backup = folder / f"{_digest(change.before)[:_MARK_CHARS]}-{change.path.name}"
    write_whole(backup, change.before)
    return backup


class Installations:
    """Records of the hosts' files that typegate has changed, with a backup of each."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / _FOLDER

    def record(self, change: FileChange, *, name: str) -> Path:
        """Back up a file and record the planned change, and return the path of the backup.

        Args:
            name: The name of the gateway's entry.

        Raises:
            Refused: An earlier change of the file is recorded and was not undone.
        """
        if self.find(change.path) is not None:
            raise Refused(f"{change.path} already has an installation; undo it with `typegate uninstall` first")
        backup, note = self._files(change.path)
        make_private_folder(self._folder)
        write_whole(backup, change.before or b"")
        recorded = {
            "path": str(change.path),
            "existed": change.before is not None,
            "after": _digest(change.after),
            "name": name,
        }
        write_whole(note, json.dumps(recorded).encode())
        return backup

    def find(self, path: Path) -> dict[str, Any] | None:
        """Return the record of a file's change, or None."""
        try:
            note = json.loads(self._files(path)[1].read_bytes())
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def is_untouched(self, path: Path) -> bool:
        """Return whether a file still has the content that typegate wrote."""
        note, current = self.find(path), read_content(path)
        return note is not None and current is not None and _digest(current) == note["after"]

    def before(self, path: Path) -> bytes:
        """Return the content that a file had before typegate changed it.

        Raises:
            OSError: The backup does not exist any more.
        """
        return self._files(path)[0].read_bytes()

    def undo(self, path: Path, *, force: bool = False, merge: Callable[[bytes, bytes], bytes] | None = None) -> str:
        """Restore the original content of a file, and return a description of what was done.

        Args:
            force: Whether to write the result of `merge` if the file was edited after typegate changed it.
            merge: Called with the current and the original content. Returns the current content with the gateway's
                entry replaced by the original entries.

        Raises:
            Refused: No change of the file is recorded, or the file was edited after typegate changed it.
        """
        recorded = self.find(path)
        if recorded is None:
            raise Refused(f"there is no recorded change of {path}")
        current, before = read_content(path), self.before(path)
        backup, note = self._files(path)
        if current is None or _digest(current) != recorded["after"]:
            if not force or merge is None or current is None:
                raise Refused(
                    f"{path} has changed since; `--force` removes only the entry of typegate and restores the replaced "
                    f"ones. The original file is {backup}"
                )
            FileChange(path=path, before=current, after=merge(current, before)).apply()
            done = "the entry of typegate was removed"
        elif recorded["existed"]:
            FileChange(path=path, before=current, after=before).apply()
            done = "restored"
        else:
            path.unlink()
            done = "removed, because it did not exist before"
        note.unlink(missing_ok=True)
        backup.unlink(missing_ok=True)
        return done

    def discard(self, path: Path) -> None:
        """Delete the record and the backup of a file, because writing the planned change failed."""
        for each in self._files(path):
            each.unlink(missing_ok=True)

    def _files(self, path: Path) -> tuple[Path, Path]:
        mark = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:_MARK_CHARS]
        return self._folder / f"{mark}.before", self._folder / f"{mark}.json"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
