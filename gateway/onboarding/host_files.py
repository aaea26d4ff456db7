"""The supported hosts: the paths of their settings files, and the format of their server entries."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic_core import PydanticCustomError

from gateway.config.file_edits import literal
from gateway.config.host_entries import misread_restriction, translate_entry
from gateway.config.host_settings import HostSettings, read_settings, settings_beside
from gateway.config.section import fault
from gateway.config.server_entries import valid_alias
from gateway.config.variables import input_variable
from gateway.process.files import expand_home, home_folder
from gateway.process.secrets import secrets_in
from gateway.protocol.gateway_errors import ConfigError

FileForm = Literal["json", "toml"]
_Places = Callable[["Machine"], Sequence[Path]]
# Files in which the administrator of a machine manages the settings of Claude Code.
_MANAGED: Final = {
    "linux": Path("/etc/claude-code/managed-settings.json"),
    "darwin": Path("/Library/Application Support/ClaudeCode/managed-settings.json"),
    "win32": Path("C:/Program Files/ClaudeCode/managed-settings.json"),
}
_ALIASES: Final = {"claude": "claude-code", "gemini-cli": "gemini", "qwen-code": "qwen", "code": "vscode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties of a machine that determine the paths of settings files.

    Attributes:
        platform: A value of `sys.platform`.
    """

    home: Path
    platform: str
    environ: Mapping[str, str]

    @classmethod
    def current(cls) -> Machine:
        """Return the machine of this process."""
        return cls(home=home_folder(), platform=sys.platform, environ=os.environ)

    @property
    def applications(self) -> Path:
        """The folder in which applications store their settings."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environ.get("APPDATA") or self.home / "AppData" / "Roaming")
        base = self.environ.get("XDG_CONFIG_HOME", "")
        return Path(base) if Path(base).is_absolute() else self.home / ".config"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """A host and the format of its settings file.

    Attributes:
        name: The name on the command line.
        title: The name in messages.
        block: The top-level key of the object with the server entries.
        form: The syntax of the file.
        user: Returns the possible paths of the user's file. The first existing file is used, or else the first path.
        project: The path of the file in a project; None if the host has no project files.
        url_key: The key of the URL in an entry; None if the host only starts processes.
        url_type: The `type` of an entry with a URL.
        process_type: The `type` of an entry with a command.
        headers_key: The key of the headers in an entry with a URL.
    """

    name: str
    title: str
    block: str = "mcpServers"
    form: FileForm = "json"
    user: _Places
    project: str | None = None
    url_key: str | None = "url"
    url_type: str | None = None
    process_type: str | None = None
    headers_key: str = "headers"

    def file(self, machine: Machine, project: Path | None = None) -> Path | None:
        """Return the file to read and write; None if `project` is given and the host has no project files."""
        if project is not None:
            return None if self.project is None else project / self.project
        places = self.user(machine)
        return next((place for place in places if place.exists()), places[0])

    def process_entry(self, command: Sequence[str]) -> dict[str, Any]:
        """Return an entry that starts a command."""
        if self.name == "opencode":
            return {"type": "local", "command": [*command], "enabled": True}
        kind = {"type": self.process_type} if self.process_type else {}
        return {**kind, "command": command[0], "args": [*command[1:]]}

    def url_entry(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Return an entry that connects to a URL; None if the host only starts processes."""
        if self.url_key is None:
            return None
        kind = {"type": self.url_type} if self.url_type else {}
        sent = {self.headers_key: dict(headers)} if headers else {}
        return {**kind, self.url_key: url, **sent} | ({"enabled": True} if self.name == "opencode" else {})


def _codex(machine: Machine) -> Sequence[Path]:
    home = machine.environ.get("CODEX_HOME")
    return [Path(home) / "config.toml" if home else machine.home / ".codex" / "config.toml"]


def _opencode(machine: Machine) -> Sequence[Path]:
    # OpenCode follows the XDG specification on every platform.
    base = machine.environ.get("XDG_CONFIG_HOME", "")
    folder = (Path(base) if Path(base).is_absolute() else machine.home / ".config") / "opencode"
    return [folder / "opencode.json", folder / "opencode.jsonc"]


