"""The gateway put into the file of a host, in the place of the servers that it stands for, and taken out again."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.model import Config
from gateway.config.source import read
from gateway.config.upstream_types.registration import read_server
from gateway.host_files.changes import FileChange, Installations, change_of, content_of
from gateway.host_files.entries import adopt
from gateway.host_files.hosts import HostFile
from gateway.host_files.text import values_of, with_entries

NAME: Final = "typegate"
"""Of our entry, unless another is chosen."""


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
    """
    known = values_of(text_of(path), path).get(host.block) if path.is_file() else None
    entries: dict[str, Any] = known if isinstance(known, dict) else {}
    replaced = [] if keep else _replaced(host, entries, config)
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
    state = ["--state-dir", str(state_dir.expanduser().absolute())] if state_dir is not None else []
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


def _replaced(host: HostFile, entries: Mapping[str, Any], config: Config | None) -> list[str]:
    """The entries of a host that the gateway stands for: those that the configuration has, and former ones of ours."""
    found: list[str] = []
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            continue
        if is_ours(entry):
            found.append(name)
            continue
        adopted = adopt(name, entry, host.name, lambda alias, key, value: value)
        served = config.servers.get(adopted.alias) if config is not None else None
        if config is not None and adopted.alias in config.left_out:
            found.append(name)  # it stands there, and is switched off or faulty
            continue
        if served is None or config is None or config.path is None:
            continue
        try:
            theirs = read_server(adopted.entry)
        except ValidationError:
            continue
        folder = config.path.parent
        if theirs.launch_identity(folder) == served.launch_identity(folder):
            found.append(name)
    return found
