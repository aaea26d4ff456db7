"""Read and write the lock file, and describe changes to administrators.

The lock file contains the approved listing of each server: its tools, prompts and resources. A change of an item is
either let through, with or without a warning, or held: callers do not see it until an administrator approves it.
"""

from __future__ import annotations

import codecs
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from gateway.config.model import Config
from gateway.config.server import ServerConfig
from gateway.process.files import expand_home, make_private_folder, write_whole
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.shape import selects_name
from registry.errors import LockfileRejected
from registry.intake.issues import THRESHOLD, suspicion_of, texts_of
from registry.lock.lockfile import MAX_BYTES, Lockfile, Surface, configuration_in, parse_lockfile
from registry.lock.review import Change, ReviewedChange, difference
from registry.schema.display_text import visible_json

log = logging.getLogger(__name__)

FILE_NAME: Final = "typegate.lock"
"""The default name of a lock file."""
OF_OTHERS: Final = (
    "names no configuration and has none of the servers of {name}, so that all of them are held. If it belongs to "
    "another configuration, run `typegate lock --config FILE` with that one, which adds its name; {name} then gets its "
    "own lock file. Otherwise remove it"
)
"""The text about a lock file that probably does not belong to the configuration `name`."""
_DECODED_BYTES: Final = 1024 * 1024
# The number of bytes read to find the name of a lock file's configuration. The name is the file's first member.
_BEGINNING_BYTES: Final = 4_096


def lock_path(config: Config) -> Path | None:
    """Return the path of a configuration's lock file, whether the file exists or not.

    None means that the configuration is not in a file, and that `gateway.lock.file` is not an absolute path. By
    default, two configurations in one folder have different lock files. Each lock file names its configuration.
    """
    folder = config.path.parent if config.path is not None else None
    configured = config.gateway.lock.file
    if configured is None:
        return None if config.path is None else _usual_path(config.path)
    path = expand_home(configured)
    if folder is None and not path.is_absolute():
        return None
    return path if folder is None else folder / path


def _usual_path(config: Path) -> Path:
    """Return the default path of a configuration's lock file.

    The default is `typegate.lock`, or `typegate.NAME.lock` if that file exists or if `typegate.lock` belongs to another
    existing configuration. If `typegate.lock` names a configuration that no longer exists, that configuration was
    probably renamed. `typegate.lock` is used then, so that its servers stay locked.
    """
    usual, own = config.parent / FILE_NAME, config.parent / f"typegate.{config.name}.lock"
    return own if own.is_file() or other_configuration(usual, config) else usual


