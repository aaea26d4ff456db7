"""The gateway put into the file of a host, in the place of the servers that it stands for, and taken out again."""

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
from gateway.files import expand_home
from gateway.host_files.changes import FileChange, Installations, Refused, change_of, content_of
from gateway.host_files.entries import Adopted, adopt
from gateway.host_files.hosts import HostFile, Machine, settings_of
from gateway.host_files.text import values_of, with_entries

NAME: Final = "typegate"
"""Of our entry, unless another is chosen."""
_WILD: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Our entry in a host's file, before it is written.

    Attributes:
        name: Of the entry.
        change: The file as it is, and as it is to be.
        replaced: The entries that ours takes the place of.
        staying: Those that stay beside it.
    """

    name: str
    change: FileChange
    replaced: tuple[str, ...]
    staying: tuple[str, ...]

    def make(self, installations: Installations) -> Path:
        """Write the file; returns where it is kept as it was.

        Raises:
            Refused: It has changed in the meantime, was changed before, or is never to be written.
            OSError: It cannot be written.
        """
        backup = installations.record(self.change, name=self.name)
        try:
            self.change.make()
        except BaseException:
            installations.discard(self.change.path)
            raise
        return backup


def installation(
    host: HostFile,
    path: Path,
    entry: Mapping[str, Any],
    *,
    name: str = NAME,
    config: Config | None = None,
    keep: bool = False,
) -> Installation:
    """What has to be written for a host to have this entry.

    Args:
        host: The host.
        path: Its file, which need not be there.
        entry: Ours, as this host writes entries.
        name: The name of the entry.
        config: What the gateway serves: entries of the same servers are replaced.
        keep: Replace none.

    Raises:
        ConfigError: The file cannot be used.
        Refused: The gateway would show the host what its file hides.
    """
    root = values_of(text_of(path), path) if path.is_file() else {}
    known = root.get(host.block)
    entries: dict[str, Any] = known if isinstance(known, dict) else {}
    settings = settings_of((host.block,), path, root, host, machine=Machine.this())
    adopted = _adopted(host, entries, settings)
    if config is not None and (opened := _opened(adopted, config)):
        raise Refused(
            f"{path} was not written, because {host.title} would be shown what the file hides: {'; '.join(opened)}. "
            f"Restrict them in {config.path or 'the configuration'} in the same way (`typegate import {host.name}` "
            "writes such entries), or remove the restriction from the file"
        )
    replaced = [] if keep else _replaced(entries, adopted, config)
    change = change_of(path, lambda text: with_entries(text, path, (host.block,), {name: entry}, replaced))
    staying = tuple(each for each in entries if each not in replaced and each != name)
    return Installation(name=name, change=change, replaced=tuple(replaced), staying=staying)


def uninstall(host: HostFile, path: Path, installations: Installations, *, force: bool = False) -> str:
    """Give a host its file back; returns what was done.

    Args:
        host: The host.
        path: Its file.
        installations: What we have changed.
        force: Also where somebody has changed it since: only our entry is taken out, and the others are put back.

    Raises:
        Refused: Nothing was installed, or the file has changed since.
        ConfigError: The file cannot be used.
        OSError: It cannot be read or written.
    """
    name = (installations.known(path) or {}).get("name", NAME)

    def merged(current: bytes, before: bytes) -> bytes:
        old, new = (values_of(part.decode("utf-8"), path).get(host.block) or {} for part in (before, current))
        back = {each: entry for each, entry in old.items() if each not in new or each == name}
        ours = [each for each, entry in new.items() if each not in old and (each == name or is_ours(entry))]
        return with_entries(current.decode("utf-8"), path, (host.block,), back, ours).encode()

    return installations.undo(path, force=force, merge=merged)


def url_entry(host: HostFile, url: str, *, key: str = "") -> dict[str, Any]:
    """The entry that connects a host to a running gateway: by its address, or through a process where it knows none.

    Args:
        host: The host.
        url: Where MCP is served.
        key: What the host proves itself with; none where that is not needed.
    """
    entry = host.url_entry(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    if entry is not None:
        return entry
    entry = host.process_entry([*program(), "stdio", "--url", url])
    # In the environment: what stands on a command line, every user of the machine can read.
    return entry | ({"env": {"TYPEGATE_API_KEY": key}} if key else {})


def config_entry(host: HostFile, config: Path, state_dir: Path | None = None) -> dict[str, Any]:
    """The entry with which a host starts a gateway of its own.

    Args:
        host: The host.
        config: What the gateway serves.
        state_dir: Where its state is, unless that is where it usually is.
    """
    state = ["--state-dir", str(expand_home(state_dir).absolute())] if state_dir is not None else []
    return host.process_entry([*program(), "stdio", "--config", str(config.absolute()), *state])


def program() -> list[str]:
    """The command line of this same program, for others to start."""
    running = Path(sys.argv[0])
    if running.name.removesuffix(".exe") == "typegate" and running.exists():
        return [str(running.absolute())]
    return [sys.executable, "-m", "gateway"]


def is_ours(entry: Any) -> bool:
    """Whether an entry of a host starts this program."""
    if not isinstance(entry, Mapping):
        return False
    command = entry.get("command")
    words = [*command] if isinstance(command, list) else [command, *(entry.get("args") or [])]
    if not all(isinstance(word, str) for word in words):
        return False
    for at, word in enumerate(words):
        name = re.split(r"[/\\]", word)[-1].removesuffix(".exe")
        module = word == "-m" and words[at + 1 : at + 2] == ["gateway"]
        if (re.fullmatch(r"typegate(?:(?:@|==)[\w.]+)?", name) or module) and {"stdio", "serve"} & {*words[at:]}:
            return True
    return False


def text_of(path: Path) -> str:
    """The text of a host's file; empty where there is none.

    Raises:
        ConfigError: It cannot be read.
    """
    if path.suffix == ".toml":
        return (content_of(path) or b"").decode("utf-8", "replace")
    return read(path) if path.stat().st_size else ""


def _adopted(
    host: HostFile, entries: Mapping[str, Any], settings: HostSettings
) -> dict[str, tuple[Adopted, ServerConfig | None]]:
    """Return the servers of a host, by their names there, as we read them; None for what cannot be read."""
    found: dict[str, tuple[Adopted, ServerConfig | None]] = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or is_ours(entry):
            continue
        adopted = adopt(name, entry, host.name, lambda alias, key, value: value, settings=settings)
        try:
            found[name] = adopted, read_server(adopted.entry)
        except ValidationError:
            found[name] = adopted, None
    return found


def _opened(adopted: Mapping[str, tuple[Adopted, ServerConfig | None]], config: Config) -> list[str]:
    """Return what a host hides of servers that the gateway serves, and the gateway does not hide."""
    found: list[str] = []
    for name, (theirs, server) in adopted.items():
        if server is None or (served := _served(theirs, server, config)) is None:
            continue
        if theirs.refused:
            found.append(f"{name} ({theirs.refused})")
        elif server.disabled:
            found.append(f"{name}, which is switched off there")
        elif shown := _not_hidden(server, served):
            found.append(f"{name} ({', '.join(shown)})")
    return found


def _served(theirs: Adopted, server: ServerConfig, config: Config) -> ServerConfig | None:
    """Return what the gateway serves in the place of a host's entry."""
    served = config.servers.get(theirs.alias)
    if served is None or config.path is None:
        return None
    folder = config.path.parent
    return served if server.launch_identity(folder) == served.launch_identity(folder) else None


