"""The view of each profile on the current catalog, for callers with the same rights, built on first use."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Final, Protocol

import anyio

from gateway.access.principal import Principal
from gateway.calls.builtin_tools import SEARCH_TOOLS, always_listed
from gateway.worker_thread import run_in_thread
from registry.catalog.catalog import Catalog
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.policy.grant import EVERYTHING, Grant
from registry.policy.policy import Policy
from registry.policy.unmatched import unmatched_parts
from registry.views.profile import DEFAULT_PROFILE, Profile
from registry.views.view import View, build_view

MAX_NARROWED: Final = 256
"""Views that are kept of callers with limited rights: each takes some hundred bytes for each tool, and only callers
with other scopes or rules need another one. Beyond it the one that was built first is built anew when it is needed."""
MAX_MADE_INLINE: Final = 64
"""A view of so many tools is made within some 20 ms, also in a dialect that rewrites each of them."""
# While servers keep being listed, no view is the current one for long: somebody who waits gets the third that is made.
_MAX_MADE_ASIDE: Final = 3
MAX_OWN: Final = 512
"""Views that are kept of callers with listings of their own: two profiles of each (`registry.catalog.store`)."""
_MAX_AT_HAND: Final = 1_024
"""Callers whose view is found at once, twice as many as heads of requests are known. It is only a shorter way."""
_MAX_PAIRS: Final = 5_000_000
"""Rules times tools that are compared after a change of a list: it takes seconds of a thread."""
_Key = tuple[str, Grant, str]
_Known = tuple[Catalog, Shape, View]


class Looker(Hashable, Protocol):
    """Who looks at a profile."""

    @property
    def principal(self) -> Principal: ...

    @property
    def profile(self) -> str: ...


class ProfileViews:
    """Views, each rebuilt when the catalog, its shape, the profile or the policy has changed.

    Attributes:
        policy: What callers may do.
        profiles: By name.
        at_hand: What `of` has found, by whom it was asked for; forgotten with every change of anything.
    """

    def __init__(self, registry: Registry, profiles: Mapping[str, Profile], policy: Policy | None = None) -> None:
        """Show the tools of a registry.

        Args:
            registry: It.
            profiles: By name; `default` is there in any case.
            policy: What callers may do; everything where there is none.
        """
        self._registry = registry
        # Those without limits, which everybody else's begin from, apart: nothing pushes them out.
        self._open: dict[_Key, _Known] = {}
        self._narrowed: dict[_Key, _Known] = {}
        self._own: dict[_Key, _Known] = {}
        self._being_made: dict[_Key, anyio.Event] = {}
        self.policy = policy or Policy()
        self.profiles: dict[str, Profile] = {DEFAULT_PROFILE: Profile(), **profiles}
        self.at_hand: dict[Looker, View] = {}
        registry.subscribe(lambda change: self._forget_at_hand(), always=True)
        registry.subscribe_own(self._forget_at_hand)

    def of(self, looker: Looker) -> View | None:
        """Return what a caller sees, who keeps this object from request to request; None where it has to be made.

        Raises:
            KeyError: There is no such profile.
        """
        view = self.current(looker.profile, looker.principal)
        if view is not None:
            if len(self.at_hand) >= _MAX_AT_HAND:
                self.at_hand.clear()
            self.at_hand[looker] = view
        return view

    def _forget_at_hand(self) -> None:
        self.at_hand = {}

    def current(self, profile: str = DEFAULT_PROFILE, principal: Principal | None = None) -> View | None:
        """Return the view of a profile on the current catalog; None where it has to be made.

        Args:
            profile: Its name.
            principal: Who looks; None for an operator, who sees everything.

        Raises:
            KeyError: There is no such profile.
        """
        grant, registry, wanted = self.grant(principal), self._registry, self.profiles[profile]
        # Most gateways have none, and then it costs a call nothing.
        if registry.owners and (owner := self.owner(principal)):
            known, catalog = self._own.get((profile, grant, owner)), registry.catalog_of(owner)
        else:
            known = (self._open if grant is EVERYTHING else self._narrowed).get((profile, grant, ""))
            catalog = registry.catalog
        # All three are replaced whole, never changed in place, so identity is enough.
        if known is not None and known[0] is catalog and known[1] is registry.shape:
            return known[2] if known[2].profile is wanted else None
        return None

    def view(self, profile: str = DEFAULT_PROFILE, principal: Principal | None = None) -> View:
        """Return the view of a profile on the current catalog; where it has to be made, at once.

        Raises:
            KeyError: There is no such profile.
        """
        known = self.current(profile, principal)
        if known is not None:
            return known
        key = (profile, self.grant(principal), self.owner(principal))
        return self._keep(key, self._make(key, self._registry.catalog_of(key[2])))

    async def prepared(self, profile: str = DEFAULT_PROFILE, principal: Principal | None = None) -> View:
        """Return the same; a view of many tools is made aside, while calls go on.

        Raises:
            KeyError: There is no such profile.
        """
        for _ in range(_MAX_MADE_ASIDE):
            known = self.current(profile, principal)
            if known is not None:
                return known
            if len(self._registry.catalog.wrappers) <= MAX_MADE_INLINE:
                break
            key = (profile, self.grant(principal), self.owner(principal))
            being_made = self._being_made.get(key)
            if being_made is not None:
                await being_made.wait()
                continue
            done = self._being_made[key] = anyio.Event()
            try:
                catalog = self._registry.catalog_of(key[2])
                self._keep(key, await run_in_thread(partial(self._make, key, catalog)))
            finally:
                del self._being_made[key]
                done.set()
        return self.view(profile, principal)

    def _views_of(self, key: _Key) -> dict[_Key, _Known]:
        return self._own if key[2] else self._open if key[1] is EVERYTHING else self._narrowed

    def _make(self, key: _Key, catalog: Catalog) -> _Known:
        profile, grant, owner = key
        shape, wanted = self._registry.shape, self.profiles[profile]
        # The entries of servers that have not changed are taken over from the previous view, or from everybody's.
        previous = self._views_of(key).get(key) or self._open.get((profile, EVERYTHING, ""))
        view = build_view(
            catalog,
            shape,
            wanted,
            always_listed=always_listed(wanted.dialect),
            search_tools=SEARCH_TOOLS,
            previous=previous[2] if previous is not None else None,
            grant=grant,
            owner=owner,
        )
        return catalog, shape, view

    def _keep(self, key: _Key, made: _Known) -> View:
        views = self._views_of(key)
        most = MAX_OWN if views is self._own else MAX_NARROWED
        if key not in views and views is not self._open and len(views) >= most:
            del views[next(iter(views))]
        views[key] = made
        return made[2]

    def owner(self, principal: Principal | None) -> str:
        """Return the name of a caller that has listings of its own, empty for others."""
        return principal.name if principal is not None and principal.name in self._registry.owners else ""

    def grant(self, principal: Principal | None) -> Grant:
        """Return what a caller may do; everything for an operator, who is none."""
        return EVERYTHING if principal is None else self.policy.grant(principal)

    def unmatched_rules(self) -> list[str]:
        """Return a text for each rule, pattern and condition that nothing answers to that servers list at present."""
        rules, tools = len(self.policy.rules), len(self._registry.catalog.wrappers)
        if rules * tools > _MAX_PAIRS:
            return [f"{rules} rules and {tools} tools are not compared while serving; `typegate check` compares them"]
        return unmatched_parts(self.policy.rules, self._registry.catalog, self._registry.shape, live_only=True)

    def replace(self, profiles: Mapping[str, Profile], policy: Policy | None = None) -> None:
        """Use other profiles and rules; requests for a profile that was removed fail from now on.

        Args:
            profiles: By name.
            policy: The rules; None for those that are in use.
        """
        self.profiles = {DEFAULT_PROFILE: Profile(), **profiles}
        self._forget_at_hand()
        self._open = {key: known for key, known in self._open.items() if key[0] in self.profiles}
        self._narrowed = {key: known for key, known in self._narrowed.items() if key[0] in self.profiles}
        self._own = {key: known for key, known in self._own.items() if key[0] in self.profiles}
        if policy is not None:
            # What callers may do from now on is another grant.
            self.policy, self._narrowed, self._own = policy, {}, {}
