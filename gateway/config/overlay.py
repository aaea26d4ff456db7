"""Changes by administrators: a list of edits to the configuration, stored in the state directory.

The configuration file itself is not modified, because it may be read-only or maintained by another person. Every change
is shown as a difference from the file and can be reverted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import ValidationError

from gateway.config.auth_config import ApiKey, AuthConfig
from gateway.config.file_edits import hash_of
from gateway.config.model import Config, LeftOut
from gateway.config.section import refusal
from gateway.config.server import ServerConfig, ToolConfig
from gateway.config.unmatched_names import AddedNames
from gateway.config.upstream_types.registration import read_server
from gateway.process.files import ForeignFile, make_private_folder, read_private, write_whole
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.names import check_aliases
from registry.errors import AliasError

log = logging.getLogger(__name__)

Kind = Literal[
    "server_added", "server_removed", "server_disabled", "tool_disabled", "tool_set", "key_added", "key_revoked"
]
Admits = Callable[[str, ServerConfig], None]

FOLDER: Final = "overlays"
DISABLED: Final = "disabled by an administrator"
MAX_CHANGES: Final = 2_000
"""Enough for changes made by hand. Changes made by a script belong in the configuration file."""
# Enough for several server entries as large as a request. The limit exists because the file is read into memory.
_MAX_BYTES: Final = 64 * 1024 * 1024
# Length of the file name: the first digits of the SHA-256 of the configuration's path. Several gateways can store their
# files in the same state directory.
_NAME_CHARS: Final = 16
_ID_BYTES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change by an administrator.

    Attributes:
        kind: The kind of change.
        target: The alias of a server, the wrapper name of a tool, or the name of an API key.
        entry: The configuration of an added server or key, the overrides of a tool, or the hash of a revoked key.
        server: The alias of the server of a tool.
        tool: The upstream's name of a tool.
        by: The administrator.
        at_s: The time of the change, in seconds since the epoch.
        id: Identifies the change, so that it can be reverted.
    """

    kind: Kind
    target: str
    entry: dict[str, Any] = field(default_factory=dict, repr=False)
    server: str = ""
    tool: str = ""
    by: str = ""
    at_s: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: secrets.token_hex(_ID_BYTES))

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or not isinstance(self.entry, dict):
            raise ValueError("a change is malformed")


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of the list of changes, which can be applied even if the list was edited concurrently.

    Attributes:
        add: The changes to add.
        remove: The ids of the changes to revert.
    """

    add: tuple[Change, ...] = ()
    remove: frozenset[str] = frozenset()

    @classmethod
    def from_difference(cls, before: Iterable[Change], after: Iterable[Change]) -> Edit:
        """Return the edit that turns `before` into `after`."""
        old, new = {each.id: each for each in before}, {each.id: each for each in after}
        return cls(
            add=tuple(each for name, each in new.items() if name not in old),
            remove=frozenset(old.keys() - new.keys()),
        )

    def apply_to(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Apply the edit to `changes` and return the result, ordered by time."""
        new = {each.id for each in self.add}
        remaining = [each for each in changes if each.id not in self.remove and each.id not in new]
        return tuple(sorted([*remaining, *self.add], key=lambda each: each.at_s))


