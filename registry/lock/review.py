"""Compare a listing with the approved definitions, and hold changes as the lock policy requires.

A change is *held* if callers do not see it until an operator approves it: they see the approved definition, or no item
if nothing is approved, and they cannot use the item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from registry.catalog.listing import WHOLE_SERVER, ListedItems, ServerListing
from registry.catalog.overrides import DEFAULTS
from registry.lock.lockfile import (
    KEYS,
    LOCKED_KINDS,
    Definition,
    LockedKind,
    Surface,
    Text,
    as_tool,
    by_name,
    canonical,
    digest_of,
    digests_of,
    strings_of,
    strings_of_schema,
)
from registry.lock.schema_changes import schema_effects
from registry.schema.display_text import excerpt
from registry.schema.schemas import canonical_json

ChangeClass = Literal["added", "removed", "renamed", "text", "narrowing", "widening", "identity"]
CHANGE_CLASSES: Final[tuple[ChangeClass, ...]] = get_args(ChangeClass)
ChangedKind = Literal["tools", "prompts", "resourceTemplates", "skills", "instructions", "server"]

_SCHEMAS: Final = ("inputSchema", "outputSchema")
_PARTS: Final = ("text", "input", "output", "hints")
# Minimum number of equal digests, out of four, for a removed item and a new item to count as the same renamed item.
_NEARLY_ALL: Final = len(_PARTS) - 1
# The digest of an item without texts, and digests of input schemas without parameters. Many items have these digests,
# so they do not identify an item.
_PLAIN_TEXT: Final = digests_of("tools", {})["text"]
_PLAIN_INPUTS: Final = frozenset(
    digests_of("tools", {"inputSchema": schema})["input"]
    for schema in (
        None,
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
    """The difference between an item and its approved definition.

    Attributes:
        kind: The kind of the item. `instructions` are the server's instructions; `server` is its program or address.
        name: The current upstream name, or the last one if the item was removed.
        was: The approved name, if the item was renamed.
        classes: The classes of the change, in the order of `CHANGE_CLASSES`; at least one.
        before: The approved definition; None for a new item.
        after: The listed definition; None for a removed item.
    """

    kind: ChangedKind
    name: str
    was: str | None = None
    classes: tuple[ChangeClass, ...]
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """A digest of the change, which is equal whenever the same change is found again."""
        return digest_of([self.kind, self.name, self.was, self.before, self.after])


def changes_of(approved: Surface | None, listed: Surface) -> tuple[Change, ...]:
    """Return every difference between a server's approved surface and its current surface, ordered by kind and name.

    Args:
        approved: The approved surface; None for a server that was never approved.
        listed: The current surface.
    """
    changes: list[Change] = []
    if approved is None:
        approved = Surface(identity=listed.identity)
        if listed.instructions:
            changes.append(_change("instructions", "", {"added"}, None, listed.instructions))
    elif (approved.instructions or None) != (listed.instructions or None):
        changes.append(_change("instructions", "", {"text"}, approved.instructions, listed.instructions))
    if approved.identity != listed.identity:
        changes.insert(0, _change("server", "", {"identity"}, approved.identity, listed.identity))
    for kind in LOCKED_KINDS:
        changes += _item_changes(kind, approved.definitions(kind), listed.definitions(kind))
    return tuple(changes)


def is_same(before: Definition, after: Definition) -> bool:
    """Return whether two definitions are equal JSON values. This is fast if their keys have the same order."""
    return before is after or canonical_json(before) == canonical_json(after) or canonical(before) == canonical(after)


def change_effects(kind: LockedKind, before: Definition, after: Definition) -> frozenset[ChangeClass]:
    """Return the effects of a change to one item: text, narrowing or widening; empty if the definitions are equal.

    A string that was not approved has the effect `text` wherever it occurs, even in a keyword that narrows a schema.
    """
    if is_same(before, after):
        return frozenset()
    old, new = as_tool(kind, before), as_tool(kind, after)
    was, now = digests_of(kind, before), digests_of(kind, after)
    effects: set[ChangeClass] = {"text"} if was["text"] != now["text"] else set()
    if not _strings(kind, after) <= _strings(kind, before):
        effects.add("text")
    for member in _SCHEMAS:
        effects |= schema_effects(old.get(member), new.get(member))
    if was["hints"] != now["hints"]:
        effects |= _hint_effects(old, new)
    if not effects and any(was[part] != now[part] for part in ("input", "output")):
        effects.add("text")
    # The set is empty if the only difference is that a hint is now stated with its default value.
    return frozenset(effects)


def _strings(kind: LockedKind, definition: Definition) -> set[Text]:
    """Return every string that a model may read in a definition, except for the name of the item."""
    texts: set[Text] = set()
    for member, value in definition.items():
        if member in _SCHEMAS and kind == "tools":
            texts.update(strings_of_schema(value, (member,)))
        elif member == "annotations" and isinstance(value, dict):
            # The names of standard hints are not texts of the server, because the protocol defines them.
            hints = [each for name, each in value.items() if name in DEFAULTS]
            other_members = {name: each for name, each in value.items() if name not in DEFAULTS}
            texts.update(strings_of([hints, other_members], (member,)))
        elif member != KEYS[kind]:
            texts.update(strings_of(value, (member,)))
    return texts


def _change(
    kind: ChangedKind, name: str, classes: Iterable[ChangeClass], before: Any, after: Any, was: str | None = None
) -> Change:
    effects = set(classes)
    ordered = tuple(each for each in CHANGE_CLASSES if each in effects)
    return Change(kind=kind, name=name, was=was, classes=ordered, before=before, after=after)


def _item_changes(
    kind: LockedKind, approved: Mapping[str, Definition], listed: Mapping[str, Definition]
) -> list[Change]:
    changes = [
        _change(kind, name, classes, approved[name], listed[name])
        for name in approved.keys() & listed.keys()
        if (classes := change_effects(kind, approved[name], listed[name]))
    ]
    removed, new = sorted(approved.keys() - listed.keys()), sorted(listed.keys() - approved.keys())
    pairs = _find_renames(kind, {name: approved[name] for name in removed}, {name: listed[name] for name in new})
    for was, name in pairs.items():
        what: set[ChangeClass] = {"renamed", *change_effects(kind, approved[was], {**listed[name], KEYS[kind]: was})}
        changes.append(_change(kind, name, what, approved[was], listed[name], was))
    changes += [_change(kind, name, {"removed"}, approved[name], None) for name in removed if name not in pairs]
    renamed_to = set(pairs.values())
    changes += [_change(kind, name, {"added"}, None, listed[name]) for name in new if name not in renamed_to]
    return sorted(changes, key=lambda change: change.name)


def _find_renames(kind: LockedKind, removed: Mapping[str, Definition], new: Mapping[str, Definition]) -> dict[str, str]:
    """Return the new name of each renamed item, by its old name.

    A removed item counts as renamed if exactly one new item has nearly all digests of the removed item.
    """
    if not removed or not new:
        return {}
    old = {name: digests_of(kind, definition) for name, definition in removed.items()}
    now = {name: digests_of(kind, definition) for name, definition in new.items()}
    # Index the new items by digest, so that not every removed item has to be compared with every new item.
    by_part: dict[tuple[str, str], list[str]] = {}
    for name, digests in now.items():
        for part in _identifying_parts(kind, digests):
            by_part.setdefault((part, digests[part]), []).append(name)
    near = {
        was: {
            name
            for part in _identifying_parts(kind, digests)
            for name in by_part.get((part, digests[part]), ())
            if sum(digests[each] == now[name][each] for each in _PARTS) >= _NEARLY_ALL
        }
        for was, digests in old.items()
    }
    claimed = [name for names in near.values() for name in names]
    # Ignore ambiguous matches, because a wrong guess would confuse two tools.
    return {was: name for was, names in near.items() if len(names) == 1 for name in names if claimed.count(name) == 1}


def _identifying_parts(kind: LockedKind, digests: Mapping[str, str]) -> set[str]:
    """Return the parts of an item that only few other items have."""
    parts = {"text"} if digests["text"] != _PLAIN_TEXT else set()
    if kind in ("skills", "resourceTemplates"):
        # They have no schema. The hints contain all members of a skill, and the name of a template.
        return {*parts, "hints"}
    return parts if digests["input"] in _PLAIN_INPUTS else {*parts, "input"}


def _hint_effects(before: Definition, after: Definition) -> frozenset[ChangeClass]:
    """Return the effects of changes in the members other than name, title, description and schemas."""
    old, new = (_annotations(each) for each in (before, after))
    effects: set[ChangeClass] = set()
    hint_pairs = {hint: (old.pop(hint, default), new.pop(hint, default)) for hint, default in DEFAULTS.items()}
    if any(was is not now for was, now in hint_pairs.values()):
        # A hint that promises less means that the tool may do more. A hint that promises more also counts as widening:
        # rules may then allow more callers to use the tool, and hosts may retry its calls.
        effects.add("widening")
    shared = {"name", "title", "description", "inputSchema", "outputSchema", "annotations"}
    other_members = [{key: value for key, value in each.items() if key not in shared} for each in (before, after)]
    if canonical(old) != canonical(new) or canonical(other_members[0]) != canonical(other_members[1]):
        effects.add("text")
    return frozenset(effects)


def _annotations(definition: Definition) -> dict[str, Any]:
    annotations = definition.get("annotations")
    return dict(annotations) if isinstance(annotations, dict) else {}


# Maximum number of lines that show one change: about two screens. The lock file contains the whole definitions.
_MAX_LINES: Final = 80
# Maximum length of a shown value: about a paragraph. Longer texts are shown from shortly before the first difference.
_MAX_CHARS: Final = 400
# Characters to show before the first difference of two texts.
_CONTEXT_CHARS: Final = 60
_MAX_STEPS: Final = 12
_ABSENT: Final = object()
_ENTIRE: Final = ("description", "title", "inputSchema", "outputSchema", "annotations", "arguments")


def difference(change: Change) -> tuple[str, ...]:
    """Return at most `_MAX_LINES` lines that show a change.

    Each difference consists of a path, then `- ` with the old value, then `+ ` with the new value.
    """
    lines: list[str] = []
    if change.was is not None:
        lines += ["name", f"- {excerpt(change.was, _MAX_CHARS)}", f"+ {excerpt(change.name, _MAX_CHARS)}"]
    before, after = change.before, change.after
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for path, was, now in _differences(before, after, ()):
            if path != ("name",) or change.was is None:
                lines += [_path(path), *_values(was, now)]
    elif change.kind in ("instructions", "server"):
        lines += _values(_ABSENT if before is None else before, _ABSENT if after is None else after)
    else:
        sign, item = ("+", after) if before is None else ("-", before)
        members = ((member, item[member]) for member in _ENTIRE if isinstance(item, Mapping) and member in item)
        lines += [f"{sign} {member}: {_format_value(value)}" for member, value in members]
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"… and {len(lines) - _MAX_LINES} more lines"]
    return tuple(lines)


def _differences(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the path, the old value and the new value of each difference. Nested objects are compared by member."""
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if was is not _ABSENT and now is not _ABSENT and canonical(was) == canonical(now):
            continue
        if isinstance(was, dict) and isinstance(now, dict) and len(path) < _MAX_STEPS:
            yield from _differences(was, now, (*path, key))
        else:
            yield (*path, key), was, now