def other_configuration(path: Path, config: Path | None) -> str:
    """Return the configuration that a lock file names if it is an existing file other than `config`; else empty."""
    try:
        with path.open("rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return ""
            beginning = stream.read(_BEGINNING_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""  # `read_lockfile` reports the error
    name = configuration_in(beginning)
    owner = path.parent / name
    is_other = bool(name) and config is not None and owner.is_file() and not _is_same(owner, config)
    return name if is_other else ""


def name_in(path: Path, config: Path) -> str:
    """Return the name by which a lock file refers to its configuration: a path relative to the lock file."""
    return Path(os.path.relpath(config.absolute(), path.absolute().parent)).as_posix()


def lock_files(config: Config) -> tuple[Path, ...]:
    """Return the files to watch in addition to the configuration file."""
    path = lock_path(config)
    return () if path is None else (path,)


def lock_notes(config: Config, lockfile: Lockfile | None) -> list[str]:
    """Return warnings about a lock file that several configurations may use.

    Args:
        lockfile: The content of the lock file; None without one.
    """
    path = lock_path(config)
    if path is None or config.path is None:
        return []
    name = config.path.name
    usual = config.path.parent / FILE_NAME
    if lockfile is None:
        if path != usual and (owner := other_configuration(usual, config.path)):
            return [
                f"{usual} is the lock file of {owner}, and {name} has none: its server listings are trusted until "
                f"`typegate lock --config {config.path}` has written {path.name}"
            ]
        return []
    if owner := other_configuration(path, config.path):
        return [
            f"{path} is the lock file of {owner}, and {name} also uses it through gateway.lock.file: servers that only "
            f"{name} has are held, and `typegate lock` drops those that only {owner} has"
        ]
    if is_of_others(config, lockfile):
        return [f"{path} {OF_OTHERS.format(name=name)}"]
    return []


def is_of_others(config: Config, lockfile: Lockfile) -> bool:
    """Return whether a lock file names no configuration, and has entries only for servers of other configurations."""
    aliases = {*config.servers, *config.left_out}
    return (
        not lockfile.configuration and bool(lockfile.servers) and bool(aliases) and aliases.isdisjoint(lockfile.servers)
    )


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False


def read_lockfile(path: Path | None) -> Lockfile | None:
    """Read the lock file; return None if it does not exist.

    Raises:
        ConfigError: The file cannot be used.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            # Reading a device or a pipe might never end.
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError("is not a regular file; expected a lock file", file=str(path))
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"cannot be read ({reason}); expected a lock file", file=str(path)) from None
    try:
        return parse_lockfile(_decode_text(content))
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 at byte {error.start}; expected a lock file", file=str(path)) from None
    except LockfileRejected as rejected:
        raise ConfigError(rejected.detail, file=str(path), key=rejected.key) from None


def read_approved(config: Config) -> Lockfile | None:
    """Read the lock file before a gateway starts; return None if the file neither exists nor is configured.

    Raises:
        ConfigError: The file cannot be used, or the configuration names a file that does not exist.
    """
    path = lock_path(config)
    lockfile = read_lockfile(path)
    if lockfile is None and config.gateway.lock.file is not None:
        # This is an error, because otherwise locked servers would be trusted if the file is lost or its path mistyped.
        raise ConfigError(
            f"there is no lock file at {path or config.gateway.lock.file}; `typegate lock --config FILE` writes it, "
            "and without gateway.lock.file all server listings are trusted",
            file=str(config.path or ""),
            key="gateway.lock.file",
        )
    return lockfile


def _decode_text(content: bytes) -> str:
    """Decode UTF-8 in parts of one megabyte, so that other threads can run in between: decoding blocks them."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    parts = [content[start : start + _DECODED_BYTES] for start in range(0, len(content), _DECODED_BYTES)]
    try:
        return "".join([*map(decoder.decode, parts), decoder.decode(b"", final=True)])
    except UnicodeDecodeError:
        return content.decode("utf-8-sig")  # raises an error with the position in the whole file


def write_lockfile(path: Path, lockfile: Lockfile) -> bool:
    """Write the lock file atomically; return whether its content has changed.

    Raises:
        OSError: The file cannot be written.
    """
    target = path.resolve()
    content = b"".join(piece.encode("utf-8") for piece in lockfile.pieces())
    try:
        if target.read_bytes() == content:
            return False
        mode = target.stat().st_mode & 0o7777
    except FileNotFoundError:
        # Other users may read the file: it contains no secrets and is meant for version control.
        mode = 0o644
    write_whole(target, content, mode=mode)
    return True


FIRST_LISTINGS: Final = "first-listings.lock"
"""The file in the state directory with the first listing of each server."""


class FirstListings:
    """The first listing of each server, with which later listings are compared if there is no lock file.

    The file has the format of a lock file. An approval replaces the listing of the approved server.

    Attributes:
        lockfile: The listings, as the content of a lock file.
    """

    def __init__(self, state_dir: Path | None, *, saves: bool = True) -> None:
        """Read the stored listings.

        Args:
            state_dir: The state directory; None to store the listings only in memory.
            saves: Whether this process writes the file. If there are several processes, only one of them does.

        Raises:
            ConfigError: The file cannot be used.
        """
        self._path = state_dir / FIRST_LISTINGS if state_dir is not None else None
        self._saves = saves
        # If the state directory is not a directory, the gateway starts without stored listings.
        has_folder = state_dir is not None and state_dir.is_dir()
        self.lockfile = (read_lockfile(self._path) if has_folder else None) or Lockfile()

    def put(self, alias: str, surface: Surface) -> None:
        """Store the listing with which later listings of a server are compared.

        Raises:
            OSError: The file cannot be written; the listing is stored only in memory.
        """
        self.lockfile = self.lockfile.with_server(alias, surface)
        if self._path is not None and self._saves:
            make_private_folder(self._path.parent)
            write_lockfile(self._path, self.lockfile)


DECISIONS: Final = "decisions.json"
"""The file in the state directory with the latest decisions about changed definitions."""
# The limits of stored decisions, enough for months. A single decision may contain all definitions of a server.
_MAX_DECISIONS: Final = 200
_MAX_DECISIONS_BYTES: Final = 2 * 1024 * 1024
# Larger decisions are stored without definitions, so that they do not displace many other decisions. An approval that
# lacks definitions cannot be undone.
_MAX_DECISION_BYTES: Final = 512 * 1024
_ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LockDecision:
    """A decision of an administrator about changes of one server.

    Attributes:
        at_s: When the decision was made, in seconds since 1970.
        by: The name of the administrator.
        changes: The changes; without the old and new definitions if these are too large.
        digests: The key of each change.
        is_whole: Whether `changes` has the definitions.
        undone_s: When the decision was undone, in seconds since 1970; None if the decision is in force.
        undone_by: The name of the administrator who has undone the decision.
    """

    id: str
    at_s: float
    by: str
    action: Literal["approved", "rejected"]
    server: str
    changes: tuple[Change, ...]
    digests: tuple[str, ...]
    is_whole: bool = True
    undone_s: float | None = None
    undone_by: str = ""

    @property
    def can_undo(self) -> bool:
        """Return whether the decision is still in force and can be undone."""
        return self.undone_s is None and (self.is_whole or self.action == "rejected")

    def row(self) -> dict[str, Any]:
        """Return the decision as a row for administrators, without definitions."""
        return {
            "id": self.id,
            "at": round(self.at_s, 3),
            "by": self.by,
            "action": self.action,
            "server": self.server,
            "items": [
                {"kind": each.kind, "name": each.name, "was": each.was, "classes": list(each.classes), "digest": digest}
                for each, digest in zip(self.changes, self.digests, strict=True)
            ],
            "undone": None if self.undone_s is None else {"at": round(self.undone_s, 3), "by": self.undone_by},
            "canUndo": self.can_undo,
        }


class LockDecisions:
    """The latest decisions about changed definitions, oldest first.

    Attributes:
        latest: The decisions; a new tuple after every change.
    """

    def __init__(self, state_dir: Path | None, *, saves: bool = True) -> None:
        """Read the stored decisions; a file that cannot be read is ignored with a warning.

        Args:
            state_dir: The state directory; None to store the decisions only in memory.
            saves: Whether this process writes the file. If there are several processes, only one of them does.
        """
        self._path = state_dir / DECISIONS if state_dir is not None else None
        self._saves = saves
        self.latest: tuple[LockDecision, ...] = self._read_decisions()

    def _read_decisions(self) -> tuple[LockDecision, ...]:
        """Return the decisions in the file; an empty tuple if the file cannot be read."""
        try:
            stored = json_bytes.loads(self._path.read_bytes()) if self._path is not None else []
            return tuple(map(_decision_of, stored))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("decisions ignored: %s", error or type(error).__name__)
            return ()

    def read_added(self) -> None:
        """Read from the file the decisions that another process has added or undone since the last read."""
        if not self._saves:
            return
        by_id = {each.id: each for each in self.latest}
        for each in self._read_decisions():
            if each.id not in by_id or each.undone_s is not None:
                by_id[each.id] = each
        latest = tuple(sorted(by_id.values(), key=lambda each: each.at_s))
        if latest != self.latest:
            self.latest = latest

    def entries(self) -> list[dict[str, Any]]:
        """Return all decisions in the form in which the file stores them."""
        return [asdict(each) for each in self.latest]

    def find(self, decision_id: str) -> LockDecision | None:
        """Return the decision with this id, or None."""
        return next((each for each in self.latest if each.id == decision_id), None)

    def add(self, action: Literal["approved", "rejected"], server: str, changes: Iterable[Change], by: str) -> str:
        """Record a decision, and return its id."""
        all_changes = tuple(changes)
        decision = LockDecision(
            id=secrets.token_hex(_ID_BYTES),
            at_s=time.time(),
            by=by,
            action=action,
            server=server,
            changes=all_changes,
            digests=tuple(each.key for each in all_changes),
        )
        if _size_of(decision) > _MAX_DECISION_BYTES:
            small = tuple(replace(each, before=None, after=None) for each in all_changes)
            decision = replace(decision, changes=small, is_whole=False)
        self.read_added()
        self._replace((*self.latest, decision))
        return decision.id

    def note_undone(self, decision: LockDecision, by: str) -> None:
        """Record that a decision was undone."""
        undone = replace(decision, undone_s=time.time(), undone_by=by)
        self.read_added()
        self._replace(tuple(undone if each.id == decision.id else each for each in self.latest))

    def rejected(self) -> dict[str, LockDecision]:
        """Return the decision that rejects each rejected change. The keys have the form `SERVER CHANGE_KEY`.

        A change that was approved later, or whose rejection was undone, is not included.
        """
        decided = {
            f"{each.server} {digest}": each for each in self.latest if each.undone_s is None for digest in each.digests
        }
        return {key: each for key, each in decided.items() if each.action == "rejected"}

    def replace_all(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace all decisions with those of another process, which have the stored form."""
        latest = tuple(sorted(map(_decision_of, entries), key=lambda each: each.at_s))
        if latest != self.latest:
            self._replace(latest)

    def _replace(self, decisions: tuple[LockDecision, ...]) -> None:
        sizes = [_size_of(each) for each in decisions]
        first = max(0, len(decisions) - _MAX_DECISIONS)
        while sum(sizes[first:]) > _MAX_DECISIONS_BYTES:
            first += 1
        self.latest = decisions[first:]
        if self._path is None or not self._saves:
            return
        try:
            make_private_folder(self._path.parent)
            write_whole(self._path, json_bytes.dumps(self.entries()))
        except OSError as error:
            # Keep serving: the decision is in force, but its entry here is lost at the next start.
            log.warning("decisions not written: %s", error.strerror or type(error).__name__)


def _size_of(decision: LockDecision) -> int:
    return len(json_bytes.dumps(asdict(decision)))


def _decision_of(entry: Mapping[str, Any]) -> LockDecision:
    changes = tuple(Change(**{**each, "classes": tuple(each["classes"])}) for each in entry["changes"])
    if len(changes) != len(entry["digests"]):
        raise ValueError("a decision does not have one digest for each change")
    times = {name: float(entry[name]) for name in ("at_s", "undone_s") if entry.get(name) is not None}
    return LockDecision(**{**entry, **times, "changes": changes, "digests": tuple(entry["digests"])})


# An item with this many versions flaps: the approved version and two others. An update of the server adds only one
# version.
_VERSIONS: Final = 3
# The maximum number of tracked items per server. If more items change, the tracked ones are enough for a warning.
_MAX_ITEMS: Final = 2_000


@dataclass(slots=True)
class Flapping:
    """Detects items of a server that differ at each start of the server.

    Attributes:
        seen: The digests of the versions of each item, by kind and name.
    """

    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def note(self, change: Change, versions: tuple[str, str]) -> None:
        """Record the versions of a changed item.

        Args:
            versions: The digests of the approved and of the listed version.
        """
        key = (change.kind, change.name)
        if change.before is None or change.after is None or (key not in self.seen and len(self.seen) >= _MAX_ITEMS):
            return
        seen_versions = self.seen.setdefault(key, set())
        if len(seen_versions) < _VERSIONS:
            seen_versions.update(versions)

    def flaps(self, change: Change) -> bool:
        """Return whether more versions of the changed item were seen than an update of the server explains."""
        return len(self.seen.get((change.kind, change.name), ())) >= _VERSIONS


def flapping_advice(decided: ReviewedChange) -> str:
    """Return a text that says what an administrator can do about an item that differs at each start."""
    calming = ", ".join(f"{each}: warn" for each in decided.change.classes if each not in ("added", "removed"))
    return (
        "it differs at each start, so an approval is valid only until the next start; "
        f"`lock: {{{calming}}}` in the entry of its server lets it through with a warning"
    )


def name_patterns(config: Config) -> tuple[str, ...]:
    """Return the patterns in rules, profiles and groups, which select tools and prompts of any server."""
    gateway = config.gateway
    selections = (*gateway.groups.values(), *gateway.profiles.values())
    lists = [patterns for rule in gateway.policy.rules for patterns in (rule.patterns, rule.wrappers)]
    lists += [patterns for selection in selections for patterns in (selection.tools, selection.prompts)]
    return tuple(dict.fromkeys(pattern for patterns in lists for pattern in patterns or ()))


def own_patterns(config: ServerConfig) -> tuple[str, ...]:
    """Return the names and patterns in a server's configuration that select its tools and prompts."""
    lists = (config.allow.tools, config.allow.prompts, config.deny.tools, config.deny.prompts)
    return tuple(dict.fromkeys([*config.tools, *(pattern for patterns in lists for pattern in patterns or ())]))


def distinguishes(alias: str, patterns: tuple[str, ...], own: tuple[str, ...], was: str, name: str) -> bool:
    """Return whether a pattern matches the old or the new name of a renamed item, but not both.

    Args:
        patterns: The result of `name_patterns`.
        own: The result of `own_patterns`.
        was, name: The old and the new name.
    """

    def selects(pattern: str, original: str) -> bool:
        exposed = f"{alias}{NAME_SEPARATOR}{original}"
        return selects_name(pattern, server=alias, original=original, exposed=exposed, prefixed=True)

    return any(selects(pattern, was) != selects(pattern, name) for pattern in patterns) or any(
        fnmatchcase(was, pattern) != fnmatchcase(name, pattern) for pattern in own
    )


_STATES: Final = {"hold": "held", "warn": "warned", "accept": "accepted"}
# The maximum number of reported flags per change. The strongest flags are enough to judge a text.
_MAX_FLAGS: Final = 5


def item_name(alias: str, change: Change) -> str:
    """Return the name that commands use for a changed item, such as `bank__balance`."""
    return f"{alias}{NAME_SEPARATOR}{change.name}" if change.name else f"{alias} ({change.kind})"


def change_row(
    alias: str,
    decided: ReviewedChange,
    *,
    since_s: float | None = None,
    advice: str | None = None,
    rejected: LockDecision | None = None,
) -> dict[str, Any]:
    """Return a change as a row for administrators.

    Args:
        since_s: When the change was first seen, in seconds since 1970.
        advice: The result of `flapping_advice`; None for an item that does not differ at each start.
        rejected: The decision that rejects the change; None if it was not rejected.
    """
    change = decided.change
    # Make invisible characters visible: the change may consist of them.
    visible = replace(change, before=visible_json(change.before), after=visible_json(change.after))
    # The catalog reports suspicious texts of its items. A held item is not in the catalog, so check its texts here.
    texts = texts_of(change.after if isinstance(change.after, Mapping) else {change.kind: change.after})
    suspicion = suspicion_of(texts)
    return {
        "server": alias,
        "kind": change.kind,
        "name": change.name,
        "was": change.was,
        "wrapper": item_name(alias, change),
        "classes": list(change.classes),
        "state": "rejected" if rejected is not None and decided.decision == "hold" else _STATES[decided.decision],
        "heldFor": list(decided.held_for),
        "difference": list(difference(visible)),
        "before": visible.before,
        "after": visible.after,
        "digest": change.key,
        "since": round(since_s, 3) if since_s is not None else None,
        "suspicion": suspicion.score,
        "flagged": suspicion.score >= THRESHOLD,
        "flags": [
            {"code": flag.code, "where": flag.where, "quoted": flag.quoted} for flag in suspicion.flags[:_MAX_FLAGS]
        ],
        "rejected": {"at": round(rejected.at_s, 3), "by": rejected.by, "id": rejected.id} if rejected else None,
        "flapping": advice is not None,
        "advice": advice,
    }
