"""The text of a file with entries put in and taken out; comments, order and indentation of all the rest stay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from gateway.config.edit import holds_json, rewritten
from gateway.config.flow_text import Value, in_json, with_member, without_member
from gateway.config.source import values
from gateway.errors import ConfigError

Keys = Sequence[str]
_FIRST: Final = "_"


def values_of(text: str, path: Path) -> dict[str, Any]:
    """What a file says, whichever of its forms it has; nothing where it is empty.

    Raises:
        ConfigError: It is malformed.
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


def with_entries(
    text: str, path: Path, block: Keys, put: Mapping[str, Mapping[str, Any]], drop: Sequence[str] = ()
) -> str:
    """The text with these entries in a block, and without others.

    Args:
        text: The file as it is; empty where there is none.
        path: It says of which form the file is.
        block: The keys that lead to the block; it is made where there is none.
        put: Entries by name, in place of those of the same name.
        drop: Names of entries to take out.

    Raises:
        ConfigError: The file is malformed, or something else than an object stands where the block should.
    """
    root = values_of(text, path)
    drop = [*drop]
    if not root and path.suffix in (".yaml", ".yml"):
        # An entry to begin with, so that the block is written in lines and not in braces.
        text, root = f"{text}{block[0]}:\n  {_FIRST}: {{}}\n", {block[0]: {_FIRST: {}}}
        drop.append(_FIRST)
    holder: Any = root
    for place, key in enumerate(block):
        holder = holder.get(key, {})
        if holder is None or not isinstance(holder, dict):
            raise ConfigError("is no object", file=str(path), key=".".join(block[: place + 1]))
    gone = [name for name in drop if name in holder and name not in put]
    if path.suffix == ".toml":
        changed = _in_toml(text, block, put, gone)
    elif not root or holds_json(text, path):
        changed = _in_json(text or "{\n}\n", block, put, gone)
    else:
        return rewritten(text, path, root, _wanted(root, block, put, gone), drops_comments=True)
    # Nothing else has changed.
    if json.loads(json.dumps(values_of(changed, path), default=str)) != _wanted(root, block, put, gone):
        raise ConfigError("cannot be changed without changing more than the servers in it", file=str(path))
    return changed


def _wanted(before: dict[str, Any], block: Keys, put: Mapping[str, Any], gone: Sequence[str]) -> dict[str, Any]:
    """What the file is to say."""
    wanted: dict[str, Any] = json.loads(json.dumps(before, default=str))
    holder = wanted
    for key in block:
        holder = holder.setdefault(key, {})
    for name in gone:
        holder.pop(name, None)
    holder.update({name: dict(entry) for name, entry in put.items()})
    return wanted


def _in_json(text: str, block: Keys, put: Mapping[str, Any], gone: Sequence[str]) -> str:
    if not text.strip("\ufeff \t\r\n"):
        text = "{\n}\n"

    def found(keys: Keys) -> Value | None:
        place = in_json(text)
        for key in keys:
            if key not in place.members:
                return None
            place = place.members[key][1]
        return place

    for name in gone:
        holder = found(block)
        assert holder is not None
        text = without_member(text, holder, name)
    for name, entry in put.items():
        # Whatever of the way there is missing is put in with it.
        for depth in range(len(block), -1, -1):
            holder = found(block[:depth])
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


def _in_toml(text: str, block: Keys, put: Mapping[str, Any], gone: Sequence[str]) -> str:
    import tomlkit

    document: Any = tomlkit.parse(text)
    holder = document
    for key in block:
        if key not in holder:
            holder[key] = tomlkit.table(is_super_table=True)
        holder = holder[key]
    for name in gone:
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
    """Return a table for a place within braces, where all tables are in braces."""
    import tomlkit

    table = tomlkit.inline_table()
    for key, value in entry.items():
        table.append(key, _inline(value) if isinstance(value, Mapping) else value)
    return table


def _with_comments(before: str, after: str) -> str:
    """Restore lines of comments that were removed with a table: those at its end are about what follows it."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    kept: list[str] = []
    for action, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        said = new[new_from:new_to]
        kept += said
        gap: list[str] = []
        for line in old[old_from:old_to] if action in ("delete", "replace") else ():
            gap = [*gap, line] if not line.strip() else gap
            if line.lstrip().startswith("#") and line not in said:
                kept += [*(gap if kept and kept[-1].strip() else ()), line]
            gap = gap if not line.strip() else []
    return "".join(kept)
