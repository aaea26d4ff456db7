"""Change the entry of one tool in a configuration file; comments, order and style of the rest stay."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, MutableMapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from gateway.config.source import read, values
from gateway.errors import ConfigError
from gateway.files import write_whole

Entry = MutableMapping[str, Any]


def edit_tool(path: Path, server: str, tool: str, change: Callable[[Entry], None]) -> bool:
    """Apply `change` to a tool's entry and replace the file atomically; an entry left empty is removed.

    Returns:
        Whether the file has changed.

    Raises:
        ConfigError: The file cannot be used, has no such server, or holds comments in JSON, which would be lost.
    """
    text, file = read(path), str(path)
    root = values(text, file=file)
    is_json = text.lstrip("\ufeff \t\r\n")[:1] == "{" and path.suffix not in (".yaml", ".yml")
    edited = _in_json(text, file, root) if is_json else _in_yaml(text)
    document, dump = edited
    block = next((key for key in ("mcpServers", "servers") if document.get(key) is not None), None)
    servers = document.get(block) if block is not None else None
    if not isinstance(servers, MutableMapping) or not isinstance(servers.get(server), MutableMapping):
        known = ", ".join(servers) if isinstance(servers, MutableMapping) and servers else "none"
        raise ConfigError(f"there is no server '{server}'; expected one of: {known}", file=file, key=block)
    _apply(servers[server], tool, change, file, f"{block}.{server}")
    result = dump(document)
    if values(result, file=file) == root:
        return False
    target = path.resolve()
    write_whole(target, result.encode("utf-8"), mode=target.stat().st_mode & 0o7777)
    return True


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


def _in_json(text: str, file: str, root: dict[str, Any]) -> tuple[Any, Callable[[Any], str]]:
    try:
        json.loads(text.removeprefix("\ufeff"))
    except ValueError:
        what = "has comments or trailing commas, which would be lost; expected plain JSON, or YAML"
        raise ConfigError(what, file=file) from None
    indent = re.search(r"\n([ \t]+)\S", text)
    end = "\n" if text.endswith("\n") else ""
    return root, lambda document: json.dumps(document, indent=indent[1] if indent else 2, ensure_ascii=False) + end


def _in_yaml(text: str) -> tuple[Any, Callable[[Any], str]]:
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
