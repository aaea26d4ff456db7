"""Replace the servers in a host's settings file with the gateway, and restore the file."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.host_settings import HostSettings
from gateway.config.model import Config
from gateway.config.server import ServerConfig
from gateway.config.source import read
from gateway.config.upstream_types.registration import read_server
from gateway.onboarding.host_file_edits import (
    FileChange,
    Installations,
    Refused,
    edit_entries,
    parse_values,
    plan_edit,
    read_content,
)
from gateway.onboarding.host_files import (
    ConvertedEntry,
    HostContext,
    HostFile,
    Machine,
    collect_settings,
    convert_entry,
)
from gateway.process.files import expand_home

NAME: Final = "typegate"
"""The default name of the gateway's entry."""
_WILD: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A planned change that adds the gateway's entry to a host's file.

    Attributes:
        name: The name of the gateway's entry.
        replaced: The names of the entries that the gateway replaces.
        kept: The names of the entries that stay in the file.
    """

    name: str
    change: FileChange
    replaced: tuple[str, ...]
    kept: tuple[str, ...]

    def apply(self, installations: Installations) -> Path:
        """Write the file, and return the path of the backup.

        Raises:
            Refused: The file was changed concurrently, already has an installation, or must not be written.
            OSError: The file cannot be written.
        """
        backup = installations.record(self.change, name=self.name)
        try:
            self.change.apply()
        except BaseException:
            installations.discard(self.change.path)
            raise
        return backup


def plan_installation(
    host: HostFile,
    path: Path,
    entry: Mapping[str, Any],
    *,
    name: str = NAME,
    config: Config | None = None,
    keep: bool = False,
) -> Installation:
    """Plan the change that adds the gateway's entry to a host's file.

    Args:
        path: The host's file, which may not exist yet.
        entry: The gateway's entry in the format of the host.
        config: The configuration of the gateway. Entries for servers in this configuration are removed from the file.
        keep: Leave all existing entries in the file.

    Raises:
        ConfigError: The file cannot be used.
        Refused: Through the gateway, the host would see tools, prompts or resources that its file hides.
    """
    root = parse_values(read_text(path), path) if path.is_file() else {}
    existing = root.get(host.block)
    entries: dict[str, Any] = existing if isinstance(existing, dict) else {}
    settings = collect_settings((host.block,), path, root, host, machine=Machine.current())
    converted = _convert_entries(host, entries, settings)
    if config is not None and (exposed := _describe_newly_exposed(converted, config)):
        raise Refused(
            f"{path} was not written, because {host.title} would see what the file hides: {'; '.join(exposed)}. "
            f"Restrict them in {config.path or 'the configuration'} in the same way (`typegate import {host.name}` "
            "writes such entries), or remove the restriction from the file"
        )
    replaced = [] if keep else _find_replaced(entries, converted, config)
    change = plan_edit(path, lambda text: edit_entries(text, path, (host.block,), {name: entry}, replaced))
    remaining = tuple(each for each in entries if each not in replaced and each != name and entries[each] != entry)
    return Installation(name=name, change=change, replaced=tuple(replaced), kept=remaining)


def uninstall(host: HostFile, path: Path, installations: Installations, *, force: bool = False) -> str:
    """Restore a host's file, and return a description of what was done.

    Args:
        force: If the file was edited after the installation, remove only the gateway's entry and restore the entries
            that it replaced.

    Raises:
        Refused: The gateway was not installed, or the file was edited after the installation.
        ConfigError: The file cannot be used.
        OSError: The file cannot be read or written.
    """
    name = (installations.find(path) or {}).get("name", NAME)

    def merged(current: bytes, before: bytes) -> bytes:
        old, new = (parse_values(part.decode("utf-8"), path).get(host.block) or {} for part in (before, current))
        restored = {each: entry for each, entry in old.items() if each not in new or each == name}
        gateway_entries = [
            each for each, entry in new.items() if each not in old and (each == name or is_gateway_entry(entry))
        ]
        return edit_entries(current.decode("utf-8"), path, (host.block,), restored, gateway_entries).encode()

    return installations.undo(path, force=force, merge=merged)


def url_entry(host: HostFile, url: str, *, key: str = "") -> dict[str, Any]:
    """Return the entry that connects a host to a running gateway.

    If the host only starts programs, the entry contains the command `typegate stdio --url` instead of the URL alone.

    Args:
        key: The API key of the host; empty if the gateway requires none.
    """
    entry = host.url_entry(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    if entry is not None:
        return entry
    entry = host.process_entry([*program(), "stdio", "--url", url])
    # Pass the key in the environment, because every user of the machine can read command lines.
    return entry | ({"env": {"TYPEGATE_API_KEY": key}} if key else {})


def config_entry(host: HostFile, config: Path, state_dir: Path | None = None) -> dict[str, Any]:
    """Return the entry that makes a host start its own gateway.

    Args:
        state_dir: The state directory of the gateway; None for the default.
    """
    state = ["--state-dir", str(expand_home(state_dir).absolute())] if state_dir is not None else []
    return host.process_entry([*program(), "stdio", "--config", str(config.absolute()), *state])


def program() -> list[str]:
    """Return the command that starts typegate in the same way as this process was started."""
    running = Path(sys.argv[0])
    if running.name.removesuffix(".exe") == "typegate" and running.exists():
        return [str(running.absolute())]
    return [sys.executable, "-m", "gateway"]


def is_gateway_entry(entry: Any) -> bool:
    """Return whether a host's entry starts typegate."""
    if not isinstance(entry, Mapping):
        return False
    command = entry.get("command")
    words = [*command] if isinstance(command, list) else [command, *(entry.get("args") or [])]
    if not all(isinstance(word, str) for word in words):
        return False
    for index, word in enumerate(words):
        name = re.split(r"[/\\]", word)[-1].removesuffix(".exe")
        module = word == "-m" and words[index + 1 : index + 2] == ["gateway"]
        if (re.fullmatch(r"typegate(?:(?:@|==)[\w.]+)?", name) or module) and {"stdio", "serve"} & {*words[index:]}:
            return True
    return False


