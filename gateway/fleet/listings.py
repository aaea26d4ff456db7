"""Put the last good listings, shared or per caller, into the catalog.

A listing is what a server lists: its tools, prompts and resources. The registry combines all listings into the catalog.
A link is the connection to a server, and its epoch counts the link's connections. The listing lock holds changes of a
listing back until an administrator approves them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Final

import anyio

from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.server import ServerConfig
from gateway.fleet.discovery import ListingSource, is_short, listing_of
from gateway.fleet.listing_lock import ListingLock
from gateway.fleet.snapshot import StoredListings, fingerprint
from gateway.process.tasks import run_in_thread
from gateway.protocol.gateway_errors import LoopDetected
from gateway.protocol.versions import gateways_of
from gateway.upstream.link_states import ListedLink
from gateway.upstream.session import RawListing
from registry.catalog.listing import CODES as UNMATCHED
from registry.catalog.listing import HIDES_NOTHING, ServerListing
from registry.catalog.names import ServerName
from registry.catalog.overrides import Hints
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.intake.issues import ItemIssue
from registry.lock.review import Review

log = logging.getLogger(__name__)

# Catalogs of up to this many tools are built in the event loop. This delays other requests by at most 5 ms.
_MAX_BUILT_INLINE: Final = 256
# The maximum number of attempts to build a catalog in a thread. If connections keep changing, each result is outdated
# when it is complete. After the last attempt, the catalog is built in the event loop.
_MAX_BUILT_ASIDE: Final = 3

Confirm = Callable[[], ServerListing | None]
"""A function that returns the listing to publish now, or None if the listing is outdated."""
Planned = tuple[Shape, Iterable[ServerName], Iterable[ServerListing]]
"""The shape of a catalog, the servers to remove from it, and the listings to add."""


class CatalogUpdates:
    """Builds catalogs in a thread, one at a time and in the order of the listings.

    Readers see the old catalog until the new one is complete. Listings that arrive during a build are combined into the
    next build, because all servers list concurrently at startup.
    """

    def __init__(self, registry: Registry, worker: anyio.CapacityLimiter | None = None) -> None:
        """Initialize the updates of a registry. A build is repeated if other code changes the registry meanwhile.

        Args:
            worker: Limits the number of threads; the default limit is one.
        """
        self._registry = registry
        self._worker = worker or anyio.CapacityLimiter(1)
        self._building = anyio.Lock()
        self._waiting: list[tuple[ServerListing, Confirm]] = []

    async def put(self, listing: ServerListing, confirm: Confirm) -> None:
        """Put a listing into the registry.

        Args:
            listing: The expected result of `confirm`, with which the catalog is built in advance.
            confirm: Called when the catalog is complete; returns the listing that is published.
        """
        if not self._waiting and self._is_small(len(listing.tools)):
            self._put([(listing, confirm)])
            return
        entry = (listing, confirm)
        self._waiting.append(entry)
        try:
            async with self._building:
                if entry not in self._waiting:
                    return  # another call of `put` has published this listing, too
                group = list(self._waiting)
                for _ in range(_MAX_BUILT_ASIDE):
                    if await self._build_in_thread(
                        partial(self._registry.build_ahead, put=[each for each, _ in group])
                    ):
                        break
                    group = list(self._waiting)
                self._waiting = [each for each in self._waiting if each not in group]
                self._put(group)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def prepare(self, plan: Callable[[], Planned], *, more_tools: int = 0) -> None:
        """In a thread, build the catalog for a later call of `Registry.reshape`, so that the call is fast.

        Args:
            plan: Returns the arguments of that call; called in a thread.
            more_tools: The number of tools that the call adds to the catalog.
        """
        if not self._waiting and self._is_small(more_tools):
            return
        async with self._building:
            for _ in range(_MAX_BUILT_ASIDE):
                if await self._build_in_thread(lambda: self._build(plan)):
                    return

    def _build(self, plan: Callable[[], Planned]) -> object:
        shape, drop, put = plan()
        return self._registry.build_ahead(shape=shape, drop=drop, put=put)

    async def _build_in_thread(self, build: Callable[[], object]) -> bool:
        """Build in a thread; return whether the registry has not changed since the build began."""
        return await run_in_thread(build, limiter=self._worker) is self._registry.catalog

    def _is_small(self, more_tools: int = 0) -> bool:
        return len(self._registry.catalog.wrappers) + more_tools <= _MAX_BUILT_INLINE

    def _put(self, group: Iterable[tuple[ServerListing, Confirm]]) -> None:
        confirmed = [listing for _, confirm in group if (listing := confirm()) is not None]
        if confirmed:
            self._registry.reshape(self._registry.shape, put=confirmed)


LEADS_BACK: Final = "skipped: it is a loop that connects back to this gateway, so tools would be listed endlessly"
SIGN_IN_TOOL: Final = "sign_in"
"""The only tool that callers see before they have signed in to a server. Hosts call only listed tools, so a tool has to
start the sign-in."""


class OwnListings:
    """Listings that each belong to one caller, called the owner.

    A server that each caller signs in to may list different items to each caller. A caller's listing is never shown to
    another caller. Before the sign-in, the caller sees only the tool `sign_in`. The lock file applies to each caller's
    listing.
    """

    def __init__(self, registry: Registry, lock: ListingLock, instance: str, worker: anyio.CapacityLimiter) -> None:
        self._worker = worker
        self._instance = instance
        self._registry = registry
        self._lock = lock
        # The listings as the servers sent them, including held items, by owner and alias.
        self._unheld: dict[tuple[str, str], ServerListing] = {}

    async def put(self, link: ListedLink, raw: RawListing) -> bool:
        """Put a listing from a caller's own link into the registry, and return whether the listing has changed.

        Raises:
            LoopDetected: The server is this gateway, or a gateway that has this gateway as an upstream.
        """
        if self._instance in gateways_of(raw.capabilities):
            raise LoopDetected(LEADS_BACK)
        alias, owner, config = link.server, link.owner, link.config
        before = self._unheld.get((owner, alias)) if self.has_listing(link) else None
        listed = self._lock.listing_of(alias, config)
        hints = listed.first_hints if listed is not None else None
        listing, review = await reviewed(link, raw, self._lock, before=before, worker=self._worker, hints=hints)
        if not link.retired:
            self._show(owner, alias, config, listing, review)
        return before is None or not listing.listing_key(before)

    def _show(self, owner: str, alias: str, config: ServerConfig, listing: ServerListing, review: Review) -> None:
        if self._lock.lockfile is not None or self._lock.listing_of(alias) is None:
            # Record the listing to compare it with the approved one. Without a lock file, only the first caller's
            # listing is recorded, because listings of different callers must not be compared with each other.
            self._lock.record(alias, listing, config, review, is_shared=False)
        visible = review.listing if self._lock.lockfile is not None else listing
        self._unheld[owner, alias] = listing
        self._registry.put_own(owner, visible)
        if len(self._unheld) > 2 * sum(map(len, self._registry.owners.values())):
            self._unheld = {key: listing for key, listing in self._unheld.items() if key[0] in self._registry.owners}

    def republish(self, servers: Mapping[str, ServerConfig]) -> None:
        """Review and publish all listings again after the lock file has changed."""
        for (owner, alias), listing in list(self._unheld.items()):
            if alias in servers and self._registry.own_listing(owner, ServerName(alias)) is not None:
                review = self._lock.review(alias, listing, servers[alias])
                self._show(owner, alias, servers[alias], listing, review)

    def forget(self, alias: str) -> None:
        """Remove the listings of a server whose connections are already closed."""
        self._unheld = {key: listing for key, listing in self._unheld.items() if key[1] != alias}
        self._registry.drop_own(ServerName(alias))

    def has_listing(self, link: ListedLink) -> bool:
        """Return whether the registry has this server's listing for the owner of the link."""
        return self._registry.own_listing(link.owner, ServerName(link.server)) is not None

    def epoch_of(self, server: str, owner: str) -> int:
        """Return the epoch of a server's listing for a caller; 0 without a listing."""
        listing = self._registry.own_listing(owner, ServerName(server))
        return listing.epoch if listing is not None else 0


