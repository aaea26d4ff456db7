"""References and composition of one schema after another, taken apart and put together as plain schemas."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from registry.dialects import hints
from registry.dialects.client_profiles import Dialect
from registry.dialects.merging import ANNOTATIONS, any_of, conjoin, union
from registry.dialects.shaping import inferred
from registry.dialects.weakening import PLACE, Report, Spot
from registry.errors import SchemaRejected
from registry.schema.references import REFERENCE_KEYWORDS, Document
from registry.schema.schemas import MAX_SCHEMA_BYTES, measure
from registry.schema.text import excerpt

UNROLLED: Final = 3
"""How many levels of a recursion are shown where it cannot be named."""
_MAX_PARTS: Final = 256
_MAX_NESTED: Final = 32
_ROOM_CHARS: Final = 100_000
_COMPOUND: Final = REFERENCE_KEYWORDS | {"allOf", "anyOf", "oneOf"}
_COMPOSITION: Final = ("anyOf", "oneOf")
_DRAFTS_WITHOUT_SIBLINGS: Final = re.compile(r"json-schema\.org/draft-0[3-7]/")


class Flattening:
    """One pass over one document; what is open is counted, and what all of it costs.

    Attributes:
        document: Where the references of the original lead.
        exhausted: References were cut because the whole grew too large.
    """

    def __init__(self, root: dict[str, Any], rules: Dialect, report: Report, unrolled: int) -> None:
        self.exhausted = False
        self._rules = rules
        self._report = report
        self._unrolled = unrolled
        self.document = Document(root)
        self._exact = {"#": root}
        for keyword in ("$defs", "definitions"):
            if isinstance(definitions := root.get(keyword), dict):
                for name, target in definitions.items():
                    self._exact[f"#/{keyword}/{name.replace('~', '~0').replace('/', '~1')}"] = target
        declared = root.get("$schema")
        # Older drafts ignore whatever stands beside a reference.
        self._lonely = isinstance(declared, str) and bool(_DRAFTS_WITHOUT_SIBLINGS.search(declared))
        self._open: Counter[int] = Counter({id(root): 1})
        self._room = _ROOM_CHARS + 2 * _size(root)

    def plain(self, node: dict[str, Any], spot: Spot, whole: bool) -> dict[str, Any]:
        """Return a schema without the composition that cannot stay; its subschemas are as they were.

        Args:
            node: The schema.
            spot: Where it will be.
            whole: It is the root, and no composition may stay.
        """
        self._room -= own_size(node)
        plain = self._flat(node, spot, whole)
        if not self._rules.typed:
            return self._merged(plain, spot, whole)
        plain = self._merged(inferred(plain, spot.path, self._report), spot, whole)
        return inferred(plain, spot.path, self._report)

    def leave(self, spot: Spot) -> None:
        """Close the definitions that were opened for a schema."""
        for target in spot.entered:
            self._open[target] -= 1

    def _flat(self, node: dict[str, Any], spot: Spot, whole: bool) -> dict[str, Any]:
        """Return a schema without the references and the `allOf` that cannot stay; its subschemas are as they were."""
        rules = self._rules
        flatten = isinstance(node.get("allOf"), list) and (whole or rules.typed)
        if flatten and not whole and (alias := self._alias(node)) is not None:
            return alias
        if not flatten and not self._inlines(node, whole):
            return node
        parts: list[dict[str, Any]] = []
        pending: list[Any] = [node]
        seen = {id(node)}
        while pending:
            part = pending.pop(0)
            if len(parts) >= _MAX_PARTS:
                self._report.note(spot.path, "allOf", f"more than {_MAX_PARTS} parts")
                break
            own = part if part is node else {key: child for key, child in part.items() if key not in PLACE}
            if self._inlines(part, whole or (rules.typed and (flatten or part is not node))):
                kept = ANNOTATIONS | {"$defs", "definitions", "$schema", "$id"} if self._lonely else own.keys()
                own = {key: child for key, child in own.items() if key not in REFERENCE_KEYWORDS and key in kept}
                for target in self.document.targets(part):
                    if not isinstance(target, dict) or id(target) in seen:
                        continue
                    if self._open[id(target)] >= self._unrolled or self._room < 0:
                        parts.append(self._cut(target, spot))
                        continue
                    seen.add(id(target))
                    spot.entered.append(id(target))
                    self._open[id(target)] += 1
                    self._room -= own_size(target)
                    pending.append(target)
            if (whole or rules.typed) and isinstance(members := own.get("allOf"), list):
                own = {key: child for key, child in own.items() if key != "allOf"}
                for member in members:
                    if member is False:
                        parts.append({"not": {}})
                    elif isinstance(member, dict) and id(member) not in seen:
                        seen.add(id(member))
                        pending.append(member)
            parts.append(own)
        return conjoin(parts)

    def _alias(self, node: dict[str, Any]) -> dict[str, Any] | None:
        """A lone reference inside `allOf`, as older generators write it, is that reference."""
        [member, *others] = node["allOf"] or [None]
        if others or not isinstance(member, dict) or member.keys() != {"$ref"} or self._inlines(member, False):
            return None
        if node.keys() - ANNOTATIONS - PLACE != {"allOf"}:
            return None
        return {**{key: child for key, child in node.items() if key != "allOf"}, "$ref": member["$ref"]}

    def _inlines(self, node: dict[str, Any], always: bool) -> bool:
        if REFERENCE_KEYWORDS.isdisjoint(node):
            return False
        if always or not self._rules.refs or not node.keys().isdisjoint({"$dynamicRef", "$recursiveRef"}):
            return True
        if self._rules.typed and not node.keys() - {"$ref"} <= ANNOTATIONS | PLACE and not self._lonely:
            return True
        target = self._exact.get(node["$ref"]) if isinstance(node["$ref"], str) else None
        targets = self.document.targets(node)
        return not isinstance(target, dict) or len(targets) != 1 or targets[0] is not target

    def _cut(self, target: dict[str, Any], spot: Spot) -> dict[str, Any]:
        kind = target.get("type")
        if self._room < 0:
            self.exhausted = True
            spot.told.append("too large to be shown")
            self._report.note(spot.path, "$ref", "too large to be inlined")
        else:
            spot.told.append(f"goes on in the same way, shown {self._unrolled} levels deep")
            self._report.note(spot.path, "$ref", f"recursion shown {self._unrolled} levels deep")
        ignored = self._lonely and "$ref" in target
        return {"type": kind} if isinstance(kind, str) and not self._rules.strict and not ignored else {}

    def _merged(self, node: dict[str, Any], spot: Spot, whole: bool) -> dict[str, Any]:
        """Return a schema whose alternatives can stay as they are, or are merged into one object."""
        if not (whole or self._rules.typed):
            return node
        plain, lists = self._apart(node, spot)
        if not lists:
            return plain
        if not whole and (plain.get("type") != "object" or len(lists) == 1):
            return self._alternatives(node, plain, lists, spot)
        for keyword, branches in lists:
            plain = conjoin([plain, self._united(keyword, branches, spot, 0)])
        return self._apart(plain, spot)[0]

    def _alternatives(
        self,
        node: dict[str, Any],
        plain: dict[str, Any],
        lists: list[tuple[str, list[Any]]],
        spot: Spot,
    ) -> dict[str, Any]:
        """Return a schema with one list of alternatives and nothing beside it, or with their common form."""
        others = []
        for keyword, branches in lists:
            usable = [branch for branch in branches if branch is not False and branch != {"not": {}}]
            joined = any_of(usable) if usable else {}
            if not isinstance(joined, dict) or not joined.keys() & {"enum", "const"} or joined.keys() & _COMPOUND:
                others.append((keyword, branches, usable))
                continue
            titles = [one for one in usable if isinstance(one, dict) and isinstance(one.get("title"), str)]
            if titles:
                spot.told.append("; ".join(f"{hints.brief(one)}: {excerpt(one['title'], 40)}" for one in titles[:20]))
            plain = conjoin([plain, {key: value for key, value in joined.items() if key not in ANNOTATIONS}])
        for keyword, branches, usable in others:
            constraints = {key for key in plain if not self._rules.removes(key)} - ANNOTATIONS - PLACE - {"nullable"}
            if plain.get("type") == "object" and constraints:
                plain = conjoin([plain, self._united(keyword, branches, spot, 0)])
            elif constraints:
                self._report.tell(keyword, {keyword: branches}, spot)
            else:
                if keyword == "oneOf":
                    self._report.note(spot.path, keyword, "more than one may fit")
                elif len(usable) == len(branches) and plain.keys() | {"anyOf"} == node.keys():
                    return node
                plain = {**plain, "anyOf": usable or [{}]}
        return self._apart(plain, spot)[0] if "allOf" in plain else plain

    def _apart(self, node: dict[str, Any], spot: Spot) -> tuple[dict[str, Any], list[Any]]:
        """Split off lists of alternatives; what else `allOf` still holds is told."""
        lists = [(keyword, node[keyword]) for keyword in _COMPOSITION if isinstance(node.get(keyword), list)]
        if not lists and "allOf" not in node:
            return node, []
        for left in node.get("allOf", ()):
            for keyword, value in left.items():
                if keyword in _COMPOSITION and isinstance(value, list):
                    lists.append((keyword, value))
                else:
                    self._report.tell(keyword, left, spot)
        return {key: child for key, child in node.items() if key not in (*_COMPOSITION, "allOf")}, lists

    def _united(self, keyword: str, branches: list[Any], spot: Spot, depth: int) -> dict[str, Any]:
        quiet = Spot(spot.path, [], spot.entered)
        flat = [self._summary(branch, quiet, depth) for branch in branches]
        united = union(flat)
        if depth == 0:
            spot.told.append(hints.alternatives(keyword, flat))
        self._report.note(spot.path, keyword, "alternatives merged into one object", narrower=united.narrower)
        for lost in sorted(united.lost):
            self._report.note(spot.path, lost, "not shown for each alternative")
        return united.schema

    def _summary(self, branch: Any, spot: Spot, depth: int) -> Any:
        if not isinstance(branch, dict):
            return branch
        if depth > _MAX_NESTED:
            self._report.note(spot.path, "anyOf", f"not shown beyond {_MAX_NESTED} levels")
            return {}
        flat, lists = self._apart(self._flat(branch, spot, True), spot)
        for keyword, branches in lists:
            flat = conjoin([flat, self._united(keyword, branches, spot, depth + 1)])
        return self._apart(flat, spot)[0]


def _size(root: dict[str, Any]) -> int:
    try:
        return measure(root).size
    except SchemaRejected:
        return MAX_SCHEMA_BYTES  # only what was lowered before can be larger than intake admits


def own_size(node: dict[str, Any]) -> int:
    """Return about as many characters as a schema has without its subschemas."""
    size = 10 + 8 * len(node)
    for value in node.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            size += sum(8 + (len(one) if isinstance(one, str) else 0) for one in value)
        elif isinstance(value, dict):
            size += 8 * len(value)
    return size
