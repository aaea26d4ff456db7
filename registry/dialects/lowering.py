"""One schema in the words of a dialect: references inlined, composition merged, the rest told in prose.

Everything that is done here makes a schema accept more, or is noted as `narrower`. Where accepting more
inside makes accepting less outside (`not`, `if`, `oneOf` and their like), the outer keyword goes. Inside is
also what a reference leads to: `changed` says which definitions a pass has changed, for the next to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.dialects.client_profiles import Dialect
from registry.dialects.flattening import UNROLLED, Flattening
from registry.dialects.merging import any_of
from registry.dialects.shaping import shaped, spelt
from registry.dialects.weakening import Report, Spot, Weakening
from registry.schema.json_paths import Path
from registry.schema.references import REFERENCE_KEYWORDS, SCHEMA_MAPS, Document
from registry.schema.text import excerpt

MAX_DEPTH: Final = 100
_MAX_STEPS: Final = 200_000
_BESIDE: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_GUARDS: Final = frozenset({"not", "if", "contains", "oneOf"}) | _BESIDE
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE: Final = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else"}
    | {"propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)


class Lowering:
    """One pass over one input schema.

    Attributes:
        told: What the root's description has to say.
        changed: The schemas of the original, by identity, of which something was changed.
        guarded: Whether it met a keyword that accepts less where what is inside accepts more.
    """

    def __init__(
        self,
        root: dict[str, Any],
        rules: Dialect,
        names: Mapping[str, str],
        unrolled: int = UNROLLED,
        *,
        weak: frozenset[int] = frozenset(),
    ) -> None:
        """Begin a pass.

        Args:
            root: The schema.
            rules: The dialect.
            names: Names of properties that are others there.
            unrolled: How often a recursion is opened where references cannot stay.
            weak: Definitions, by identity, that are known to accept more than they say.
        """
        self.told: list[str] = []
        self.changed: set[int] = set()
        self.guarded = False
        self._weak = weak
        self._steps = 0
        self._rules = rules
        self._names = names
        self._originals = {new: old for old, new in names.items()}
        self._report = Report()
        self._flattening = Flattening(root, rules, self._report, unrolled)

    @property
    def weakened(self) -> list[Weakening]:
        """What was noted on the way, each thing once."""
        return list(dict.fromkeys(self._report.weakened))

    @property
    def document(self) -> Document:
        """Where the references of the original lead."""
        return self._flattening.document

    @property
    def exhausted(self) -> bool:
        """Whether references were cut because the whole grew too large."""
        return self._flattening.exhausted

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the root of an input schema; the same object where nothing had to change."""
        lowered: dict[str, Any] = self._lower(schema, (), 0, whole=bool(self._rules.root_refused))
        if lowered is schema:
            return schema
        return _without_unused_definitions({**lowered, "type": "object"} if "type" not in lowered else lowered)

    def _lower(self, node: Any, path: Path, depth: int, *, whole: bool = False, name: str | None = None) -> Any:
        """Lower one schema; `name` is what the original calls the property that has another name here."""
        rules, report = self._rules, self._report
        if isinstance(node, bool):
            if not rules.typed:
                return node
            if not node:
                report.note(path, "false", "accepts anything instead of nothing")
            node = {}
        if not isinstance(node, dict):
            return node
        spot = Spot(path, [] if name is None else [f"originally named {excerpt(name, 100)}"])
        if depth > MAX_DEPTH:
            report.note(path, "depth", f"not shown beyond {MAX_DEPTH} levels")
            spot.told.append("not shown")
            return self._finished({}, spot)
        plain = self._flattening.plain(node, spot, whole)
        if not rules.tuples:
            plain = self._untupled(plain, spot)
        plain = spelt(plain, rules, spot, report)
        plain = self._removed(plain, spot, whole)
        plain = self._renamed(plain, path)
        lowered = self._guarded(node, plain, self._children(plain, path, depth), spot)
        self._flattening.leave(spot)
        finished = self._finished(lowered, spot)
        if finished is not node:
            self.changed.add(id(node))
        return finished

    def _finished(self, node: dict[str, Any], spot: Spot) -> dict[str, Any]:
        node = shaped(node, self._rules, spot, self._report)
        told = list(dict.fromkeys(spot.told))
        if not spot.path:
            self.told = told
            return node
        if not told:
            return node
        words = "; ".join(told)
        said = node.get("description")
        return {**node, "description": f"{said} ({words})" if isinstance(said, str) and said else words}

    def _untupled(self, node: dict[str, Any], spot: Spot) -> dict[str, Any]:
        keyword = "prefixItems" if isinstance(node.get("prefixItems"), list) else "items"
        places = node.get(keyword)
        if not isinstance(places, list):
            return node
        self._report.tell(keyword, node, spot)
        rest = node.get("items" if keyword == "prefixItems" else "additionalItems", True)
        plain = {key: child for key, child in node.items() if key not in ("prefixItems", "items", "additionalItems")}
        most = node.get("maxItems")
        if not (isinstance(most, int | float) and most <= len(places)) and rest is not False:
            places = [*places, rest]
        return {**plain, "items": any_of(places) if places else {}}

    def _removed(self, node: dict[str, Any], spot: Spot, whole: bool) -> dict[str, Any]:
        rules = self._rules
        gone = {key for key in node if rules.removes(key) or (whole and key in rules.root_refused)}
        if not gone:
            return node
        if "patternProperties" in gone and "additionalProperties" in node:
            gone.add("additionalProperties")
        for keyword in node:
            if keyword in gone:
                self._report.tell(keyword, node, spot)
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
        # A schema that names no property itself may stand beside one that does, and speak of the same object.
        whole = {word for word in ("enum", "const") if word in node and (changes or _holds_object(node[word]))}
        gone = whole | ({"propertyNames"} & node.keys())
        if not changes and not gone and "patternProperties" not in node:
            return node
        if "patternProperties" in node:
            gone |= {"patternProperties", "additionalProperties"} & node.keys()
        for keyword in sorted(gone):
            self._report.note(path, keyword, "removed, for it speaks of names that are others here")
        for name in node.get("properties", ()):
            if name in names:
                self._report.note(
                    (*path, "properties", names[name]), "properties", f"renamed from {excerpt(name, 100)}"
                )
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
        changed = False
        for name, child in children.items():
            below: Any = child
            if keyword == "properties" and (child is False or child == {"not": {}}):
                if self._rules.removes("not"):
                    self._report.note((*path, keyword, name), "false", "not shown")
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

    def _guarded(
        self, node: dict[str, Any], plain: dict[str, Any], lowered: dict[str, Any], spot: Spot
    ) -> dict[str, Any]:
        """Take out what would accept less now because something inside it, or beside it, accepts more."""
        guards = _GUARDS & lowered.keys()
        self.guarded = self.guarded or bool(guards)
        leaning = {key for key in guards if self._leans(node if key in _BESIDE else node.get(key))}
        if lowered is node and not leaning:
            return lowered
        gone: set[str] = set()
        changed = leaning | {key for key in lowered if lowered[key] is not plain[key]}
        if "not" in changed:
            gone.add("not")
        if "if" in changed:
            gone |= {"if", "then", "else"} & lowered.keys()
        if "contains" in changed and "maxContains" in lowered:
            gone.add("maxContains")
        gone |= _BESIDE & lowered.keys()
        if "oneOf" in changed:
            self._report.note(spot.path, "oneOf", "more than one may fit")
            branches = lowered["oneOf"]
            lowered = {key: child for key, child in lowered.items() if key != "oneOf"}
            if "anyOf" in lowered:
                lowered["allOf"] = [*lowered.get("allOf", ()), {"anyOf": branches}]
            else:
                lowered["anyOf"] = branches
        for keyword in sorted(gone):
            self._report.tell(keyword, plain, spot)
        return {key: child for key, child in lowered.items() if key not in gone} if gone else lowered

    def _leans(self, schema: Any) -> bool:
        """Tell whether references in a schema lead to what is weak, be it by way of others."""
        pending, seen = [schema] if self._weak else [], set[int]()
        while pending:
            one = pending.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            self._steps += 1
            if isinstance(one, dict) and not REFERENCE_KEYWORDS.isdisjoint(one):
                targets = self.document.targets(one)
                # A copy leads nowhere that is known.
                if not targets or self._steps > _MAX_STEPS or any(id(target) in self._weak for target in targets):
                    return True
                pending += targets
            children = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            pending += [child for child in children if isinstance(child, dict | list)]
        return False


def _holds_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


def _without_unused_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop what only references that are gone led to; what stays refers to definitions of the root by name."""
    for keyword in ("$defs", "definitions"):
        definitions = schema.get(keyword)
        if not isinstance(definitions, dict):
            continue
        named = {f"#/{keyword}/{name.replace('~', '~0').replace('/', '~1')}": name for name in definitions}
        used: set[str] = set()
        pending: list[Any] = [{key: child for key, child in schema.items() if key != keyword}]
        while pending:
            node = pending.pop()
            name = named.get(node["$ref"]) if isinstance(node, dict) and isinstance(node.get("$ref"), str) else None
            if name is not None and name not in used:
                used.add(name)
                pending.append(definitions[name])
            children = node.values() if isinstance(node, dict) else node
            pending += [child for child in children if isinstance(child, dict | list)]
        if len(used) < len(definitions):
            schema = {key: child for key, child in schema.items() if key != keyword or used}
            if used:
                schema[keyword] = {name: child for name, child in definitions.items() if name in used}
    return schema
