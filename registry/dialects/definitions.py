"""Lower a definition to what a host or model API accepts, say what was weakened, and lead calls back.

What is advertised in a weaker dialect is still checked against the original: a lowered schema is for
reading. It accepts whatever the original accepts, or says in `weakened` where it is `narrower`. Nothing is
ever wrapped: alternatives at the root become one object, and words tell what belongs together.

The order in which text gives way: words about the root's schema leave the tool's description for that of its
schema as soon as they do not fit; only then is the description itself cut, with a mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from registry.dialects.argument_mapping import restored
from registry.dialects.client_profiles import DIALECTS, Dialect
from registry.dialects.flattening import UNROLLED
from registry.dialects.lowering import Lowering
from registry.dialects.weakening import Weakening
from registry.errors import SchemaRejected
from registry.schema.references import Document

CUT: Final = " […]"
_MAX_PASSES: Final = 4
_NO_KEYS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """One definition as a dialect has it.

    Attributes:
        definition: The same object where nothing had to change.
        weakened: What the schema no longer says, and where.
        keys: Names of properties as they are shown, each with the original; the same name is the same everywhere.
        nulls: Null is asked for where the original leaves out.
        original: The input schema that calls are checked against.
        document: Where its references lead; None where calls need no way back.
    """

    definition: dict[str, Any]
    weakened: tuple[Weakening, ...] = ()
    keys: Mapping[str, str] = field(default_factory=lambda: _NO_KEYS)
    nulls: bool = False
    original: dict[str, Any] = field(default_factory=dict, repr=False)
    document: Document | None = field(default=None, repr=False, compare=False)

    @property
    def names(self) -> Mapping[str, str]:
        """Names of properties in the original, each with the one that is shown in its place."""
        return {old: new for new, old in self.keys.items()}

    @property
    def narrower(self) -> bool:
        """Whether a call that the original accepts may not be expressible."""
        return any(one.narrower for one in self.weakened)


def lower(definition: dict[str, Any], dialect: str | Dialect) -> Lowered:
    """Return a definition that intake admits in the words of a dialect; lowering it again changes nothing.

    Never raises for what intake admits. The name is not looked at (`client_profiles.name_fits`), neither is the
    output schema, which no model is shown.

    Args:
        definition: As the profile words it.
        dialect: Its rules, or their name among `registry.dialects.client_profiles.DIALECTS`.
    """
    rules = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    schema = definition.get("inputSchema")
    if not rules.edits or not isinstance(schema, dict):
        return Lowered(definition=definition)
    names: Mapping[str, str] = _NO_KEYS
    told: list[str] = []
    document: Document | None = None
    try:
        names = _names(schema, rules.key_pattern)
        lowered, lowering = _lowered(schema, rules, names)
        weakened, told = lowering.weakened, list(lowering.told)
        document = lowering.document if names or rules.strict else None
        for _again in range(_MAX_PASSES if lowered is not schema else 0):
            # What was simplified inside may let what is around it be said more simply.
            before, (lowered, lowering) = lowered, _lowered(lowered, rules, _NO_KEYS)
            if lowered is before:
                break
            weakened += lowering.weakened
            told += lowering.told
    except (RecursionError, SchemaRejected, ValueError, TypeError) as error:
        # Boundary: a schema that cannot be put in these words costs its tool nothing but the words.
        lowered, weakened = {"type": "object"}, [Weakening((), "inputSchema", f"not shown: {type(error).__name__}")]
    if rules.closes_root and (schema.get("additionalProperties") or schema.get("patternProperties")):
        weakened.append(Weakening((), "additionalProperties", f"{rules.name} closes the root", narrower=True))
    changed = definition if lowered is schema else {**definition, "inputSchema": lowered}
    return Lowered(
        definition=_described(changed, told, rules, weakened),
        weakened=tuple(weakened),
        keys=MappingProxyType({new: old for old, new in names.items()}) if names else _NO_KEYS,
        nulls=rules.strict,
        original=schema,
        document=document,
    )


def restore(arguments: Any, lowered: Lowered) -> Any:
    """Return the arguments of a call for the original schema; the same object where nothing had to change.

    Original names come back. A null goes where the dialect made it stand for an argument that is left out,
    and only where the original does not accept it. What is no object is left to whoever repairs it.
    """
    if lowered.document is None or not isinstance(arguments, dict):
        return arguments
    return restored(arguments, lowered.original, lowered.document, lowered.keys, nulls=lowered.nulls)


def _lowered(schema: dict[str, Any], rules: Dialect, names: Mapping[str, str]) -> tuple[dict[str, Any], Lowering]:
    weak: frozenset[int] = frozenset()
    while True:
        for unrolled in range(UNROLLED, 0, -1):
            lowering = Lowering(schema, rules, names, unrolled, weak=weak)
            lowered = lowering.root(schema)
            if not lowering.exhausted:
                break
        targets = lowering.document.target_ids if lowering.guarded else frozenset()
        found = weak | (lowering.changed & targets)
        if found == weak:
            return lowered, lowering
        # What became weak by this may be two references away: after two looks whatever is referred to counts.
        weak = found if not weak else targets


def _described(
    definition: dict[str, Any], told: list[str], rules: Dialect, weakened: list[Weakening]
) -> dict[str, Any]:
    said = definition.get("description")
    text = said if isinstance(said, str) else ""
    limit = rules.description_limit
    if told:
        words = "; ".join(told)
        whole = f"{text}\n\n{words}" if text else words
        if limit is None or len(whole) <= limit:
            return {**definition, "description": whole}
        schema = definition["inputSchema"]
        before = schema.get("description")
        words = f"{before} ({words})" if isinstance(before, str) and before else words
        definition = {**definition, "inputSchema": {**schema, "description": words}}
    if limit is None or len(text) <= limit:
        return definition
    weakened.append(Weakening((), "description", f"cut after {limit} characters"))
    return {**definition, "description": text[: limit - len(CUT)].rstrip() + CUT}


def _names(schema: dict[str, Any], pattern: str | None) -> Mapping[str, str]:
    """Return other names for the properties whose own are refused: distinct, stable, and nobody else's."""
    if pattern is None:
        return _NO_KEYS
    names: dict[str, None] = {}
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            for keyword in ("properties", "required"):
                given = node.get(keyword)
                if isinstance(given, dict | list):
                    names |= dict.fromkeys(one for one in given if isinstance(one, str))
            pending += [child for child in node.values() if isinstance(child, dict | list)]
        else:
            pending += [child for child in node if isinstance(child, dict | list)]
    accepted = re.compile(pattern)
    renamed: dict[str, str] = {}
    taken = set(names)
    for name in sorted(one for one in names if not accepted.fullmatch(one)):
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name[:512]).strip("_.-")[:30]
        for length in (8, 16, 32):
            other = f"{plain or 'key'}_{digest[:length]}"
            if other not in taken:
                break
        taken.add(other)
        renamed[name] = other
    return renamed
