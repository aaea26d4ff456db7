"""What administrators have changed: a list of changes over the configuration, kept in the state directory.

The configuration's file may be read-only, and its author another person: it stays as it is, and every change is shown
as a difference from it, which can be taken back.
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

from gateway import wire
from gateway.config.auth import ApiKey, AuthConfig
from gateway.config.edit_keys import hash_of
from gateway.config.model import Config, LeftOut
from gateway.config.server import ServerConfig, ToolConfig
from gateway.config.unmatched_rules import AddedNames
from gateway.config.upstream_types.registration import read_server
from gateway.config.wording import refusal
from gateway.errors import ConfigError
from gateway.files import NotOurs, make_private_folder, read_private, write_whole
from registry.catalog.names import check_aliases
from registry.errors import AliasError

log = logging.getLogger(__name__)

Kind = Literal["server_added", "server_removed", "server_disabled", "tool_disabled", "key_added", "key_revoked"]
Admits = Callable[[str, ServerConfig], None]

FOLDER: Final = "overlays"
DISABLED: Final = "disabled by an administrator"
MAX_CHANGES: Final = 2_000
"""Changes are made by hand; beyond this somebody's script belongs into the configuration."""
# A server's entry may be as large as a request; the whole overlay is read at once.
_MAX_BYTES: Final = 64 * 1024 * 1024
# Of the SHA-256 of the configuration's path: several gateways of one user share a state directory.
_NAME_CHARS: Final = 16
_ID_BYTES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of an administrator.

    Attributes:
        kind: What was done.
        target: The alias of a server, the wrapper of a tool, or the name of a key.
        entry: Of what was added; of a key that was revoked, its hash.
        server: Of a tool.
        tool: As its server names it.
        by: Who did it.
        at_s: When, in seconds since 1970.
        id: By which it is taken back.
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
    """What to do to the changes, whatever else is done to them meanwhile.

    Attributes:
        add: Changes that are new.
        remove: The ids of those that are taken back.
    """

    add: tuple[Change, ...] = ()
    remove: frozenset[str] = frozenset()

    @classmethod
    def between(cls, before: Iterable[Change], after: Iterable[Change]) -> Edit:
        """What makes the latter of the former."""
        old, new = {each.id: each for each in before}, {each.id: each for each in after}
        return cls(
            add=tuple(each for name, each in new.items() if name not in old),
            remove=frozenset(old.keys() - new.keys()),
        )

    def of(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """The changes with this done, in the order in which they were made, whichever gateway made them."""
        new = {each.id for each in self.add}
        left = [each for each in changes if each.id not in self.remove and each.id not in new]
        return tuple(sorted([*left, *self.add], key=lambda each: each.at_s))


class Overlay:
    """The changes, and the file that keeps them.

    Attributes:
        changes: In their order.
        path: The file; None where nothing is kept.
        follows: Whether another program writes the file, which may differ from what is in use.
        error: Why the file could not be read or written; None while it holds what is in use.
        digest: The SHA-256 of the file as it was read last; None where there was none.
        unsaved: The changes in use could not be written.
    """

    def __init__(
        self, state_dir: Path | None = None, config: Path | None = None, *, writes: bool = True, follows: bool = False
    ) -> None:
        """Read what is kept for a configuration.

        Args:
            state_dir: Where state is kept; None for nowhere.
            config: The file of the configuration, by which the changes are found again.
            writes: Whether this process is the one that writes.
            follows: Whether another program writes it, whose changes are to be taken over.
        """
        self._named = _lasting_name(config) if config is not None else ""
        self.path = _file_of(state_dir, self._named) if state_dir is not None else None
        # Where an earlier version kept them.
        self._former = _file_of(state_dir, str(config.resolve())) if state_dir is not None and config else None
        self._writes = writes
        self.follows = follows and self.path is not None
        self.error: str | None = None
        self.unsaved = False
        self.digest: bytes | None = None
        self.changes: tuple[Change, ...] = self._read()

    @property
    def lasts(self) -> bool:
        """Whether changes are there after a restart."""
        return self.path is not None and self.error is None

    def check(self) -> None:
        """Refuse to serve without changes that cannot be read: what administrators have disabled would be back.

        Raises:
            ConfigError: The file cannot be read.
        """
        if self.error is not None:
            what = "mend it, or remove it to serve without what administrators have changed"
            raise ConfigError(f"{self.error}; {what}", file=self._named or "overlay")

    def open_lock(self) -> int | None:
        """Open the file whose lock other gateways with the same state directory wait for before they change anything.

        Returns:
            Its descriptor; None where this process writes nothing, or cannot.
        """
        if self.path is None or not self._writes:
            return None
        try:
            make_private_folder(self.path.parent)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
            return os.open(self.path.parent.with_suffix(".lock"), flags, 0o600)
        except OSError as error:
            # Reported when the changes are to be written.
            log.debug("changes of administrators cannot be locked: %s", error)
            return None

    def to_edit(self) -> tuple[Change, ...]:
        """Return the changes to which another one is added: those of the file, where this process writes it."""
        # A file that is gone is no reason to take into use again what somebody has disabled.
        is_file = self.path is not None and self.path.exists()
        return self.latest() if is_file and self._writes and not self.unsaved else self.changes

    def latest(self) -> tuple[Change, ...]:
        """The changes as the file has them now; those in use where it cannot be read."""
        self.error = None
        found = self._read()
        # A damaged file is no reason to take into use again what somebody has disabled.
        return self.changes if self.error is not None else found

    def replace(self, changes: Sequence[Change]) -> None:
        """Use these changes, and keep them."""
        self.changes = tuple(changes)
        if self.path is None or not self._writes:
            return
        try:
            make_private_folder(self.path.parent)
            document = {"configuration": self._named, "changes": [asdict(one) for one in self.changes]}
            write_whole(self.path, wire.dumps(document))
            self.error, self.unsaved = None, False
        except OSError as error:
            self.unsaved = True
            self.error = f"{self.path} cannot be written ({error.strerror or error})"
            log.error("what an administrator has changed ends with this process: %s", self.error)

    def _read(self) -> tuple[Change, ...]:
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
            document = wire.loads(text)
            return tuple(Change(**one) for one in document["changes"][:MAX_CHANGES])
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, NotOurs, ValueError, TypeError, KeyError, AttributeError) as error:
            # Kept as it is until the next change: somebody may be able to mend it.
            self.error = f"{self.path} cannot be read ({error or type(error).__name__})"
            log.error("what administrators have changed is not in use: %s", self.error)
            return ()