HOSTS: Final[tuple[HostFile, ...]] = (
    HostFile(
        name="claude-desktop",
        title="Claude Desktop",
        user=lambda machine: [machine.applications / "Claude" / "claude_desktop_config.json"],
        url_key=None,
    ),
    HostFile(
        name="claude-code",
        title="Claude Code",
        user=lambda machine: [machine.home / ".claude.json"],
        project=".mcp.json",
        url_type="http",
        process_type="stdio",
    ),
    HostFile(
        name="cursor",
        title="Cursor",
        user=lambda machine: [machine.home / ".cursor" / "mcp.json"],
        project=".cursor/mcp.json",
    ),
    HostFile(
        name="windsurf",
        title="Windsurf",
        user=lambda machine: [machine.home / ".codeium" / "windsurf" / "mcp_config.json"],
        url_key="serverUrl",
    ),
    HostFile(
        name="vscode",
        title="VS Code",
        block="servers",
        user=lambda machine: [machine.applications / "Code" / "User" / "mcp.json"],
        project=".vscode/mcp.json",
        url_type="http",
        process_type="stdio",
    ),
    HostFile(
        name="codex",
        title="Codex",
        block="mcp_servers",
        form="toml",
        user=_codex,
        project=".codex/config.toml",
        headers_key="http_headers",
    ),
    HostFile(
        name="gemini",
        title="Gemini CLI",
        user=lambda machine: [machine.home / ".gemini" / "settings.json"],
        project=".gemini/settings.json",
        url_key="httpUrl",
    ),
    HostFile(
        name="qwen",
        title="Qwen Code",
        user=lambda machine: [machine.home / ".qwen" / "settings.json"],
        project=".mcp.json",
        url_key="httpUrl",
    ),
    HostFile(
        name="opencode",
        title="OpenCode",
        block="mcp",
        user=_opencode,
        project="opencode.json",
        url_type="remote",
    ),
)
_BY_NAME: Final = {host.name: host for host in HOSTS}


def find_host(name: str) -> HostFile | None:
    """Return the host with this name or alias, or None."""
    plain = name.lower().replace(" ", "-").replace("_", "-")
    return _BY_NAME.get(_ALIASES.get(plain, plain))


def collect_settings(
    keys: Sequence[str], path: Path, root: Mapping[str, Any], host: HostFile | None, *, machine: Machine
) -> HostSettings:
    """Return the settings that a host stores about its servers outside of the server entries.

    Args:
        keys: The path of keys to the object with the server entries.
        path: The file that contains the server entries.
        root: The values of the file.
        host: The host; None if the file does not belong to a known host.
        machine: Determines the paths of the host's other files.

    Raises:
        ConfigError: A settings file cannot be read.
    """
    roots = [(str(path), root)]
    other_files = settings_beside(path)
    if keys[0] == "projects":
        roots.append((str(path), root["projects"][keys[1]]))
        other_files += settings_beside(Path(keys[1]) / ".mcp.json")
    if host is not None:
        other_files += [place for place in host.user(machine) if place.resolve() != path.resolve()]
        other_files += [each for place in host.user(machine) for each in settings_beside(place)]
    if path.name == ".mcp.json":
        other_files.append(machine.home / ".claude.json")
    if host is not None and host.name == "claude-code":
        other_files.append(_MANAGED.get(machine.platform, _MANAGED["linux"]))
    for each in dict.fromkeys(other_files):
        # TOML files belong to Codex, which has no such settings.
        if each.suffix == ".toml" or (settings := read_settings(each)) is None:
            continue
        roots.append((str(each), settings))
        # Claude Code has settings for each project.
        projects = settings.get("projects")
        project = projects.get(str(path.absolute().parent)) if isinstance(projects, dict) else None
        if isinstance(project, dict):
            roots.append((str(each), project))
    return HostSettings(roots)


Reference = Callable[[str, str, str], str]
"""Called with a server alias and a secret's name and value; returns the text that refers to the stored secret."""

# These hosts do not expand `${NAME}` in their files.
_LITERAL_HOSTS: Final = frozenset({"claude-desktop", "codex", "opencode"})
_OPENCODE_PLACEHOLDER: Final = re.compile(r"\{(env|file):([^{}]+)\}")
_INPUT: Final = re.compile(r"\$\{input:([^{}]+)\}")
_GEMINI_VARIABLE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# Placeholders whose value depends on the folder that is open in the host.
_WORKSPACE_PLACEHOLDER: Final = re.compile(
    r"\$\{(workspaceFolder(?:Basename)?|workspaceRoot(?:FolderName)?|CLAUDE_PLUGIN_ROOT|CLAUDE_PROJECT_DIR)(?:[:-][^{}]*)?\}"
)
_BASENAMES: Final = frozenset({"workspaceFolderBasename", "workspaceRootFolderName"})
_COPIED_KEYS: Final = (
    "type",
    "command",
    "args",
    "env",
    "envFile",
    "cwd",
    "url",
    "headers",
    "headersCommand",
    "auth",
    "proxy",
    "disabled",
    "allow",
    "deny",
    "tools",
    "validation",
    "callTimeout",
)
# Keys that are dropped without a note: they matter only to hosts, or `_codex_keys` has already converted them.
_IGNORED_KEYS: Final = frozenset(
    {
        "description",
        "name",
        "icon",
        "gallery",
        "version",
        "dev",
        "timeout",
        "startup_timeout_sec",
        "tool_timeout_sec",
        "required",
    }
)
_CODEX_KEYS: Final = frozenset({"bearer_token_env_var", "http_headers", "env_http_headers", "env_vars"})
# The keys of an entry that determine which server it starts or connects to.
_IDENTIFYING_KEYS: Final = ("type", "command", "args", "cwd", "url")
_BLOCKS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("mcpServers",), "claude-code"),
    (("servers",), "vscode"),
    (("mcp_servers",), "codex"),
    (("mcp", "servers"), "vscode"),
    (("mcp",), "opencode"),
)


