"""Lower one schema to a dialect, and record what was lost.

Every change makes a schema accept more (weakens it), or is recorded as `narrower`. A contravariant keyword (`not`,
`if`, `oneOf` and the like) accepts less if its subschema accepts more, so such a keyword is removed if its subschema is
weakened. This also applies to subschemas that refer to weakened definitions: `changed` tells the next pass which
definitions this pass has weakened. References and composition (`allOf`, `anyOf`, `oneOf`) that the dialect does not
support are replaced by plain schemas.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from registry.dialects.client_profiles import Dialect
from registry.dialects.merging import ANNOTATIONS, any_of, merge_all, merge_any
from registry.dialects.shaping import (
    IDENTITY_KEYWORDS,
    LossReport,
    SchemaLoss,
    SchemaPosition,
    describe_alternatives,
    describe_schema,
    in_dialect_form,
    with_inferred_type,
    without_unsupported_values,
)
from registry.errors import SchemaRejected
from registry.schema.display_text import excerpt
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import containers, edited, map_items, reuse_if_same, without_keys
from registry.schema.references import (
    REFERENCE_KEYWORDS,
    SINGLE_SUBSCHEMAS,
    SUBSCHEMA_LISTS,
    SUBSCHEMA_MAPS,
    SchemaDocument,
)
from registry.schema.schemas import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, measure

# Levels of a recursive schema to expand if the dialect has no references. Nested filters and folders rarely need more,
# and every level multiplies the size.
MAX_UNROLLED_LEVELS: Final = 3
# Maximum number of schemas that are merged into one. Generated schemas have a dozen parts at most; only hostile schemas
# exceed the limit.
_MAX_PARTS: Final = 256
# Levels of nested alternatives that are merged recursively.
_MAX_NESTED_ALTERNATIVES: Final = 32
# Expanding references may make a schema this many characters larger than twice its size. These are about 25,000 tokens,
# more than any client would list.
_MAX_GROWTH: Final = 100_000
# Maximum number of titles of alternatives that a remark contains, and of characters of each title.
_MAX_TITLES: Final = 20
_MAX_TITLE: Final = 40
# An alternative with any of these keywords cannot be expressed as an enumeration.
_COMPOUND: Final = REFERENCE_KEYWORDS | {"allOf", "anyOf", "oneOf"}
_COMPOSITION: Final = ("anyOf", "oneOf")
# In drafts 3 to 7, keywords next to `$ref` are ignored. The keywords in this set are kept, because they only describe
# or locate a schema.
_KEPT_BESIDE_REFERENCES: Final = ANNOTATIONS | {"$defs", "definitions", "$schema", "$id"}
_DRAFTS_WITHOUT_SIBLINGS: Final = re.compile(r"json-schema\.org/draft-0[3-7]/")


class Flattening:
    """One pass over one document, which tracks open expansions and the total size.

    Attributes:
        document: The original schema with its references resolved.
        exhausted: True if references were cut off because the result became too large.
    """

    def __init__(self, root: dict[str, Any], rules: Dialect, report: LossReport, unrolled: int) -> None:
        self.exhausted = False
        self._rules = rules
        self._report = report
        self._max_levels = unrolled
        self.document = SchemaDocument(root)
        self._by_pointer = {"#": root}
        for keyword in ("$defs", "definitions"):
            if isinstance(definitions := root.get(keyword), dict):
                for name, target in definitions.items():
                    self._by_pointer[f"#/{keyword}/{name.replace('~', '~0').replace('/', '~1')}"] = target
        declared = root.get("$schema")
        self._ignores_siblings = isinstance(declared, str) and bool(_DRAFTS_WITHOUT_SIBLINGS.search(declared))
        # The root counts as expanded once, because `#` refers back to it.
        self._open_counts: Counter[int] = Counter({id(root): 1})
        self._size_left = _MAX_GROWTH + 2 * _size(root)

    def flatten(self, node: dict[str, Any], position: SchemaPosition, is_root: bool) -> dict[str, Any]:
        """Return a schema without the composition that the dialect does not support; its subschemas are not changed.

        Args:
            position: The position in the lowered schema.
            is_root: Whether the schema is the root, where composition is not supported.
        """
        self._size_left -= own_size(node)
        plain = self._without_references(node, position, is_root)
        if not self._rules.typed:
            return self._merge_alternatives(plain, position, is_root)
        plain = self._merge_alternatives(with_inferred_type(plain, position.path, self._report), position, is_root)
        # Infer the type again, because merging can introduce keywords that imply a type.
        return with_inferred_type(plain, position.path, self._report)

    def close(self, position: SchemaPosition) -> None:
        """Mark the definitions that were expanded into a schema as closed, after its subschemas have been lowered."""
        for target in position.opened:
            self._open_counts[target] -= 1

    def _without_references(self, node: dict[str, Any], position: SchemaPosition, is_root: bool) -> dict[str, Any]:
        """Return a schema without the references and the `allOf` that the dialect does not support."""
        rules = self._rules
        flatten = isinstance(node.get("allOf"), list) and (is_root or rules.typed)
        if flatten and not is_root and (alias := self._alias(node)) is not None:
            return alias
        if not flatten and not self._must_inline(node, is_root):
            return node
        parts: list[dict[str, Any]] = []
        # A queue, so that a schema's own keywords are merged first and have precedence over keywords of the schemas
        # that it refers to.
        pending: list[Any] = [node]
        seen = {id(node)}
        while pending:
            part = pending.pop(0)
            if len(parts) >= _MAX_PARTS:
                self._report.record(position.path, "allOf", f"more than {_MAX_PARTS} parts")
                break
            own = part if part is node else without_keys(part, IDENTITY_KEYWORDS)
            if self._must_inline(part, is_root or (rules.typed and (flatten or part is not node))):
                own = without_keys(own, REFERENCE_KEYWORDS)
                if self._ignores_siblings:
                    own = {key: child for key, child in own.items() if key in _KEPT_BESIDE_REFERENCES}
                for target in self.document.targets(part):
                    if not isinstance(target, dict) or id(target) in seen:
                        continue
                    if self._open_counts[id(target)] >= self._max_levels or self._size_left < 0:
                        parts.append(self._truncate_schema(target, position))
                        continue
                    seen.add(id(target))
                    position.opened.append(id(target))
                    self._open_counts[id(target)] += 1
                    self._size_left -= own_size(target)
                    pending.append(target)
            if (is_root or rules.typed) and isinstance(members := own.get("allOf"), list):
                own = without_keys(own, {"allOf"})
                for member in members:
                    if member is False:  # matches nothing, which an object schema can only express with `not`
                        parts.append({"not": {}})
                    elif isinstance(member, dict) and id(member) not in seen:
                        seen.add(id(member))
                        pending.append(member)
            parts.append(own)
        return merge_all(parts)

    def _alias(self, node: dict[str, Any]) -> dict[str, Any] | None:
        """Return the plain reference for an `allOf` with one reference, as older generators write it; else None."""
        [member, *more_members] = node["allOf"] or [None]
        if (
            more_members
            or not isinstance(member, dict)
            or member.keys() != {"$ref"}
            or self._must_inline(member, False)
        ):
            return None
        if node.keys() - ANNOTATIONS - IDENTITY_KEYWORDS != {"allOf"}:
            return None
        return {**without_keys(node, {"allOf"}), "$ref": member["$ref"]}

    def _must_inline(self, node: dict[str, Any], always: bool) -> bool:
        if REFERENCE_KEYWORDS.isdisjoint(node):
            return False
        if always or not self._rules.refs or not node.keys().isdisjoint({"$dynamicRef", "$recursiveRef"}):
            return True
        siblings = node.keys() - {"$ref"} - ANNOTATIONS - IDENTITY_KEYWORDS
        if self._rules.typed and siblings and not self._ignores_siblings:
            return True
        target = self._by_pointer.get(node["$ref"]) if isinstance(node["$ref"], str) else None
        targets = self.document.targets(node)
        return not isinstance(target, dict) or len(targets) != 1 or targets[0] is not target

    def _truncate_schema(self, target: dict[str, Any], position: SchemaPosition) -> dict[str, Any]:
        kind = target.get("type")
        if self._size_left < 0:
            self.exhausted = True
            position.remarks.append("too large to be shown")
            self._report.record(position.path, "$ref", "too large to be inlined")
        else:
            position.remarks.append(f"continues in the same way, shown {self._max_levels} levels deep")
            self._report.record(position.path, "$ref", f"recursion shown {self._max_levels} levels deep")
        ignored = self._ignores_siblings and "$ref" in target
        return {"type": kind} if isinstance(kind, str) and not self._rules.strict and not ignored else {}

    def _merge_alternatives(self, node: dict[str, Any], position: SchemaPosition, is_root: bool) -> dict[str, Any]:
        """Return a schema without the alternatives that the dialect does not support; merge them if necessary."""
        if not (is_root or self._rules.typed):
            return node
        plain, lists = self._split_alternatives(node, position)
        if not lists:
            return plain
        if not is_root and (plain.get("type") != "object" or len(lists) == 1):
            return self._with_one_list(node, plain, lists, position)
        for keyword, branches in lists:
            plain = merge_all([plain, self._merge_branches(keyword, branches, position, 0)])
        return self._split_alternatives(plain, position)[0]

    def _with_one_list(
        self, node: dict[str, Any], plain: dict[str, Any], lists: list[tuple[str, list[Any]]], position: SchemaPosition
    ) -> dict[str, Any]:
        """Return a schema in which a list of alternatives remains only if no constraints are next to it.

        Enumerations are combined, and other lists are merged into the schema or described in a remark.
        """
        remaining = []
        for keyword, branches in lists:
            usable = [branch for branch in branches if branch is not False and branch != {"not": {}}]
            joined = any_of(usable) if usable else {}
            if not isinstance(joined, dict) or not joined.keys() & {"enum", "const"} or joined.keys() & _COMPOUND:
                remaining.append((keyword, branches, usable))
                continue
            titles = [branch for branch in usable if isinstance(branch, dict) and isinstance(branch.get("title"), str)]
            if titles:
                position.remarks.append("; ".join(map(_describe_titled, titles[:_MAX_TITLES])))
            plain = merge_all([plain, without_keys(joined, ANNOTATIONS)])
        for keyword, branches, usable in remaining:
            constraints = (
                {key for key in plain if not self._rules.removes(key)} - ANNOTATIONS - IDENTITY_KEYWORDS - {"nullable"}
            )
            if plain.get("type") == "object" and constraints:
                plain = merge_all([plain, self._merge_branches(keyword, branches, position, 0)])
            elif constraints:
                self._report.describe(keyword, {keyword: branches}, position)
            else:
                if keyword == "oneOf":
                    self._report.record(position.path, keyword, "more than one may fit")
                elif len(usable) == len(branches) and plain.keys() | {"anyOf"} == node.keys():
                    return node
                plain = {**plain, "anyOf": usable or [{}]}
        return self._split_alternatives(plain, position)[0] if "allOf" in plain else plain

    def _split_alternatives(self, node: dict[str, Any], position: SchemaPosition) -> tuple[dict[str, Any], list[Any]]:
        """Separate a schema from its lists of alternatives; describe the rest of its `allOf` in remarks."""
        lists = [(keyword, node[keyword]) for keyword in _COMPOSITION if isinstance(node.get(keyword), list)]
        if not lists and "allOf" not in node:
            return node, []
        for part in node.get("allOf", ()):
            for keyword, value in part.items():
                if keyword in _COMPOSITION and isinstance(value, list):
                    lists.append((keyword, value))
                else:
                    self._report.describe(keyword, part, position)
        return without_keys(node, (*_COMPOSITION, "allOf")), lists

    def _merge_branches(
        self, keyword: str, branches: list[Any], position: SchemaPosition, depth: int
    ) -> dict[str, Any]:
        # Remarks about single alternatives would not fit the sentence that describes all of them.
        quiet = SchemaPosition(position.path, [], position.opened)
        flat = [self._summarize_branch(branch, quiet, depth) for branch in branches]
        united = merge_any(flat)
        if depth == 0:
            position.remarks.append(describe_alternatives(keyword, flat))
        self._report.record(position.path, keyword, "alternatives merged into one object", narrower=united.narrower)
        for dropped_keyword in sorted(united.lost):
            self._report.record(position.path, dropped_keyword, "not shown for each alternative")
        return united.schema

    def _summarize_branch(self, branch: Any, position: SchemaPosition, depth: int) -> Any:
        if not isinstance(branch, dict):
            return branch
        if depth > _MAX_NESTED_ALTERNATIVES:
            self._report.record(position.path, "anyOf", f"not shown beyond {_MAX_NESTED_ALTERNATIVES} levels")
            return {}
        flat, lists = self._split_alternatives(self._without_references(branch, position, True), position)
        for keyword, branches in lists:
            flat = merge_all([flat, self._merge_branches(keyword, branches, position, depth + 1)])
        return self._split_alternatives(flat, position)[0]


def _describe_titled(schema: dict[str, Any]) -> str:
    return f"{describe_schema(schema)}: {excerpt(schema['title'], _MAX_TITLE)}"


def _size(root: dict[str, Any]) -> int:
    try:
        return measure(root).size
    except SchemaRejected:
        return MAX_SCHEMA_BYTES  # only a lowered schema can exceed the limit of `registry.intake`


def own_size(node: dict[str, Any]) -> int:
    """Return the approximate number of characters of a schema without its subschemas."""
    # Eight characters account for quotes, colon, comma and a short value.
    size = 10 + 8 * len(node)
    for value in node.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            size += sum(8 + (len(item) if isinstance(item, str) else 0) for item in value)
        elif isinstance(value, dict):
            size += 8 * len(value)
    return size


# Half of the depth that `registry.intake` admits, because each level of a schema takes several Python stack frames
# here.
_MAX_SHOWN_DEPTH: Final = MAX_SCHEMA_DEPTH // 2
# Maximum number of nodes visited in one pass to find references to weakened definitions: about a tenth of a second.
_MAX_SEARCH_STEPS: Final = 200_000
# Maximum number of characters that are quoted from a property's original name.
_MAX_NAME: Final = 100
# These keywords depend on their neighbours, and reject more if a neighbour is removed.
_UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
# Keywords that accept less if their subschemas accept more.
_CONTRAVARIANT: Final = frozenset({"not", "if", "contains", "oneOf"}) | _UNEVALUATED


class SchemaLowering:
    """One pass over one input schema.

    Attributes:
        remarks: Remarks about the root schema, for the description of the tool.
        changed: The identities of those schemas in the original that were changed.
        flattening: The pass that replaces references, and resolves the references of the original schema.
        has_contravariant: Whether the schema has a keyword that accepts less if its subschemas accept more.
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
        """Start a pass.

        Args:
            names: The new name of each renamed property.
            unrolled: Levels of a recursion to expand if references are not supported.
            weakened: The identities of definitions that are known to accept more once they are lowered.
        """
        self.remarks: list[str] = []
        self.changed: set[int] = set()
        self.has_contravariant = False
        self._weakened = weakened
        self._steps = 0
        self._rules = rules
        self._names = names
        # Used to mention the original name in the description of a renamed property.
        self._originals = {new: old for old, new in names.items()}
        self._report = LossReport()
        self.flattening = Flattening(root, rules, self._report, unrolled)

    @property
    def losses(self) -> list[SchemaLoss]:
        """The losses so far, without duplicates."""
        return list(dict.fromkeys(self._report.losses))

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the lowered root of the input schema; the same object if nothing had to change."""
        lowered: dict[str, Any] = self._lower(schema, (), 0, is_root=bool(self._rules.root_refused))
        if lowered is schema:
            return schema
        return _without_unused_definitions({**lowered, "type": "object"} if "type" not in lowered else lowered)

    def _lower(self, node: Any, path: JsonPath, depth: int, *, is_root: bool = False, name: str | None = None) -> Any:
        """Return the lowered form of a schema; `name` is the original name of a renamed property."""
        rules, report = self._rules, self._report
        if isinstance(node, bool):
            if not rules.typed:
                return node
            if not node:
                report.record(path, "false", "accepts anything instead of nothing")
            # APIs that require types do not accept boolean schemas.
            node = {}
        if not isinstance(node, dict):
            return node
        position = SchemaPosition(path, [] if name is None else [f"originally named {excerpt(name, _MAX_NAME)}"])
        if depth > _MAX_SHOWN_DEPTH:
            report.record(path, "depth", f"not shown beyond {_MAX_SHOWN_DEPTH} levels")
            position.remarks.append("not shown")
            return self._finish({}, position)
        plain = self.flattening.flatten(node, position, is_root)
        if not rules.tuples:
            plain = self._without_tuples(plain, position)
        plain = without_unsupported_values(plain, rules, position, report)
        plain = self._without_unknown(plain, position, is_root)
        plain = self._rename_properties(plain, path)
        lowered = self._without_contravariant(node, plain, self._children(plain, path, depth), position)
        self.flattening.close(position)
        finished = self._finish(lowered, position)
        if finished is not node:
            # The identity stays valid as long as the original document is alive.
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
        further_items = node.get("items" if keyword == "prefixItems" else "additionalItems", True)
        plain = without_keys(node, ("prefixItems", "items", "additionalItems"))
        # If `maxItems` does not exceed the number of positions, no further items can follow.
        limit = node.get("maxItems")
        if not (isinstance(limit, int | float) and limit <= len(positions)) and further_items is not False:
            positions = [*positions, further_items]
        return {**plain, "items": any_of(positions) if positions else {}}

    def _without_unknown(self, node: dict[str, Any], position: SchemaPosition, is_root: bool) -> dict[str, Any]:
        rules = self._rules
        removed = {key for key in node if rules.removes(key) or (is_root and key in rules.root_refused)}
        if not removed:
            return node
        if "patternProperties" in removed and "additionalProperties" in node:
            # Without the patterns, `additionalProperties` would also apply to the names that match the patterns.
            removed.add("additionalProperties")
        for keyword in node:
            if keyword in removed:
                self._report.describe(keyword, node, position)
        return without_keys(node, removed)

    def _rename_properties(self, node: dict[str, Any], path: JsonPath) -> dict[str, Any]:
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
        # A schema without properties may describe the same object as another schema that has renamed properties.
        value_keywords = {word for word in ("enum", "const") if word in node and (changes or _holds_object(node[word]))}
        removed = value_keywords | ({"propertyNames"} & node.keys())
        if not changes and not removed and "patternProperties" not in node:
            return node
        if "patternProperties" in node:
            removed |= {"patternProperties", "additionalProperties"} & node.keys()
        for keyword in sorted(removed):
            self._report.record(path, keyword, "removed, because it refers to names that were changed")
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
                # Use a loop, because a comprehension or callback would double the stack frames per level.
                items: list[Any] = []
                for index, item in enumerate(child):
                    items.append(self._lower(item, (*path, key, index), depth + 1))
                below = reuse_if_same(child, items)
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
        """Return a schema without keywords that would accept less now that a subschema or neighbour accepts more."""
        guards = _CONTRAVARIANT & lowered.keys()
        self.has_contravariant = self.has_contravariant or bool(guards)
        weakened_guards = {
            key for key in guards if self._refers_to_weakened(node if key in _UNEVALUATED else node.get(key))
        }
        if lowered is node and not weakened_guards:
            return lowered
        removed: set[str] = set()
        changed = weakened_guards | {key for key in lowered if lowered[key] is not plain[key]}
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
        """Return whether a schema refers to a weakened definition, directly or through other definitions."""
        pending, seen = [schema] if self._weakened else [], set[int]()
        # `containers` is not used here, because nodes must not be visited twice.
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            self._steps += 1
            if isinstance(node, dict) and not REFERENCE_KEYWORDS.isdisjoint(node):
                targets = self.flattening.document.targets(node)
                # The document cannot resolve copied references, so these may lead to a weakened definition.
                if not targets or self._steps > _MAX_SEARCH_STEPS or any(id(t) in self._weakened for t in targets):
                    return True
                pending += targets
            children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
            pending += [child for child in children if isinstance(child, dict | list)]
        return False


def _holds_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _without_unused_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the definitions that are unused after inlining."""
    for keyword in ("$defs", "definitions"):
        definitions = schema.get(keyword)
        if not isinstance(definitions, dict):
            continue
        names_by_pointer = {f"#/{keyword}/{name.replace('~', '~0').replace('/', '~1')}": name for name in definitions}
        used: set[str] = set()
        pending: list[Any] = [without_keys(schema, {keyword})]
        while pending:
            for node in containers(pending.pop()):
                pointer = node.get("$ref") if isinstance(node, dict) else None
                name = names_by_pointer.get(pointer) if isinstance(pointer, str) else None
                if name is not None and name not in used:
                    used.add(name)
                    pending.append(definitions[name])
        if len(used) < len(definitions):
            schema = {key: child for key, child in schema.items() if key != keyword or used}
            if used:
                schema[keyword] = {name: child for name, child in definitions.items() if name in used}
    return schema
