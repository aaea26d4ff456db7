"""Cache the view of each profile for callers with the same rights.

A view contains the tools that a caller sees: those that a configured profile selects and that policy rules allow. The
rights of a caller are a `Grant`. Some servers list different tools to each caller; such a caller has listings and views
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Final, Protocol

import anyio

from gateway.access.principal import Principal
from gateway.calls.builtin_tools import READ_RESULT, SEARCH_TOOLS, always_listed
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.conversion import policy_of, profiles_of
from gateway.process.tasks import run_in_thread
from registry.catalog.catalog import Catalog
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.policy.policy import EVERYTHING, Grant, Policy
from registry.policy.unmatched_rules import find_unmatched
from registry.views.profile import DEFAULT_PROFILE, Profile
from registry.views.view import View, build_view

MAX_NARROWED: Final = 256
"""Maximum number of cached views of callers with limited rights. A view takes several hundred bytes per tool. Callers
with the same scopes and rules share a view. Beyond the limit, the oldest view is dropped, and rebuilt on demand."""
MAX_BUILT_INLINE: Final = 64
"""Maximum number of tools for which a view is built on the event loop. The build takes at most about 20 ms, even in a
JSON Schema dialect that rewrites each tool."""
# While servers keep changing their lists, a view is outdated before its thread ends. After this many builds in a
# thread, the view is built on the event loop.
_MAX_THREAD_BUILDS: Final = 3
MAX_OWN: Final = 512
"""Maximum number of cached views of callers with their own listings: two views for each such caller, of whom there are
at most 256 (`registry.catalog.registry.MAX_OWNERS`)."""
_MAX_CACHED_VIEWS: Final = 1_024
"""Maximum number of callers whose view is cached directly, to save a lookup: twice the cached header blocks (512)."""
_MAX_PAIRS: Final = 5_000_000
"""Maximum product of rules and tools to compare while serving. Comparing this many pairs takes seconds in a thread."""
_Key = tuple[str, Grant, str]
_CachedView = tuple[Catalog, Shape, View]


class ViewCaller(Hashable, Protocol):
    """A caller together with the profile that the caller uses."""

    @property
    def principal(self) -> Principal: ...

    @property
    def profile(self) -> str: ...


class ProfileViews(Reconfigurable):
    """Builds and caches views.

    A view is rebuilt after a change of the tools, their configuration (the catalog's shape), the profile or the policy.

    Attributes:
        policy: The rules for callers.
        profiles: The profiles by name.
        cached_views: The views that `find_view` has returned, by caller; cleared after every change.
    """

    def __init__(
        self,
        registry: Registry,
        profiles: Mapping[str, Profile],
        policy: Policy | None = None,
        *,
        build: Callable[..., View] = build_view,
    ) -> None:
        """Create the views of the tools of a registry.

        Args:
            profiles: The profiles by name; `default` is added if missing.
            policy: The rules for callers; None to allow everything.
            build: Builds a view, like `build_view`.
        """
        self._registry = registry
        self._build_view = build
        # Views of callers with unlimited rights. They are never evicted, because other views are built from them.
        self._open: dict[_Key, _CachedView] = {}
        self._narrowed: dict[_Key, _CachedView] = {}
        self._own: dict[_Key, _CachedView] = {}
        self._being_built: dict[_Key, anyio.Event] = {}
        self.policy = policy or Policy()
        self._grants: dict[int, tuple[Principal, Grant]] = {}
        self.profiles: dict[str, Profile] = {DEFAULT_PROFILE: Profile(), **profiles}
        self.cached_views: dict[ViewCaller, View] = {}
        registry.subscribe(lambda change: self._clear_cached_views(), always=True)
        registry.subscribe_own(self._clear_cached_views)

    def find_view(self, caller: ViewCaller) -> View | None:
        """Return the current view for a caller, after adding it to `cached_views`; None if the view has to be built.

        Raises:
            KeyError: The profile does not exist.
        """
        view = self.current(caller.profile, caller.principal)
        if view is not None:
            if len(self.cached_views) >= _MAX_CACHED_VIEWS:
                self.cached_views.clear()
            self.cached_views[caller] = view
        return view

    def _clear_cached_views(self) -> None:
        self.cached_views = {}

    def current(self, profile: str = DEFAULT_PROFILE, principal: Principal | None = None) -> View | None:
        """Return the cached view of a profile; None if the view is outdated or missing and has to be built.

        Args:
            principal: The caller; None for an operator, who sees everything.

        Raises:
            KeyError: The profile does not exist.
        """
        grant, registry, profile_settings = self.grant(principal), self._registry, self.profiles[profile]
        # Most gateways have no callers with their own listings, so this test must be cheap.
        if registry.owners and (owner := self.owner(principal)):
            cached, catalog = self._own.get((profile, grant, owner)), registry.catalog_of(owner)
        else:
            cached = (self._open if grant is EVERYTHING else self._narrowed).get((profile, grant, ""))
            catalog = registry.catalog
        # The catalog, the shape and the profile are never modified in place, so it is enough to compare identities.
        if cached is not None and cached[0] is catalog and cached[1] is registry.shape:
            return cached[2] if cached[2].profile is profile_settings else None
        return None

    def view(self, profile: str = DEFAULT_PROFILE, principal: Principal | None = None) -> View:
        """Return the current view of a profile, building the view on the event loop if necessary.

        Raises:
            KeyError: The profile does not exist.
        """
        current_view = self.current(profile, principal)
        if current_view is not None:
            return current_view
        key = (profile, self.grant(principal), self.owner(principal))
        return self._store(key, self._build(key, self._registry.catalog_of(key[2])))

    async def prepared(self, profile: str = DEFAULT_PROFILE, principal: Principal | None = None) -> View:
        """Return the current view of a profile. A view of many tools is built in a thread.

        Raises:
            KeyError: The profile does not exist.
        """
        for _ in range(_MAX_THREAD_BUILDS):
            current_view = self.current(profile, principal)
            if current_view is not None:
                return current_view
            if len(self._registry.catalog.wrappers) <= MAX_BUILT_INLINE:
                break
            key = (profile, self.grant(principal), self.owner(principal))
            being_built = self._being_built.get(key)
            if being_built is not None:
                await being_built.wait()
                continue
            done = self._being_built[key] = anyio.Event()
            try:
                catalog = self._registry.catalog_of(key[2])
                self._store(key, await run_in_thread(partial(self._build, key, catalog)))
            finally:
                del self._being_built[key]
                done.set()
        return self.view(profile, principal)

    def _views_of(self, key: _Key) -> dict[_Key, _CachedView]:
        return self._own if key[2] else self._open if key[1] is EVERYTHING else self._narrowed

    def _build(self, key: _Key, catalog: Catalog) -> _CachedView:
        profile, grant, owner = key
        shape, profile_settings = self._registry.shape, self.profiles[profile]
        # Entries of unchanged servers are reused from the previous view, or from the view with unlimited rights.
        previous = self._views_of(key).get(key) or self._open.get((profile, EVERYTHING, ""))
        view = self._build_view(
            catalog,
            shape,
            profile_settings,
            always_listed=always_listed(profile_settings.dialect),
            search_tools=SEARCH_TOOLS,
            result_tools=(READ_RESULT,),
            previous=previous[2] if previous is not None else None,
            grant=grant,
            owner=owner,
        )
        return catalog, shape, view

    def _store(self, key: _Key, cached: _CachedView) -> View:
        views = self._views_of(key)
        most = MAX_OWN if views is self._own else MAX_NARROWED
        if key not in views and views is not self._open and len(views) >= most:
            del views[next(iter(views))]
        views[key] = cached
        return cached[2]

    def owner(self, principal: Principal | None) -> str:
        """Return the caller's name if some server lists tools to this caller alone; otherwise an empty text."""
        return principal.name if principal is not None and principal.name in self._registry.owners else ""

    def grant(self, principal: Principal | None) -> Grant:
        """Return the caller's rights. An operator (None) has all rights."""
        if principal is None:
            return EVERYTHING
        # Usually it is the same object as in an earlier request, and `Policy.grant` hashes it, which is slower. An
        # entry keeps its principal alive, so that no other object gets the same id.
        latest = self._grants.get(id(principal))
        if latest is not None:
            return latest[1]
        if len(self._grants) >= _MAX_CACHED_VIEWS:
            self._grants.clear()
        grant = self.policy.grant(principal)
        self._grants[id(principal)] = principal, grant
        return grant

    def unmatched_rules(self) -> list[str]:
        """Return a warning for each rule, pattern and condition that matches nothing in the servers' current lists."""
        rules, tools = len(self.policy.rules), len(self._registry.catalog.wrappers)
        if rules * tools > _MAX_PAIRS:
            return [f"{rules} rules and {tools} tools are not compared while serving; `typegate check` compares them"]
        return find_unmatched(self.policy.rules, self._registry.catalog, self._registry.shape, live_only=True)

    async def validate(self, change: ConfigChange) -> Apply:
        policy = policy_of(change.after) if change.changes_rules else None
        return partial(self.replace, profiles_of(change.after), policy)

    def replace(self, profiles: Mapping[str, Profile], policy: Policy | None = None) -> None:
        """Replace the profiles and the rules. Requests for a removed profile fail from now on.

        Args:
            profiles: The profiles by name.
            policy: The rules; None to keep the current ones.
        """
        self.profiles = {DEFAULT_PROFILE: Profile(), **profiles}
        self._clear_cached_views()
        self._open = {key: cached for key, cached in self._open.items() if key[0] in self.profiles}
        self._narrowed = {key: cached for key, cached in self._narrowed.items() if key[0] in self.profiles}
        self._own = {key: cached for key, cached in self._own.items() if key[0] in self.profiles}
        if policy is not None:
            # New rules produce new `Grant` objects, so the views cached for the previous grants are obsolete.
            self.policy, self._grants, self._narrowed, self._own = policy, {}, {}, {}