async def reviewed(
    link: ListedLink,
    raw: RawListing,
    lock: ListingLock,
    *,
    before: ServerListing | None,
    worker: anyio.CapacityLimiter,
    hints: Mapping[str, Hints] | None = None,
) -> tuple[ServerListing, Review]:
    """Build the listing from a server's response, and compare it with the approved one.

    Args:
        raw: The response. This function empties long lists in it to free memory.
        before: The previous listing.
        worker: Limits the number of threads that check long responses, because each thread slows down the event loop.
        hints: The annotations that tools had when they were first listed; used if there is no previous listing.
    """
    alias, config = link.server, link.config
    source = ListingSource(
        server=ServerName(alias),
        epoch=link.epoch,
        transport=config.listed_over,
        strict=config.validation == "strict",
    )
    build_listing = partial(listing_of, raw, source, before=before, hints=hints)

    def build_and_review() -> tuple[ServerListing, Review]:
        listing = build_listing()
        return listing, lock.review(alias, listing, config)

    return build_and_review() if is_short(raw) else await run_in_thread(build_and_review, limiter=worker)


def placeholder(alias: str, config: ServerConfig) -> ServerListing:
    """Return the listing of a server for callers that have not signed in to the server."""
    name = config.display_name or alias
    tool = {
        "name": SIGN_IN_TOOL,
        "title": f"Sign in to {name}",
        "description": f"Sign in to {name}. Its tools are listed after the sign-in; this tool asks you to open a link.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": True},
    }
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    # Epoch 0 precedes the epochs of callers' connections, which begin with 1.
    return ServerListing(
        server=ServerName(alias),
        epoch=0,
        tools=(tool,),
        capabilities=capabilities,
        scope="private",
        transport=config.listed_over,
    )


