"""The view of each profile on the present catalog, built when first wanted."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.calls.builtin_tools import FINDERS, always_listed
from registry.catalog.catalog import Catalog
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.views.profile import DEFAULT, Profile
from registry.views.view import View, build_view


class Views:
    """One view for each profile, replaced when the catalog or the configuration is."""

    def __init__(self, registry: Registry, profiles: Mapping[str, Profile]) -> None:
        self._registry = registry
        self._views: dict[str, tuple[Catalog, Shape, View]] = {}
        self.profiles: dict[str, Profile] = {DEFAULT: Profile(), **profiles}

    def view(self, profile: str = DEFAULT) -> View:
        """The view of a profile on the catalog as it is now.

        Raises:
            KeyError: There is no such profile.
        """
        catalog, shape, asked = self._registry.catalog, self._registry.shape, self.profiles[profile]
        known = self._views.get(profile)
        previous = known[2] if known is not None else None
        if known is not None and known[0] is catalog and known[1] is shape and known[2].profile is asked:
            return known[2]
        view = build_view(
            catalog, shape, asked, always=always_listed(asked.dialect), finders=FINDERS, previous=previous
        )  # fmt: skip
        self._views[profile] = (catalog, shape, view)
        return view

    def replace(self, profiles: Mapping[str, Profile]) -> None:
        """Take other profiles; who uses one that is gone finds it gone."""
        self.profiles = {DEFAULT: Profile(), **profiles}
        self._views = {name: one for name, one in self._views.items() if name in self.profiles}