def _path(path: tuple[str, ...]) -> str:
    return ".".join(excerpt(step, 64) for step in path)


def _values(was: Any, now: Any) -> list[str]:
    if isinstance(was, str) and isinstance(now, str):
        was, now = _without_common_beginning(was, now)
    return [f"{sign} {_format_value(value)}" for sign, value in (("-", was), ("+", now)) if value is not _ABSENT]


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    return excerpt(text, _MAX_CHARS) or '""'


def _without_common_beginning(was: str, now: str) -> tuple[str, str]:
    """Cut the common beginning of two long texts, so that the first difference is visible."""
    if max(len(was), len(now)) <= _MAX_CHARS:
        return was, now
    start = next((at for at, (old, new) in enumerate(zip(was, now, strict=False)) if old != new), None)
    start = min(len(was), len(now)) if start is None else start
    start = max(0, start - _CONTEXT_CHARS)
    cut = "…" if start else ""
    return cut + was[start:], cut + now[start:]


Decision = Literal["accept", "warn", "hold"]
Policy = Mapping[ChangeClass, Decision]

# The classes that are held by default if there is a lock file: changes to the meaning of an approved item, and new
# items. Renaming changes the meaning, because models read names, and rules and settings refer to tools by name.
_HELD: Final[frozenset[ChangeClass]] = frozenset({"text", "widening", "identity", "added", "renamed"})
_SEVERITY: Final[tuple[Decision, ...]] = ("accept", "warn", "hold")
_WORDS: Final[Mapping[ChangeClass, str]] = {
    "added": "it is new",
    "removed": "its server no longer has it",
    "renamed": "it was renamed",
    "text": "its description changed",
    "narrowing": "it accepts or returns less than before",
    "widening": "it may do or accept more than before",
    "identity": "its server has another program or address",
}
CURE: Final = "the operator of this gateway can review it with `typegate diff` and `typegate approve {}`"
"""The advice about a held item. The error that callers of the item receive contains this advice."""


