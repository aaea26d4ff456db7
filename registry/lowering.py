"""One schema in the words of a dialect: references inlined, composition merged, the rest told in prose.

Everything that is done here makes a schema accept more, or is noted as `narrower`. Where accepting more
inside makes accepting less outside (`not`, `if`, `oneOf` and their like), the outer keyword goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry import hints
from registry.hosts import Dialect
from registry.joining import ANNOTATIONS, any_of, conjoin, union
from registry.places import Path
from registry.references import REFERENCE_KEYWORDS, SCHEMA_MAPS, Document
from registry.schemas import measure
from registry.shaping import inferred, shaped, spelt
from registry.texts import excerpt

MAX_DEPTH: Final = 100
UNROLLED: Final = 3
"""How many levels of a recursion are shown where it cannot be named."""
_MAX_PARTS: Final = 256
_MAX_NESTED: Final = 32
_ROOM_CHARS: Final = 100_000
_COMPOSITION: Final = ("anyOf", "oneOf")
_PLACE: Final = frozenset({"$id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"})
_UNTOLD: Final = _PLACE | {"$comment", "title", "$vocabulary"}
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE: Final = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else"}
    | {"propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_DRAFTS_WITHOUT_SIBLINGS: Final = re.compile(r"json-schema\.org/draft-0[3-7]/")


@dataclass(frozen=True, slots=True)
class Weakening:
    """What one place of a lowered schema no longer says.

    Attributes:
        path: The steps from the root of the lowered schema; empty for the tool as a whole.
        keyword: What was changed there.
        how: One phrase.
        narrower: A call that the original accepts may not be expressible; otherwise more is accepted.
    """

    path: Path
    keyword: str
    how: str
    narrower: bool = False


class Lowering:
    """One pass over one schema; `weakened` and `told` are filled on the way.

    Attributes:
        told: What the root's description has to say.
        exhausted: References were cut because the whole grew too large.
    """

    def __init__(self, root: dict[str, Any], rules: Dialect, names: Mapping[str, str], unrolled: int = UNROLLED):
        self.weakened: list[Weakening] = []
        self.told: list[str] = []
        self.exhausted = False
        self._rules = rules
        self._names = names
        self._unrolled = unrolled
        self._document = Document(root)
        self._exact = {"#": root}
        for keyword in ("$defs", "definitions"):
            if isinstance(definitions := root.get(keyword), dict):
                for name, target in definitions.items():
                    self._exact[f"#/{keyword}/{name.replace('~', '~0').replace('/', '~1')}"] = target
        declared = root.get("$schema")
        self._lonely = isinstance(declared, str) and bool(_DRAFTS_WITHOUT_SIBLINGS.search(declared))
        self._open: Counter[int] = Counter({id(root): 1})
        self._room = _ROOM_CHARS + 2 * measure(root).size

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the root of an input schema; the same object where nothing had to change."""
        lowered: dict[str, Any] = self._lower(schema, (), 0, whole=bool(self._rules.root_refused))
        return lowered if lowered.get("type") == "object" else {**lowered, "type": "object"}

    def _note(self, path: Path, keyword: str, how: str, *, narrower: bool = False) -> None:
        self.weakened.append(Weakening(path, keyword, how, narrower))

    def _lower(self, node: Any, path: Path, depth: int, *, whole: bool = False, name: str | None = None) -> Any:
        """Lower one schema; `name` is what the original calls the property that has another name here."""
        rules = self._rules
        if isinstance(node, bool):
            if not rules.typed:
                return node
            if not node:
                self._note(path, "false", "accepts anything instead of nothing")
            node = {}
        if not isinstance(node, dict):
            return node
        if depth > MAX_DEPTH:
            self._note(path, "depth", f"not shown beyond {MAX_DEPTH} levels")
            return self._finished({}, path, ["not shown"], False)
        told: list[str] = [] if name is None else [f"originally named {excerpt(name, 100)}"]
        entered: list[int] = []
        self._room -= _own_size(node)
        plain = self._flat(node, path, told, entered, whole)
        if rules.typed:
            plain = inferred(plain, path, self._note)
        plain = self._merged(plain, path, told, entered, whole)
        if rules.typed:
            plain = inferred(plain, path, self._note)
        if not rules.tuples:
            plain = self._untupled(plain, path, told)
        plain = spelt(plain, rules, path, told, self._note)
        plain = self._removed(plain, path, told, whole)
        plain = self._renamed(plain, path)
        lowered = self._children(plain, path, depth)
        lowered = self._guarded(node, plain, lowered, path, told)
        lowered = self._finished(lowered, path, told, not path)
        for target in entered:
            self._open[target] -= 1
        return lowered

    def _finished(self, node: dict[str, Any], path: Path, told: list[str], is_root: bool) -> dict[str, Any]:
        node = shaped(node, self._rules, path, told, self._note)
        if is_root:
            self.told = list(dict.fromkeys(told))
            return node
        if not told:
            return node
        words = "; ".join(dict.fromkeys(told))
        said = node.get("description")
        return {**node, "description": f"{said} ({words})" if isinstance(said, str) and said else words}

    # References and composition

    def _flat(self, node: dict[str, Any], path: Path, told: list[str], entered: list[int], whole: bool) -> Any:
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
                self._note(path, "allOf", f"more than {_MAX_PARTS} parts")
                break
            own = part if part is node else {key: child for key, child in part.items() if key not in _PLACE}
            if self._inlines(part, whole or (rules.typed and (flatten or part is not node))):
                kept = ANNOTATIONS | {"$defs", "definitions", "$schema", "$id"} if self._lonely else own.keys()
                own = {key: child for key, child in own.items() if key not in REFERENCE_KEYWORDS and key in kept}
                for target in self._document.targets(part):
                    if not isinstance(target, dict) or id(target) in seen:
                        continue
                    if self._open[id(target)] >= self._unrolled or self._room < 0:
                        parts.append(self._cut(target, path, told))
                        continue
                    seen.add(id(target))
                    entered.append(id(target))
                    self._open[id(target)] += 1
                    self._room -= _own_size(target)
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
        if node.keys() - ANNOTATIONS - _PLACE != {"allOf"}:
            return None
        return {**{key: child for key, child in node.items() if key != "allOf"}, "$ref": member["$ref"]}

    def _inlines(self, node: dict[str, Any], always: bool) -> bool:
        if REFERENCE_KEYWORDS.isdisjoint(node):
            return False
        if always or not self._rules.refs or not node.keys().isdisjoint({"$dynamicRef", "$recursiveRef"}):
            return True
        if self._rules.typed and not node.keys() - {"$ref"} <= ANNOTATIONS | _PLACE and not self._lonely:
            return True
        target = self._exact.get(node["$ref"]) if isinstance(node["$ref"], str) else None
        targets = self._document.targets(node)
        return not isinstance(target, dict) or len(targets) != 1 or targets[0] is not target

    def _cut(self, target: dict[str, Any], path: Path, told: list[str]) -> dict[str, Any]:
        kind = target.get("type")
        if self._room < 0:
            self.exhausted = True
            told.append("too large to be shown")
            self._note(path, "$ref", "too large to be inlined")
        else:
            told.append(f"goes on in the same way, shown {self._unrolled} levels deep")
            self._note(path, "$ref", f"recursion shown {self._unrolled} levels deep")
        ignored = self._lonely and "$ref" in target
        return {"type": kind} if isinstance(kind, str) and not self._rules.strict and not ignored else {}

    def _merged(self, node: dict[str, Any], path: Path, told: list[str], entered: list[int], whole: bool) -> Any:
        """Return a schema whose alternatives can stay as they are, or are merged into one object."""
        if not (whole or self._rules.typed):
            return node
        plain, lists = self._apart(node, path, told)
        if not lists:
            return plain
        if not whole and (plain.get("type") != "object" or len(lists) == 1):
            return self._alternatives(node, plain, lists, path, told, entered)
        for keyword, branches in lists:
            plain = conjoin([plain, self._united(keyword, branches, path, told, entered, 0)])
        return self._apart(plain, path, told)[0]

    def _alternatives(
        self,
        node: dict[str, Any],
        plain: dict[str, Any],
        lists: list[tuple[str, list[Any]]],
        path: Path,
        told: list[str],
        entered: list[int],
    ) -> dict[str, Any]:
        """Return a schema with one list of alternatives and nothing beside it, or with their common form."""
        constraints = {key for key in plain if not self._rules.removes(key)} - ANNOTATIONS - _PLACE - {"nullable"}
        for keyword, branches in lists:
            usable = [branch for branch in branches if branch is not False and branch != {"not": {}}]
            joined = any_of(usable) if usable else {}
            if isinstance(joined, dict) and "enum" in joined:
                titles = [one for one in usable if isinstance(one, dict) and isinstance(one.get("title"), str)]
                if titles:
                    told.append("; ".join(f"{hints.brief(one)}: {excerpt(one['title'], 40)}" for one in titles[:20]))
                plain = conjoin([plain, {key: value for key, value in joined.items() if key not in ANNOTATIONS}])
            elif plain.get("type") == "object" and constraints:
                plain = conjoin([plain, self._united(keyword, branches, path, told, entered, 0)])
            elif not constraints and "anyOf" not in plain:
                if keyword == "oneOf":
                    self._note(path, keyword, "more than one may fit")
                elif len(usable) == len(branches) and plain.keys() | {"anyOf"} == node.keys():
                    return node
                plain = {**plain, "anyOf": usable or [{}]}
            else:
                self._tell(keyword, {keyword: branches}, path, told)
        return self._apart(plain, path, told)[0] if "allOf" in plain else plain

    def _apart(self, node: dict[str, Any], path: Path, told: list[str]) -> tuple[dict[str, Any], list[Any]]:
        """Split off lists of alternatives; what else `allOf` still holds is told."""
        lists = [(keyword, node[keyword]) for keyword in _COMPOSITION if isinstance(node.get(keyword), list)]
        if not lists and "allOf" not in node:
            return node, []
        for left in node.get("allOf", ()):
            for keyword, value in left.items():
                if keyword in _COMPOSITION and isinstance(value, list):
                    lists.append((keyword, value))
                else:
                    self._tell(keyword, left, path, told)
        return {key: child for key, child in node.items() if key not in (*_COMPOSITION, "allOf")}, lists

    def _united(
        self, keyword: str, branches: list[Any], path: Path, told: list[str], entered: list[int], depth: int
    ) -> dict[str, Any]:
        flat = [self._summary(branch, path, entered, depth) for branch in branches]
        united = union(flat)
        if depth == 0:
            told.append(hints.alternatives(keyword, flat))
        self._note(path, keyword, "alternatives merged into one object", narrower=united.narrower)
        for lost in sorted(united.lost):
            self._note(path, lost, "not shown for each alternative")
        return united.schema

    def _summary(self, branch: Any, path: Path, entered: list[int], depth: int) -> Any:
        if not isinstance(branch, dict):
            return branch
        if depth > _MAX_NESTED:
            self._note(path, "anyOf", f"not shown beyond {_MAX_NESTED} levels")
            return {}
        told: list[str] = []
        flat, lists = self._apart(self._flat(branch, path, told, entered, True), path, told)
        for keyword, branches in lists:
            flat = conjoin([flat, self._united(keyword, branches, path, told, entered, depth + 1)])
        return self._apart(flat, path, told)[0]

    # Keywords

    def _tell(self, keyword: str, node: Mapping[str, Any], path: Path, told: list[str]) -> None:
        words = hints.hint(keyword, node)
        if words:
            told.append(words)
        if keyword not in _UNTOLD and not keyword.startswith("x-"):
            self._note(path, keyword, f"told: {words}" if words else "removed")

    def _untupled(self, node: dict[str, Any], path: Path, told: list[str]) -> dict[str, Any]:
        keyword = "prefixItems" if isinstance(node.get("prefixItems"), list) else "items"
        places = node.get(keyword)
        if not isinstance(places, list):
            return node
        self._tell(keyword, node, path, told)
        rest = node.get("items" if keyword == "prefixItems" else "additionalItems", True)
        plain = {key: child for key, child in node.items() if key not in ("prefixItems", "items", "additionalItems")}
        most = node.get("maxItems")
        if not (isinstance(most, int | float) and most <= len(places)) and rest is not False:
            places = [*places, rest]
        return {**plain, "items": any_of(places) if places else {}}

    def _removed(self, node: dict[str, Any], path: Path, told: list[str], whole: bool) -> dict[str, Any]:
        rules = self._rules
        gone = {key for key in node if rules.removes(key) or (whole and key in rules.root_refused)}
        if not gone:
            return node
        if "patternProperties" in gone and not rules.strict and "additionalProperties" in node:
            gone.add("additionalProperties")
        for keyword in node:
            if keyword in gone:
                self._tell(keyword, node, path, told)
        return {key: child for key, child in node.items() if key not in gone}

    def _renamed(self, node: dict[str, Any], path: Path) -> dict[str, Any]:
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
                mapped = {name: self._demanded(child) for name, child in children.items()}
                if any(mapped[name] is not child for name, child in children.items()):
                    changes[keyword] = mapped
        required = node.get("required")
        if (demanded := self._demanded(required)) is not required:
            changes["required"] = demanded
        if not changes:
            return node
        gone = {"propertyNames", "enum", "const"} & node.keys()
        if "patternProperties" in node:
            gone |= {"patternProperties", "additionalProperties"} & node.keys()
        for keyword in sorted(gone):
            self._note(path, keyword, "removed, for it speaks of names that are others here")
        for name in node.get("properties", ()):
            if name in names:
                self._note((*path, "properties", names[name]), "properties", f"renamed from {excerpt(name, 100)}")
        return {key: child for key, child in {**node, **changes}.items() if key not in gone}

    def _demanded(self, names: Any) -> Any:
        if not isinstance(names, list) or self._names.keys().isdisjoint(one for one in names if isinstance(one, str)):
            return names
        return [self._names.get(name, name) for name in names]

    # Below

    def _children(self, node: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        changed = False
        for key, child in node.items():
            below: Any = child
            if isinstance(child, dict) and key in SCHEMA_MAPS:
                below = self._map(key, child, path, depth)
            elif isinstance(child, list) and key in _LISTS:
                items = []
                for place, one in enumerate(child):
                    items.append(self._lower(one, (*path, key, place), depth + 1))
                below = child if all(a is b for a, b in zip(items, child, strict=True)) else items
            elif (isinstance(child, dict) and key in _SINGLE) or (isinstance(child, bool) and key == "items"):
                below = self._lower(child, (*path, key), depth + 1)
            lowered[key] = below
            changed = changed or below is not child
        return lowered if changed else node

    def _map(self, keyword: str, children: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        originals = {new: old for old, new in self._names.items()} if keyword == "properties" else {}
        changed = False
        for name, child in children.items():
            below: Any = child
            if keyword == "properties" and (child is False or child == {"not": {}}):
                if self._rules.removes("not"):
                    self._note((*path, keyword, name), "false", "not shown")
                    changed = True
                    continue
                below = {"not": {}} if child is False else child
            else:
                plain = {} if child is True and keyword == "properties" else child
                below = self._lower(plain, (*path, keyword, name), depth + 1, name=originals.get(name))
            lowered[name] = below
            changed = changed or below is not child
        return lowered if changed else children

    def _guarded(
        self, node: dict[str, Any], plain: dict[str, Any], lowered: dict[str, Any], path: Path, told: list[str]
    ) -> dict[str, Any]:
        """Take out what would accept less now because something inside it, or beside it, accepts more."""
        if lowered is node:
            return lowered
        gone: set[str] = set()
        changed = {key for key in lowered if lowered[key] is not plain[key]}
        if "not" in changed:
            gone.add("not")
        if "if" in changed:
            gone |= {"if", "then", "else"} & lowered.keys()
        if "contains" in changed and "maxContains" in lowered:
            gone.add("maxContains")
        gone |= {key for key in ("unevaluatedItems", "unevaluatedProperties") if key in lowered}
        if "oneOf" in changed:
            self._note(path, "oneOf", "more than one may fit")
            branches = lowered["oneOf"]
            lowered = {key: child for key, child in lowered.items() if key != "oneOf"}
            if "anyOf" in lowered:
                lowered["allOf"] = [*lowered.get("allOf", ()), {"anyOf": branches}]
            else:
                lowered["anyOf"] = branches
        for keyword in sorted(gone):
            self._tell(keyword, plain, path, told)
        return {key: child for key, child in lowered.items() if key not in gone} if gone else lowered


def _own_size(node: dict[str, Any]) -> int:
    """About as many characters as a schema has without its subschemas."""
    size = 10 + 8 * len(node)
    for value in node.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            size += sum(8 + (len(one) if isinstance(one, str) else 0) for one in value)
        elif isinstance(value, dict):
            size += 8 * len(value)
    return size
