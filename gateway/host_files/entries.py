"""An entry of a host as we write it: in common words, its placeholders in our form, references in place of secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.config.edit import literal
from gateway.config.entries import sound_alias
from gateway.config.host_entries import in_common_words
from gateway.config.host_restrictions import misread_restriction
from gateway.config.host_settings import HostSettings
from gateway.config.section import fault
from gateway.config.variables import input_variable
from gateway.errors import ConfigError
from gateway.files import expand_home
from gateway.host_files.hosts import HostFile
from gateway.secrets import secrets_in

Reference = Callable[[str, str, str], str]
"""Takes alias, name and value of a secret, and returns the text that stands for it."""

# Claude Desktop and files of no known host take every text as it is.
_LITERAL_HOSTS: Final = frozenset({"claude-desktop", "codex", "opencode"})
_OF_OPENCODE: Final = re.compile(r"\{(env|file):([^{}]+)\}")
_INPUT: Final = re.compile(r"\$\{input:([^{}]+)\}")
_VARIABLE_OF_GEMINI: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# What depends on the folder that a host has open; other names of editors mean the same everywhere.
_OF_WORKSPACE: Final = re.compile(
    r"\$\{(workspaceFolder(?:Basename)?|workspaceRoot(?:FolderName)?|CLAUDE_PLUGIN_ROOT|CLAUDE_PROJECT_DIR)(?:[:-][^{}]*)?\}"
)
_BASENAMES: Final = frozenset({"workspaceFolderBasename", "workspaceRootFolderName"})
_KEPT: Final = (
    "type", "command", "args", "env", "envFile", "cwd", "url", "headers", "headersCommand", "auth", "proxy", "disabled",
    "allow", "deny", "tools", "validation", "callTimeout",
)  # fmt: skip
# Of hosts alone: what they ask their users, how they show a server, and what has been dealt with.
_UNTOLD: Final = frozenset(
    {"description", "name", "icon", "gallery", "version", "dev", "timeout", "startup_timeout_sec", "tool_timeout_sec",
     "required"}
)  # fmt: skip
_OF_CODEX: Final = frozenset({"bearer_token_env_var", "http_headers", "env_http_headers", "env_vars"})
# What tells which server an entry is.
_WHAT_RUNS: Final = ("type", "command", "args", "cwd", "url")
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
        refused: Why it cannot be used here: it restricts something in a form that is not known. Empty otherwise.
    """

    written: str
    alias: str
    entry: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    refused: str = ""


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


def adopt(
    written: str,
    entry: Mapping[str, Any],
    host: str,
    reference: Reference,
    *,
    workspace: Path | None = None,
    inputs: Mapping[str, str] | None = None,
    settings: HostSettings | None = None,
) -> Adopted:
    """Return the entry of a host as we write it.

    Args:
        written: Its name there.
        entry: The entry.
        host: Whose words it is in.
        reference: Makes the reference that stands for a secret.
        workspace: The folder that the host has open where it reads the file; None where that differs each time.
        inputs: What the host offers its user as answers; see `input_defaults`.
        settings: What the host says of servers beside their entries.
    """
    found = Adopted(written=written, alias=sound_alias(written), entry={})
    words = _Words(host, workspace, inputs or {}, found.notes)
    try:
        common = words.in_common_words(entry, written)
        if settings is not None and (off := settings.apply(common, written)):
            found.notes.append(f"is switched off, by {off}")
        for key in common:
            if key not in words.known and (expected := misread_restriction(key, common[key])) is not None:
                raise fault("may restrict something, in a form that is not known", expected, key=key)
    except PydanticCustomError as error:
        found.refused = f"{(error.context or {}).get('key')}: {error.message()}"
        common = {key: entry[key] for key in _WHAT_RUNS if key in entry}
    except ConfigError as error:
        found.refused = str(error)
        common = {key: entry[key] for key in _WHAT_RUNS if key in entry}
    found.entry = _with_references(words.translated(common), found.alias, reference)
    return found


class _Reference(str):
    """A text that is in our own form already."""


