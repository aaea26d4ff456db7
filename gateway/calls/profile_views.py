"""The view of each profile on the current catalog, built on first use."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.calls.builtin_tools import SEARCH_TOOLS, always_listed
from registry.catalog.catalog import Catalog
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.views.profile import DEFAULT_PROFILE, Profile
from registry.views.view import View, build_view


class ProfileViews:
    """One view for each profile, rebuilt when the catalog, its shape or the profile has changed."""

    def __init__(self, registry: Registry, profiles: Mapping[str, Profile]) -> None:
        self._registry = registry
        self._views: dict[str, tuple[Catalog, Shape, View]] = {}
        self.profiles: dict[str, Profile] = {DEFAULT_PROFILE: Profile(), **profiles}

    def view(self, profile: str = DEFAULT_PROFILE) -> View:
        """Return the view of a profile on the current catalog.

        Raises:
            KeyError: There is no such profile.
        """
        catalog, shape, wanted = self._registry.catalog, self._registry.shape, self.profiles[profile]
        known = self._views.get(profile)
        # The entries of servers that have not changed are taken over from the previous view.
        previous = known[2] if known is not None else None
        # All three are replaced whole, never changed in place, so identity is enough.
        if known is not None and known[0] is catalog and known[1] is shape and known[2].profile is wanted:
            return known[2]
        view = build_view(
            catalog,
            shape,
            wanted,
            always_listed=always_listed(wanted.dialect),
            search_tools=SEARCH_TOOLS,
            previous=previous,
        )
        self._views[profile] = (catalog, shape, view)
        return view

    def replace(self, profiles: Mapping[str, Profile]) -> None:
        """Use other profiles; requests for one that was removed fail from now on."""
        self.profiles = {DEFAULT_PROFILE: Profile(), **profiles}
        self._views = {name: known for name, known in self._views.items() if name in self.profiles}