@dataclass(slots=True, kw_only=True)
class ConvertedEntry:
    """A host's server entry, converted to the format of the gateway's configuration.

    Attributes:
        written: The name in the host's file.
        alias: The name in the configuration.
        entry: The converted entry.
        notes: Messages about settings that were left out, and about values that the user has to provide.
        refused: The reason why the server cannot be imported, such as an unknown kind of restriction; otherwise empty.
    """

    written: str
    alias: str
    entry: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    refused: str = ""


def find_blocks(
    root: Mapping[str, Any], host: HostFile | None
) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Yield the path of keys, the name of the host format, and the entries of each object with server entries."""
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
        if isinstance(place, dict) and place and all(isinstance(entry, dict) for entry in place.values()):
            yield keys, name, place
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class HostContext:
    """Information that the host uses to interpret server entries, but does not store in their file.

    Attributes:
        workspace: The folder that is open in the host; None if unknown.
        inputs: The default value of each `${input:NAME}` that the host asks its user for.
        settings: The settings of the host that apply to its servers.
    """

    workspace: Path | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: HostSettings | None = None


def convert_entry(
    server_key: str,
    entry: Mapping[str, Any],
    host: str,
    reference: Reference,
    context: HostContext | None = None,
) -> ConvertedEntry:
    """Convert a host's server entry to the format of the gateway's configuration.

    Args:
        server_key: The name in the host's file.
        host: The name of the host whose format the entry has.
        reference: Stores a secret, and returns the text that refers to the stored secret.
        context: Information that the host uses to interpret the entry, but does not store in its file.
    """
    context = context if context is not None else HostContext()
    settings = context.settings
    converted = ConvertedEntry(written=server_key, alias=valid_alias(server_key), entry={})
    converter = _Converter(host, context.workspace, context.inputs, converted.notes)
    try:
        common = converter.translate_entry(entry, server_key)
        if settings is not None and (off := settings.apply(common, server_key)):
            converted.notes.append(f"is disabled by {off}")
        for key in common:
            if key not in converter.handled_keys and (expected := misread_restriction(key, common[key])) is not None:
                raise fault("may restrict something, in a form that is not known", expected, key=key)
    except PydanticCustomError as error:
        converted.refused = f"{(error.context or {}).get('key')}: {error.message()}"
        common = {key: entry[key] for key in _IDENTIFYING_KEYS if key in entry}
    except ConfigError as error:
        converted.refused = str(error)
        common = {key: entry[key] for key in _IDENTIFYING_KEYS if key in entry}
    converted.entry = _with_references(converter.translated(common), converted.alias, reference)
    return converted


class _Reference(str):
    """A text whose placeholders are already in the syntax of the configuration."""


@dataclass(slots=True)
class _Converter:
    """Converts keys and placeholders from the syntax of a host to the syntax of the configuration."""

    host: str
    workspace: Path | None
    inputs: Mapping[str, str]
    notes: list[str]

    @property
    def handled_keys(self) -> frozenset[str]:
        """The keys that need no note to the user: they are copied, converted, or ignored on purpose."""
        return frozenset((*_COPIED_KEYS, "connectTimeout")) | _IGNORED_KEYS | _CODEX_KEYS

    def translate_entry(self, entry: Mapping[str, Any], server_key: str) -> dict[str, Any]:
        """Return the entry with its keys renamed to those that most hosts use.

        Raises:
            PydanticCustomError: Two keys contradict each other, or a restriction has an unknown form.
        """
        common = translate_entry({**entry, **self._codex_keys(entry)}, server_key)
        if self.host in ("gemini", "qwen") and "url" in entry and "httpUrl" not in entry and "type" not in entry:
            common["type"] = "sse"
        if common.get("type") == "stdio":
            del common["type"]
        if common.get("disabled") is False:
            del common["disabled"]
        return common

    def translated(self, common: Mapping[str, Any]) -> dict[str, Any]:
        """Convert placeholders and paths in the result of `translate_entry` to the syntax of the configuration."""
        translated: dict[str, Any] = {key: common[key] for key in (*_COPIED_KEYS, "connectTimeout") if key in common}
        for key in common:
            if key not in self.handled_keys:
                self.notes.append(f"{key} is left out: it has no meaning here")
        translated = {key: _map_texts(value, self._placeholders) for key, value in translated.items()}
        for key in ("cwd", "envFile"):
            if (
                isinstance(path := translated.get(key), str)
                and "${" not in path
                and not expand_home(path).is_absolute()
            ):
                if self.workspace is None:
                    self.notes.append(f"{key} is relative: write the absolute path")
                else:
                    translated[key] = literal(str(self.workspace / path))
        return translated

    def _codex_keys(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys that only Codex has, converted to the keys that most hosts use."""
        converted: dict[str, Any] = {}
        headers = {**(entry.get("headers") or {}), **(entry.get("http_headers") or {})}
        for name, variable in (entry.get("env_http_headers") or {}).items():
            headers[name] = _Reference(f"${{{variable}}}")
        if isinstance(entry.get("bearer_token_env_var"), str):
            headers["Authorization"] = _Reference(f"Bearer ${{{entry['bearer_token_env_var']}}}")
        if headers:
            converted["headers"] = headers
        if isinstance(entry.get("env_vars"), list):
            # Each item of the list is a variable name, or an object with a `name`.
            names = [item.get("name") if isinstance(item, dict) else item for item in entry["env_vars"]]
            passed = {name: _Reference(f"${{{name}}}") for name in names if isinstance(name, str)}
            converted["env"] = {**passed, **(entry.get("env") or {})}
        for key, ours in (("tool_timeout_sec", "callTimeout"), ("startup_timeout_sec", "connectTimeout")):
            value = entry.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                converted[ours] = int(value) if value == int(value) else value
        return converted

    def _placeholders(self, text: str) -> str:
        """Convert the placeholders in a text to the syntax of the configuration."""
        if self.host in _LITERAL_HOSTS:
            text = literal(text)
            if self.host != "opencode":
                return text
            return _OPENCODE_PLACEHOLDER.sub(lambda m: f"${{{'file:' if m[1] == 'file' else ''}{m[2]}}}", text)
        text = _INPUT.sub(self._input, text)
        text = _WORKSPACE_PLACEHOLDER.sub(self._in_workspace, text)
        if self.host in ("gemini", "qwen"):
            text = _GEMINI_VARIABLE.sub(lambda m: f"${{{m[1]}}}", text)
        return text

    def _input(self, match: re.Match[str]) -> str:
        name, default = input_variable(match[1]), self.inputs.get(match[1])
        if default is not None and not set(default) & set("${}"):
            return f"${{{name}:-{default}}}"
        self.notes.append(f"set the variable {name}; the host asks its user for it")
        return f"${{{name}}}"

    def _in_workspace(self, match: re.Match[str]) -> str:
        if self.workspace is None:
            self.notes.append(f"{match[0]} is only known to the host: replace it by its value")
            return match[0]
        return literal(self.workspace.name if match[1] in _BASENAMES else str(self.workspace))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, _Reference) else change(value)
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    return {key: _map_texts(item, change) for key, item in value.items()} if isinstance(value, dict) else value


