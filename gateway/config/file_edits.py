"""Edit the entry of a tool, or revoke API keys, in a configuration file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.config import block_text
from gateway.config.auth_config import ApiKey
from gateway.config.block_text import in_yaml
from gateway.config.flow_text import (
    Value,
    has_comments,
    in_json,
    with_item,
    with_member,
    without_item,
    without_member,
)
from gateway.config.load import join_included, load
from gateway.config.section import suggestion
from gateway.config.source import read, values
from gateway.config.unmatched_names import NOTHING_ADDED, AddedNames, is_named
from gateway.config.variables import PLACEHOLDER
from gateway.process.files import write_whole
from gateway.protocol.gateway_errors import ConfigError

Entry = dict[str, Any]
_Steps = tuple[str | int, ...]


def edit_tool(path: Path, server: str, tool: str, change: Callable[[Entry], None]) -> bool:
    """Apply `change` to the entry of a tool and replace the file atomically. An empty entry is removed.

    Returns:
        True if the file has changed.

    Raises:
        ConfigError: The file cannot be used, has no such server, or has comments in braces that would be lost.
    """
    text, file = read(path), str(path)
    before = values(text, file=file)
    after = _copy_without_aliases(before)
    block = next((key for key in ("mcpServers", "servers") if after.get(key) is not None), None)
    servers = after.get(block) if block is not None else None
    if not isinstance(servers, dict) or not isinstance(servers.get(server), dict):
        aliases = ", ".join(servers) if isinstance(servers, dict) and servers else "none"
        raise ConfigError(f"there is no server '{server}'; expected one of: {aliases}", file=file, key=block)
    _apply(servers[server], tool, change, file, f"{block}.{server}")
    if after == before:
        return False
    write(path, rewrite_values(text, path, before, after))
    return True


def rewrite_values(text: str, path: Path, before: Any, after: Any, *, drops_comments: bool = False) -> str:
    """Return the text of a file with new values. Only the differences are rewritten; all other text is unchanged.

    Args:
        text: The text of the file.
        path: The path of the file, from which its format is determined.
        before: The values of the file.
        after: The new values.
        drops_comments: Whether comments in braces may be dropped together with the values that contain them.

    Raises:
        ConfigError: Comments would be lost, or values would change that are equal in `before` and `after`.
    """
    locate = in_json if holds_json(text, path) else in_yaml
    changed = _Rewriting(str(path), locate, drops_comments).rewrite(text, (), before, after)
    if not _parses_to(changed, after, str(path)):
        what = "cannot be edited automatically, because an anchor or a merge key (<<) is used; edit it by hand"
        raise ConfigError(what, file=str(path))
    return changed


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """The implementation of `rewrite_values` for one file."""

    file: str
    locate: Callable[[str], Value]
    drops_comments: bool

    def rewrite(self, text: str, path: _Steps, before: Any, after: Any) -> str:
        """Return the text with the object or list at `path` changed from `before` to `after`."""
        if isinstance(before, dict):
            for key, value in after.items():
                if key not in before or before[key] != value:
                    text = self._with_member(text, path, key, before.get(key), value)
            for key in before:
                if key not in after:
                    text = self._remove_key(text, path, key)
            return text
        for at, (old, new) in enumerate(zip(before, after, strict=False)):
            if old != new:
                text = self.rewrite(text, (*path, at), old, new)
        for item in after[len(before) :]:
            holder = self._find(text, path)
            text = block_text.with_item(text, holder, item) if holder.is_block else with_item(text, holder, item)
        return text

    def _with_member(self, text: str, path: _Steps, key: str, old: Any, new: Any) -> str:
        holder = self._find(text, path)
        member = holder.members.get(key)
        if member is not None and not member[1].is_alias:
            removed = _removed_indexes(old, new)
            if isinstance(old, dict) and isinstance(new, dict) and old and new:
                return self.rewrite(text, (*path, key), old, new)
            if removed is not None:
                for at in reversed(removed):
                    text = self._remove_key(text, (*path, key), at)
                return self.rewrite(text, (*path, key), [item for at, item in enumerate(old) if at not in removed], new)
            if not member[1].is_block:
                self._check_comments(text, path, key, member[1])
        if holder.is_block:
            return block_text.with_member(text, holder, key, new)
        return with_member(text, holder, key, new)

    def _remove_key(self, text: str, path: _Steps, key: str | int) -> str:
        holder = self._find(text, path)
        if isinstance(key, str) and key not in holder.members:
            return text  # the member comes from a merge key
        value = holder.members[key][1] if isinstance(key, str) else holder.items[key]
        if holder.is_block:
            text = (
                block_text.without_member(text, holder, key)
                if isinstance(key, str)
                else block_text.without_item(text, value)
            )
        else:
            self._check_comments(text, path, key, value)
            text = without_member(text, holder, key) if isinstance(key, str) else without_item(text, value)
        return text

    def _check_comments(self, text: str, path: _Steps, key: str | int, value: Value) -> None:
        if not self.drops_comments and has_comments(text, value):
            where = ".".join(map(str, path))
            what = f"'{key}' of {where} contains comments, which would be lost; expected them outside"
            raise ConfigError(what, file=self.file)

    def _find(self, text: str, path: _Steps) -> Value:
        value = self.locate(text)
        for step in path:
            value = value.items[step] if isinstance(step, int) else value.members[step][1]
        return value


def _is_alike(old: Any, new: Any) -> bool:
    """Return true if the item `old` of a list can be edited in place to become `new`."""
    return bool(old == new or (isinstance(old, dict) and isinstance(new, dict) and old and new))


def _removed_indexes(old: Any, new: Any) -> list[int] | None:
    """Return the indexes of the items to remove from `old`, so that editing the remaining items results in `new`.

    None means that the list has to be written again.
    """
    if not (isinstance(old, list) and isinstance(new, list) and old and new):
        return None
    if len(new) >= len(old):
        return [] if all(map(_is_alike, old, new)) else None
    removed: list[int] = []
    at = 0
    for place, item in enumerate(old):
        if at < len(new) and item == new[at]:
            at += 1
        else:
            removed.append(place)
    return removed if at == len(new) else None


def holds_json(text: str, path: Path) -> bool:
    """Return true if a configuration file is JSON, and false if it is YAML."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "/") and path.suffix not in (".yaml", ".yml")


