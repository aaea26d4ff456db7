"""What has changed between what is approved of a server and what it lists, by class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from registry.catalog.hints import DEFAULTS
from registry.lock.digests import Text, canonical, digest_of, strings_of, strings_of_schema
from registry.lock.schema_changes import schema_effects
from registry.lock.surface import KEYS, LOCKED_KINDS, Definition, LockedKind, Surface, as_tool, digests_of
from registry.schema.schemas import canonical_json

ChangeClass = Literal["added", "removed", "renamed", "text", "narrowing", "widening", "identity"]
CHANGE_CLASSES: Final[tuple[ChangeClass, ...]] = get_args(ChangeClass)
ChangedKind = Literal["tools", "prompts", "resourceTemplates", "instructions", "server"]

_SCHEMAS: Final = ("inputSchema", "outputSchema")
_PARTS: Final = ("text", "input", "output", "hints")
# Of the four digests as many have to be equal for two names to be one tool.
_NEARLY_ALL: Final = len(_PARTS) - 1
# What a tool without parameters, results or hints has in common with all others of that kind.
_PLAIN: Final = digests_of("tools", {"inputSchema": {"type": "object"}})
_PLAIN_INPUTS: Final = frozenset(
    digests_of("tools", {"inputSchema": schema})["input"]
    for schema in (
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {}, "required": []},
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one item differs from what is approved.

    Attributes:
        kind: The kind of item; `server` for what is started or connected to.
        name: As the server calls it today, or called it if it is gone.
        was: Its name before, if it was renamed.
        classes: What the change does, in the order of `CHANGE_CLASSES`; at least one.
        before: What is approved; None if nothing is.
        after: What is listed; None if nothing is.
    """

    kind: ChangedKind
    name: str
    was: str | None = None
    classes: tuple[ChangeClass, ...]
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """Equal for the same change, seen again."""
        return digest_of([self.kind, self.name, self.was, self.before, self.after])


def changes_of(approved: Surface | None, listed: Surface) -> tuple[Change, ...]:
    """Return every change of a server, ordered by kind and name.

    Args:
        approved: What was approved of it; None for a server that nobody has looked at.
        listed: What it lists.
    """
    found: list[Change] = []
    if approved is None:
        approved = Surface(identity=listed.identity)
        if listed.instructions:
            found.append(_change("instructions", "", {"added"}, None, listed.instructions))
    elif (approved.instructions or None) != (listed.instructions or None):
        found.append(_change("instructions", "", {"text"}, approved.instructions, listed.instructions))
    if approved.identity != listed.identity:
        found.insert(0, _change("server", "", {"identity"}, approved.identity, listed.identity))
    for kind in LOCKED_KINDS:
        found += _item_changes(kind, approved.of(kind), listed.of(kind))
    return tuple(found)


def is_same(before: Definition, after: Definition) -> bool:
    """Whether two definitions are equal as JSON; quick where they are written alike."""
    return before is after or canonical_json(before) == canonical_json(after) or canonical(before) == canonical(after)


def effects(kind: LockedKind, before: Definition, after: Definition) -> frozenset[ChangeClass]:
    """Return what a change of one item does: text, narrowing or widening; nothing where they are equal.

    A string that nobody has read is a new text wherever it stands, in a keyword that only narrows too.
    """
    if is_same(before, after):
        return frozenset()
    old, new = as_tool(kind, before), as_tool(kind, after)
    was, now = digests_of(kind, before), digests_of(kind, after)
    found: set[ChangeClass] = {"text"} if was["text"] != now["text"] else set()
    if not _strings(kind, after) <= _strings(kind, before):
        found.add("text")
    for member in _SCHEMAS:
        found |= schema_effects(old.get(member), new.get(member))
    if was["hints"] != now["hints"]:
        found |= _hint_effects(old, new)
    if not found and any(was[part] != now[part] for part in ("input", "output")):
        found.add("text")
    # A hint that is written out and holds by default is no change at all.
    return frozenset(found)


