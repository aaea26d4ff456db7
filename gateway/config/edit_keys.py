"""Take keys of callers out of a configuration file; comments, order and style of the rest stay."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.config.auth import ApiKey
from gateway.config.edit import rewritten, write
from gateway.config.include import join_included
from gateway.config.load import load
from gateway.config.named_callers import is_named
from gateway.config.section import suggestion
from gateway.config.source import read, values
from gateway.config.unmatched_rules import NOTHING_ADDED, AddedNames
from gateway.errors import ConfigError

KEY: Final = "gateway.auth.apiKeys"
_PATH: Final = ("gateway", "auth", "apiKeys")
# Enough for any number of keys that somebody looks through; fewer might be meant for another one.
_MIN_PREFIX_CHARS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """Keys that are good for nothing any more.

    Attributes:
        names: Their names, one for each key.
        file: Where they stood.
        kept: They were the last ones, and stay there as expired: without any key everybody could call.
    """

    names: list[str]
    file: Path
    kept: bool


class NoSuchKey(ConfigError):
    """What was to be revoked is not there, or is not told apart."""


def hash_of(key: ApiKey) -> str:
    """The SHA-256 of a key, in hexadecimal digits."""
    if key.key is not None:
        return hashlib.sha256(key.key.get_secret_value().encode()).hexdigest()
    return (key.key_hash or "").removeprefix("sha256:")


def revoke_keys(path: Path, which: str, added: AddedNames = NOTHING_ADDED) -> Revoked:
    """Take all keys of a name, or the one whose hash begins so, out of a file, which is replaced atomically.

    Args:
        path: The file.
        which: Which keys.
        added: What administrators have added to the configuration.

    Raises:
        NoSuchKey: There is none.
        ConfigError: The file cannot be used, or holds comments in an entry in braces that would be lost.
    """
    config = load(path, added=added)
    keys = config.gateway.auth.api_keys
    chosen = chosen_keys(keys, which, str(path))
    kept = len(chosen) == len(keys) and config.gateway.auth.oauth is None
    # A rule about nobody may be a slip, for which the file would be refused.
    kept = kept or any(is_named(keys[at].name, config.gateway) for at in chosen)
    file = _file_with_keys(path)
    text = read(file)
    root = values(text, file=str(file))
    wanted = deepcopy(root)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    _change(_entries(wanted), chosen, now if kept else None)
    write(file, rewritten(text, file, root, wanted))
    return Revoked(names=[keys[at].name for at in chosen], file=file, kept=kept)


def chosen_keys(keys: Sequence[ApiKey], which: str, file: str) -> list[int]:
    """The places of the keys that are meant: all of a name, or the one whose hash begins so.

    Raises:
        NoSuchKey: There is none, or there are several.
    """
    if named := [at for at, key in enumerate(keys) if key.name == which]:
        return named
    prefix = which.removeprefix("sha256:").lower()
    hashed = [at for at, key in enumerate(keys) if len(prefix) >= _MIN_PREFIX_CHARS and hash_of(key).startswith(prefix)]
    if len(hashed) == 1:
        return hashed
    if hashed:
        raise NoSuchKey(f"{len(hashed)} hashes begin with {prefix}; expected more of one", file=file, key=KEY)
    expected = suggestion(which, [key.name for key in keys]) if keys else "keys, of which there are none"
    raise NoSuchKey(f"there is no key {which!r}; expected {expected}", file=file, key=KEY)


def _file_with_keys(path: Path) -> Path:
    """The main file, or the one that it includes in which the keys stand."""
    included = join_included(values(read(path), file=str(path)), path=path, file=str(path))
    return Path(included.file_of(KEY, str(path)))


def _entries(root: Any) -> Any:
    for step in _PATH:
        root = root[step]
    return root


def _change(entries: Any, chosen: Sequence[int], expires: str | None) -> None:
    for at in reversed(chosen):
        if expires is None:
            del entries[at]
        else:
            entries[at]["expires"] = expires
