"""The name under which most plugins import the ContextForge framework, which is a package of its own today.

It came out of `mcpgateway.plugins.framework`, and plugins that were written for ContextForge, or for adapters to it,
still import it by that name. Where ContextForge itself is not installed, that name leads to the same framework.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

FORMER: Final = "mcpgateway.plugins.framework"
_PACKAGES: Final = ("mcpgateway", "mcpgateway.plugins")
_TODAY: Final = "cpex.framework"


def answer_to_former_name() -> None:
    """Make the framework importable by its former name, unless what had that name is installed."""
    if not any(isinstance(finder, _FormerName) for finder in sys.meta_path) and _is_free():
        # Before others, which would find the framework's parts by its path, and load them a second time.
        sys.meta_path.insert(0, _FormerName())


def _is_free() -> bool:
    return _PACKAGES[0] not in sys.modules and importlib.util.find_spec(_PACKAGES[0]) is None


class _FormerName(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _PACKAGES:
            return ModuleSpec(fullname, self, is_package=True)
        if fullname != FORMER and not fullname.startswith(f"{FORMER}."):
            return None
        today = _TODAY + fullname.removeprefix(FORMER)
        # Not for a module that is no longer there: its importer is to read the name that it asked for.
        return ModuleSpec(fullname, self) if importlib.util.find_spec(today) is not None else None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ not in _PACKAGES:
            # The import system returns what stands here in the end: one module under two names.
            sys.modules[module.__name__] = importlib.import_module(_TODAY + module.__name__.removeprefix(FORMER))