def _strings(kind: LockedKind, definition: Definition) -> set[Text]:
    """Return every string of a definition that a model may read, apart from the name that identifies it."""
    found: set[Text] = set()
    for member, value in definition.items():
        if member in _SCHEMAS and kind == "tools":
            found.update(strings_of_schema(value, (member,)))
        elif member == "annotations" and isinstance(value, dict):
            # The names of the hints are the protocol's own.
            hints = [each for name, each in value.items() if name in DEFAULTS]
            others = {name: each for name, each in value.items() if name not in DEFAULTS}
            found.update(strings_of([hints, others], (member,)))
        elif member != KEYS[kind]:
            found.update(strings_of(value, (member,)))
    return found


def _change(
    kind: ChangedKind, name: str, classes: Iterable[ChangeClass], before: Any, after: Any, was: str | None = None
) -> Change:
    found = set(classes)
    ordered = tuple(one for one in CHANGE_CLASSES if one in found)
    return Change(kind=kind, name=name, was=was, classes=ordered, before=before, after=after)


def _item_changes(
    kind: LockedKind, approved: Mapping[str, Definition], listed: Mapping[str, Definition]
) -> list[Change]:
    found = [
        _change(kind, name, classes, approved[name], listed[name])
        for name in approved.keys() & listed.keys()
        if (classes := effects(kind, approved[name], listed[name]))
    ]
    gone, new = sorted(approved.keys() - listed.keys()), sorted(listed.keys() - approved.keys())
    pairs = _renamed(kind, {name: approved[name] for name in gone}, {name: listed[name] for name in new})
    for was, name in pairs.items():
        what: set[ChangeClass] = {"renamed", *effects(kind, approved[was], {**listed[name], KEYS[kind]: was})}
        found.append(_change(kind, name, what, approved[was], listed[name], was))
    found += [_change(kind, name, {"removed"}, approved[name], None) for name in gone if name not in pairs]
    taken = set(pairs.values())
    found += [_change(kind, name, {"added"}, None, listed[name]) for name in new if name not in taken]
    return sorted(found, key=lambda change: change.name)


def _renamed(kind: LockedKind, gone: Mapping[str, Definition], new: Mapping[str, Definition]) -> dict[str, str]:
    """Return the new name of each item that has nearly the digests of one that is gone, and of no other."""
    if not gone or not new:
        return {}
    old = {name: digests_of(kind, definition) for name, definition in gone.items()}
    now = {name: digests_of(kind, definition) for name, definition in new.items()}
    # By what two must have in common, so that a thousand that went and a thousand that came are not all compared.
    by_part: dict[tuple[str, str], list[str]] = {}
    for name, digests in now.items():
        for part in ("text", "input"):
            by_part.setdefault((part, digests[part]), []).append(name)
    near = {
        was: {
            name
            for part in ("text", "input")
            for name in by_part.get((part, digests[part]), ())
            if _is_near(digests, now[name])
        }
        for was, digests in old.items()
    }
    claimed = [name for names in near.values() for name in names]
    # Of several that fit none is taken: a wrong guess would take one tool for another.
    return {was: name for was, names in near.items() if len(names) == 1 for name in names if claimed.count(name) == 1}


def _is_near(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    equal = {part for part in _PARTS if one[part] == other[part]}
    if len(equal) < _NEARLY_ALL:
        return False
    tells = {"text"} if one["text"] != _PLAIN["text"] else set()
    tells |= {"input"} if one["input"] not in _PLAIN_INPUTS else set()
    return bool(equal & tells)


def _hint_effects(before: Definition, after: Definition) -> frozenset[ChangeClass]:
    """Return what a change of the annotations and of other members does."""
    old, new = (_annotations(each) for each in (before, after))
    found: set[ChangeClass] = set()
    known = {hint: (old.pop(hint, default), new.pop(hint, default)) for hint, default in DEFAULTS.items()}
    if any(was is not now for was, now in known.values()):
        # A hint that promises less may do more, and one that promises more may be called by more callers, and again.
        found.add("widening")
    shared = {"name", "title", "description", "inputSchema", "outputSchema", "annotations"}
    others = [{key: value for key, value in each.items() if key not in shared} for each in (before, after)]
    for hints in (old, new):
        hints.pop("title", None)  # a text, which has its digest among these
    if canonical(old) != canonical(new) or canonical(others[0]) != canonical(others[1]):
        found.add("text")
    return frozenset(found)


def _annotations(definition: Definition) -> dict[str, Any]:
    annotations = definition.get("annotations")
    return dict(annotations) if isinstance(annotations, dict) else {}
