"""A listing, compared with what is approved: what is shown of it, and what is held back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from registry.catalog.listing import WHOLE_SERVER, ListedItems, ServerListing
from registry.lock.changes import Change, ChangeClass, ChangedKind, changes_of
from registry.lock.surface import KEYS, LOCKED_KINDS, Definition, LockedKind, Surface, by_name

Decision = Literal["accept", "warn", "hold"]
Policy = Mapping[ChangeClass, Decision]

# What changes the meaning of what somebody has looked at, or was never looked at. A name is read by models, and rules
# and settings speak of tools by their names.
_HELD: Final[frozenset[ChangeClass]] = frozenset({"text", "widening", "identity", "added", "renamed"})
_SEVERITY: Final[tuple[Decision, ...]] = ("accept", "warn", "hold")
_WORDS: Final[Mapping[ChangeClass, str]] = {
    "added": "it is new",
    "removed": "its server no longer has it",
    "renamed": "it was renamed",
    "text": "its description changed",
    "narrowing": "it takes or returns less than before",
    "widening": "it may do or take more than before",
    "identity": "another program or address stands behind its server",
}
CURE: Final = "whoever runs this gateway reviews it with `typegate diff` and `typegate approve {}`"
"""How a held item is released, in the answer to a call of it."""


def default_decision(one: ChangeClass, *, locked: bool) -> Decision:
    """Return what is done about a class of changes where nobody has decided: without a lock file all are announced."""
    return "hold" if locked and one in _HELD else "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A change, and what is done about it.

    Attributes:
        decision: The strictest of what is said about its classes.
        held_for: The classes for which it is held.
    """

    change: Change
    decision: Decision
    held_for: tuple[ChangeClass, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What became of a listing.

    Attributes:
        listing: With everything that is held as it was approved; the same object where nothing is held.
        changes: Every change.
    """

    listing: ServerListing
    changes: tuple[Decided, ...] = ()


def surface_of(listing: ServerListing, identity: str) -> Surface:
    """Return what of a listing is locked."""
    return Surface(
        identity=identity,
        instructions=listing.instructions,
        items={kind: by_name(_listed(listing, kind), kind) for kind in LOCKED_KINDS},
    )


def review(
    listing: ServerListing,
    approved: Surface | None,
    *,
    identity: str,
    policy: Policy,
    tells_apart: Callable[[str, str], bool] = lambda was, name: False,
) -> Review:
    """Compare a listing with what is approved, and hold what the policy says.

    Args:
        listing: What the server lists, after intake.
        approved: What was approved of it; None for a server that nobody has looked at.
        identity: What is started or connected to.
        policy: What is done about each class of changes.
        tells_apart: Whether rules or settings treat two names of one tool differently. Whatever the policy says, a
            server must not get rid of them by another name.
    """
    decided = tuple(_decide(one, policy, tells_apart) for one in changes_of(approved, surface_of(listing, identity)))
    held = [one for one in decided if one.decision == "hold"]
    if not held:
        return Review(listing=listing, changes=decided)
    approved = approved or Surface()
    if any(one.change.kind == "server" for one in held):
        return Review(listing=_all_as_approved(listing, approved), changes=decided)
    shown: dict[LockedKind, ListedItems] = {}
    reasons: dict[str, dict[str, str]] = {}
    for kind in LOCKED_KINDS:
        own = [one for one in held if one.change.kind == kind]
        if own:
            shown[kind] = _as_approved(_listed(listing, kind), approved.of(kind), own, kind)
            reasons[kind] = {name: _reason(one, listing.server) for one in own for name in _names(one.change)}
    told = any(one.change.kind == "instructions" for one in held)
    return Review(
        listing=replace(
            listing,
            tools=shown.get("tools", listing.tools),
            prompts=shown.get("prompts", listing.prompts),
            templates=shown.get("resourceTemplates", listing.templates),
            instructions=approved.instructions if told else listing.instructions,
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
    """Take what a server lists today into what is approved of it.

    Args:
        approved: What was approved before.
        listed: What it lists.
        item: Only what has, or had, this name.
        kind: Only what is of this kind.
        classes: Only changes that are of no other classes.

    Returns:
        What is approved from now on, the changes that were taken into it, and those that were left because they are of
        other classes too.
    """
    found = (one for one in changes_of(approved, listed) if kind is None or one.kind == kind)
    wanted = [one for one in found if item is None or item in _names(one)]
    taken = [one for one in wanted if classes is None or set(one.classes) <= set(classes)]
    base = approved or Surface(identity=listed.identity)
    items = {kind: dict(base.of(kind)) for kind in LOCKED_KINDS}
    identity, instructions = base.identity, base.instructions
    for one in taken:
        if one.kind == "server":
            identity = listed.identity
        elif one.kind == "instructions":
            instructions = listed.instructions
        else:
            if one.before is not None:
                items[one.kind].pop(one.was or one.name, None)
            if one.after is not None:
                items[one.kind][one.name] = one.after
    left = tuple(one for one in wanted if one not in taken)
    return Surface(identity=identity, instructions=instructions, items=items), tuple(taken), left


def _decide(change: Change, policy: Policy, tells_apart: Callable[[str, str], bool]) -> Decided:
    if change.was is not None and policy["renamed"] != "hold" and tells_apart(change.was, change.name):
        policy = {**policy, "renamed": "hold"}
    decision = max((policy[one] for one in change.classes), key=_SEVERITY.index)
    held_for = tuple(one for one in change.classes if policy[one] == "hold")
    return Decided(change=change, decision=decision, held_for=held_for)


def _names(change: Change) -> tuple[str, ...]:
    return (change.name,) if change.was is None else (change.was, change.name)


def _reason(decided: Decided, server: str) -> str:
    change = decided.change
    what = ", ".join(_WORDS[one] for one in decided.held_for)
    target = f"{server}__{change.name}" if change.kind == "tools" else server
    return f"held: {what}; {CURE.format(target)}"


def _all_as_approved(listing: ServerListing, approved: Surface) -> ServerListing:
    """Return the listing of a server of which nobody knows whether it still is the one that was approved."""
    reason = f"held: {_WORDS['identity']}; {CURE.format(listing.server)}"
    return replace(
        listing,
        tools=tuple(approved.of("tools").values()),
        prompts=tuple(approved.of("prompts").values()),
        templates=tuple(approved.of("resourceTemplates").values()),
        instructions=approved.instructions,
        held={
            WHOLE_SERVER: {"": reason},
            **{
                kind: dict.fromkeys([*by_name(_listed(listing, kind), kind), *approved.of(kind)], reason)
                for kind in LOCKED_KINDS
            },
        },
    )


def _as_approved(
    items: ListedItems, approved: Mapping[str, Definition], held: Collection[Decided], kind: LockedKind
) -> ListedItems:
    """Return a list with what is held as it was approved, in its place; what was not there before is left out."""
    replaced = {one.change.name: one.change for one in held}
    shown: list[Definition] = []
    for item in items:
        change = replaced.pop(item[KEYS[kind]], None)
        if change is None:
            shown.append(item)
        elif change.before is not None:
            shown.append(approved[change.was or change.name])
    # What is gone.
    shown += [approved[change.was or change.name] for change in replaced.values() if change.before is not None]
    return tuple(shown)


def _listed(listing: ServerListing, kind: LockedKind) -> ListedItems:
    if kind == "tools":
        return listing.tools
    return listing.prompts if kind == "prompts" else listing.templates