def default_decision(change_class: ChangeClass, *, locked: bool) -> Decision:
    """Return the decision for a class of changes that the configuration does not mention.

    Args:
        locked: Whether there is a lock file. Without a lock file, the decision is always `warn`.
    """
    return "hold" if locked and change_class in _HELD else "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedChange:
    """A change and the decision about it.

    Attributes:
        decision: The strictest of the decisions for the classes of the change.
        held_for: The classes whose decision is `hold`.
    """

    change: Change
    decision: Decision
    held_for: tuple[ChangeClass, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The outcome of comparing a listing with the approved definitions.

    Attributes:
        listing: The listing with the approved definition of each held item; the same object if nothing is held.
        changes: All changes, with the decision about each.
    """

    listing: ServerListing
    changes: tuple[ReviewedChange, ...] = ()


def surface_of(listing: ServerListing, identity: str) -> Surface:
    """Return the surface of a listing: the part of it that the lock file records."""
    return Surface(
        identity=identity,
        instructions=listing.instructions,
        items={kind: by_name(_items_in(listing, kind), kind) for kind in LOCKED_KINDS},
    )


def review(
    listing: ServerListing,
    approved: Surface | None,
    *,
    identity: str,
    policy: Policy,
    distinguishes: Callable[[str, str], bool] = lambda was, name: False,
) -> Review:
    """Compare a listing with the approved definitions, and hold the changes for which the policy says `hold`.

    Args:
        approved: The approved surface; None for a server that was never approved.
        identity: The server's program or address.
        policy: The decision for each class of changes.
        distinguishes: Takes the old and the new name of a renamed item, and returns whether rules or settings treat the
            two names differently. If so, the change is held regardless of the policy, so that a server cannot escape
            rules by renaming its tools.
    """
    decided = tuple(
        _decide(change, policy, distinguishes) for change in changes_of(approved, surface_of(listing, identity))
    )
    held = [each for each in decided if each.decision == "hold"]
    if not held:
        return Review(listing=listing, changes=decided)
    approved = approved or Surface()
    if any(each.change.kind == "server" for each in held):
        return Review(listing=_all_as_approved(listing, approved), changes=decided)
    held_lists: dict[LockedKind, ListedItems] = {}
    reasons: dict[str, dict[str, str]] = {}
    for kind in LOCKED_KINDS:
        own = [each for each in held if each.change.kind == kind]
        if own:
            held_lists[kind] = _as_approved(_items_in(listing, kind), approved.definitions(kind), own, kind)
            reasons[kind] = {name: _reason(each, listing.server) for each in own for name in _both_names(each.change)}
    holds_instructions = any(each.change.kind == "instructions" for each in held)
    return Review(
        listing=replace(
            listing,
            tools=held_lists.get("tools", listing.tools),
            prompts=held_lists.get("prompts", listing.prompts),
            templates=held_lists.get("resourceTemplates", listing.templates),
            skills=held_lists.get("skills", listing.skills),
            instructions=approved.instructions if holds_instructions else listing.instructions,
            held=reasons,
        ),
        changes=decided,
    )


def approved_with(
    approved: Surface | None,
    listed: Surface,
    *,
    item: str | None = None,
    kind: ChangedKind | None = None,
    classes: Collection[ChangeClass] | None = None,
) -> tuple[Surface, tuple[Change, ...], tuple[Change, ...]]:
    """Approve the current surface of a server, or a selection of its changes.

    Args:
        approved: The previously approved surface.
        listed: The current surface.
        item: Select only changes of the item with this current or former name.
        kind: Select only changes of items of this kind.
        classes: Approve only changes whose classes are all among these.

    Returns:
        The new approved surface, the approved changes, and the selected changes that were not approved because they
        have other classes.
    """
    candidates = (change for change in changes_of(approved, listed) if kind is None or change.kind == kind)
    selected = [change for change in candidates if item is None or item in _both_names(change)]
    approvable = [change for change in selected if classes is None or set(change.classes) <= set(classes)]
    base = approved or Surface(identity=listed.identity)
    items = {kind: dict(base.definitions(kind)) for kind in LOCKED_KINDS}
    identity, instructions = base.identity, base.instructions
    for change in approvable:
        if change.kind == "server":
            identity = listed.identity
        elif change.kind == "instructions":
            instructions = listed.instructions
        else:
            if change.before is not None:
                items[change.kind].pop(change.was or change.name, None)
            if change.after is not None:
                items[change.kind][change.name] = change.after
    remaining = tuple(change for change in selected if change not in approvable)
    return Surface(identity=identity, instructions=instructions, items=items), tuple(approvable), remaining


def reverted_with(approved: Surface, changes: Iterable[Change]) -> Surface | None:
    """Return the surface as it was before these changes were approved.

    The result is None if the approved definition of a changed item has changed again since then.
    """
    items = {kind: dict(approved.definitions(kind)) for kind in LOCKED_KINDS}
    identity, instructions = approved.identity, approved.instructions
    for change in changes:
        if change.kind == "server":
            if identity != change.after:
                return None
            identity = change.before or ""
        elif change.kind == "instructions":
            if (instructions or None) != (change.after or None):
                return None
            instructions = change.before
        else:
            own = items[change.kind]
            # If the change removed the item, make sure that the item was not approved again later.
            if digest_of(own.pop(change.name, None)) != digest_of(change.after):
                return None
            if change.before is not None and own.setdefault(change.was or change.name, change.before) != change.before:
                return None
    return Surface(identity=identity, instructions=instructions, items=items)


def _decide(change: Change, policy: Policy, distinguishes: Callable[[str, str], bool]) -> ReviewedChange:
    if change.was is not None and distinguishes(change.was, change.name):
        policy = {**policy, "renamed": "hold"}
    decision = max((policy[each] for each in change.classes), key=_SEVERITY.index)
    held_for = tuple(each for each in change.classes if policy[each] == "hold")
    return ReviewedChange(change=change, decision=decision, held_for=held_for)


def _both_names(change: Change) -> tuple[str, ...]:
    return (change.name,) if change.was is None else (change.was, change.name)


def _reason(decided: ReviewedChange, server: str) -> str:
    change = decided.change
    what = ", ".join(_WORDS[each] for each in decided.held_for)
    target = f"{server}__{change.name}" if change.kind == "tools" else server
    return f"held: {what}; {CURE.format(target)}"


def _all_as_approved(listing: ServerListing, approved: Surface) -> ServerListing:
    """Return a listing with only approved definitions, all of them held.

    This listing is used for a server whose changed program or address is not approved.
    """
    reason = f"held: {_WORDS['identity']}; {CURE.format(listing.server)}"
    return replace(
        listing,
        tools=tuple(approved.definitions("tools").values()),
        prompts=tuple(approved.definitions("prompts").values()),
        templates=tuple(approved.definitions("resourceTemplates").values()),
        skills=tuple(approved.definitions("skills").values()),
        instructions=approved.instructions,
        held={
            WHOLE_SERVER: {"": reason},
            **{
                kind: dict.fromkeys([*by_name(_items_in(listing, kind), kind), *approved.definitions(kind)], reason)
                for kind in LOCKED_KINDS
            },
        },
    )


def _as_approved(
    items: ListedItems, approved: Mapping[str, Definition], held: Collection[ReviewedChange], kind: LockedKind
) -> ListedItems:
    """Return a list in which approved definitions replace held items; new held items are left out."""
    replaced = {each.change.name: each.change for each in held}
    items_as_approved: list[Definition] = []
    for item in items:
        change = replaced.pop(item[KEYS[kind]], None)
        if change is None:
            items_as_approved.append(item)
        elif change.before is not None:
            items_as_approved.append(approved[change.was or change.name])
    # Append held items that the server no longer lists.
    items_as_approved += [
        approved[change.was or change.name] for change in replaced.values() if change.before is not None
    ]
    return tuple(items_as_approved)


def _items_in(listing: ServerListing, kind: LockedKind) -> ListedItems:
    if kind == "tools":
        return listing.tools
    if kind == "skills":
        return listing.skills
    return listing.prompts if kind == "prompts" else listing.templates