def read_text(path: Path) -> str:
    """Return the text of a host's file.

    Raises:
        ConfigError: The file cannot be read.
    """
    if path.suffix == ".toml":
        return (read_content(path) or b"").decode("utf-8", "replace")
    return read(path) if path.stat().st_size else ""


def _convert_entries(
    host: HostFile, entries: Mapping[str, Any], settings: HostSettings
) -> dict[str, tuple[ConvertedEntry, ServerConfig | None]]:
    """Return each converted entry of a host, with its parsed configuration or None if the entry is not valid."""
    by_name: dict[str, tuple[ConvertedEntry, ServerConfig | None]] = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or is_gateway_entry(entry):
            continue
        converted = convert_entry(
            name, entry, host.name, lambda alias, key, value: value, HostContext(settings=settings)
        )
        try:
            by_name[name] = converted, read_server(converted.entry)
        except ValidationError:
            by_name[name] = converted, None
    return by_name


def _describe_newly_exposed(
    converted: Mapping[str, tuple[ConvertedEntry, ServerConfig | None]], config: Config
) -> list[str]:
    """Describe the servers and items in `config` that the host's file hides, but the gateway would show to the host."""
    exposed: list[str] = []
    for name, (theirs, server) in converted.items():
        if server is None or (served := _find_served(theirs, server, config)) is None:
            continue
        if theirs.refused:
            exposed.append(f"{name} ({theirs.refused})")
        elif server.disabled:
            exposed.append(f"{name}, which is disabled there")
        elif exposed_items := _describe_exposed(server, served):
            exposed.append(f"{name} ({', '.join(exposed_items)})")
    return exposed


def _find_served(theirs: ConvertedEntry, server: ServerConfig, config: Config) -> ServerConfig | None:
    """Return the configuration of the server with the alias of a host's entry, if both name the same server."""
    served = config.servers.get(theirs.alias)
    if served is None or config.path is None:
        return None
    folder = config.path.parent
    return served if server.launch_identity(folder) == served.launch_identity(folder) else None


def _describe_exposed(theirs: ServerConfig, ours: ServerConfig) -> list[str]:
    """Describe the items that the host's entry `theirs` hides and the gateway's entry `ours` does not hide.

    Only the patterns are compared, because the items are not known.
    """
    exposed: list[str] = []
    for kind in ("tools", "prompts", "resources"):
        allowed, ours_allowed = getattr(theirs.allow, kind), getattr(ours.allow, kind)
        if allowed is not None and (ours_allowed is None or not _patterns_cover(allowed, ours_allowed)):
            exposed.append(f"allows only the {kind} {', '.join(allowed)}" if allowed else f"allows no {kind}")
        denied = getattr(ours.deny, kind) or []
        for pattern in getattr(theirs.deny, kind) or []:
            is_left_out = ours_allowed is not None and not any(
                fnmatchcase(pattern, allowed) for allowed in ours_allowed
            )
            is_hidden = kind == "tools" and pattern in ours.tools and ours.tools[pattern].hidden
            if not (_patterns_cover(denied, [pattern]) or is_hidden or (is_left_out and not set(pattern) & _WILD)):
                exposed.append(f"hides {pattern}")
    denied_tools = ours.deny.tools or []
    for tool, override in theirs.tools.items():
        is_hidden = _patterns_cover(denied_tools, [tool]) or (tool in ours.tools and ours.tools[tool].hidden)
        if override.hidden and not is_hidden:
            exposed.append(f"hides {tool}")
    return exposed


def _patterns_cover(patterns: Sequence[str], required: Sequence[str]) -> bool:
    """Return whether `patterns` match everything that the patterns in `required` match, without knowing the items."""
    return all(text in patterns or any(fnmatchcase(text, pattern) for pattern in patterns) for text in required)


def _find_replaced(
    entries: Mapping[str, Any],
    converted: Mapping[str, tuple[ConvertedEntry, ServerConfig | None]],
    config: Config | None,
) -> list[str]:
    """Return the names of the host's entries to replace: servers in `config`, and earlier entries of the gateway."""
    replaced = [name for name, entry in entries.items() if isinstance(entry, dict) and is_gateway_entry(entry)]
    for name, (theirs, server) in converted.items():
        if config is None:
            continue
        # `left_out` contains the servers of the configuration that are disabled or invalid.
        is_left_out = theirs.alias in config.left_out
        if is_left_out or (server is not None and _find_served(theirs, server, config) is not None):
            replaced.append(name)
    return [name for name in entries if name in replaced]