def _with_references(entry: dict[str, Any], alias: str, reference: Reference) -> dict[str, Any]:
    """Return the entry with each secret replaced by a reference."""
    changed = dict(entry)
    for section in ("env", "headers"):
        if isinstance(entry.get(section), dict):
            changed[section] = {
                key: _replace_secrets(value, secrets_in({section: {key: value}}), partial(reference, alias, key))
                for key, value in entry[section].items()
            }
    if isinstance(auth := entry.get("auth"), dict) and isinstance(secret := auth.get("clientSecret"), str):
        referred = secret if "${" in secret else reference(alias, "CLIENT_SECRET", secret)
        changed["auth"] = {**auth, "clientSecret": referred}
    for section in ("url", "args"):
        if section in entry:
            secrets = secrets_in({section: entry[section]})
            changed[section] = _replace_secrets(entry[section], secrets, partial(reference, alias, section))
    return changed


def _replace_secrets(value: Any, secrets: set[str], reference: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_replace_secrets(item, secrets, reference) for item in value]
    if not isinstance(value, str) or "${" in value:
        return value
    scheme, space, token = value.partition(" ")
    if space and token in secrets and scheme.lower() in ("bearer", "basic", "token"):
        return f"{scheme} {reference(token)}"
    # Try the longest secret first, because one secret may be part of another.
    for secret in sorted(secrets, key=len, reverse=True):
        if secret and secret in value:
            return value.replace(secret, reference(secret))
    return value
