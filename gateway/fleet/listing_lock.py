"""Compare each listing with the approved one. Callers see the approved version of an item while its change is held."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from typing import Any, Final

import anyio
import anyio.to_thread

from gateway.config.model import Config
from gateway.config.server import ServerConfig
from gateway.fleet.lock_file import (
    OF_OTHERS,
    FirstListings,
    Flapping,
    LockDecisions,
    change_row,
    distinguishes,
    flapping_advice,
    is_of_others,
    item_name,
    lock_notes,
    lock_path,
    name_in,
    name_patterns,
    other_configuration,
    own_patterns,
    read_approved,
    read_lockfile,
    write_lockfile,
)
from gateway.protocol.gateway_errors import ConfigError, GatewayError
from registry.catalog.listing import ServerListing
from registry.catalog.overrides import Hints, hints_of
from registry.lock.lockfile import Lockfile, Surface, digest_of
from registry.lock.review import (
    CHANGE_CLASSES,
    Change,
    ChangeClass,
    ChangedKind,
    Policy,
    Review,
    ReviewedChange,
    approved_with,
    changes_of,
    default_decision,
    reverted_with,
    review,
    surface_of,
)

log = logging.getLogger(__name__)

MIN_DIGEST_CHARS: Final = 16
"""The minimum length of a digest prefix, so that a server cannot construct another change with the same prefix."""
# The number of changes per server that are logged individually; further changes are only counted.
_MAX_LOGGED: Final = 10
# The maximum number of changes per server that are remembered as logged. If it is exceeded, changes are logged again.
_MAX_REMEMBERED: Final = 10_000
# One object for all listings without hints, so that they can be compared by identity.
_NO_HINTS: Final[Mapping[str, Hints]] = {}
# The maximum number of stored changes per server without a lock file. Only the latest changes are stored.
_MAX_KEPT: Final = 100


class NotApproved(GatewayError):
    """An item cannot be approved; the message says why."""


class ChangedAgain(NotApproved):
    """A server has changed its listing since the changes were shown to the administrator."""


@dataclass(slots=True)
class _Server:
    """The state of one server.

    Attributes:
        listing: The latest listing as the server sent it, including held items.
        config: The server's configuration when the listing was received.
        changes: The changes in the latest listing; without a lock file, also the changes in earlier listings.
        since_s: When each change was first seen, by the key of the change.
        logged: The keys of changes that were logged.
        is_shared: True if all callers share the listing, False if it belongs to one caller.
        flapping: Detects items that differ at each start of the server.
    """

    listing: ServerListing
    config: ServerConfig
    changes: tuple[ReviewedChange, ...] = ()
    since_s: dict[str, float] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    is_shared: bool = True
    flapping: Flapping = field(default_factory=Flapping)
    is_flapping_logged: bool = False


class ListingLock:
    """Compares listings with the approved ones, and decides which items callers see.

    Without a lock file, a server's listings are compared with its first listing if its policy holds any class of
    changes. Otherwise, all listings of the server are trusted, and changes are only reported.

    Attributes:
        path: The path of the lock file, whether it exists or not.
        lockfile: The content of the lock file; None without a lock file.
        decisions: The latest decisions of administrators about changes.
    """

    def __init__(
        self,
        config: Config,
        lockfile: Lockfile | None,
        *,
        first_listings: FirstListings | None = None,
        decisions: LockDecisions | None = None,
        announces: bool = True,
    ) -> None:
        """Lock the servers of a configuration.

        Args:
            lockfile: The content of the lock file.
            first_listings: The first listings of servers; by default, they are stored only in memory.
            decisions: The latest decisions; by default, they are stored only in memory.
            announces: Whether this process logs changes. If there are several processes, only one of them does.
        """
        self._announces = announces
        self._first = first_listings if first_listings is not None else FirstListings(None)
        self.decisions = decisions if decisions is not None else LockDecisions(None)
        self._config = config
        self._settings = config.gateway.lock
        self._folder = config.path.parent if config.path is not None else None
        self._servers: dict[str, _Server] = {}
        # The inputs and the result of each server's last review. A thread may have done the review in advance.
        self._reviews: dict[str, tuple[tuple[object, ...], Review]] = {}
        # A lock file and its text, which is serialized on demand because this takes a second for many tools.
        self._text: tuple[Lockfile, str] | None = None
        self._patterns = name_patterns(config)
        self.path = lock_path(config)
        self.lockfile = lockfile
        self._log_missing_file()
        self._log_notes()

    @property
    def text(self) -> str | None:
        """Return the serialized content of the lock file; None without a lock file."""
        if self.lockfile is None:
            return None
        if self._text is None or self._text[0] is not self.lockfile:
            self._text = self.lockfile, self.lockfile.to_text()
        return self._text[1]

    def expect(self, lockfile: Lockfile) -> None:
        """If `text` is in use, serialize a lock file before it replaces the current one: this may take a second."""
        if self._text is not None:
            self._text = lockfile, lockfile.to_text()

    @property
    def notes(self) -> list[str]:
        """Return warnings about a lock file that several configurations may use."""
        return lock_notes(self._config, self.lockfile)

    def _log_notes(self) -> None:
        for note in self.notes if self._announces else ():
            log.warning("%s", note)

    def _log_missing_file(self) -> None:
        if self.lockfile is not None or not self._announces:
            return
        if self._settings.file is not None and self.path is not None:
            log.warning(
                "there is no lock file at %s: server listings are trusted until `typegate lock` writes it",
                self.path,
            )

    # Settings

    async def read_lockfile(self, config: Config) -> Lockfile | None:
        """Return the content of another configuration's lock file; None if the file does not exist.

        Raises:
            ConfigError: The lock file cannot be used.
        """
        # If the lock file in use was deleted, its approvals remain in force, so a missing file is not an error.
        is_known = self.lockfile is not None and lock_path(config) == self.path
        read = partial(read_lockfile, lock_path(config)) if is_known else partial(read_approved, config)
        return await anyio.to_thread.run_sync(read)

    def replace(self, config: Config, lockfile: Lockfile | None) -> None:
        """Apply another configuration and the content of its lock file, and log new warnings."""
        path = lock_path(config)
        if lockfile is None and self.lockfile is not None and path == self.path:
            log.error("lock file removed: its content applies until the next start: %s", path)
        before, noted = (self.path, self._settings), self.notes
        self.adopt(config, lockfile)
        if self.notes != noted:
            self._log_notes()
        if self.lockfile is None and before != (self.path, self._settings):
            self._log_missing_file()

    def under(self, config: Config, lockfile: Lockfile | None) -> ListingLock:
        """Return a copy that uses another configuration. Its reviews are also cached here, for use after `replace`."""
        preview = copy(self)
        preview.adopt(config, lockfile)
        return preview

    def adopt(self, config: Config, lockfile: Lockfile | None) -> None:
        path = lock_path(config)
        is_usual = config.gateway.lock.file is None and self._settings.file is None
        if lockfile is None and (path == self.path or (is_usual and config.path == self._config.path)):
            # Keep the current approvals: removing or renaming the lock file must not make everything trusted.
            path, lockfile = self.path, self.lockfile
        self.path, self._settings, self.lockfile = path, config.gateway.lock, lockfile
        self._config = config
        self._folder = config.path.parent if config.path is not None else None
        self._patterns = name_patterns(config)

    def use_lockfile(self, lockfile: Lockfile | None) -> None:
        """Replace the content of the lock file."""
        self.lockfile = lockfile

    def identity_of(self, config: ServerConfig) -> str:
        """Return a text that identifies the program or URL in a server's configuration."""
        return config.launch_identity(self._folder)

    @property
    def state(self) -> tuple[Lockfile | None, Lockfile]:
        """Return the lock file and the first listings. Each change creates new objects, so compare them by identity."""
        return self.lockfile, self._first.lockfile

    def approved_for(self, config: ServerConfig) -> Lockfile | None:
        """Return the lock file; if there is none, the first listings if the server's policy holds changes, or None."""
        if self.lockfile is not None:
            return self.lockfile
        decisions = {**self._settings.policy.decisions, **config.lock.decisions}
        return self._first.lockfile if "hold" in decisions.values() else None

    def policy_of(self, config: ServerConfig) -> Policy:
        """Return the decision about each class of changes for a server: `hold`, `warn` or `accept`."""
        locked = self.lockfile is not None
        decisions: Mapping[str, Any] = {**self._settings.policy.decisions, **config.lock.decisions}
        policy: dict[ChangeClass, Any] = {}
        for change_class in CHANGE_CLASSES:
            policy[change_class] = decisions.get(change_class, default_decision(change_class, locked=locked))
        return policy

    # Listings

    def listing_of(self, alias: str, config: ServerConfig | None = None) -> ServerListing | None:
        """Return a server's latest listing, including held items; None if `config` has another program or address."""
        server = self._servers.get(alias)
        if server is None or (config is not None and server.config.identity_key() != config.identity_key()):
            return None
        return server.listing

    def review(self, alias: str, listing: ServerListing, config: ServerConfig) -> Review:
        """Compare a listing with the approved or previous one, and cache the result. May run in any thread."""
        identity, policy = self.identity_of(config), self.policy_of(config)
        server = self._servers.get(alias)
        approved: Surface | None = None
        lockfile = self.approved_for(config)
        if lockfile is not None:
            approved = lockfile.servers.get(alias)
            if approved is None and self.lockfile is None:
                return Review(listing=listing)  # the first listing of the server
        elif server is None or server.config.identity_key() != config.identity_key():
            return Review(listing=listing)  # trusted on first use
        of = listing, (server.listing if server is not None else None) if lockfile is None else approved
        reviewed = self._reviews.get(alias)
        # A rename is held if a pattern matches only the old or only the new name; checked only with approved listings.
        patterns = (self._patterns, own_patterns(config)) if lockfile is not None else ((), ())
        inputs = identity, policy, patterns
        if reviewed is not None and reviewed[0][2:] == inputs and all(map(is_, reviewed[0], of)):
            return reviewed[1]
        if lockfile is None and server is not None:
            approved = surface_of(server.listing, identity)
        apart = partial(distinguishes, alias, *patterns)
        result = review(listing, approved, identity=identity, policy=policy, distinguishes=apart)
        if lockfile is not None:
            result = _with_approved_hints(result)
        self._reviews[alias] = (*of, *inputs), result
        return result

    def review_all(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """Return the listings that `reviewed_again` would return, without recording anything. May run in any thread."""
        shared = [(alias, config, self._servers.get(alias)) for alias, config in servers.items()]
        return [
            server.listing if self.approved_for(config) is None else self.review(alias, server.listing, config).listing
            for alias, config, server in shared
            if server is not None and server.is_shared
        ]

    def record(
        self, alias: str, listing: ServerListing, config: ServerConfig, reviewed: Review, *, is_shared: bool = True
    ) -> ServerListing:
        """Record a listing, log its changes, and return the listing to show.

        Args:
            reviewed: The result of `review`.
            is_shared: True if all callers share the listing, False if it belongs to one caller.
        """
        server = self._servers.get(alias)
        if server is None:
            server = self._servers[alias] = _Server(listing, config)
        server.listing, server.config, server.is_shared = listing, config, is_shared
        lockfile = self.approved_for(config)
        if lockfile is not None and lockfile is not self.lockfile and is_shared and alias not in lockfile.servers:
            self._trust(alias, surface_of(listing, self.identity_of(config)))
        if lockfile is None:
            keys = {decided.change.key for decided in reviewed.changes}
            earlier_changes = [decided for decided in server.changes if decided.change.key not in keys]
            server.changes = (*earlier_changes, *reviewed.changes)[-_MAX_KEPT:]
        else:
            server.changes = reviewed.changes
        now_s = time.time()
        server.since_s = {
            decided.change.key: server.since_s.get(decided.change.key, now_s) for decided in server.changes
        }
        for decided in reviewed.changes:
            server.flapping.note(decided.change, (digest_of(decided.change.before), digest_of(decided.change.after)))
        self._log_changes(alias, server, reviewed.changes)
        return reviewed.listing

    def forget(self, alias: str) -> None:
        """Remove a server that is no longer configured, or is a different server now."""
        self._servers.pop(alias, None)
        self._reviews.pop(alias, None)

    def reviewed_again(self, servers: Mapping[str, ServerConfig]) -> list[tuple[str, ServerListing]]:
        """Review and record each shared listing again with the current settings; return the listings to show."""
        again: list[tuple[str, ServerListing]] = []
        for alias, config in servers.items():
            server = self._servers.get(alias)
            if server is None or not server.is_shared:
                continue
            if self.approved_for(config) is None:
                again.append((alias, server.listing))
            else:
                reviewed = self.review(alias, server.listing, config)
                again.append((alias, self.record(alias, server.listing, config, reviewed)))
        return again

    # Administration

    def rows(self) -> list[dict[str, Any]]:
        """Return every change of every server as a row for `/admin/changes`. May run in a thread."""
        rejected = self.decisions.rejected()
        return [
            change_row(
                alias,
                decided,
                since_s=server.since_s.get(decided.change.key),
                advice=flapping_advice(decided) if server.flapping.flaps(decided.change) else None,
                rejected=rejected.get(f"{alias} {decided.change.key}"),
            )
            for alias, server in tuple(self._servers.items())
            for decided in server.changes
        ]

    def held_counts(self) -> dict[str, int]:
        """Return the number of held changes of each server."""
        return {alias: self.held_count(alias) for alias in self._servers}

    def held_count(self, alias: str) -> int:
        """Return the number of held changes of a server."""
        server = self._servers.get(alias)
        return sum(decided.decision == "hold" for decided in server.changes) if server is not None else 0

    def approve(
        self,
        alias: str,
        *,
        item: str | None = None,
        kind: ChangedKind | None = None,
        classes: Collection[ChangeClass] | None = None,
        digests: Collection[str] | None = None,
        by: str = "",
    ) -> tuple[list[str], list[str]]:
        """Approve the current listing of a server, and write the lock file.

        Args:
            item: Approve only the item that has this name on the server.
            kind: Approve only items of this kind.
            classes: Approve a change only if all its classes are listed here.
            digests: The digests of the changes that the administrator has seen, or prefixes of these digests.
            by: The administrator who approves.

        Returns:
            The names of the approved items, and the names of the items that also have changes of other classes.

        Raises:
            NotApproved: There is no such change, or the file cannot be written.
            ChangedAgain: The current changes differ from those in `digests`.
        """
        server = self._servers.get(alias)
        if server is None:
            raise NotApproved(f"server '{alias}' has not listed anything yet")
        lockfile = self.approved_for(server.config)
        if lockfile is None:
            raise NotApproved("; ".join(self.notes) or "there is no lock file; `typegate lock` writes one")
        listed = surface_of(server.listing, self.identity_of(server.config))
        approved = lockfile.servers.get(alias)
        surface, approved_now, remaining = approved_with(approved, listed, item=item, kind=kind, classes=classes)
        if (item is not None or kind is not None) and not approved_now and not remaining:
            raise NotApproved(f"nothing of '{item or kind}' of server '{alias}' has changed")
        if digests is not None:
            _check_shown(alias, approved_now, digests)
        self._store(alias, surface)
        if approved_now:
            self.decisions.add("approved", alias, approved_now, by)
        return [item_name(alias, change) for change in approved_now], [item_name(alias, change) for change in remaining]

    def reject(self, alias: str, digests: Collection[str], *, by: str = "") -> list[str]:
        """Record that held changes were rejected. They stay held, but are no longer shown as waiting for a decision.

        Returns:
            The names of the rejected items.

        Raises:
            NotApproved: One of the digests does not belong to a held change.
        """
        server = self._servers.get(alias)
        held = [each.change for each in server.changes if each.decision == "hold"] if server is not None else []
        chosen = [change for change in held if any(_is_shown(change, digest) for digest in digests)]
        if len(chosen) != len(set(digests)):
            raise NotApproved(f"server '{alias}' no longer lists or no longer holds this change; look again")
        self.decisions.add("rejected", alias, chosen, by)
        return [item_name(alias, change) for change in chosen]

    def undo(self, decision_id: str, *, by: str = "") -> list[str]:
        """Undo a decision. If it was an approval, the definitions that were approved before it are in force again.

        Returns:
            The names of the items of the decision.

        Raises:
            NotApproved: The decision does not exist, or cannot be undone.
        """
        decision = self.decisions.find(decision_id)
        if decision is None or not decision.can_undo:
            raise NotApproved("there is no such decision, or it cannot be undone")
        alias = decision.server
        if decision.action == "approved":
            approved = (self.lockfile or self._first.lockfile).servers.get(alias)
            surface = reverted_with(approved, decision.changes) if approved is not None else None
            if surface is None:
                raise NotApproved(f"server '{alias}' has other approved definitions since then; nothing was undone")
            self._store(alias, surface)
        self.decisions.note_undone(decision, by)
        return [item_name(alias, change) for change in decision.changes]

    def approve_all(self, servers: Collection[str], *, by: str = "") -> list[str]:
        """Write a lock file with the current listings of all servers.

        Args:
            servers: The configured servers. Entries of other servers are dropped.
            by: The administrator who approves.

        Returns:
            The servers whose listings were approved.

        Raises:
            NotApproved: The file cannot be written.
        """
        before = self.lockfile or Lockfile()
        entries = {alias: surface for alias, surface in before.servers.items() if alias in servers}
        listed = [alias for alias in servers if alias in self._servers]
        decided: dict[str, tuple[Change, ...]] = {}
        for alias in listed:
            server = self._servers[alias]
            approved = (self.approved_for(server.config) or Lockfile()).servers.get(alias)
            entries[alias] = surface = surface_of(server.listing, self.identity_of(server.config))
            # The first lock file is a decision only about servers that were compared with their first listing before.
            if (self.lockfile or approved) is not None and (changes := changes_of(approved, surface)):
                decided[alias] = changes
        self._write(Lockfile(entries, before.configuration))
        for alias, changes in decided.items():
            self.decisions.add("approved", alias, changes, by)
        return listed

    def _store(self, alias: str, surface: Surface) -> None:
        if self.lockfile is not None:
            self._write(self.lockfile.with_server(alias, surface))
        else:
            self._trust(alias, surface)

    def _trust(self, alias: str, surface: Surface) -> None:
        try:
            self._first.put(alias, surface)
        except OSError as error:
            # Keep serving: this process has the listing in memory. After a restart, the next listing is the first one.
            reason = error.strerror or type(error).__name__
            log.error("first listing not stored: %s", reason, extra={"server": alias})

    def _write(self, lockfile: Lockfile) -> None:
        if self.path is None:
            raise NotApproved("no path for the lock file is known; expected gateway.lock.file in the configuration")
        if self.lockfile is not None and is_of_others(self._config, self.lockfile):
            name = self._config.path.name if self._config.path is not None else "the configuration"
            raise NotApproved(f"{self.path} {OF_OTHERS.format(name=name)}")
        if self._config.path is not None and not other_configuration(self.path, self._config.path):
            lockfile = replace(lockfile, configuration=name_in(self.path, self._config.path))
        try:
            # Read the file again: another process may have changed it since it was loaded.
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
                "run `typegate approve --config FILE` where the file is writable; the gateway loads the changed file"
            ) from None
        self.expect(lockfile)
        self.lockfile = lockfile

    # Logging

    def _log_changes(self, alias: str, server: _Server, changes: Iterable[ReviewedChange]) -> None:
        new = [
            decided for decided in changes if decided.decision != "accept" and decided.change.key not in server.logged
        ]
        if len(server.logged) > _MAX_REMEMBERED:
            server.logged.clear()
        server.logged.update(decided.change.key for decided in new)
        if not self._announces or not new:
            return
        if self.lockfile is not None and alias not in self.lockfile.servers:
            held = sum(decided.decision == "hold" for decided in new)
            log.warning(
                "server is not in the lock file: %d of its %d items are held until `typegate approve %s`",
                held,
                len(new),
                alias,
                extra={"server": alias},
            )
            return
        for decided in new[:_MAX_LOGGED]:
            _log_change(alias, decided)
        if len(new) > _MAX_LOGGED:
            log.warning(
                "and %d more changes: `typegate diff` shows them", len(new) - _MAX_LOGGED, extra={"server": alias}
            )
        flapping = next((decided for decided in server.changes if server.flapping.flaps(decided.change)), None)
        if flapping is not None and not server.is_flapping_logged:
            server.is_flapping_logged = True
            log.warning("%s: %s", item_name(alias, flapping.change), flapping_advice(flapping), extra={"server": alias})


