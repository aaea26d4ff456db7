"""Lower a definition to what a host or model API accepts, report what was lost, and map calls back.

A lowered schema is for reading: calls are always checked against the original. It accepts whatever the original
accepts, or reports in `losses` where it is `narrower`. Nothing is ever wrapped: alternatives at the root become one
object, and prose says which members belong together.

If a description gets too long, remarks about the root's schema first move from the tool's description to that of its
schema; only then is the description itself cut, with a mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from registry.dialects.argument_mapping import original_arguments
from registry.dialects.client_profiles import DIALECTS, Dialect
from registry.dialects.flattening import MAX_UNROLLED_LEVELS
from registry.dialects.loss_report import SchemaLoss
from registry.dialects.lowering import SchemaLowering
from registry.errors import SchemaRejected
from registry.schema.json_paths import NO_NAMES
from registry.schema.json_values import containers
from registry.schema.packed_definition import PackedDefinition, members_of
from registry.schema.references import SchemaDocument

CUT_MARK: Final = " […]"
# Passes until a schema stays the same. Two are usual, and each further one needs composition inside composition.
_MAX_PASSES: Final = 4
# Of a name that is replaced: characters that are looked at, and those that the readable part of the new one keeps. With
# the longest digest that makes 63, one less than model APIs accept.
_READ_CHARS: Final = 512
_MAX_READABLE: Final = 30
# Hexadecimal digits that keep new names apart; the next one is only used if a name is taken.
_DIGEST_LENGTHS: Final = (8, 16, 32)
_NO_SCHEMA: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredDefinition:
    """One definition in a dialect, with what maps calls back.

    Attributes:
        definition: The same object if nothing had to change.
        losses: What the schema no longer says, and where.
        original_names: New names of renamed properties, each with its original; one name is replaced everywhere alike.
        null_means_omitted: The lowered schema requires null where the original omits an argument.
        original: The input schema that calls are checked against, if they need mapping.
        document: The same with its references; None if calls need no mapping.
    """

    definition: Mapping[str, Any]
    losses: tuple[SchemaLoss, ...] = ()
    original_names: Mapping[str, str] = field(default_factory=lambda: NO_NAMES)
    null_means_omitted: bool = False
    original: dict[str, Any] = field(default_factory=lambda: _NO_SCHEMA, repr=False)
    document: SchemaDocument | None = field(default=None, repr=False, compare=False)

    def packed(self) -> LoweredDefinition:
        """Return the same for who keeps it: one of thousands that are looked at now and then."""
        if isinstance(self.definition, PackedDefinition):
            return self
        return replace(self, definition=PackedDefinition.of(self.definition))

    @property
    def shown_names(self) -> Mapping[str, str]:
        """Original names of renamed properties, each with its new name."""
        return {old: new for new, old in self.original_names.items()}

    @property
    def narrower(self) -> bool:
        """Whether some call that the original accepts cannot be expressed."""
        return any(loss.narrower for loss in self.losses)


def lower_definition(definition: Mapping[str, Any], dialect: str | Dialect) -> LoweredDefinition:
    """Return an admitted definition lowered to a dialect; lowering the result again changes nothing.

    Never raises for what intake admits. Names are left alone (see `client_profiles.name_fits`), and so are output
    schemas, which no model is shown.

    Args:
        definition: The definition as the profile words it.
        dialect: Its rules, or their name in `registry.dialects.client_profiles.DIALECTS`.
    """
    rules = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    # Asked for last: a packed definition is read for it.
    if not rules.edits or not isinstance(schema := (plain := members_of(definition)).get("inputSchema"), dict):
        return LoweredDefinition(definition=definition)
    names: Mapping[str, str] = NO_NAMES
    remarks: list[str] = []
    document: SchemaDocument | None = None
    try:
        names = _accepted_names(schema, rules.key_pattern)
        lowered, lowering = _lower_schema(schema, rules, names)
        losses, remarks = lowering.losses, list(lowering.remarks)
        document = lowering.flattening.document if names or rules.strict else None
        for _again in range(_MAX_PASSES if lowered is not schema else 0):
            # What was simplified inside may allow what is around it to be simplified further.
            before, (lowered, lowering) = lowered, _lower_schema(lowered, rules, NO_NAMES)
            if lowered is before:
                break
            losses += lowering.losses
            remarks += lowering.remarks
    except (RecursionError, SchemaRejected, ValueError, TypeError) as error:
        # Boundary: a schema that cannot be lowered must not keep its tool from being listed.
        lowered, losses = {"type": "object"}, [SchemaLoss((), "inputSchema", f"not shown: {type(error).__name__}")]
    if rules.closes_root and (schema.get("additionalProperties") or schema.get("patternProperties")):
        losses.append(SchemaLoss((), "additionalProperties", f"{rules.name} closes the root", narrower=True))
    changed = plain if lowered is schema else {**plain, "inputSchema": lowered}
    shown = _with_description(changed, remarks, rules, losses)
    return LoweredDefinition(
        definition=definition if shown is plain else shown,
        losses=tuple(losses),
        original_names=MappingProxyType({new: old for old, new in names.items()}) if names else NO_NAMES,
        null_means_omitted=rules.strict,
        original=schema if document is not None else _NO_SCHEMA,
        document=document,
    )


def map_arguments(arguments: Any, lowered: LoweredDefinition) -> Any:
    """Return the arguments of a call for the original schema; the same object if nothing had to change.

    Original names are restored. A null is removed if it stands for an omitted argument in the dialect and the original
    does not accept it. Anything but an object is left to be repaired.
    """
    if lowered.document is None or not isinstance(arguments, dict):
        return arguments
    return original_arguments(
        arguments, lowered.original, lowered.document, lowered.original_names, nulls=lowered.null_means_omitted
    )


def _lower_schema(
    schema: dict[str, Any], rules: Dialect, names: Mapping[str, str]
) -> tuple[dict[str, Any], SchemaLowering]:
    weakened: frozenset[int] = frozenset()
    while True:
        for unrolled in range(MAX_UNROLLED_LEVELS, 0, -1):
            lowering = SchemaLowering(schema, rules, names, unrolled, weakened=weakened)
            lowered = lowering.root(schema)
            if not lowering.flattening.exhausted:
                break
        targets = lowering.flattening.document.target_ids if lowering.has_contravariant else frozenset()
        found = weakened | (lowering.changed & targets)
        if found == weakened:
            return lowered, lowering
        # What is weakened by this may be several references away: after two passes every target counts as weakened.
        weakened = found if not weakened else targets


def _with_description(
    definition: Mapping[str, Any], remarks: list[str], rules: Dialect, losses: list[SchemaLoss]
) -> Mapping[str, Any]:
    own = definition.get("description")
    text = own if isinstance(own, str) else ""
    limit = rules.description_limit
    if remarks:
        prose = "; ".join(remarks)
        whole = f"{text}\n\n{prose}" if text else prose
        if limit is None or len(whole) <= limit:
            return {**definition, "description": whole}
        schema = definition["inputSchema"]
        before = schema.get("description")
        prose = f"{before} ({prose})" if isinstance(before, str) and before else prose
        definition = {**definition, "inputSchema": {**schema, "description": prose}}
    if limit is None or len(text) <= limit:
        return definition
    losses.append(SchemaLoss((), "description", f"cut after {limit} characters"))
    return {**definition, "description": text[: limit - len(CUT_MARK)].rstrip() + CUT_MARK}


def _accepted_names(schema: dict[str, Any], pattern: str | None) -> Mapping[str, str]:
    """Return new names for properties whose own are not accepted: distinct, stable, and used by no other property."""
    if pattern is None:
        return NO_NAMES
    names: dict[str, None] = {}
    for node in containers(schema):
        for keyword in ("properties", "required"):
            given = node.get(keyword) if isinstance(node, dict) else None
            if isinstance(given, dict | list):
                names |= dict.fromkeys(name for name in given if isinstance(name, str))
    accepted = re.compile(pattern)
    renamed: dict[str, str] = {}
    taken = set(names)
    # Sorted, so that a name does not depend on the order of the schema when a digest has to be longer.
    for name in sorted(name for name in names if not accepted.fullmatch(name)):
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name[:_READ_CHARS]).strip("_.-")[:_MAX_READABLE]
        for length in _DIGEST_LENGTHS:
            new = f"{plain or 'key'}_{digest[:length]}"
            if new not in taken:
                break
        taken.add(new)
        renamed[name] = new
    return renamed