def write(path: Path, text: str) -> None:
    """Replace a configuration file atomically, with the same permissions."""
    target = path.resolve()
    write_whole(target, text.encode("utf-8"), mode=target.stat().st_mode & 0o7777)


def literal(text: str) -> str:
    """Escape placeholders in `text`, so that it is read back unchanged."""
    return PLACEHOLDER.sub(lambda match: f"${match[0]}", text)


def _apply(server: Entry, tool: str, change: Callable[[Entry], None], file: str, key: str) -> None:
    tools = server.get("tools")
    if tools is None:
        tools = server["tools"] = {}
    if not isinstance(tools, dict):
        raise ConfigError("is not an object; expected the tools by name", file=file, key=f"{key}.tools")
    entry = tools.get(tool)
    if entry is None:
        entry = tools[tool] = {}
    if not isinstance(entry, dict):
        raise ConfigError("is not an object; expected the keys of a tool", file=file, key=f"{key}.tools.{tool}")
    change(entry)
    if not entry:
        del tools[tool]
    if not tools:
        del server["tools"]


def _parses_to(text: str, expected: Any, file: str) -> bool:
    """Return true if `text` is valid and its values are `expected`."""
    try:
        return bool(values(text, file=file) == expected)
    except ConfigError:
        return False


def _copy_without_aliases(value: Any) -> Any:
    """Return a deep copy without shared values, unlike `deepcopy`, which preserves YAML aliases as shared objects."""
    if isinstance(value, dict):
        return {key: _copy_without_aliases(member) for key, member in value.items()}
    return [_copy_without_aliases(item) for item in value] if isinstance(value, list) else value


KEY: Final = "gateway.auth.apiKeys"
_PATH: Final = ("gateway", "auth", "apiKeys")
# Enough to identify a key among a few thousand. A shorter prefix could match a key by accident.
_MIN_PREFIX_CHARS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """API keys that have been revoked.

    Attributes:
        names: The name of each key.
        file: The file that contained the keys.
        kept: True if the entries are still in the file, marked as expired. Entries are not removed if they are the only
            authentication, since anyone could call without them, or if rules or hooks refer to their names.
    """

    names: list[str]
    file: Path
    kept: bool


class NoSuchKey(ConfigError):
    """The API key to revoke does not exist, or is ambiguous."""


def hash_of(key: ApiKey) -> str:
    """Return the SHA-256 of a key as hexadecimal digits."""
    if key.key is not None:
        return hashlib.sha256(key.key.get_secret_value().encode()).hexdigest()
    return (key.key_hash or "").removeprefix("sha256:")


def revoke_keys(path: Path, which: str, added: AddedNames = NOTHING_ADDED) -> Revoked:
    """Remove API keys from a configuration and replace the file atomically.

    Args:
        path: The main file of the configuration.
        which: The name of the keys, or the beginning of the hash of a single key.
        added: Names that administrators have added to the configuration.

    Raises:
        NoSuchKey: No key matches, or several hashes do.
        ConfigError: The file cannot be used, or has comments in an entry in braces that would be lost.
    """
    config = load(path, added=added)
    keys = config.gateway.auth.api_keys
    chosen = chosen_keys(keys, which, str(path))
    keeps_entries = len(chosen) == len(keys) and config.gateway.auth.oauth is None
    # Without the entry, a rule or hook for the key would name an unknown caller, and the file could be rejected for
    # this apparent mistake.
    keeps_entries = keeps_entries or any(is_named(keys[at].name, config.gateway) for at in chosen)
    file = _file_with_keys(path)
    text = read(file)
    root = values(text, file=str(file))
    edited = deepcopy(root)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    _change(_entries(edited), chosen, now if keeps_entries else None)
    write(file, rewrite_values(text, file, root, edited))
    return Revoked(names=[keys[at].name for at in chosen], file=file, kept=keeps_entries)


def chosen_keys(keys: Sequence[ApiKey], which: str, file: str) -> list[int]:
    """Return the indexes of all keys with the name `which`, or of the single key whose hash begins with it.

    Raises:
        NoSuchKey: No key matches, or several hashes do.
    """
    if with_name := [at for at, key in enumerate(keys) if key.name == which]:
        return with_name
    prefix = which.removeprefix("sha256:").lower()
    hashed = [at for at, key in enumerate(keys) if len(prefix) >= _MIN_PREFIX_CHARS and hash_of(key).startswith(prefix)]
    if len(hashed) == 1:
        return hashed
    if hashed:
        raise NoSuchKey(f"{len(hashed)} hashes begin with {prefix}; expected a longer prefix", file=file, key=KEY)
    expected = suggestion(which, [key.name for key in keys]) if keys else "a configuration with API keys"
    raise NoSuchKey(f"there is no key {which!r}; expected {expected}", file=file, key=KEY)


def _file_with_keys(path: Path) -> Path:
    """Return the file that contains the API keys: the main file or an included one."""
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