def _log_change(alias: str, decided: ReviewedChange) -> None:
    change = decided.change
    what = "held" if decided.decision == "hold" else "changed"
    cure = ": `typegate diff` shows it, `typegate approve` releases it" if decided.decision == "hold" else ""
    log.warning(
        "%s (%s)%s: %s",
        what,
        ", ".join(change.classes),
        cure,
        item_name(alias, change),
        extra={"server": alias, "tool": change.name},
    )


def _is_shown(change: Change, digest: str) -> bool:
    return len(digest) >= MIN_DIGEST_CHARS and change.key.startswith(digest)


def _check_shown(alias: str, changes: Iterable[Change], digests: Collection[str]) -> None:
    remaining = set(digests)
    for change in changes:
        matching = {each for each in remaining if _is_shown(change, each)}
        if not matching:
            name = item_name(alias, change)
            raise ChangedAgain(f"{name} has changed since it was shown; nothing was approved: look at it again")
        remaining -= matching
    if remaining:
        raise ChangedAgain(
            f"server '{alias}' no longer lists what was shown; nothing was approved: look at its changes again"
        )


def _with_approved_hints(reviewed: Review) -> Review:
    """Return a review with the approved hints (such as `readOnlyHint`) instead of the hints that were listed first."""
    hints = {
        decided.change.name: hints_of(decided.change.before.get("annotations"))
        for decided in reviewed.changes
        if decided.change.kind == "tools" and decided.change.before is not None and decided.decision != "hold"
    }
    return replace(reviewed, listing=replace(reviewed.listing, first_hints=hints or _NO_HINTS))
