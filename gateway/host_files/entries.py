"""An entry of a host as we write it: in common words, its placeholders in our form, references in place of secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from gateway.config.edit import literal
from gateway.config.entries import sound_alias
from gateway.host_files.hosts import HostFile
from gateway.secrets import secrets_in

Reference = Callable[[str, str, str], str]
"""Takes alias, name and value of a secret, and returns the text that stands for it."""

# Claude Desktop and files of no known host take every text as it is.
_LITERAL_HOSTS: Final = frozenset({"claude-desktop", "codex", "opencode"})
_ENV_OF_OPENCODE: Final = re.compile(r"\{(env|file):([^{}]+)\}")
_INPUT: Final = re.compile(r"\$\{input:([^{}]+)\}")
_VARIABLE_OF_GEMINI: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_OF_EDITORS: Final = re.compile(r"\$\{(?:workspaceFolder|userHome|pathSeparator|workspaceFolderBasename|/)[^{}]*\}")
_KEPT: Final = ("type", "command", "args", "env", "cwd", "url", "headers", "disabled", "allow", "deny")
# Of hosts alone: what they ask their users, how they show a server, and what has been dealt with.
_UNTOLD: Final = frozenset(
    {"alwaysAllow", "autoApprove", "trust", "enabled", "description", "name", "icon", "gallery", "version", "disabled",
     "timeout", "startup_timeout_sec", "tool_timeout_sec", "required"}
)  # fmt: skip
_BLOCKS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("mcpServers",), "claude-code"),
    (("servers",), "vscode"),
    (("mcp_servers",), "codex"),
    (("mcp", "servers"), "vscode"),
    (("mcp",), "opencode"),
)


@dataclass(slots=True, kw_only=True)
class Adopted:
    """One server of a host.

    Attributes:
        written: Its name there.
        alias: Its name here.
        entry: As we write it.
        notes: What was left out or has to be set.
    """

    written: str
    alias: str
    entry: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def blocks_in(root: Mapping[str, Any], host: HostFile | None) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Yield each block of servers in a file: its path, the host whose words are used there, and its entries."""
    if host is not None:
        own = root.get(host.block)
        if isinstance(own, dict):
            yield (host.block,), host.name, own
        projects = root.get("projects") if host.name == "claude-code" else None
        for path, project in projects.items() if isinstance(projects, dict) else ():
            if isinstance(project, dict) and isinstance(project.get("mcpServers"), dict):
                yield ("projects", str(path), "mcpServers"), host.name, project["mcpServers"]
        return
    for keys, name in _BLOCKS:
        place: Any = root
        for key in keys:
            place = place.get(key) if isinstance(place, dict) else None
        if isinstance(place, dict) and place and all(isinstance(one, dict) for one in place.values()):
            yield keys, name, place
            return


def adopt(written: str, entry: Mapping[str, Any], host: str, reference: Reference) -> Adopted:
    """Return the entry of a host as we write it.

    Args:
        written: Its name there.
        entry: The entry.
        host: Whose words it is in.
        reference: Makes the reference that stands for a secret.
    """
    found = Adopted(written=written, alias=sound_alias(written), entry={})
    said = _common(entry, host, found.notes)
    for key in entry:
        if key not in said and key not in _KEPT and key not in _UNTOLD and key not in _TRANSLATED:
            found.notes.append(f"{key} is left out: it means nothing here")
    said = _mapped(said, lambda text: _placeholders(text, host, found.notes))
    found.entry = _with_references(said, found.alias, reference)
    return found


_TRANSLATED: Final = frozenset(
    {"serverUrl", "httpUrl", "environment", "bearer_token_env_var", "http_headers", "env_http_headers", "env_vars",
     "includeTools", "excludeTools", "enabled_tools", "disabled_tools", "enabledTools", "disabledTools", "envFile"}
)  # fmt: skip


