"""Every listing compared with what is approved: what is held, what is told of it, and what is approved from then on."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from operator import is_
from pathlib import Path
from typing import Any, Final

from gateway.config.model import Config
from gateway.config.server import ServerConfig
from gateway.errors import ConfigError, GatewayError
from gateway.lock.flapping import Flapping
from gateway.lock.lock_file import (
    OF_OTHERS,
    is_of_others,
    lock_notes,
    lock_path,
    name_in,
    other_configuration,
    read_lockfile,
    write_lockfile,
)
from gateway.lock.rows import change_row, item_name
from registry.catalog.filters import selects_name
from registry.catalog.hints import Hints, hints_of
from registry.catalog.listing import ServerListing
from registry.catalog.names import NAME_SEPARATOR
from registry.lock.changes import CHANGE_CLASSES, Change, ChangeClass, ChangedKind
from registry.lock.digests import digest_of
from registry.lock.lockfile import Lockfile
from registry.lock.review import Decided, Policy, Review, approved_with, default_decision, review, surface_of
from registry.lock.surface import Surface

log = logging.getLogger(__name__)

MIN_DIGEST_CHARS: Final = 16
"""Of the digest of a change, so many tell it from all that a server could make of it on purpose."""
# Changes of one server that are told one by one; more are one line with their number.
_MAX_TOLD: Final = 10
# Changes that are remembered as told, of one server: beyond it some may be told again.
_MAX_REMEMBERED: Final = 10_000
# One object for all, so that equal listings are seen to be equal at once.
_NO_HINTS: Final[Mapping[str, Hints]] = {}
# Without a lock file there is nothing to compare with later: so many of the latest changes of a server are kept.
_MAX_KEPT: Final = 100


class NotApproved(GatewayError):
    """Something cannot be approved; the text says why."""


class ChangedAgain(NotApproved):
    """A server lists something else by now than what somebody looked at."""


@dataclass(slots=True)
class _Server:
    """What is known of one server.

    Attributes:
        listing: What it lists, unheld.
        config: How it was reached.
        changes: The changes as they are now, with the time when each was first seen.
        told: The keys of changes that were told.
        is_shared: Everybody is shown it; else it is what it lists to one caller.
    """

    listing: ServerListing
    config: ServerConfig
    changes: tuple[Decided, ...] = ()
    since_s: dict[str, float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    is_shared: bool = True
    flapping: Flapping = field(default_factory=Flapping)
    flaps_told: bool = False


class ListingLock:
    """Holds what a server lists otherwise than it was approved.

    Without a lock file the first listing is trusted, and so is each later one; what has changed is told.

    Attributes:
        path: Where the lock file is, or would be.
        lockfile: What is approved; None where there is no lock file.
    """

    def __init__(self, config: Config, lockfile: Lockfile | None, *, announces: bool = True) -> None:
        """Lock the servers of this configuration.

        Args:
            config: It says where the lock file is.
            lockfile: What it says, as `read_lockfile` has read it.
            announces: Whether this process logs changes; of several one does.
        """
        self._announces = announces
        self._config = config
        self._settings = config.gateway.lock
        self._folder = config.path.parent if config.path is not None else None
        self._servers: dict[str, _Server] = {}
        # Of each server the last one, with what it was made of: a thread may have made it ahead.
        self._reviews: dict[str, tuple[tuple[object, ...], Review]] = {}
        # Of many tools it takes a second to make: kept with what it is of, once somebody has asked for it.
        self._text: tuple[Lockfile, str] | None = None
        self._patterns = _name_patterns(config)
        self.path = lock_path(config)
        self.lockfile = lockfile
        self._tell_missing()
        self._tell_notes()

    @property
    def text(self) -> str | None:
        """The lock file as it would be written; None where there is none."""
        if self.lockfile is None:
            return None
        if self._text is None or self._text[0] is not self.lockfile:
            self._text = self.lockfile, self.lockfile.to_text()
        return self._text[1]

    def expect(self, lockfile: Lockfile) -> None:
        """Have the text of a lock file at hand that is about to be used, where it is ever asked for; in a thread."""
        if self._text is not None:
            self._text = lockfile, lockfile.to_text()

    @property
    def notes(self) -> list[str]:
        """What people have to know where several configurations may have one lock file."""
        return lock_notes(self._config, self.lockfile)

    def _tell_notes(self) -> None:
        for note in self.notes if self._announces else ():
            log.warning("%s", note)

    def _tell_missing(self) -> None:
        if self.lockfile is not None or not self._announces:
            return
        if self._settings.file is not None and self.path is not None:
            log.warning(
                "there is no lock file at %s: what servers list is trusted until `typegate lock` has written it",
                self.path,
            )
        elif "hold" in self._settings.policy.given.values():
            log.warning("gateway.lock.policy holds nothing without a lock file: `typegate lock` writes one")

    # settings

    def replace(self, config: Config, lockfile: Lockfile | None) -> None:
        """Lock by another configuration, and by what its lock file says, as `read_lockfile` has read it."""
        path = lock_path(config)
        if lockfile is None and self.lockfile is not None and path == self.path:
            log.error("the lock file %s is gone: what it said holds until the next start", path)
        before, noted = (self.path, self._settings), self.notes
        self.adopt(config, lockfile)
        if self.notes != noted:
            self._tell_notes()
        if self.lockfile is None and before != (self.path, self._settings):
            self._tell_missing()

    def under(self, config: Config, lockfile: Lockfile | None) -> ListingLock:
        """What `replace` with the same would make of it, to review by: what it reviews need not be reviewed again."""
        other = copy(self)
        other.adopt(config, lockfile)
        return other

    def adopt(self, config: Config, lockfile: Lockfile | None) -> None:
        path = lock_path(config)
        is_usual = config.gateway.lock.file is None and self._settings.file is None
        if lockfile is None and (path == self.path or (is_usual and config.path == self._config.path)):
            # To take the file away, or to write another name into it, must not be the way to have everything trusted.
            path, lockfile = self.path, self.lockfile
        self.path, self._settings, self.lockfile = path, config.gateway.lock, lockfile
        self._config = config
        self._folder = config.path.parent if config.path is not None else None
        self._patterns = _name_patterns(config)

    def identity_of(self, config: ServerConfig) -> str:
        """What an entry starts or connects to."""
        return config.launch_identity(self._folder)

    def policy_of(self, config: ServerConfig) -> Policy:
        """What is done about each class of changes of a server."""
        locked = self.lockfile is not None
        said: Mapping[str, Any] = {**self._settings.policy.given, **config.lock.given}
        policy: dict[ChangeClass, Any] = {}
        for one in CHANGE_CLASSES:
            decision = said.get(one, default_decision(one, locked=locked))
            # There is nothing to list a tool as, and nothing to approve it in.
            policy[one] = "warn" if decision == "hold" and not locked else decision
        return policy

    # listings

    def listing_of(self, alias: str, config: ServerConfig | None = None) -> ServerListing | None:
        """What a server lists, whatever of it is held; with a configuration only if that starts the same server."""
        known = self._servers.get(alias)
        if known is None or (config is not None and known.config.identity_key() != config.identity_key()):
            return None
        return known.listing

    def review(self, alias: str, listing: ServerListing, config: ServerConfig) -> Review:
        """Compare a listing with what is approved, or with the one before it. Changes nothing: any thread may ask."""
        identity, policy = self.identity_of(config), self.policy_of(config)
        known = self._servers.get(alias)
        approved: Surface | None = None
        if self.lockfile is not None:
            approved = self.lockfile.servers.get(alias)
        elif known is None or known.config.identity_key() != config.identity_key():
            return Review(listing=listing)  # trusted on first use
        of = listing, (known.listing if known is not None else None) if self.lockfile is None else approved
        reviewed = self._reviews.get(alias)
        # By these a rename is judged; without a lock file nothing is held.
        patterns = (self._patterns, _own_patterns(config)) if self.lockfile is not None else ((), ())
        told = identity, policy, patterns
        if reviewed is not None and reviewed[0][2:] == told and all(map(is_, reviewed[0], of)):
            return reviewed[1]
        if self.lockfile is None and known is not None:
            approved = surface_of(known.listing, identity)
        apart = partial(_tells_apart, alias, *patterns)
        found = review(listing, approved, identity=identity, policy=policy, tells_apart=apart)
        if self.lockfile is not None:
            found = _with_approved_hints(found)
        self._reviews[alias] = (*of, *told), found
        return found

    def review_all(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """What `reviewed_again` would show of each; changes nothing: any thread may ask."""
        shared = [(alias, config, self._servers.get(alias)) for alias, config in servers.items()]
        return [
            known.listing if self.lockfile is None else self.review(alias, known.listing, config).listing
            for alias, config, known in shared
            if known is not None and known.is_shared
        ]

    def take(
        self, alias: str, listing: ServerListing, config: ServerConfig, found: Review, *, is_shared: bool = True
    ) -> ServerListing:
        """Keep what a server lists, tell of what has changed, and return what is to be shown of it.

        Args:
            alias, listing, config: The server, and what it lists.
            found: What `review` says of it.
            is_shared: Everybody is shown it; else it is what the server lists to one caller.
        """
        known = self._servers.get(alias)
        if known is None:
            known = self._servers[alias] = _Server(listing, config)
        known.listing, known.config, known.is_shared = listing, config, is_shared
        if self.lockfile is None:
            keys = {one.change.key for one in found.changes}
            kept = [one for one in known.changes if one.change.key not in keys]
            known.changes = (*kept, *found.changes)[-_MAX_KEPT:]
        else:
            known.changes = found.changes
        now_s = time.time()
        known.since_s = {one.change.key: known.since_s.get(one.change.key, now_s) for one in known.changes}
        for one in found.changes:
            known.flapping.note(one.change, (digest_of(one.change.before), digest_of(one.change.after)))
        self._tell(alias, known, found.changes)
        return found.listing

    def forget(self, alias: str) -> None:
        """Forget a server that is no longer configured, or that is another one now."""
        self._servers.pop(alias, None)
        self._reviews.pop(alias, None)

    def reviewed_again(self, servers: Mapping[str, ServerConfig]) -> list[tuple[str, ServerListing]]:
        """Every listing that everybody is shown, as it is to be shown under the settings of now."""
        again: list[tuple[str, ServerListing]] = []
        for alias, config in servers.items():
            known = self._servers.get(alias)
            if known is None or not known.is_shared:
                continue
            if self.lockfile is None:
                again.append((alias, known.listing))
            else:
                found = self.review(alias, known.listing, config)
                again.append((alias, self.take(alias, known.listing, config, found)))
        return again

    # what people see and decide

    def rows(self) -> list[dict[str, Any]]:
        """Every change with its difference, as `/admin/changes` shows it; may be called in a thread."""
        return [
            change_row(
                alias, one, since_s=known.since_s.get(one.change.key),
                advice=_advice(one) if known.flapping.flaps(one.change) else None,
            )
            for alias, known in tuple(self._servers.items())
            for one in known.changes
        ]  # fmt: skip

    def held_counts(self) -> dict[str, int]:
        """How many changes of each server are held."""
        return {alias: self.held_count(alias) for alias in self._servers}

    def held_count(self, alias: str) -> int:
        """How many changes of a server are held."""
        known = self._servers.get(alias)
        return sum(one.decision == "hold" for one in known.changes) if known is not None else 0

    def approve(
        self,
        alias: str,
        *,
        item: str | None = None,
        kind: ChangedKind | None = None,
        classes: Collection[ChangeClass] | None = None,
        digests: Collection[str] | None = None,
    ) -> tuple[list[str], list[str]]:
        """Take what a server lists now into the lock file, and write it.

        Args:
            alias: The server.
            item: Only what has this name, as the server calls it.
            kind: Only what is of this kind.
            classes: Only changes that are of no other classes.
            digests: Those of the changes that somebody looked at, or how they begin: nothing else is approved.

        Returns:
            The names of what was approved, and of what was left because it is of other classes too.

        Raises:
            NotApproved: There is no such change, or the file cannot be written.
            ChangedAgain: One of the changes is another one than those of the digests.
        """
        known = self._servers.get(alias)
        if known is None:
            raise NotApproved(f"nothing is known of a server '{alias}': it has not listed anything yet")
        if self.lockfile is None:
            raise NotApproved("; ".join(self.notes) or "there is no lock file; `typegate lock` writes one")
        listed = surface_of(known.listing, self.identity_of(known.config))
        approved = self.lockfile.servers.get(alias)
        surface, taken, left = approved_with(approved, listed, item=item, kind=kind, classes=classes)
        if (item is not None or kind is not None) and not taken and not left:
            raise NotApproved(f"nothing of '{item or kind}' of server '{alias}' has changed")
        if digests is not None:
            _check_shown(alias, taken, digests)
        self._write(self.lockfile.with_server(alias, surface))
        return [item_name(alias, one) for one in taken], [item_name(alias, one) for one in left]

    def approve_all(self, servers: Iterable[str]) -> list[str]:
        """Write a lock file of everything that servers list now.

        Args:
            servers: Those that are configured; entries of others are dropped, and those of servers that have not
                listed anything stay.

        Returns:
            The servers in it that have listed.

        Raises:
            NotApproved: The file cannot be written.
        """
        wanted = list(servers)
        entries: dict[str, Surface] = dict(self.lockfile.servers) if self.lockfile is not None else {}
        entries = {alias: one for alias, one in entries.items() if alias in wanted}
        listed = [alias for alias in wanted if alias in self._servers]
        for alias in listed:
            known = self._servers[alias]
            entries[alias] = surface_of(known.listing, self.identity_of(known.config))
        self._write(Lockfile(entries, self.lockfile.configuration if self.lockfile is not None else ""))
        return listed

    def _write(self, lockfile: Lockfile) -> None:
        if self.path is None:
            raise NotApproved("there is no place for a lock file; expected gateway.lock.file in the configuration")
        if self.lockfile is not None and is_of_others(self._config, self.lockfile):
            name = self._config.path.name if self._config.path is not None else "the configuration"
            raise NotApproved(f"{self.path} {OF_OTHERS.format(name=name)}")
        if self._config.path is not None and not other_configuration(self.path, self._config.path):
            lockfile = replace(lockfile, configuration=name_in(self.path, self._config.path))
        try:
            # What stands there may be newer than what is known here.
            current = read_lockfile(self.path)
        except ConfigError as error:
            raise NotApproved(str(error)) from None
        if self.lockfile is not None and current is not None and current.digest() != self.lockfile.digest():
            raise NotApproved(f"{self.path} has just changed; try again once it is loaded")
        try:
            write_lockfile(self.path, lockfile)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise NotApproved(
                f"{self.path} cannot be written ({reason}); "
                "`typegate approve --config FILE` writes it where it can be, and it is taken over from there"
            ) from None
        self.expect(lockfile)
        self.lockfile = lockfile

    # what is told

    def _tell(self, alias: str, known: _Server, changes: Iterable[Decided]) -> None:
        new = [one for one in changes if one.decision != "accept" and one.change.key not in known.told]
        if len(known.told) > _MAX_REMEMBERED:
            known.told.clear()
        known.told.update(one.change.key for one in new)
        if not self._announces or not new:
            return
        if self.lockfile is not None and alias not in self.lockfile.servers:
            held = sum(one.decision == "hold" for one in new)
            log.warning(
                "the lock file has nothing of this server: %d of its %d items are held until `typegate approve %s`",
                held, len(new), alias, extra={"server": alias},
            )  # fmt: skip
            return
        for one in new[:_MAX_TOLD]:
            _log_change(alias, one)
        if len(new) > _MAX_TOLD:
            log.warning(
                "and %d more changes: `typegate diff` shows them", len(new) - _MAX_TOLD, extra={"server": alias}
            )
        flapping = next((one for one in known.changes if known.flapping.flaps(one.change)), None)
        if flapping is not None and not known.flaps_told:
            known.flaps_told = True
            log.warning("%s: %s", item_name(alias, flapping.change), _advice(flapping), extra={"server": alias})


def _log_change(alias: str, one: Decided) -> None:
    change = one.change
    what = "held" if one.decision == "hold" else "changed"
    cure = ": `typegate diff` shows it, `typegate approve` releases it" if one.decision == "hold" else ""
    log.warning(
        "%s (%s)%s: %s", what, ", ".join(change.classes), cure, item_name(alias, change),
        extra={"server": alias, "tool": change.name},
    )  # fmt: skip


def _check_shown(alias: str, changes: Iterable[Change], digests: Collection[str]) -> None:
    left = set(digests)
    for one in changes:
        shown = {each for each in left if len(each) >= MIN_DIGEST_CHARS and one.key.startswith(each)}
        if not shown:
            name = item_name(alias, one)
            raise ChangedAgain(f"{name} has changed since it was shown; nothing was approved: look at it again")
        left -= shown
    if left:
        raise ChangedAgain(
            f"server '{alias}' no longer lists what was shown; nothing was approved: look at its changes again"
        )


def _name_patterns(config: Config) -> tuple[str, ...]:
    """The patterns by which rules, profiles and groups speak of tools and prompts of any server."""
    gateway = config.gateway
    selections = (*gateway.groups.values(), *gateway.profiles.values())
    lists = [one for rule in gateway.policy.rules for one in (rule.patterns, rule.wrappers)]
    lists += [one for selection in selections for one in (selection.tools, selection.prompts)]
    return tuple(dict.fromkeys(pattern for one in lists for pattern in one or ()))


def _own_patterns(config: ServerConfig) -> tuple[str, ...]:
    """The names and patterns by which the entry of a server speaks of its tools and prompts."""
    lists = (config.allow.tools, config.allow.prompts, config.deny.tools, config.deny.prompts)
    return tuple(dict.fromkeys([*config.tools, *(pattern for one in lists for pattern in one or ())]))


def _tells_apart(alias: str, patterns: tuple[str, ...], own: tuple[str, ...], was: str, name: str) -> bool:
    """Whether a pattern matches one name of something and not the other."""

    def selects(pattern: str, one: str) -> bool:
        shown = f"{alias}{NAME_SEPARATOR}{one}"
        return selects_name(pattern, server=alias, original=one, shown=shown, prefixed=True)

    return any(selects(pattern, was) != selects(pattern, name) for pattern in patterns) or any(
        fnmatchcase(was, pattern) != fnmatchcase(name, pattern) for pattern in own
    )


def _with_approved_hints(found: Review) -> Review:
    """A review under a lock file: what a tool was approved with decides about rights, not what it listed first."""
    hints = {
        one.change.name: hints_of(one.change.before.get("annotations"))
        for one in found.changes
        if one.change.kind == "tools" and one.change.before is not None and one.decision != "hold"
    }
    return replace(found, listing=replace(found.listing, first_hints=hints or _NO_HINTS))


def _advice(one: Decided) -> str:
    calming = ", ".join(f"{each}: warn" for each in one.change.classes if each not in ("added", "removed"))
    return (
        "it differs at each start, so that no approval lasts; "
        f"`lock: {{{calming}}}` in the entry of its server lets it through with a warning"
    )


def with_state_of(listing: ServerListing, current: ServerListing | None) -> ServerListing:
    """A listing that was reviewed again, with the state that its connection has by now."""
    if current is None:
        return listing
    state = current.epoch, current.stale, current.origin
    if state == (listing.epoch, listing.stale, listing.origin):
        return listing
    return replace(listing, epoch=current.epoch, stale=current.stale, origin=current.origin)


def lock_files(config: Config) -> tuple[Path, ...]:
    """The files beside the configuration whose changes matter here."""
    path = lock_path(config)
    return () if path is None else (path,)
