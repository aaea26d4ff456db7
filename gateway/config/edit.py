"""Change the entry of one tool in a configuration file; comments, order and style of the rest stay."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, MutableMapping
from copy import deepcopy
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from gateway.config.flow_text import Value, has_comments, in_json, in_yaml, with_member, without_member
from gateway.config.source import read, values
from gateway.config.variables import PLACEHOLDER
from gateway.errors import ConfigError
from gateway.files import write_whole

Entry = MutableMapping[str, Any]


def edit_tool(path: Path, server: str, tool: str, change: Callable[[Entry], None]) -> bool:
    """Apply `change` to a tool's entry and replace the file atomically; an entry left empty is removed.

    Returns:
        Whether the file has changed.

    Raises:
        ConfigError: The file cannot be used, has no such server, or holds comments in the entry in JSON, which would be
            lost.
    """
    text, file = read(path), str(path)
    root = values(text, file=file)
    is_json = holds_json(text, path)
    # The values are compared with what they were: what is changed is a copy.
    document, dump = (deepcopy(root), None) if is_json else round_trip(text)
    block = next((key for key in ("mcpServers", "servers") if document.get(key) is not None), None)
    servers = document.get(block) if block is not None else None
    if not isinstance(servers, MutableMapping) or not isinstance(servers.get(server), MutableMapping):
        known = ", ".join(servers) if isinstance(servers, MutableMapping) and servers else "none"
        raise ConfigError(f"there is no server '{server}'; expected one of: {known}", file=file, key=block)
    in_flow = is_json or _is_flow(servers[server], tool)
    _apply(servers[server], tool, change, file, f"{block}.{server}")
    wanted = document if dump is None else values(dump(document), file=file)
    result = None
    if in_flow:
        result = _in_text(text, in_json if is_json else in_yaml, (str(block), server), tool, root, wanted, file)
    if dump is not None and (result is None or not stands_for(result, wanted, file)):
        result = dump(document)
    assert result is not None
    assert stands_for(result, wanted, file)
    if values(result, file=file) == root:
        return False
    write(path, result)
    return True


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
        tools = server["tools"] = type(server)()
    if not isinstance(tools, MutableMapping):
        raise ConfigError("is no object; expected the tools by name", file=file, key=f"{key}.tools")
    entry = tools.get(tool)
    if entry is None:
        entry = tools[tool] = type(server)()
    if not isinstance(entry, MutableMapping):
        raise ConfigError("is no object; expected what is said of the tool", file=file, key=f"{key}.tools.{tool}")
    change(entry)
    if not entry:
        del tools[tool]
    if not tools:
        del server["tools"]


def _is_flow(server: Any, tool: str) -> bool:
    """Whether what is said of a tool stands in braces, in which comments would be lost."""
    tools = server.get("tools")
    entry = tools.get(tool) if isinstance(tools, MutableMapping) else None
    # What ruamel keeps of the style of each mapping; the values that JSON is read into have none.
    styles = (getattr(one, "fa", None) for one in (server, tools, entry))
    return any(style.flow_style() for style in styles if style is not None)


def stands_for(text: str, wanted: Any, file: str) -> bool:
    """Whether a text is read as these values."""
    try:
        return bool(values(text, file=file) == wanted)
    except ConfigError:
        return False


def _in_text(
    text: str, locate: Callable[[str], Value], where: tuple[str, str], tool: str, before: Any, after: Any, file: str
) -> str:
    """The text with what is said of one tool changed, member by member where there is something already."""
    path: tuple[str, ...] = where
    for key in where:
        before, after = before[key], after[key]
    # Down to the object of which one member or more differs: nothing above it is written anew.
    for key in ("tools", tool):
        if not (before.get(key) and after.get(key)):
            break
        path, before, after = (*path, key), before[key], after[key]
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) == after.get(key):
            continue
        holder = locate(text)
        for step in path:
            holder = holder.members[step][1]
        known = holder.members.get(key)
        if known is not None and has_comments(text, known[1]):
            what = f"'{key}' of {'.'.join(path)} has comments, which would be lost; expected them outside of it"
            raise ConfigError(what, file=file)
        if key in after:
            text = with_member(text, holder, key, after[key])
        elif known is not None:
            text = without_member(text, holder, key)
    return text


def round_trip(text: str) -> tuple[Any, Callable[[Any], str]]:
    """The values of a YAML text, and what writes them once they are changed, with its comments and style."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    # Wider than any line: the emitter would wrap long texts that were written on one.
    yaml.width = 10_000
    # The emitter wants one indentation for the whole file: that of the first nested mapping, and of the first list.
    mapping = re.search(r"^( +)[^\s#-]", text, re.MULTILINE)
    dash = re.search(r"^( *)[^\s#-][^\n]*:[^\S\n]*\n(?:[^\S\n]*(?:#[^\n]*)?\n)*( *)- ", text, re.MULTILINE)
    offset = max(0, len(dash[2]) - len(dash[1])) if dash else 2
    yaml.indent(mapping=len(mapping[1]) if mapping else 2, sequence=offset + 2, offset=offset)
    document = yaml.load(text)

    def dump(document: Any) -> str:
        stream = io.StringIO()
        yaml.dump(document, stream)
        return _with_comments(text, stream.getvalue())

    return document, dump


def _with_comments(before: str, after: str) -> str:
    """Restore comments that were removed with an entry although they belong to what follows it."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    kept: list[str] = []
    for action, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        kept += new[new_from:new_to]
        if action in ("delete", "replace"):
            said = new[new_from:new_to]
            kept += [line for line in old[old_from:old_to] if line.lstrip().startswith("#") and line not in said]
    return "".join(kept)
