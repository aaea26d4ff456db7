"""Words that hosts have of their own in the entry of a server, put into those that all others use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.config.section import fault

TOLERATED: Final = frozenset({"alwaysAllow", "autoApprove", "trust"})
"""What a host may do without asking its user: a matter between the two."""
# Windsurf; Gemini CLI; OpenCode.
_RENAMED: Final = {"serverUrl": "url", "httpUrl": "url", "environment": "env"}
# Gemini CLI; Codex; Roo Code.
_SHOWN: Final = ("includeTools", "enabled_tools", "enabledTools")
_HIDDEN: Final = ("excludeTools", "disabled_tools", "disabledTools")
# OpenCode.
_TYPES: Final = {"local": "stdio", "remote": "http"}


def in_common_words(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same entry as most hosts would write it; what is theirs alone and hides tools hides them here.

    Raises:
        PydanticCustomError: It says one thing twice.
    """
    said = {key: value for key, value in entry.items() if value is not None and key not in TOLERATED}
    for theirs, common in _RENAMED.items():
        # Only where nobody else could mean something by it: a key of ours counts first.
        if theirs in said and common not in said:
            said[common] = said.pop(theirs)
    kind = said.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        said["type"] = _TYPES[kind]
        command = said.get("command")
        if isinstance(command, list) and command and "args" not in said:
            said["command"], said["args"] = command[0], command[1:]
    if isinstance(said.get("enabled"), bool):
        said.setdefault("disabled", not said.pop("enabled"))
        said.pop("enabled", None)
    for theirs in _SHOWN:
        if theirs in said:
            if "allow" in said:
                raise fault("stands beside allow", "one of the two", key=theirs)
            said["allow"] = said.pop(theirs)
    for theirs in _HIDDEN:
        if theirs in said:
            said["deny"] = _denied(said.get("deny"), said.pop(theirs), theirs)
    return said


def _denied(ours: Any, theirs: Any, key: str) -> Any:
    if not isinstance(theirs, list) or not all(isinstance(name, str) for name in theirs):
        raise fault("is no list of names", "the names of tools", key=key)
    if ours is None:
        return {"tools": theirs}
    if isinstance(ours, list):
        return {"tools": [*ours, *theirs], "prompts": ours, "resources": ours}
    if isinstance(ours, dict) and isinstance(ours.get("tools", []), list):
        return {**ours, "tools": [*ours.get("tools", []), *theirs]}
    return ours  # its own fault is told when it is checked
