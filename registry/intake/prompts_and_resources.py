"""Check each prompt, resource and template of a listing alone, as intake does with tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from registry.errors import SchemaRejected
from registry.intake.repairs import Notes, mend_members
from registry.intake.tools import Finding
from registry.schema import schemas
from registry.schema.text import excerpt

OfferingKind = Literal["prompts", "resources", "resourceTemplates"]
KEYS: Final[Mapping[OfferingKind, str]] = {"prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}
"""Each kind, as its listing is called on the wire, and the member that identifies one of it."""
MAX_KEY_LENGTH: Final = 4_096
_MAX_DETAIL: Final = 300
_TYPED: Final[dict[str, type | tuple[type, ...]]] = {"mimeType": str, "size": (int, float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What became of one listing of one kind; sound definitions are the very objects that came in."""

    items: tuple[dict[str, Any], ...]
    quarantined: tuple[Finding, ...]
    repaired: tuple[Finding, ...]


def admit_offerings(items: Sequence[object], kind: OfferingKind) -> Admission:
    """Look at every item alone; never raises for any JSON value."""
    admitted: dict[str, dict[str, Any]] = {}
    quarantined: list[Finding] = []
    repaired: list[Finding] = []
    for index, item in enumerate(items):
        key = item.get(KEYS[kind]) if isinstance(item, dict) else None
        label = excerpt(key, 128) if isinstance(key, str) and key else f"({kind} {index + 1})"
        notes: Notes = []
        try:
            if not isinstance(item, dict) or not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
                raise SchemaRejected("no_key", f"it has no usable {KEYS[kind]}")
            if key in admitted:
                raise SchemaRejected("duplicate_name", f"another one of this {KEYS[kind]} came first")
            schemas.measure(item)
            # What no JSON text can carry must not spoil the list.
            key.encode()
            admitted[key] = _mended(item, key, kind, notes)
        except SchemaRejected as rejected:
            quarantined.append(_finding(kind, label, rejected.code, rejected.detail))
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            # Boundary: whatever a hostile definition provokes spoils that definition only.
            quarantined.append(_finding(kind, label, "unreadable", f"{type(error).__name__}: {error}"))
        else:
            repaired.extend(_finding(kind, label, code, detail) for code, detail in dict.fromkeys(notes))
    return Admission(items=tuple(admitted.values()), quarantined=tuple(quarantined), repaired=tuple(repaired))


def _finding(kind: OfferingKind, label: str, code: str, detail: str) -> Finding:
    return Finding(kind=kind, tool=label, code=code, detail=excerpt(detail, _MAX_DETAIL))


def _mended(item: dict[str, Any], key: str, kind: OfferingKind, notes: Notes) -> dict[str, Any]:
    if item.get("description", "") is None:
        notes.append(("null_member", "description was null"))
    item = mend_members(item, notes)
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    if not isinstance(item.get("name"), str):
        changes["name"] = key
        notes.append(("no_name", f"there was no name; the {KEYS[kind]} stands for it"))
    for member, kinds in _TYPED.items():
        if member in item and (not isinstance(item[member], kinds) or isinstance(item[member], bool)):
            dropped.append(member)
            notes.append(("wrong_type", f"{member} was of the wrong type"))
    if "arguments" in item and kind == "prompts":
        arguments = _arguments(item["arguments"])
        if arguments is None:
            dropped.append("arguments")
        elif arguments != item["arguments"]:
            changes["arguments"] = arguments
        if "arguments" in changes or "arguments" in dropped:
            notes.append(("arguments", "arguments of the wrong shape were mended or dropped"))
    if not changes and not dropped:
        return item
    return {name: value for name, value in {**item, **changes}.items() if name not in dropped}


def _arguments(arguments: Any) -> list[dict[str, Any]] | None:
    if not isinstance(arguments, list):
        return None
    return [_argument(one) for one in arguments if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _argument(argument: dict[str, Any]) -> dict[str, Any]:
    typed = {"description": str, "title": str, "required": bool}
    if all(isinstance(argument.get(member, kind()), kind) for member, kind in typed.items()):
        return argument
    return {k: v for k, v in argument.items() if k not in typed or isinstance(v, typed[k])}