class SharedListings:
    """Listings that all callers share, in the registry and on disk.

    Attributes:
        stored: The last good listings on disk.
    """

    def __init__(
        self,
        registry: Registry,
        lock: ListingLock,
        links: Mapping[str, ListedLink],
        *,
        updates: CatalogUpdates,
        stored: StoredListings,
        instance: str,
        worker: anyio.CapacityLimiter,
        is_per_user: Callable[[ServerConfig], bool],
    ) -> None:
        """Initialize without listings.

        Args:
            links: The current link of each server, by alias.
            updates: Puts listings into the registry.
            stored: The stored listings.
            instance: The id of this gateway, for detecting a server that connects back to the gateway.
            worker: Limits the number of threads that check listings.
            is_per_user: Returns whether each caller has its own listing of a server.
        """
        self._registry = registry
        self._lock = lock
        self._links = links
        self._updates = updates
        self._instance = instance
        self._worker = worker
        self._is_per_user = is_per_user
        self._unmatched = UnmatchedSettings()
        self._listed_s: dict[str, float] = {}
        self.stored = stored

    async def load(self) -> None:
        """Load the stored listings."""
        await run_in_thread(self.stored.load, limiter=self._worker)

    # Events of links

    async def put(self, link: ListedLink, raw: RawListing) -> bool:
        """Put a server's listing into the registry.

        Returns:
            Whether the listing differs from the previous one.

        Raises:
            LoopDetected: The server is this gateway, or a gateway that has this gateway as an upstream.
        """
        alias, config, epoch = link.server, link.config, link.epoch
        if self._instance in gateways_of(raw.capabilities) and self._links.get(alias) is link:
            self._registry.drop(ServerName(alias))
            self._lock.forget(alias)
            raise LoopDetected(LEADS_BACK)
        state = self._lock.state
        # Do not use the listing in the catalog: held items are replaced there with the approved ones.
        before = self._lock.listing_of(alias, config)
        hints = self.stored.first_hints(alias, config)
        listing, review = await reviewed(link, raw, self._lock, before=before, worker=self._worker, hints=hints)

        def confirm() -> ServerListing | None:
            # Meanwhile, the link may have been replaced, or a later connection of the link may have sent a listing.
            listed = self._registry.catalog.servers.get(ServerName(alias))
            if self._links.get(alias) is not link or (listed is not None and epoch < listed.epoch):
                return None
            # Review again if the lock file has changed while a thread reviewed the listing.
            current_review = (
                review if all(map(is_, self._lock.state, state)) else self._lock.review(alias, listing, config)
            )
            if raw.confirmed:
                # Store the listing as soon as callers see it, because the process may end at any time.
                self.stored.put(alias, config, listing)
            return self._lock.record(alias, listing, config, current_review)

        await self._updates.put(review.listing, confirm)
        has_changed = before is None or not listing.listing_key(before)
        if self._links.get(alias) is not link:
            return has_changed
        if (part := self._registry.catalog.parts.get(ServerName(alias))) is not None:
            self._unmatched.log_new(alias, part.warnings)
        if raw.confirmed:
            self._listed_s[alias] = anyio.current_time()
        return has_changed

    def has_listing(self, link: ListedLink) -> bool:
        """Return whether the catalog has a listing of this server."""
        # If the alias belonged to another server before, that server's listing stays in the catalog until this server
        # lists.
        listed = ServerName(link.server) in self._registry.catalog.servers
        return listed and self.stored.find(link.server, link.config) is not None

    def mark_lost(self, link: ListedLink) -> None:
        """Mark the listing of a server as stale after its connection is lost."""
        if self._links.get(link.server) is link:
            self._registry.mark_stale(ServerName(link.server), link.epoch)

    # State of servers

    def age_s(self, alias: str) -> float | None:
        """Return the age of a server's listing in seconds; None without a listing."""
        listing = self._registry.catalog.servers.get(ServerName(alias))
        saved = self.stored.get(alias)
        if listing is not None and listing.origin == "live" and alias in self._listed_s:
            return anyio.current_time() - self._listed_s[alias]
        if listing is not None and saved is not None:
            # The listing is from before a restart, so only the wall clock is available, which may have been set back.
            return max(0.0, time.time() - saved.at_s)
        return None

    def successor(self, former: str, servers: Mapping[str, ServerConfig]) -> str | None:
        """Return the current alias of the server that had the alias `former` before; None if no such server exists."""
        current = self.stored.ids.current_alias(former)
        if current is not None:
            return current
        former_fingerprint = self.stored.former_fingerprint(former)
        if former_fingerprint is None:
            return None
        return next((alias for alias, config in servers.items() if fingerprint(config) == former_fingerprint), None)

    def forget(self, alias: str, config: ServerConfig) -> None:
        """Remove a server, and store only its fingerprint, so that a renamed server can be recognized."""
        self.stored.retire(alias, config)
        self._lock.forget(alias)
        self._listed_s.pop(alias, None)

    # Stored and reviewed listings

    def restore_listings(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """Return the listings to publish before these servers are connected.

        For each server, this is the stored listing if the program or address has not changed, or a listing with only
        the `sign_in` tool if callers have to sign in to the server.
        """
        listings: list[ServerListing] = []
        for alias, config in servers.items():
            listing, is_shared = self._stored_listing(alias, config), not self._is_per_user(config)
            if not is_shared:
                # The stored listing is from a time when all callers shared one listing.
                self.stored.forget(alias)
            if listing is not None and is_shared:
                listing = self._lock.record(alias, listing, config, self._lock.review(alias, listing, config))
            if listing is not None:
                listings.append(listing)
        return listings

    def find_restorable(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """Return what `restore_listings` would return, without changing anything. May run in any thread."""
        return [
            listing if self._is_per_user(config) else self._lock.review(alias, listing, config).listing
            for alias, config in servers.items()
            if (listing := self._stored_listing(alias, config)) is not None
        ]

    def reviewed_again(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """Review these servers' listings again after the lock file has changed; return the listings to publish."""
        return self._as_connected(listing for _, listing in self._lock.reviewed_again(servers))

    def to_review_again(self, servers: Mapping[str, ServerConfig], lock: ListingLock) -> list[ServerListing]:
        """Return what `reviewed_again` would return with this lock, without any changes. May run in any thread."""
        return self._as_connected(lock.review_all(servers))

    def _as_connected(self, listings: Iterable[ServerListing]) -> list[ServerListing]:
        current = self._registry.catalog.servers
        return [with_state_of(listing, current.get(listing.server)) for listing in listings]

    def _stored_listing(self, alias: str, config: ServerConfig) -> ServerListing | None:
        if self._is_per_user(config):
            return None if config.exchanges_callers else placeholder(alias, config)
        return self.stored.find(alias, config)


class Listings:
    """The listings of all servers, shared and per caller, and the updates that combine them into a catalog."""

    def __init__(
        self,
        registry: Registry,
        lock: ListingLock,
        links: Mapping[str, ListedLink],
        stored: StoredListings,
        *,
        instance: str,
        is_shared: Callable[[], bool],
    ) -> None:
        """Initialize without listings.

        Args:
            links: The current link of each server, by alias.
            stored: The stored listings.
            instance: The id of this gateway, for detecting a server that connects back to the gateway.
            is_shared: Returns whether the gateway distinguishes several callers.
        """
        # A single thread for all servers, because each running thread slows down the event loop.
        worker = anyio.CapacityLimiter(1)
        self._is_shared = is_shared
        self.lock = lock
        self.own = OwnListings(registry, lock, instance, worker)
        self.updates = CatalogUpdates(registry, worker)
        self.shared = SharedListings(
            registry,
            lock,
            links,
            updates=self.updates,
            stored=stored,
            instance=instance,
            worker=worker,
            is_per_user=self.is_per_user,
        )

    def is_per_user(self, config: ServerConfig | None) -> bool:
        """Return whether each caller has its own listing of a server."""
        return config is not None and config.per_user and self._is_shared()


def with_state_of(listing: ServerListing, current: ServerListing | None) -> ServerListing:
    """Return a listing with the connection state of `current`, the server's listing in the catalog."""
    if current is None:
        return listing
    state = current.epoch, current.stale, current.origin
    if state == (listing.epoch, listing.stale, listing.origin):
        return listing
    return replace(listing, epoch=current.epoch, stale=current.stale, origin=current.origin)


# The delay before rules are checked: at startup, all servers list concurrently, and a rule may concern several of them.
_SETTLED_S: Final = 1.0


class UnmatchedSettings:
    """Logs once which settings in a server's configuration do not match any of its items."""

    def __init__(self) -> None:
        self._logged: dict[str, set[ItemIssue]] = {}

    def log_new(self, server: str, warnings: Iterable[ItemIssue]) -> None:
        """Log the warnings about unmatched settings that were not logged before."""
        unmatched = {issue for issue in warnings if issue.code in UNMATCHED}
        for issue in sorted(unmatched - self._logged.get(server, set()), key=lambda issue: issue.tool):
            # An error, because the operator believes that the item is hidden.
            level = logging.ERROR if issue.code == HIDES_NOTHING else logging.WARNING
            log.log(level, "%s", issue.detail, extra={"server": server, "tool": issue.tool})
        self._logged[server] = unmatched


class UnmatchedRules(Reconfigurable):
    """Logs once for each policy rule that it matches nothing. Checks the rules after each change of the catalog."""

    def __init__(self, registry: Registry, unmatched: Callable[[], list[str]]) -> None:
        """Watch the catalog of a registry.

        Args:
            unmatched: Returns a text for each rule, pattern and condition that nothing matches; called in a thread.
        """
        self._unmatched = unmatched
        self._changed = anyio.Event()
        self._logged: frozenset[str] = frozenset()
        registry.subscribe(lambda change: self.notice_change(), always=True)

    async def validate(self, change: ConfigChange) -> Apply:
        return self.notice_change

    def notice_change(self) -> None:
        """Schedule another check."""
        self._changed.set()

    async def run(self) -> None:
        """Log unmatched rules until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_SETTLED_S)
            self._changed = anyio.Event()
            warnings = await run_in_thread(self._unmatched)
            for text in warnings:
                if text not in self._logged:
                    log.warning("policy: %s", text)
            self._logged = frozenset(warnings)
