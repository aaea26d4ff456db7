"""Lower one schema to a dialect: inline references, merge composition, and describe the rest in prose.

Every change makes a schema accept more, or is recorded as `narrower`. Where accepting more inside means accepting less
outside (`not`, `if`, `oneOf` and the like are contravariant), the outer keyword is removed. The target of a reference
counts as inside: `changed` tells the next pass which definitions this one has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.dialects.client_profiles import Dialect
from registry.dialects.flattening import MAX_UNROLLED_LEVELS, Flattening
from registry.dialects.loss_report import LossReport, SchemaLoss, SchemaPosition
from registry.dialects.merging import any_of
from registry.dialects.shaping import in_dialect_form, without_unsupported_values
from registry.schema.display_text import excerpt
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import containers, edited, map_items, unless_same, without_keys
from registry.schema.references import (
    REFERENCE_KEYWORDS,
    SINGLE_SUBSCHEMAS,
    SUBSCHEMA_LISTS,
    SUBSCHEMA_MAPS,
)
from registry.schema.schemas import MAX_SCHEMA_DEPTH

# Half of what intake admits: each level of a schema takes several frames of Python's stack here.
_MAX_SHOWN_DEPTH: Final = MAX_SCHEMA_DEPTH // 2
# Nodes visited in search of references to weakened definitions, in one pass: about a tenth of a second.
_MAX_SEARCH_STEPS: Final = 200_000
# How much of a property's original name is quoted.
_MAX_NAME: Final = 100
# These depend on what is beside them, and reject more if that is removed.
_UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
# Keywords that accept less where what is inside accepts more.
_CONTRAVARIANT: Final = frozenset({"not", "if", "contains", "oneOf"}) | _UNEVALUATED


class SchemaLowering:
    """One pass over one input schema.

    Attributes:
        remarks: What has to be added to the description of the tool, since the root has none of its own.
        changed: The schemas of the original that were changed, by identity.
        flattening: What replaces references, and knows where those of the original lead.
        has_contravariant: Whether there is any keyword that accepts less where what is inside accepts more.
    """

    def __init__(
        self,
        root: dict[str, Any],
        rules: Dialect,
        names: Mapping[str, str],
        unrolled: int = MAX_UNROLLED_LEVELS,
        *,
        weakened: frozenset[int] = frozenset(),
    ) -> None:
        """Begin a pass.

        Args:
            root: The schema.
            rules: The dialect.
            names: Properties that are renamed, each with its new name.
            unrolled: How many levels of a recursion are expanded where references are not supported.
            weakened: Definitions that are known to accept more once they are lowered, by identity.
        """
        self.remarks: list[str] = []
        self.changed: set[int] = set()
        self.has_contravariant = False
        self._weakened = weakened
        self._steps = 0
        self._rules = rules
        self._names = names
        # To mention the original name in the description of a renamed property.
        self._originals = {new: old for old, new in names.items()}
        self._report = LossReport()
        self.flattening = Flattening(root, rules, self._report, unrolled)

    @property
    def losses(self) -> list[SchemaLoss]:
        """What was lost so far, each loss once."""
        return list(dict.fromkeys(self._report.losses))

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the lowered root of the input schema; the same object if nothing had to change."""
        lowered: dict[str, Any] = self._lower(schema, (), 0, whole=bool(self._rules.root_refused))
        if lowered is schema:
            return schema
        return _without_unused_definitions({**lowered, "type": "object"} if "type" not in lowered else lowered)

    def _lower(self, node: Any, path: JsonPath, depth: int, *, whole: bool = False, name: str | None = None) -> Any:
        """Return one schema lowered; `name` is the original name of a property that is renamed."""
        rules, report = self._rules, self._report
        if isinstance(node, bool):
            if not rules.typed:
                return node
            if not node:
                report.record(path, "false", "accepts anything instead of nothing")
            # APIs that require types accept no boolean schemas.
            node = {}
        if not isinstance(node, dict):
            return node
        position = SchemaPosition(path, [] if name is None else [f"originally named {excerpt(name, _MAX_NAME)}"])
        if depth > _MAX_SHOWN_DEPTH:
            report.record(path, "depth", f"not shown beyond {_MAX_SHOWN_DEPTH} levels")
            position.remarks.append("not shown")
            return self._finish({}, position)
        plain = self.flattening.flatten(node, position, whole)
        if not rules.tuples:
            plain = self._without_tuples(plain, position)
        plain = without_unsupported_values(plain, rules, position, report)
        plain = self._without_unknown(plain, position, whole)
        plain = self._renamed(plain, path)
        lowered = self._without_contravariant(node, plain, self._children(plain, path, depth), position)
        self.flattening.close(position)
        finished = self._finish(lowered, position)
        if finished is not node:
            # By identity, which holds as long as the original document is alive.
            self.changed.add(id(node))
        return finished

    def _finish(self, node: dict[str, Any], position: SchemaPosition) -> dict[str, Any]:
        node = in_dialect_form(node, self._rules, position, self._report)
        remarks = list(dict.fromkeys(position.remarks))
        if not position.path:
            self.remarks = remarks
            return node
        if not remarks:
            return node
        prose = "; ".join(remarks)
        text = node.get("description")
        return {**node, "description": f"{text} ({prose})" if isinstance(text, str) and text else prose}

    def _without_tuples(self, node: dict[str, Any], position: SchemaPosition) -> dict[str, Any]:
        keyword = "prefixItems" if isinstance(node.get("prefixItems"), list) else "items"
        positions = node.get(keyword)
        if not isinstance(positions, list):
            return node
        self._report.describe(keyword, node, position)
        rest = node.get("items" if keyword == "prefixItems" else "additionalItems", True)
        plain = without_keys(node, ("prefixItems", "items", "additionalItems"))
        # An array that ends with its last position has no further items to accept.
        limit = node.get("maxItems")
        if not (isinstance(limit, int | float) and limit <= len(positions)) and rest is not False:
            positions = [*positions, rest]
        return {**plain, "items": any_of(positions) if positions else {}}

    def _without_unknown(self, node: dict[str, Any], position: SchemaPosition, whole: bool) -> dict[str, Any]:
        rules = self._rules
        removed = {key for key in node if rules.removes(key) or (whole and key in rules.root_refused)}
        if not removed:
            return node
        if "patternProperties" in removed and "additionalProperties" in node:
            # Alone it would apply to the names that the patterns accepted.
            removed.add("additionalProperties")
        for keyword in node:
            if keyword in removed:
                self._report.describe(keyword, node, position)
        return without_keys(node, removed)

    def _renamed(self, node: dict[str, Any], path: JsonPath) -> dict[str, Any]:
        names = self._names
        if not names:
            return node
        changes: dict[str, Any] = {}
        for keyword in ("properties", "dependentSchemas", "dependentRequired", "dependencies"):
            children = node.get(keyword)
            if isinstance(children, dict) and not names.keys().isdisjoint(children):
                changes[keyword] = {names.get(name, name): child for name, child in children.items()}
        for keyword in ("dependentRequired", "dependencies"):
            children = changes.get(keyword, node.get(keyword))
            if isinstance(children, dict):
                mapped = {name: self._renamed_list(child) for name, child in children.items()}
                if any(mapped[name] is not child for name, child in children.items()):
                    changes[keyword] = mapped
        required = node.get("required")
        if (demanded := self._renamed_list(required)) is not required:
            changes["required"] = demanded
        # A schema without properties may stand beside one that has some, and describe the same object.
        whole = {word for word in ("enum", "const") if word in node and (changes or _holds_object(node[word]))}
        removed = whole | ({"propertyNames"} & node.keys())
        if not changes and not removed and "patternProperties" not in node:
            return node
        if "patternProperties" in node:
            removed |= {"patternProperties", "additionalProperties"} & node.keys()
        for keyword in sorted(removed):
            self._report.record(path, keyword, "removed, for it speaks of names that are others here")
        for name in node.get("properties", ()):
            if name in names:
                self._report.record(
                    (*path, "properties", names[name]), "properties", f"renamed from {excerpt(name, _MAX_NAME)}"
                )
        return edited(node, changes=changes, dropped=removed)

    def _renamed_list(self, names: Any) -> Any:
        if not isinstance(names, list):
            return names
        return map_items(names, lambda name: self._names.get(name, name) if isinstance(name, str) else name)

    def _children(self, node: dict[str, Any], path: JsonPath, depth: int) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        changed = False
        for key, child in node.items():
            below: Any = child
            if isinstance(child, dict) and key in SUBSCHEMA_MAPS:
                below = self._lower_members(key, child, path, depth)
            elif isinstance(child, list) and key in SUBSCHEMA_LISTS:
                # A plain loop: with a comprehension or a callback, a level would take twice as much of Python's stack.
                items: list[Any] = []
                for index, item in enumerate(child):
                    items.append(self._lower(item, (*path, key, index), depth + 1))
                below = unless_same(child, items)
            elif (isinstance(child, dict) and key in SINGLE_SUBSCHEMAS) or (isinstance(child, bool) and key == "items"):
                below = self._lower(child, (*path, key), depth + 1)
            lowered[key] = below
            changed = changed or below is not child
        return lowered if changed else node

    def _lower_members(self, keyword: str, children: dict[str, Any], path: JsonPath, depth: int) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        changed = False
        for name, child in children.items():
            below: Any = child
            if keyword == "properties" and (child is False or child == {"not": {}}):
                if self._rules.removes("not"):
                    self._report.record((*path, keyword, name), "false", "not shown")
                    changed = True
                    continue
                below = {"not": {}} if child is False else child
            else:
                plain = {} if child is True and keyword == "properties" else child
                below = self._lower(
                    plain,
                    (*path, keyword, name),
                    depth + 1,
                    name=self._originals.get(name) if keyword == "properties" else None,
                )
            lowered[name] = below
            changed = changed or below is not child
        return lowered if changed else children

    def _without_contravariant(
        self, node: dict[str, Any], plain: dict[str, Any], lowered: dict[str, Any], position: SchemaPosition
    ) -> dict[str, Any]:
        """Return a schema without what would accept less now, because something inside or beside it accepts more."""
        guards = _CONTRAVARIANT & lowered.keys()
        self.has_contravariant = self.has_contravariant or bool(guards)
        weakened = {key for key in guards if self._refers_to_weakened(node if key in _UNEVALUATED else node.get(key))}
        if lowered is node and not weakened:
            return lowered
        removed: set[str] = set()
        changed = weakened | {key for key in lowered if lowered[key] is not plain[key]}
        if "not" in changed:
            removed.add("not")
        if "if" in changed:
            removed |= {"if", "then", "else"} & lowered.keys()
        if "contains" in changed and "maxContains" in lowered:
            removed.add("maxContains")
        removed |= _UNEVALUATED & lowered.keys()
        if "oneOf" in changed:
            self._report.record(position.path, "oneOf", "more than one may fit")
            branches = lowered["oneOf"]
            lowered = without_keys(lowered, {"oneOf"})
            if "anyOf" in lowered:
                lowered["allOf"] = [*lowered.get("allOf", ()), {"anyOf": branches}]
            else:
                lowered["anyOf"] = branches
        for keyword in sorted(removed):
            self._report.describe(keyword, plain, position)
        return without_keys(lowered, removed) if removed else lowered

    def _refers_to_weakened(self, schema: Any) -> bool:
        """Return whether references in a schema lead to a weakened definition, directly or through others."""
        pending, seen = [schema] if self._weakened else [], set[int]()
        # Not `containers`: what is inside a node that was seen must not be walked again.
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            self._steps += 1
            if isinstance(node, dict) and not REFERENCE_KEYWORDS.isdisjoint(node):
                targets = self.flattening.document.targets(node)
                # A copy of a reference is unknown to the document, so nothing can be ruled out.
                if not targets or self._steps > _MAX_SEARCH_STEPS or any(id(t) in self._weakened for t in targets):
                    return True
                pending += targets
            children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
            pending += [child for child in children if isinstance(child, dict | list)]
        return False


def _holds_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _without_unused_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the definitions that only references which were inlined referred to."""
    for keyword in ("$defs", "definitions"):
        definitions = schema.get(keyword)
        if not isinstance(definitions, dict):
            continue
        named = {f"#/{keyword}/{name.replace('~', '~0').replace('/', '~1')}": name for name in definitions}
        used: set[str] = set()
        pending: list[Any] = [without_keys(schema, {keyword})]
        while pending:
            for node in containers(pending.pop()):
                pointer = node.get("$ref") if isinstance(node, dict) else None
                name = named.get(pointer) if isinstance(pointer, str) else None
                if name is not None and name not in used:
                    used.add(name)
                    pending.append(definitions[name])
        if len(used) < len(definitions):
            schema = {key: child for key, child in schema.items() if key != keyword or used}
            if used:
                schema[keyword] = {name: child for name, child in definitions.items() if name in used}
    return schema