@dataclass(slots=True)
class _Words:
    """The words of a host, and what they mean in a file of ours, which is elsewhere."""

    host: str
    workspace: Path | None
    inputs: Mapping[str, str]
    notes: list[str]

    @property
    def known(self) -> frozenset[str]:
        """The keys that are taken in, or are dealt with."""
        return frozenset((*_KEPT, "connectTimeout")) | _UNTOLD | _OF_CODEX

    def in_common_words(self, entry: Mapping[str, Any], written: str) -> dict[str, Any]:
        """Return the entry in common words.

        Raises:
            PydanticCustomError: It says one thing twice, or restricts something in a form that is not known.
        """
        common = in_common_words({**entry, **self._of_codex(entry)}, written)
        if self.host in ("gemini", "qwen") and "url" in entry and "httpUrl" not in entry and "type" not in entry:
            common["type"] = "sse"
        if common.get("type") == "stdio":
            del common["type"]
        if common.get("disabled") is False:
            del common["disabled"]
        return common

    def translated(self, common: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry in common words with placeholders of ours."""
        said: dict[str, Any] = {key: common[key] for key in (*_KEPT, "connectTimeout") if key in common}
        for key in common:
            if key not in self.known:
                self.notes.append(f"{key} is left out: it means nothing here")
        said = {key: _mapped(value, self._placeholders) for key, value in said.items()}
        for key in ("cwd", "envFile"):
            if isinstance(path := said.get(key), str) and "${" not in path and not expand_home(path).is_absolute():
                if self.workspace is None:
                    self.notes.append(f"{key} is relative: write out from where")
                else:
                    said[key] = literal(str(self.workspace / path))
        return said

    def _of_codex(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return what Codex has words of its own for."""
        said: dict[str, Any] = {}
        headers = {**(entry.get("headers") or {}), **(entry.get("http_headers") or {})}
        for name, variable in (entry.get("env_http_headers") or {}).items():
            headers[name] = _Reference(f"${{{variable}}}")
        if isinstance(entry.get("bearer_token_env_var"), str):
            headers["Authorization"] = _Reference(f"Bearer ${{{entry['bearer_token_env_var']}}}")
        if headers:
            said["headers"] = headers
        if isinstance(entry.get("env_vars"), list):
            # A name, or an object with one.
            names = [one.get("name") if isinstance(one, dict) else one for one in entry["env_vars"]]
            passed = {name: _Reference(f"${{{name}}}") for name in names if isinstance(name, str)}
            said["env"] = {**passed, **(entry.get("env") or {})}
        for key, ours in (("tool_timeout_sec", "callTimeout"), ("startup_timeout_sec", "connectTimeout")):
            value = entry.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                said[ours] = int(value) if value == int(value) else value
        return said

    def _placeholders(self, text: str) -> str:
        """Return a text with the placeholders of its host in our form."""
        if self.host in _LITERAL_HOSTS:
            text = literal(text)
            if self.host != "opencode":
                return text
            return _OF_OPENCODE.sub(lambda m: f"${{{'file:' if m[1] == 'file' else ''}{m[2]}}}", text)
        text = _INPUT.sub(self._asked, text)
        text = _OF_WORKSPACE.sub(self._in_workspace, text)
        if self.host in ("gemini", "qwen"):
            text = _VARIABLE_OF_GEMINI.sub(lambda m: f"${{{m[1]}}}", text)
        return text

    def _asked(self, found: re.Match[str]) -> str:
        name, default = input_variable(found[1]), self.inputs.get(found[1])
        if default is not None and not set(default) & set("${}"):
            return f"${{{name}:-{default}}}"
        self.notes.append(f"set the variable {name}: the host asks its user for it")
        return f"${{{name}}}"

    def _in_workspace(self, found: re.Match[str]) -> str:
        if self.workspace is None:
            self.notes.append(f"{found[0]} is only known to the host: write out what it stands for")
            return found[0]
        return literal(self.workspace.name if found[1] in _BASENAMES else str(self.workspace))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, _Reference) else change(value)
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    return {key: _mapped(one, change) for key, one in value.items()} if isinstance(value, dict) else value


def _with_references(entry: dict[str, Any], alias: str, reference: Reference) -> dict[str, Any]:
    """The entry with a reference in place of each secret in it."""
    changed = dict(entry)
    for section in ("env", "headers"):
        if isinstance(entry.get(section), dict):
            changed[section] = {
                key: _replaced(value, secrets_in({section: {key: value}}), partial(reference, alias, key))
                for key, value in entry[section].items()
            }
    if isinstance(auth := entry.get("auth"), dict) and isinstance(secret := auth.get("clientSecret"), str):
        kept = secret if "${" in secret else reference(alias, "CLIENT_SECRET", secret)
        changed["auth"] = {**auth, "clientSecret": kept}
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
