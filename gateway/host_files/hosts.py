"""The nine hosts: where their files are, in which form, and how each writes the entry of a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gateway.config.host_settings import HostSettings, read_settings, settings_beside
from gateway.files import home_folder

FileForm = Literal["json", "toml"]
_Places = Callable[["Machine"], Sequence[Path]]
# What administrators of machines say to Claude Code.
_MANAGED: Final = {
    "linux": Path("/etc/claude-code/managed-settings.json"),
    "darwin": Path("/Library/Application Support/ClaudeCode/managed-settings.json"),
    "win32": Path("C:/Program Files/ClaudeCode/managed-settings.json"),
}
_ALIASES: Final = {"claude": "claude-code", "gemini-cli": "gemini", "qwen-code": "qwen", "code": "vscode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What decides where files are.

    Attributes:
        home: The user's folder.
        platform: As `sys.platform` has it.
        environ: The environment.
    """

    home: Path
    platform: str
    environ: Mapping[str, str]

    @classmethod
    def this(cls) -> Machine:
        """The one that this process runs on."""
        return cls(home=home_folder(), platform=sys.platform, environ=os.environ)

    @property
    def applications(self) -> Path:
        """Where programs keep the settings of a user."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environ.get("APPDATA") or self.home / "AppData" / "Roaming")
        base = self.environ.get("XDG_CONFIG_HOME", "")
        return Path(base) if Path(base).is_absolute() else self.home / ".config"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """One host.

    Attributes:
        name: As the command line names it.
        title: As people name it.
        block: The key of its servers.
        form: Of its file.
        user: Where the file of a user may be; the first that exists, or else the first, is taken.
        project: The file in the folder of a project; None where there is none.
        url_key: The key of an address in an entry; None where it starts processes only.
        url_type: What an entry with an address has as its `type`.
        process_type: What an entry with a command has as its `type`.
        headers_key: The key of what is sent with every request, in an entry with an address.
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
        """The file to read and write; None where this host has none in projects."""
        if project is not None:
            return None if self.project is None else project / self.project
        places = self.user(machine)
        return next((place for place in places if place.exists()), places[0])

    def process_entry(self, command: Sequence[str]) -> dict[str, Any]:
        """The entry that starts a command."""
        if self.name == "opencode":
            return {"type": "local", "command": [*command], "enabled": True}
        kind = {"type": self.process_type} if self.process_type else {}
        return {**kind, "command": command[0], "args": [*command[1:]]}

    def url_entry(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """The entry that connects to an address; None where there is no such entry."""
        if self.url_key is None:
            return None
        kind = {"type": self.url_type} if self.url_type else {}
        sent = {self.headers_key: dict(headers)} if headers else {}
        return {**kind, self.url_key: url, **sent} | ({"enabled": True} if self.name == "opencode" else {})


def _codex(machine: Machine) -> Sequence[Path]:
    home = machine.environ.get("CODEX_HOME")
    return [Path(home) / "config.toml" if home else machine.home / ".codex" / "config.toml"]


def _opencode(machine: Machine) -> Sequence[Path]:
    # It follows the XDG specification on every platform.
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


def host_named(name: str) -> HostFile | None:
    """The host of this name, or None."""
    plain = name.lower().replace(" ", "-").replace("_", "-")
    return _BY_NAME.get(_ALIASES.get(plain, plain))


def settings_of(
    keys: Sequence[str], path: Path, root: Mapping[str, Any], host: HostFile | None, *, machine: Machine
) -> HostSettings:
    """Return what a host says of the servers of one of its blocks beside their entries.

    Args:
        keys: The path of the block.
        path: The file in which it is.
        root: The values of the file.
        host: The host; None where the file is of no known host.
        machine: Where other files of the host are.

    Raises:
        ConfigError: A file of settings cannot be read.
    """
    roots = [(str(path), root)]
    beside = settings_beside(path)
    if keys[0] == "projects":
        roots.append((str(path), root["projects"][keys[1]]))
        beside += settings_beside(Path(keys[1]) / ".mcp.json")
    if host is not None:
        beside += [place for place in host.user(machine) if place.resolve() != path.resolve()]
        beside += [each for place in host.user(machine) for each in settings_beside(place)]
    if path.name == ".mcp.json":
        beside.append(machine.home / ".claude.json")
    if host is not None and host.name == "claude-code":
        beside.append(_MANAGED.get(machine.platform, _MANAGED["linux"]))
    for each in dict.fromkeys(beside):
        # Codex, which has no such lists.
        if each.suffix == ".toml" or (settings := read_settings(each)) is None:
            continue
        roots.append((str(each), settings))
        # Claude Code.
        projects = settings.get("projects")
        project = projects.get(str(path.absolute().parent)) if isinstance(projects, dict) else None
        if isinstance(project, dict):
            roots.append((str(each), project))
    return HostSettings(roots)
