"""Repair the annotations, sizes and icons that resources, templates and content items have in common."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from registry.intake.issues import RepairNotes
from registry.schema.display_text import clean
from registry.schema.json_values import edited, map_items, without_keys

_ROLES: Final = ("user", "assistant")
# `z.iso.datetime({offset: true})`, by which the TypeScript SDK checks the whole list.
_DATE_TIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})T(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
# No text that names a point in time is longer; the parsers take time with the length of theirs.
_MAX_DATE_CHARS: Final = 64
# Seconds since 1970 reach it in the year 5138, milliseconds in 1973.
_LEAST_MILLISECONDS: Final = 100_000_000_000
# Pydantic reads a float beyond 64 bits as no integer.
_MAX_SIZE: Final = 2**63
_WHOLE_NUMBER: Final = re.compile(r"\d{1,18}")


OWN_META: Final = "typegate/"
"""How members of `_meta` begin that only the gateway writes: what it says of a result is its own word."""


def is_own_meta(name: str) -> bool:
    """Return whether a member of `_meta` is the gateway's, however it is written."""
    return clean(name).strip().casefold().startswith(OWN_META)


def repair_meta(value: Any, notes: RepairNotes) -> Any:
    """Return a `_meta` without members of the gateway's own; None for what is no object."""
    if not isinstance(value, dict):
        return None
    ours = [name for name in value if is_own_meta(name)]
    if not ours:
        return value
    notes.append(("own_meta", "members of _meta that only this gateway writes were removed"))
    return without_keys(value, ours)


def repair_annotations(value: Any, notes: RepairNotes) -> Any:
    """Return annotations as the schema of the protocol has them, None for what is not an object.

    Members that the schema does not know stay.
    """
    if not isinstance(value, dict):
        return None
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for member, repair in _MEMBERS.items():
        if member not in value:
            continue
        repaired = repair(value[member])
        if repaired is None:
            dropped.append(member)
        elif repaired is not value[member]:
            changes[member] = repaired
    for member in (*changes, *dropped):
        done = "removed" if member in dropped else "repaired"
        notes.append(("annotations", f"annotations.{member} was not as the protocol has it, and was {done}"))
    return edited(value, changes, dropped)


def repair_size(value: Any) -> int | None:
    """Return a size in bytes; None for what is not one."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not abs(value) < _MAX_SIZE:
            return None
        return math.ceil(value)  # clients that read an integer refuse `12.0` too
    return value


def repair_icons(value: Any, notes: RepairNotes) -> Any:
    """Return a list of icons without those that have no source; None for what is not a list."""
    if not isinstance(value, list):
        return None
    repaired = map_items(value, _icon)
    if repaired is value and None not in value:  # null is no icon, but `_icon` returns it as it came
        return value
    notes.append(("icons", "icons of the wrong shape were repaired or dropped"))
    return [icon for icon in repaired if icon is not None]


def _icon(icon: Any) -> Any:
    if not isinstance(icon, dict) or not isinstance(icon.get("src"), str):
        return None
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    sizes = icon.get("sizes", [])
    if isinstance(sizes, str):
        changes["sizes"] = sizes.split()
    elif not isinstance(sizes, list) or not all(isinstance(size, str) for size in sizes):
        dropped.append("sizes")
    if "mimeType" in icon and not isinstance(icon["mimeType"], str):
        dropped.append("mimeType")
    if "theme" in icon and icon["theme"] not in ("light", "dark"):
        dropped.append("theme")
    return edited(icon, changes=changes, dropped=dropped)


def _audience(value: Any) -> list[str] | None:
    roles: Any = [value] if isinstance(value, str) else value
    if not isinstance(roles, list):
        return None
    if value is roles and all(role in _ROLES for role in roles):
        return value
    named = dict.fromkeys(role.strip().casefold() for role in roles if isinstance(role, str))
    return [role for role in named if role in _ROLES] or None


def _priority(value: Any) -> float | int | None:
    if isinstance(value, str) and len(value) <= _MAX_DATE_CHARS:
        try:
            value = float(value)
        except ValueError:
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= 1 else None


def _last_modified(value: Any) -> str | None:
    if isinstance(value, str):
        found = _DATE_TIME.fullmatch(value)
        if found is not None and _is_date(found[1]):
            return value
    try:
        moment = _moment(value)
        utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return utc.isoformat().replace("+00:00", "Z")


def _moment(value: Any) -> datetime:
    """Return the point in time that a server means by a text or a number.

    Raises:
        ValueError, TypeError, OverflowError, OSError: It means none.
    """
    if isinstance(value, str) and len(value) <= _MAX_DATE_CHARS:
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            return parsedate_to_datetime(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value / 1000 if value >= _LEAST_MILLISECONDS else value, UTC)
    raise ValueError("it is not a point in time")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


_MEMBERS: Final = {"audience": _audience, "priority": _priority, "lastModified": _last_modified}