def _lasting_name(config: Path) -> str:
    """Return by what path the changes of a configuration are found again.

    A link that leads elsewhere stands for the file there. One that stays in its folder does not: in a volume of a
    ConfigMap, the files are links into a folder whose name differs each time the volume is mounted.
    """
    target, folder = config.resolve(), config.parent.resolve()
    return str(folder / config.name if target.is_relative_to(folder) else target)


def _file_of(state_dir: Path, named: str) -> Path:
    name = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_CHARS]
    return state_dir / FOLDER / f"{name}.json"


def with_changes(base: Config, changes: Sequence[Change], admits: Admits = lambda alias, config: None) -> Config:
    """The configuration with these changes.

    Args:
        base: As its file says.
        changes: In their order; what one of them is about may be gone by now.
        admits: Raises `ConfigError` for a server that cannot be served here.
    """
    if not changes:
        return base
    servers, left_out, keys = dict(base.servers), dict(base.left_out), list(base.gateway.auth.api_keys)
    for change in changes:
        alias = change.server or change.target
        try:
            match change.kind:
                case "server_added":
                    servers.pop(alias, None)
                    servers[alias] = _added(change, servers, admits)
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
                case "key_added":
                    keys.append(ApiKey.model_validate(change.entry))
                case "key_revoked":
                    ended = {"expires": datetime.fromtimestamp(change.at_s, UTC)}
                    keys = [
                        key.model_copy(update=ended) if hash_of(key) == change.entry.get("hash") else key
                        for key in keys
                    ]
        except (ConfigError, ValidationError) as error:
            told = error if isinstance(error, ConfigError) else refusal(error, "overlay", within=change.target)
            if change.kind == "server_added":
                left_out[alias] = LeftOut(reason=f"added by an administrator, not served: {told.message}", faulty=True)
            log.error("a change of an administrator is not in use: %s", told)
    auth = base.gateway.auth.model_copy(update={"api_keys": keys})
    gateway = base.gateway.model_copy(update={"auth": auth})
    return replace(base, servers=servers, left_out=left_out, gateway=gateway)


def added_names(changes: Iterable[Change]) -> AddedNames:
    """The names of what was added: rules and hooks of the file may be about it."""
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
    """Refuse keys that cannot stand beside each other.

    Raises:
        ConfigError: Two of them cannot.
    """
    auth = config.gateway.auth
    try:
        AuthConfig(api_keys=auth.api_keys, oauth=auth.oauth)
    except ValidationError as error:
        raise refusal(error, "request") from None


def _added(change: Change, servers: dict[str, ServerConfig], admits: Admits) -> ServerConfig:
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