def _common(entry: Mapping[str, Any], host: str, notes: list[str]) -> dict[str, Any]:
    """The entry in the words that most hosts use."""
    said = {key: value for key, value in entry.items() if key in _KEPT and value is not None}
    kind = said.get("type")
    if kind in ("local", "stdio"):
        said.pop("type")
    elif kind == "remote":
        said["type"] = "http"
    command = said.get("command")
    if isinstance(command, list) and command:
        said["command"], said["args"] = command[0], [*command[1:], *said.get("args", [])]
    if isinstance(entry.get("environment"), dict):
        said["env"] = {**said.get("env", {}), **entry["environment"]}
    for key in ("serverUrl", "httpUrl"):
        if key in entry:
            said["url"] = entry[key]
    if host in ("gemini", "qwen") and "url" in entry and "httpUrl" not in entry and "type" not in entry:
        said["type"] = "sse"
    headers = {**said.get("headers", {}), **(entry.get("http_headers") or {})}
    for name, variable in (entry.get("env_http_headers") or {}).items():
        headers[name] = _Reference(f"${{{variable}}}")
    if isinstance(entry.get("bearer_token_env_var"), str):
        headers["Authorization"] = _Reference(f"Bearer ${{{entry['bearer_token_env_var']}}}")
    if headers:
        said["headers"] = headers
    if isinstance(entry.get("env_vars"), list):
        passed = {str(name): _Reference(f"${{{name}}}") for name in entry["env_vars"]}
        said["env"] = {**passed, **said.get("env", {})}
    if entry.get("enabled") is False:
        said["disabled"] = True
    for ours, theirs in (
        ("allow", ("includeTools", "enabled_tools", "enabledTools")),
        ("deny", ("excludeTools", "disabled_tools", "disabledTools")),
    ):
        for key in theirs:
            if isinstance(entry.get(key), list):
                said[ours] = {"tools": entry[key]} if ours == "deny" else entry[key]
    for key, ours, per_second in (
        ("timeout", "callTimeout", 1000), ("tool_timeout_sec", "callTimeout", 1),
        ("startup_timeout_sec", "connectTimeout", 1),
    ):  # fmt: skip
        value = entry.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            said[ours] = value / per_second if value % per_second else int(value // per_second)
    if "envFile" in entry:
        notes.append(f"envFile is not read: put what it sets into env ({entry['envFile']})")
    return said


class _Reference(str):
    """A text that is in our own form already."""


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, _Reference) else change(value)
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    return {key: _mapped(one, change) for key, one in value.items()} if isinstance(value, dict) else value


def _placeholders(text: str, host: str, notes: list[str]) -> str:
    """A text with the placeholders of its host in our form."""
    if host in _LITERAL_HOSTS:
        text = literal(text)
        if host != "opencode":
            return text
        return _ENV_OF_OPENCODE.sub(lambda m: f"${{{'file:' if m[1] == 'file' else ''}{m[2]}}}", text)

    def asked(found: re.Match[str]) -> str:
        name = re.sub(r"\W", "_", found[1]).upper()
        name = name if not name[:1].isdigit() else f"_{name}"
        notes.append(f"set the variable {name}: the host asks its user for it")
        return f"${{{name}}}"

    text = _INPUT.sub(asked, text)
    for found in _OF_EDITORS.findall(text):
        notes.append(f"{found} is only known to the host: write out what it stands for")
    if host in ("gemini", "qwen"):
        text = _VARIABLE_OF_GEMINI.sub(lambda m: f"${{{m[1]}}}", text)
    return text


def _with_references(entry: dict[str, Any], alias: str, reference: Reference) -> dict[str, Any]:
    """The entry with a reference in place of each secret in it."""
    changed = dict(entry)
    for section in ("env", "headers"):
        if isinstance(entry.get(section), dict):
            changed[section] = {
                key: _replaced(value, secrets_in({section: {key: value}}), partial(reference, alias, key))
                for key, value in entry[section].items()
            }
    for section in ("url", "args"):
        if section in entry:
            secrets = secrets_in({section: entry[section]})
            changed[section] = _replaced(entry[section], secrets, partial(reference, alias, section))
    return changed


def _replaced(value: Any, secrets: set[str], reference: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_replaced(one, secrets, reference) for one in value]
    if not isinstance(value, str) or "${" in value:
        return value
    scheme, space, token = value.partition(" ")
    if space and token in secrets and scheme.lower() in ("bearer", "basic", "token"):
        return f"{scheme} {reference(token)}"
    # The longest first: one may be part of another.
    for secret in sorted(secrets, key=len, reverse=True):
        if secret and secret in value:
            return value.replace(secret, reference(secret))
    return value