class Overlay:
    """The changes in use, and the file that stores them.

    Attributes:
        changes: The changes in use, oldest first.
        path: The file; None if changes are not stored.
        follows: True if another process writes the file, so that the file may differ from the changes in use.
        error: Why the file could not be read or written; None if it contains the changes in use.
        digest: The SHA-256 of the file when it was last read; None if it did not exist.
        unsaved: True if the changes in use could not be written.
    """

    def __init__(
        self, state_dir: Path | None = None, config: Path | None = None, *, writes: bool = True, follows: bool = False
    ) -> None:
        """Read the stored changes of a configuration.

        Args:
            state_dir: The state directory; None if changes are not stored.
            config: The configuration file, whose path determines the name of the stored file.
            writes: Whether this process may write the file.
            follows: Whether another process writes the file and this one applies its changes.
        """
        self._identity = _identity_path(config) if config is not None else ""
        self.path = _file_of(state_dir, self._identity) if state_dir is not None else None
        # The path at which an earlier version of typegate stored the changes.
        self._former = _file_of(state_dir, str(config.resolve())) if state_dir is not None and config else None
        self._writes = writes
        self.follows = follows and self.path is not None
        self.error: str | None = None
        self.unsaved = False
        self.digest: bytes | None = None
        self.changes: tuple[Change, ...] = self._read_changes()

    @property
    def lasts(self) -> bool:
        """True if changes survive a restart."""
        return self.path is not None and self.error is None

    def check(self) -> None:
        """Refuse to serve if the changes cannot be read, because disabled servers and tools would be available again.

        Raises:
            ConfigError: The file cannot be read.
        """
        if self.error is not None:
            what = "repair it, or remove it to serve without the changes of administrators"
            raise ConfigError(f"{self.error}; {what}", file=self._identity or "overlay")

    def open_lock(self) -> int | None:
        """Open the lock file that serializes changes of gateways with the same state directory.

        Returns:
            The file descriptor; None if this process does not write the file, or cannot open the lock file.
        """
        if self.path is None or not self._writes:
            return None
        try:
            make_private_folder(self.path.parent)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
            return os.open(self.path.parent.with_suffix(".lock"), flags, 0o600)
        except OSError as error:
            # The failure is reported to the administrator when the changes are written.
            log.debug("overlay lock failed", extra={"reason": str(error)})
            return None

    def to_edit(self) -> tuple[Change, ...]:
        """Return the changes to edit: those in the file if this process writes the file, otherwise those in use."""
        # If the file was deleted, keep the changes in use: disabled servers and tools must not become available again.
        is_file = self.path is not None and self.path.exists()
        return self.latest() if is_file and self._writes and not self.unsaved else self.changes

    def latest(self) -> tuple[Change, ...]:
        """Return the changes in the file, or the changes in use if the file cannot be read."""
        self.error = None
        stored = self._read_changes()
        return self.changes if self.error is not None else stored

    def replace(self, changes: Sequence[Change]) -> None:
        """Use these changes and store them."""
        self.changes = tuple(changes)
        if self.path is None or not self._writes:
            return
        try:
            make_private_folder(self.path.parent)
            document = {"configuration": self._identity, "changes": [asdict(change) for change in self.changes]}
            write_whole(self.path, json_bytes.dumps(document))
            self.error, self.unsaved = None, False
        except OSError as error:
            self.unsaved = True
            self.error = f"{self.path} cannot be written ({error.strerror or error})"
            log.error("overlay not stored: changes end with this process", extra={"reason": self.error})

    def _read_changes(self) -> tuple[Change, ...]:
        if self.path is None:
            return ()
        self.digest = None
        try:
            try:
                text = read_private(self.path, most_bytes=_MAX_BYTES)
            except FileNotFoundError:
                if self._former is None or self._former == self.path:
                    raise
                text = read_private(self._former, most_bytes=_MAX_BYTES)
            self.digest = hashlib.sha256(text).digest()
            document = json_bytes.loads(text)
            return tuple(Change(**change) for change in document["changes"][:MAX_CHANGES])
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ForeignFile, ValueError, TypeError, KeyError, AttributeError) as error:
            # The file stays as it is until the next change, so that it can be repaired. The text of a TypeError and
            # similar errors is not shown, because it describes the code that failed, not the file.
            is_malformed = isinstance(error, TypeError | KeyError | AttributeError)
            reason = "its content has another structure" if is_malformed else error or type(error).__name__
            self.error = f"{self.path} cannot be read ({reason})"
            log.error("overlay not applied", extra={"reason": self.error})
            return ()


def _identity_path(config: Path) -> str:
    """Return the path that identifies a configuration across restarts.

    A symbolic link to another folder is resolved. A link within the folder is not: in a ConfigMap volume, the files are
    links into a subfolder whose name changes each time the volume is mounted.
    """
    target, folder = config.resolve(), config.parent.resolve()
    return str(folder / config.name if target.is_relative_to(folder) else target)


def _file_of(state_dir: Path, identity: str) -> Path:
    name = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_CHARS]
    return state_dir / FOLDER / f"{name}.json"


