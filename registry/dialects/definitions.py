"""Lower a definition to a dialect, report the losses, and map calls back.

To lower a definition means to rewrite its input schema for a dialect, the subset of JSON Schema that a host or a model
API accepts.

A lowered schema is only shown to models: calls are always checked against the original schema. The lowered schema
accepts everything that the original accepts, unless a loss is marked as `narrower`. Alternatives (`anyOf`, `oneOf`) at
the root are merged into one object schema, and a remark in the description says which members belong together.

Remarks about the root schema are appended to the tool's description. If the description becomes too long, the remarks
are added to the schema's description instead. A tool's description that is too long even without remarks is cut, and
the cut is marked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from registry.dialects.client_profiles import DIALECTS, Dialect
from registry.dialects.lowering import MAX_UNROLLED_LEVELS, SchemaLowering
from registry.dialects.merging import ANNOTATIONS
from registry.dialects.shaping import SchemaLoss
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import MAX_INSTANCE_DEPTH
from registry.schema.json_paths import NO_NAMES
from registry.schema.json_values import containers, reuse_if_same
from registry.schema.packed_definition import PackedDefinition, members_of
from registry.schema.references import REFERENCE_KEYWORDS, SchemaDocument

# Maximum number of schemas that are considered for one value, including references, `allOf` and alternatives.
_MAX_SCHEMAS: Final = 64
# Levels of nested alternatives that are searched for null. Deeper alternatives are assumed to accept null, so nulls are
# kept.
_MAX_NULL_DEPTH: Final = 16
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")


def original_arguments(
    arguments: dict[str, Any],
    original: dict[str, Any],
    document: SchemaDocument,
    keys: Mapping[str, str],
    *,
    nulls: bool,
) -> dict[str, Any]:
    """Restore the original names of arguments, and remove nulls that stand for omitted arguments.

    Nulls are kept if the original schema accepts the arguments. The same object is returned if nothing changes.

    Args:
        original: The input schema of the tool.
        document: The input schema with its references resolved.
        keys: The original name of each renamed property.
        nulls: Whether the lowered schema requires nulls that the original schema may reject.
    """
    nulls = nulls and _has_null(arguments)
    if not keys and not nulls:
        return arguments
    mapper = _ArgumentMapper(document, keys)
    if keys:
        arguments = mapper.map(arguments, [original], 0, drop=False)
    if not nulls:
        return arguments
    try:
        if schemas.validator(original, schemas.digest(original)).is_valid(arguments):
            return arguments
    except SchemaRejected:
        pass  # the original cannot be compiled, so it cannot decide about nulls
    result: dict[str, Any] = mapper.map(arguments, [original], 0, drop=True)
    return result


class _ArgumentMapper:
    """Maps arguments to the original schema, traversing them together with the schemas that describe them."""

    __slots__ = ("_described_by_ids", "_document", "_keys")

    def __init__(self, document: SchemaDocument, keys: Mapping[str, str]) -> None:
        self._document = document
        self._keys = keys
        # Keyed by identity: the items of an array share their schemas, which live as long as the document.
        self._described_by_ids: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def map(self, value: Any, about: list[Any], depth: int, *, drop: bool) -> Any:
        if depth > MAX_INSTANCE_DEPTH or not isinstance(value, dict | list):
            return value
        described = self._schemas_of_value(about)
        if not described:
            return value
        if isinstance(value, list):
            items: list[Any] = []
            # Use a loop: a comprehension or callback adds frames, and 200 levels would overflow Python's stack.
            for index, item in enumerate(value):
                items.append(self.map(item, _item_schemas(described, index), depth + 1, drop=drop))
            return reuse_if_same(value, items)
        members: dict[str, Any] = {}
        changed = False
        for key, child in value.items():
            name = key if drop else self._original_name(key, value, described)
            below = _member_schemas(described, name)
            if drop and child is None and below and not self._accepts_null(below):
                changed = True
                continue
            members[name] = self.map(child, below, depth + 1, drop=drop)
            changed = changed or name != key or members[name] is not child
        return members if changed else value

    def _original_name(self, key: str, value: dict[str, Any], described: list[dict[str, Any]]) -> str:
        original = self._keys.get(key)
        if original is None or original in value:
            return key
        # The new name of a property may be an ordinary name in other objects.
        is_known = any(original in (node.get(word) or ()) for node in described for word in ("properties", "required"))
        return original if is_known else key

    def _schemas_of_value(self, about: list[Any]) -> list[dict[str, Any]]:
        """Return every schema that describes the same value: references, `allOf`, alternatives."""
        identity = tuple(map(id, about))
        if identity in self._described_by_ids:
            return self._described_by_ids[identity]
        pending, seen = list(about), set()
        described: list[dict[str, Any]] = []
        while pending and len(described) < _MAX_SCHEMAS:
            node = pending.pop(0)
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            described.append(node)
            for keyword in _BRANCHES:
                pending += node[keyword] if isinstance(node.get(keyword), list) else []
            pending += [node[keyword] for keyword in ("then", "else") if keyword in node]
            for keyword in ("dependentSchemas", "dependencies"):
                dependent = node.get(keyword)
                pending += dependent.values() if isinstance(dependent, dict) else []
            pending += self._document.targets(node)
        self._described_by_ids[identity] = described
        return described

    def _accepts_null(self, about: list[Any]) -> bool:
        """Return whether null may be intended: a constraint on the value accepts null, or there is no constraint."""
        constraints = [schema for schema in about if not isinstance(schema, dict) or schema.keys() - ANNOTATIONS]
        return not constraints or any(self._may_be_null(schema, 0) for schema in constraints)

    def _may_be_null(self, schema: Any, depth: int) -> bool:
        if not isinstance(schema, dict) or depth > _MAX_NULL_DEPTH:
            return schema is not False
        kind = schema.get("type")
        if kind is not None and kind != "null" and not (isinstance(kind, list) and "null" in kind):
            return False
        if ("const" in schema and schema["const"] is not None) or None not in schema.get("enum", (None,)):
            return False
        if schema.get("not") == {}:
            return False
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword, [True])[:_MAX_SCHEMAS]
            if not any(self._may_be_null(branch, depth + 1) for branch in branches):
                return False
        demands = [*schema.get("allOf", ())[:_MAX_SCHEMAS]]
        if not REFERENCE_KEYWORDS.isdisjoint(schema):
            demands += self._document.targets(schema)
        return all(self._may_be_null(demand, depth + 1) for demand in demands)


def _member_schemas(described: list[dict[str, Any]], name: str) -> list[Any]:
    """Return the schemas of one member of an object, whether declared or undeclared."""
    members: list[Any] = []
    for node in described:
        properties = node.get("properties")
        if isinstance(properties, dict) and name in properties:
            members.append(properties[name])
            continue
        patterns = node.get("patternProperties")
        members += patterns.values() if isinstance(patterns, dict) else []
        if isinstance(undeclared := node.get("additionalProperties"), dict):
            members.append(undeclared)
    return members


def _item_schemas(described: list[dict[str, Any]], index: int) -> list[Any]:
    item_schemas: list[Any] = []
    for node in described:
        for keyword in ("prefixItems", "items"):
            items = node.get(keyword)
            if isinstance(items, list):
                item_schemas += items[index : index + 1]
            elif isinstance(items, dict):
                item_schemas.append(items)
        item_schemas += [
            node[keyword] for keyword in ("additionalItems", "contains") if isinstance(node.get(keyword), dict)
        ]
    return item_schemas


def _has_null(value: Any) -> bool:
    return any(None in (node.values() if isinstance(node, dict) else node) for node in containers(value))


CUT_MARK: Final = " […]"
# Maximum number of passes after the first. Passes end when the schema no longer changes, usually after two passes; each
# level of nested composition may need a further pass.
_MAX_PASSES: Final = 4
# Maximum number of characters that are read from a name that is replaced, and of characters in the readable part of the
# new name. With the longest digest, a new name has 63 characters, and model APIs accept 64.
_READ_CHARS: Final = 512
_MAX_READABLE: Final = 30
# Hexadecimal digits that distinguish new names; a longer digest is only used if the name is taken.
_DIGEST_LENGTHS: Final = (8, 16, 32)
_NO_SCHEMA: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredDefinition:
    """One definition in a dialect, with the data to map calls back.

    Attributes:
        definition: The same object if nothing had to change.
        original_names: The original name of each renamed property, by new name. Equal names get equal new names.
        null_means_omitted: True if the lowered schema requires null for arguments that the original lets callers omit.
        original: The input schema that calls are checked against, if calls need mapping.
        document: The input schema with its references resolved; None if calls need no mapping.
    """

    definition: Mapping[str, Any]
    losses: tuple[SchemaLoss, ...] = ()
    original_names: Mapping[str, str] = field(default_factory=lambda: NO_NAMES)
    null_means_omitted: bool = False
    original: dict[str, Any] = field(default_factory=lambda: _NO_SCHEMA, repr=False)
    document: SchemaDocument | None = field(default=None, repr=False, compare=False)

    def packed(self) -> LoweredDefinition:
        """Return an equal value with a packed definition, for storing thousands of rarely read definitions."""
        if isinstance(self.definition, PackedDefinition):
            return self
        return replace(self, definition=PackedDefinition.pack(self.definition))

    @property
    def shown_names(self) -> Mapping[str, str]:
        """The new name of each renamed property, by original name."""
        return {old: new for new, old in self.original_names.items()}

    @property
    def narrower(self) -> bool:
        """True if some call that the original schema accepts cannot be expressed with the lowered schema."""
        return any(loss.narrower for loss in self.losses)


def lower_definition(definition: Mapping[str, Any], dialect: str | Dialect) -> LoweredDefinition:
    """Lower a definition that `registry.intake` admitted to a dialect; lowering the result again changes nothing.

    Never raises for an admitted definition. Tool names are not changed (see `client_profiles.name_fits`), and neither
    are output schemas, which models do not see.

    Args:
        definition: The definition as the profile shows it.
        dialect: The rules, or their name in `registry.dialects.client_profiles.DIALECTS`.
    """
    rules = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    # The input schema is checked last, because reading it parses a packed definition.
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
            # A simplified subschema may allow the schema around it to be simplified as well.
            before, (lowered, lowering) = lowered, _lower_schema(lowered, rules, NO_NAMES)
            if lowered is before:
                break
            losses += lowering.losses
            remarks += lowering.remarks
    except (RecursionError, SchemaRejected, ValueError, TypeError) as error:
        # Boundary: a tool is listed even if its schema cannot be lowered.
        lowered, losses = {"type": "object"}, [SchemaLoss((), "inputSchema", f"not shown: {type(error).__name__}")]
    if rules.closes_root and (schema.get("additionalProperties") or schema.get("patternProperties")):
        losses.append(SchemaLoss((), "additionalProperties", f"{rules.name} closes the root", narrower=True))
    changed = plain if lowered is schema else {**plain, "inputSchema": lowered}
    described = _with_description(changed, remarks, rules, losses)
    return LoweredDefinition(
        definition=definition if described is plain else described,
        losses=tuple(losses),
        original_names=MappingProxyType({new: old for old, new in names.items()}) if names else NO_NAMES,
        null_means_omitted=rules.strict,
        original=schema if document is not None else _NO_SCHEMA,
        document=document,
    )


def map_arguments(arguments: Any, lowered: LoweredDefinition) -> Any:
    """Map the arguments of a call to the original schema; the same object if nothing had to change.

    Original names are restored. A null is removed if it stands for an omitted argument in the dialect and the original
    schema does not accept null. Arguments that are not an object stay as they are, for `registry.arguments.repair`.
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
        more_weakened = weakened | (lowering.changed & targets)
        if more_weakened == weakened:
            return lowered, lowering
        # A definition that accepts more (is weakened) may affect definitions that refer to it: from the third pass on,
        # count all definitions that are targets of references as weakened.
        weakened = more_weakened if not weakened else targets