def _not_hidden(theirs: ServerConfig, ours: ServerConfig) -> list[str]:
    """Return what one entry hides and another does not, as far as their patterns say."""
    found: list[str] = []
    for kind in ("tools", "prompts", "resources"):
        allowed, ours_allowed = getattr(theirs.allow, kind), getattr(ours.allow, kind)
        if allowed is not None and (ours_allowed is None or not _covers(allowed, ours_allowed)):
            found.append(f"only the {kind} {', '.join(allowed) or 'that it lists: none'}")
        denied = getattr(ours.deny, kind) or []
        for pattern in getattr(theirs.deny, kind) or []:
            is_left_out = ours_allowed is not None and not any(fnmatchcase(pattern, one) for one in ours_allowed)
            is_hidden = kind == "tools" and pattern in ours.tools and ours.tools[pattern].hidden
            if not (_covers(denied, [pattern]) or is_hidden or (is_left_out and not set(pattern) & _WILD)):
                found.append(f"not {pattern}")
    hidden = [tool for tool, one in theirs.tools.items() if one.hidden]
    shown = [tool for tool in hidden if not (tool in ours.tools and ours.tools[tool].hidden)]
    return [*found, *(f"not {tool}" for tool in shown if not _covers(ours.deny.tools or [], [tool]))]


def _covers(patterns: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether all that others match is matched by these patterns: as far as the texts alone say."""
    return all(other in patterns or any(fnmatchcase(other, pattern) for pattern in patterns) for other in others)


def _replaced(
    entries: Mapping[str, Any], adopted: Mapping[str, tuple[Adopted, ServerConfig | None]], config: Config | None
) -> list[str]:
    """The entries of a host that the gateway stands for: those that the configuration has, and former ones of ours."""
    found = [name for name, entry in entries.items() if isinstance(entry, dict) and is_ours(entry)]
    for name, (theirs, server) in adopted.items():
        if config is None:
            continue
        # Left out: it stands there, and is switched off or faulty.
        is_left_out = theirs.alias in config.left_out
        if is_left_out or (server is not None and _served(theirs, server, config) is not None):
            found.append(name)
    return [name for name in entries if name in found]
