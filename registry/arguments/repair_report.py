"""What was repaired in a call, as it is counted and reported to the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.schema.display_text import excerpt
from registry.schema.json_paths import MAX_SHOWN_KEY, NO_NAMES, JsonPath, format_path

# Repairs listed in one result. A model learns its mistake from the first few; a list may have thousands of the same.
_MAX_REPORTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One thing in a call that was read differently from how it was written.

    Attributes:
        name: A stable word for counters, such as `renamed`.
        path: Where, in the repaired arguments.
        was: For a repair of a name, the one that was sent; never a value.
    """

    name: str
    path: JsonPath = ()
    was: str | None = None

    def to_json(self, names: Mapping[str, str] = NO_NAMES) -> dict[str, str]:
        """Return the repair as `report_repairs` lists it; names are shortened, values never shown."""
        data = {"repair": self.name, "path": format_path(self.path, names)}
        return data if self.was is None else {**data, "was": excerpt(self.was, MAX_SHOWN_KEY)}


def report_repairs(repairs: Sequence[Repair], names: Mapping[str, str] = NO_NAMES) -> dict[str, Any]:
    """Return repairs as they are reported in a result's `_meta`: their number, and the first of them.

    Args:
        repairs: All of them.
        names: Names that the caller was shown for some properties, if different.
    """
    return {"count": len(repairs), "repairs": [repair.to_json(names) for repair in repairs[:_MAX_REPORTED]]}