def _with_description(
    definition: Mapping[str, Any], remarks: list[str], rules: Dialect, losses: list[SchemaLoss]
) -> Mapping[str, Any]:
    own = definition.get("description")
    text = own if isinstance(own, str) else ""
    limit = rules.description_limit
    if remarks:
        prose = "; ".join(remarks)
        combined = f"{text}\n\n{prose}" if text else prose
        if limit is None or len(combined) <= limit:
            return {**definition, "description": combined}
        schema = definition["inputSchema"]
        before = schema.get("description")
        prose = f"{before} ({prose})" if isinstance(before, str) and before else prose
        definition = {**definition, "inputSchema": {**schema, "description": prose}}
    if limit is None or len(text) <= limit:
        return definition
    losses.append(SchemaLoss((), "description", f"cut after {limit} characters"))
    return {**definition, "description": text[: limit - len(CUT_MARK)].rstrip() + CUT_MARK}


def _accepted_names(schema: dict[str, Any], pattern: str | None) -> Mapping[str, str]:
    """Return a distinct, stable and otherwise unused new name for each property name that is not accepted."""
    if pattern is None:
        return NO_NAMES
    names: dict[str, None] = {}
    for node in containers(schema):
        for keyword in ("properties", "required"):
            named_properties = node.get(keyword) if isinstance(node, dict) else None
            if isinstance(named_properties, dict | list):
                names |= dict.fromkeys(name for name in named_properties if isinstance(name, str))
    accepted = re.compile(pattern)
    renamed: dict[str, str] = {}
    used_names = set(names)
    # Sorted, so that longer digests do not depend on the order of the schema.
    for name in sorted(name for name in names if not accepted.fullmatch(name)):
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name[:_READ_CHARS]).strip("_.-")[:_MAX_READABLE]
        for length in _DIGEST_LENGTHS:
            new = f"{plain or 'key'}_{digest[:length]}"
            if new not in used_names:
                break
        used_names.add(new)
        renamed[name] = new
    return renamed
