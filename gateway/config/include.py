"""`include`: files beside the main one that say more about its servers, profiles and settings.

An included file has the same form as the main one. Objects of the same key are joined, down to single keys, of which
each stands in one file. Relative paths, here and in what is included, start at the folder of the main file.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.config.section import suggestion
from gateway.config.source import MAX_FILE_BYTES, join, kind, read, values
from gateway.config.watch import OtherFiles
from gateway.errors import ConfigError

KEY: Final = "include"
# One file for each of some hundred servers; more is a pattern that matches what it should not.
_MAX_FILES: Final = 500
_BLOCKS: Final = ("mcpServers", "servers")
_KNOWN_KEYS: Final = (*_BLOCKS, "gateway")
_EXPECTED: Final = "a list of paths, with * in the names of files only"


@dataclass(slots=True)
class Included:
    """What a main file includes.

    Attributes:
        files: The files, in the order of the patterns, by name for each.
        warnings: Patterns that match nothing.
    """

    files: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _origins: dict[str, str] = field(default_factory=dict)

    def file_of(self, key: str | None, main: str) -> str:
        """The file in which a key stands, by its path as messages show it."""
        best = max((one for one in self._origins if _is_below(key or "", one)), key=len, default=None)
        return main if best is None else self._origins[best]

    def located(self, error: ConfigError, main: str) -> ConfigError:
        """The error, naming the file in which its key stands."""
        file = self.file_of(error.key, main) if error.file == main else error.file
        return error if file == error.file else ConfigError(error.message, file=file, key=error.key)

    def note(self, key: str, file: str) -> None:
        """Note where a key stands that is not in the main file."""
        self._origins[key] = file


def patterns_of(raw: dict[str, Any], folder: Path, file: str) -> tuple[Path, ...]:
    """The paths that a main file includes; those with a wildcard in their last part stand for any number of files.

    Raises:
        ConfigError: They are no list of such paths.
    """
    given = raw.get(KEY)
    if given is None:
        return ()
    if not isinstance(given, list):
        raise ConfigError(f"is {kind(given)}; expected {_EXPECTED}", file=file, key=KEY)
    found: list[Path] = []
    for index, pattern in enumerate(given):
        key = f"{KEY}[{index}]"
        if not isinstance(pattern, str) or not pattern.strip() or "\0" in pattern:
            raise ConfigError(f"is {kind(pattern)}; expected a path in quotes", file=file, key=key)
        path = folder / pattern
        if glob.has_magic(str(Path(pattern).parent)):
            raise ConfigError(f"has a wildcard in a folder's name; expected {_EXPECTED}", file=file, key=key)
        found.append(path)
    return tuple(found)


def matching(pattern: Path) -> list[Path]:
    """The files that a path stands for now, ordered by name; a path without a wildcard stands for itself."""
    if not glob.has_magic(pattern.name):
        return [pattern]
    # Hidden files are those that editors leave behind.
    names = glob.glob(pattern.name, root_dir=pattern.parent)
    return [path for name in sorted(names) if (path := pattern.parent / name).is_file()]


def watched_by(path: Path) -> OtherFiles:
    """The files that the one at `path` includes, as far as that can be read, and where more may appear."""
    try:
        patterns = patterns_of(values(read(path), file=str(path)), path.parent, str(path))
    except ConfigError:
        return OtherFiles()
    return OtherFiles(
        files=tuple(file for pattern in patterns for file in matching(pattern)),
        folders=tuple(pattern.parent for pattern in patterns),
    )


def join_included(raw: dict[str, Any], *, path: Path | None, file: str) -> Included:
    """Join what the main file includes into its values, in place.

    Args:
        raw: The values of the main file.
        path: Where that is.
        file: As messages name it.

    Raises:
        ConfigError: An included file cannot be used, or a key stands in two files.
    """
    included = Included()
    folder = path.parent if path is not None else Path()
    left_bytes = MAX_FILE_BYTES
    for index, pattern in enumerate(patterns_of(raw, folder, file)):
        files = [one for one in matching(pattern) if path is None or not _is_same(one, path)]
        if not files:
            included.warnings.append(f"{KEY}[{index}]: {raw[KEY][index]} matches no file")
        for one in files:
            if any(_is_same(one, known) for known in included.files):
                continue
            if len(included.files) >= _MAX_FILES:
                raise ConfigError(f"matches more than {_MAX_FILES} files; expected fewer", file=file, key=KEY)
            text = read(one)
            left_bytes -= len(text)
            if left_bytes < 0:
                raise ConfigError("is more than 4 MiB together; expected less", file=file, key=KEY)
            included.files.append(one)
            _join_file(raw, values(text, file=str(one)), included, file, str(one))
    return included


def _join_file(raw: dict[str, Any], more: dict[str, Any], included: Included, main: str, file: str) -> None:
    if KEY in more:
        raise ConfigError("stands in an included file; expected it in the main file only", file=file, key=KEY)
    block = next((key for key in _BLOCKS if raw.get(key) is not None), None)
    for key, value in more.items():
        if key == "$schema":
            continue
        if key not in _KNOWN_KEYS:
            # No host reads these files: whatever stands here is meant for us.
            raise ConfigError(f"unknown key; expected {suggestion(key, list(_KNOWN_KEYS))}", file=file, key=key)
        target = block if key in _BLOCKS and block is not None else key
        if value is not None:
            _join(raw, target, value, target, included, main, file)


def _join(into: dict[str, Any], key: str, value: Any, path: str, included: Included, main: str, file: str) -> None:
    # Not recursive beyond what `values` admits: that bounds the depth.
    known = into.get(key)
    if known is None:
        into[key] = value
        for one in _paths_in(value, path):
            included.note(one, file)
    elif isinstance(known, dict) and isinstance(value, dict):
        for name, member in value.items():
            _join(known, name, member, join(path, name), included, main, file)
    else:
        other = included.file_of(path, main)
        raise ConfigError(f"stands in {other} too; expected each key in one file", file=file, key=path)


def _paths_in(value: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _paths_in(member, join(path, name))


def _is_below(key: str, above: str) -> bool:
    return key == above or key.startswith((f"{above}.", f"{above}["))


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