def with_changes(base: Config, changes: Sequence[Change], admits: Admits = lambda alias, config: None) -> Config:
    """Apply changes to a configuration.

    Args:
        base: The configuration of the file.
        changes: The changes, oldest first. Their targets may no longer exist.
        admits: Raises `ConfigError` for a server that cannot be served here.
    """
    if not changes:
        return base
    servers, left_out, keys = dict(base.servers), dict(base.left_out), list(base.gateway.auth.api_keys)
    # Apply changes of whole servers first, so that an edited entry neither undoes changes to its tools nor enables a
    # disabled server.
    for change in sorted(changes, key=lambda each: each.kind not in ("server_added", "server_removed")):
        alias = change.server or change.target
        try:
            match change.kind:
                case "server_added":
                    servers.pop(alias, None)
                    added = _read_added_server(change, servers, admits)
                    servers[alias] = added.with_process_defaults(base.gateway.processes)
                    left_out.pop(alias, None)
                case "server_removed":
                    servers.pop(alias, None)
                    left_out.pop(alias, None)
                case "server_disabled":
                    if servers.pop(alias, None) is not None:
                        left_out[alias] = LeftOut(reason=DISABLED, faulty=False)
                case "tool_disabled":
                    if (server := servers.get(alias)) is not None:
                        servers[alias] = _without_tool(server, change.tool)
                case "tool_set":
                    if (server := servers.get(alias)) is not None:
                        servers[alias] = _with_overrides(server, change.tool, change.entry)
                case "key_added":
                    keys.append(ApiKey.model_validate(change.entry))
                case "key_revoked":
                    ended = {"expires": datetime.fromtimestamp(change.at_s, UTC)}
                    keys = [
                        key.model_copy(update=ended) if hash_of(key) == change.entry.get("hash") else key
                        for key in keys
                    ]
        except (ConfigError, ValidationError) as error:
            problem = error if isinstance(error, ConfigError) else refusal(error, "overlay", within=change.target)
            if change.kind == "server_added":
                reason = f"added by an administrator, not served: {problem.message}"
                left_out[alias] = LeftOut(reason=reason, faulty=True)
            log.error("overlay change not applied", extra={"reason": str(problem)})
    auth = base.gateway.auth.model_copy(update={"api_keys": keys})
    gateway = base.gateway.model_copy(update={"auth": auth})
    return replace(base, servers=servers, left_out=left_out, gateway=gateway)


def added_names(changes: Iterable[Change]) -> AddedNames:
    """Return the names that administrators have added, to which rules and hooks of the file may refer."""
    keys = [change for change in changes if change.kind == "key_added"]
    servers = [change for change in changes if change.kind == "server_added"]
    return AddedNames(
        keys=tuple(change.target for change in keys),
        groups=tuple(group for change in keys for group in _texts(change.entry.get("groups"))),
        servers=tuple(change.target for change in servers),
        tags=tuple(tag for change in servers for tag in _texts(change.entry.get("tags"))),
    )


def _texts(values: object) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def check_keys(config: Config) -> None:
    """Reject API keys that conflict with each other, such as two keys of one name with different rights.

    Raises:
        ConfigError: Two keys conflict.
    """
    auth = config.gateway.auth
    try:
        AuthConfig(api_keys=auth.api_keys, oauth=auth.oauth)
    except ValidationError as error:
        raise refusal(error, "request") from None


def _read_added_server(change: Change, servers: dict[str, ServerConfig], admits: Admits) -> ServerConfig:
    config = read_server(change.entry)
    admits(change.target, config)
    try:
        check_aliases([*servers, change.target])
    except AliasError as error:
        raise ConfigError(str(error), file="overlay", key=change.target) from None
    return config


def _without_tool(server: ServerConfig, tool: str) -> ServerConfig:
    hidden = server.tools.get(tool, ToolConfig()).model_copy(update={"hidden": True})
    return server.model_copy(update={"tools": {**server.tools, tool: hidden}})


def _with_overrides(server: ServerConfig, tool: str, entry: dict[str, Any]) -> ServerConfig:
    override = ToolConfig.model_validate(entry)
    update = {name: getattr(override, name) for name in override.model_fields_set}
    return server.model_copy(
        update={"tools": {**server.tools, tool: server.tools.get(tool, ToolConfig()).model_copy(update=update)}}
    )
