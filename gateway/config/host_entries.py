"""Words that hosts have of their own in the entry of a server, put into those that all others use.

One place for both ways in: a host's file that is served as it is, and one that is imported. In order: the words of the
connection, and those that restrict which tools are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.config.section import fault

TOLERATED: Final = frozenset({"alwaysAllow", "autoApprove", "trust"})
"""What a host may do without asking its user: a matter between the two."""
# OpenCode and Copilot CLI; the Streamable HTTP transport as Cline, Roo Code, LibreChat and others write it.
_TYPES: Final = {
    "local": "stdio",
    "remote": "http",
    "streamable": "http",
    "streamablehttp": "http",
    "httpstream": "http",
    "httpstreaming": "http",
}
_SEPARATORS: Final = str.maketrans("", "", "-_ ")
# Gemini CLI; Codex; Roo Code.
_SHOWN: Final = ("includeTools", "enabled_tools", "enabledTools")
_HIDDEN: Final = ("excludeTools", "disabled_tools", "disabledTools")
# Gemini CLI, Qwen Code, Amazon Q and OpenCode have milliseconds in `timeout`; Cline and Roo Code seconds, which their
# users choose from a list. Nobody gives a server less than a second.
_FEWEST_MS: Final = 1_000
_LONG_IN_SECONDS: Final = frozenset({1_200, 1_800, 3_600})
# Of OpenCode it is the limit of lists; calls have the usual one, unless this is longer.
_USUAL_S: Final = 60
# The longest that a key of ours may say; a host's "never" is longer.
_MAX_S: Final = 86_400


def in_common_words(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same entry as most hosts would write it; what is theirs alone and hides tools hides them here.

    Raises:
        PydanticCustomError: It says one thing twice.
    """
    said = {key: value for key, value in entry.items() if value is not None and key not in TOLERATED}
    _connection(said)
    _restrictions(said)
    return said


def is_local_or_remote(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is in the words of OpenCode, whose placeholders have no dollar."""
    return entry.get("type") in ("local", "remote")


def _connection(said: dict[str, Any]) -> None:
    # Gemini CLI, where `url` beside it is the address of the older transport.
    if "httpUrl" in said:
        said["url"] = said.pop("httpUrl")
    # Windsurf.
    if "serverUrl" in said and "url" not in said:
        said["url"] = said.pop("serverUrl")
    # OpenCode.
    is_opencode = is_local_or_remote(said)
    if isinstance(environment := said.get("environment"), dict) and isinstance(said.get("env", {}), dict):
        said["env"] = {**environment, **said.get("env", {})}
        del said["environment"]
    for theirs in ("transport", "transportType"):
        if isinstance(said.get(theirs), str) and "type" not in said:
            said["type"] = said.pop(theirs)
    if isinstance(kind := said.get("type"), str):
        said["type"] = _TYPES.get(kind.casefold().translate(_SEPARATORS), kind)
    command = said.get("command")
    if is_opencode and isinstance(command, list) and command and isinstance(said.get("args", []), list):
        said["command"], said["args"] = command[0], [*command[1:], *said.get("args", [])]
    if said.get("cwd") == "":
        del said["cwd"]
    if isinstance(said.get("enabled"), bool):
        said.setdefault("disabled", not said.pop("enabled"))
        said.pop("enabled", None)
    timeout = said.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        del said["timeout"]
        seconds = timeout if timeout < _FEWEST_MS or timeout in _LONG_IN_SECONDS else timeout / 1000
        if not is_opencode or seconds > _USUAL_S:
            said.setdefault("callTimeout", min(int(seconds) if seconds == int(seconds) else seconds, _MAX_S))


def _restrictions(said: dict[str, Any]) -> None:
    for theirs in _SHOWN:
        if theirs in said:
            if "allow" in said:
                raise fault("stands beside allow", "one of the two", key=theirs)
            said["allow"] = said.pop(theirs)
    for theirs in _HIDDEN:
        if theirs in said:
            said["deny"] = _denied(said.get("deny"), said.pop(theirs), theirs)


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
