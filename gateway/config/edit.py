"""Change the entry of one tool in a configuration file; comments, order and style of the rest stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import block_text
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
from gateway.config.source import read, values
from gateway.config.variables import PLACEHOLDER
from gateway.errors import ConfigError
from gateway.files import write_whole

Entry = dict[str, Any]
_Steps = tuple[str | int, ...]


def edit_tool(path: Path, server: str, tool: str, change: Callable[[Entry], None]) -> bool:
    """Apply `change` to a tool's entry and replace the file atomically; an entry left empty is removed.

    Returns:
        Whether the file has changed.

    Raises:
        ConfigError: The file cannot be used, has no such server, or holds comments in braces that would be lost.
    """
    text, file = read(path), str(path)
    before = values(text, file=file)
    after = _copied(before)
    block = next((key for key in ("mcpServers", "servers") if after.get(key) is not None), None)
    servers = after.get(block) if block is not None else None
    if not isinstance(servers, dict) or not isinstance(servers.get(server), dict):
        known = ", ".join(servers) if isinstance(servers, dict) and servers else "none"
        raise ConfigError(f"there is no server '{server}'; expected one of: {known}", file=file, key=block)
    _apply(servers[server], tool, change, file, f"{block}.{server}")
    if after == before:
        return False
    write(path, rewritten(text, path, before, after))
    return True


def rewritten(text: str, path: Path, before: Any, after: Any, *, drops_comments: bool = False) -> str:
    """Return the text of a file with other values; only what differs is written, and all of the rest stays.

    Args:
        text: The file.
        path: It says of which form the file is.
        before: What the file says.
        after: What it is to say.
        drops_comments: Comments in braces go with the values in which they stand.

    Raises:
        ConfigError: Comments would be lost, or more would change than what differs.
    """
    locate = in_json if holds_json(text, path) else in_yaml
    changed = _Rewriting(str(path), locate, drops_comments).rewrite(text, (), before, after)
    if not stands_for(changed, after, str(path)):
        what = "cannot be changed here without changing more: an anchor or a merge key (<<) is used; edit it by hand"
        raise ConfigError(what, file=str(path))
    return changed


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """How a file is changed; see `rewritten`."""

    file: str
    locate: Callable[[str], Value]
    drops_comments: bool

    def rewrite(self, text: str, path: _Steps, before: Any, after: Any) -> str:
        """Return the text with another object or list at a path."""
        if isinstance(before, dict):
            for key, value in after.items():
                if key not in before or before[key] != value:
                    text = self._with_member(text, path, key, before.get(key), value)
            for key in before:
                if key not in after:
                    text = self._without(text, path, key)
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
        known = holder.members.get(key)
        if known is not None and not known[1].is_alias:
            gone = _gone(old, new)
            if isinstance(old, dict) and isinstance(new, dict) and old and new:
                return self.rewrite(text, (*path, key), old, new)
            if gone is not None:
                for at in reversed(gone):
                    text = self._without(text, (*path, key), at)
                return self.rewrite(text, (*path, key), [one for at, one in enumerate(old) if at not in gone], new)
            if not known[1].is_block:
                self._check_comments(text, path, key, known[1])
        if holder.is_block:
            return block_text.with_member(text, holder, key, new)
        return with_member(text, holder, key, new)

    def _without(self, text: str, path: _Steps, key: str | int) -> str:
        holder = self._find(text, path)
        if isinstance(key, str) and key not in holder.members:
            return text  # it comes from elsewhere, by a merge key
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
            what = f"'{key}' of {where} has comments, which would be lost; expected them outside of it"
            raise ConfigError(what, file=self.file)

    def _find(self, text: str, path: _Steps) -> Value:
        found = self.locate(text)
        for step in path:
            found = found.items[step] if isinstance(step, int) else found.members[step][1]
        return found


def _is_alike(old: Any, new: Any) -> bool:
    """Whether an item of a list becomes another one where it stands."""
    return bool(old == new or (isinstance(old, dict) and isinstance(new, dict) and old and new))


def _gone(old: Any, new: Any) -> list[int] | None:
    """Return which items of a list are left out of another one that goes on with others; None if that is not all."""
    if not (isinstance(old, list) and isinstance(new, list) and old and new):
        return None
    if len(new) >= len(old):
        return [] if all(map(_is_alike, old, new)) else None
    gone: list[int] = []
    at = 0
    for place, item in enumerate(old):
        if at < len(new) and item == new[at]:
            at += 1
        else:
            gone.append(place)
    return gone if at == len(new) else None


def holds_json(text: str, path: Path) -> bool:
    """Whether a configuration file is JSON, and not YAML."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "/") and path.suffix not in (".yaml", ".yml")


def write(path: Path, text: str) -> None:
    """Replace a configuration file atomically; who may read it stays."""
    target = path.resolve()
    write_whole(target, text.encode("utf-8"), mode=target.stat().st_mode & 0o7777)


def literal(text: str) -> str:
    """A text in the form in which the file stands for it: nothing in it is replaced when the file is read."""
    return PLACEHOLDER.sub(lambda found: f"${found[0]}", text)


def _apply(server: Entry, tool: str, change: Callable[[Entry], None], file: str, key: str) -> None:
    tools = server.get("tools")
    if tools is None:
        tools = server["tools"] = {}
    if not isinstance(tools, dict):
        raise ConfigError("is no object; expected the tools by name", file=file, key=f"{key}.tools")
    entry = tools.get(tool)
    if entry is None:
        entry = tools[tool] = {}
    if not isinstance(entry, dict):
        raise ConfigError("is no object; expected what is said of the tool", file=file, key=f"{key}.tools.{tool}")
    change(entry)
    if not entry:
        del tools[tool]
    if not tools:
        del server["tools"]


def stands_for(text: str, wanted: Any, file: str) -> bool:
    """Whether a text is read as these values."""
    try:
        return bool(values(text, file=file) == wanted)
    except ConfigError:
        return False


def _copied(value: Any) -> Any:
    """Return a copy in which no two places share a value, as those of an anchor and its aliases do."""
    if isinstance(value, dict):
        return {key: _copied(member) for key, member in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
