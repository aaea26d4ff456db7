"""Replace references and composition (`allOf`, `anyOf`, `oneOf`) that a dialect does not support with plain schemas."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from registry.dialects import schema_prose
from registry.dialects.client_profiles import Dialect
from registry.dialects.merging import ANNOTATIONS, any_of, merge_all, merge_any
from registry.dialects.schema_prose import IDENTITY_KEYWORDS, LossReport, SchemaPosition
from registry.dialects.shaping import with_inferred_type
from registry.errors import SchemaRejected
from registry.schema.display_text import excerpt
from registry.schema.json_values import without_keys
from registry.schema.references import REFERENCE_KEYWORDS, SchemaDocument
from registry.schema.schemas import MAX_SCHEMA_BYTES, measure

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
            position.remarks.append(schema_prose.describe_alternatives(keyword, flat))
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
    return f"{schema_prose.describe_schema(schema)}: {excerpt(schema['title'], _MAX_TITLE)}"


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
