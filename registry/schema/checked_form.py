"""The form of a schema in which values are checked: it never refuses what the schema accepts, and can be compiled.

It differs where the schema says something that a check must not enforce, or cannot: null is accepted where `nullable`
or a default of null says so, `format` and the `content` keywords are annotations, and patterns that cannot be run here
are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from registry.schema.json_values import containers
from registry.schema.patterns import (
    MAX_COMPILE_COST,
    PATTERN_BYTES,
    RunnablePattern,
    compile_cost,
    runnable_pattern,
)
from registry.schema.references import SchemaDocument
from registry.schema.weakening import Edit, schema_objects, weakened

_NULL: Final[dict[str, Any]] = {"type": "null"}
# The compiler enforces these in drafts 6 and 7.
_ANNOTATIONS: Final = frozenset({"contentEncoding", "contentMediaType", "contentSchema"})
# Below these it matters that a `format` is not enforced, since what accepts more makes them accept less.
_REVERSING: Final = frozenset({"not", "if", "oneOf", "maxContains"})
_OF_INTEREST: Final = _ANNOTATIONS | {"pattern", "patternProperties", "format"}
_DEFINITIONS: Final = frozenset({"$defs", "definitions", "$schema", "$id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedForm:
    """A schema as it is checked.

    Attributes:
        schema: With patterns that all can be run; the very schema if nothing had to change.
        runnable: What is run, by the pattern in the original schema.
        left_out: The other patterns.
    """

    schema: Any
    runnable: dict[str, RunnablePattern]
    left_out: tuple[str, ...]

    @property
    def backtracking(self) -> bool:
        """Whether a pattern needs the engine that goes back."""
        return any(pattern.engine == "backtracking" for pattern in self.runnable.values())


def checked_form(
    schema: Any,
    *,
    lone_references: bool = False,
    without_quadratic: bool = False,
    max_weight: int = PATTERN_BYTES,
) -> CheckedForm:
    """Return a schema, whose nesting is shallow enough to recurse, as it is checked.

    Args:
        schema: The schema.
        lone_references: Whether its draft ignores what is beside a reference.
        without_quadratic: Leave out patterns that may not come to an end within `BACKTRACK_LIMIT` steps.
        max_weight: Leave out patterns whose compiled form takes more bytes.
    """
    if not any(_is_of_interest(node) for node in containers(schema) if isinstance(node, dict)):
        return CheckedForm(schema=schema, runnable={}, left_out=())
    document = SchemaDocument(schema)
    nodes = schema_objects(schema, document)
    form = _Form(
        lone_references=lone_references,
        without_quadratic=without_quadratic,
        max_weight=max_weight,
        affordable=_affordable(nodes),
        nullable=_nullable(nodes),
        minds_formats=any(not _REVERSING.isdisjoint(node) for node in nodes),
    )
    changed = weakened(schema, form.edit, document, nodes)
    return CheckedForm(schema=changed, runnable=form.runnable, left_out=tuple(dict.fromkeys(form.left_out)))


def with_nulls_spelled_out(schema: Any, *, lone_references: bool) -> Any:
    """Return a schema that says by types and alternatives where `nullable` makes it accept null."""
    if not any("nullable" in node for node in containers(schema) if isinstance(node, dict)):
        return schema
    document = SchemaDocument(schema)
    nodes = schema_objects(schema, document)
    nullable = _with_parts([node for node in nodes if node.get("nullable") is True])

    def edit(node: dict[str, Any]) -> Edit:
        edit = Edit(dropped={"nullable"} & node.keys())
        if id(node) in nullable:
            accept_null(node, edit, lone=lone_references)
        return edit

    return weakened(schema, edit, document, nodes)


def _is_of_interest(node: dict[str, Any]) -> bool:
    """Return whether an object, which may be a schema, may say what is checked in another form."""
    return not _OF_INTEREST.isdisjoint(node) or says_nullable(node)


@dataclass(slots=True, kw_only=True)
class _Form:
    lone_references: bool
    without_quadratic: bool
    max_weight: int
    affordable: frozenset[str]
    nullable: frozenset[int]
    minds_formats: bool
    left_out: list[str] = field(default_factory=list)
    runnable: dict[str, RunnablePattern] = field(default_factory=dict)

    def edit(self, node: dict[str, Any]) -> Edit:
        edit = Edit()
        if self.minds_formats and "format" in node:
            edit.widens = True
        if not _ANNOTATIONS.isdisjoint(node):
            edit.dropped |= _ANNOTATIONS & node.keys()
            edit.widens = True
        if isinstance(pattern := node.get("pattern"), str):
            self._edit_pattern(node, pattern, edit)
        if isinstance(members := node.get("patternProperties"), dict):
            self._edit_members(node, members, edit)
        if id(node) in self.nullable:
            accept_null(node, edit, lone=self.lone_references)
        return edit

    def _edit_pattern(self, node: dict[str, Any], pattern: str, edit: Edit) -> None:
        found = self._runnable(pattern)
        if found is None:
            edit.dropped.add("pattern")
            edit.widens = True
        elif found.lengths is not None:
            edit.changes |= _with_lengths(node, found)
        elif found.source != pattern:
            edit.changes["pattern"] = found.source

    def _edit_members(self, node: dict[str, Any], members: dict[str, Any], edit: Edit) -> None:
        kept: dict[str, Any] = {}
        for name, child in members.items():
            found = self._runnable(name)
            # A name has no keyword for its length; and two that are run alike are not told apart.
            if found is not None and (found.lengths is not None or found.source in kept):
                self.left_out.append(name)
                found = None
            if found is not None:
                kept[found.source] = child
        if list(kept) != list(members):
            edit.changes["patternProperties"] = kept
        if len(kept) < len(members):
            # A name that this pattern may match is not undeclared.
            edit.dropped |= {"additionalProperties"} & node.keys()
            edit.widens = edit.uncovers = True

    def _runnable(self, pattern: str) -> RunnablePattern | None:
        found = runnable_pattern(pattern) if pattern in self.affordable else None
        if found is None or (self.without_quadratic and found.quadratic) or found.weight > self.max_weight:
            self.left_out.append(pattern)
            return None
        self.runnable[pattern] = found
        return found


def _affordable(nodes: list[dict[str, Any]]) -> frozenset[str]:
    """Return the patterns of schemas that are compiled within `MAX_COMPILE_COST`, the cheapest first."""
    patterns: set[str] = set()
    for node in nodes:
        if isinstance(pattern := node.get("pattern"), str):
            patterns.add(pattern)
        if isinstance(members := node.get("patternProperties"), dict):
            patterns.update(members)
    cost, kept = 0, []
    for own, pattern in sorted((compile_cost(pattern), pattern) for pattern in patterns):
        cost += own
        if cost > MAX_COMPILE_COST:
            break
        kept.append(pattern)
    return frozenset(kept)


def _with_lengths(node: dict[str, Any], found: RunnablePattern) -> dict[str, Any]:
    """Return the keywords that say what a counted pattern says."""
    assert found.lengths is not None
    least, most = found.lengths
    declared_least, declared_most = node.get("minLength"), node.get("maxLength")
    changes: dict[str, Any] = {"pattern": found.source}
    changes["minLength"] = max(least, declared_least) if isinstance(declared_least, int) else least
    if most is not None:
        changes["maxLength"] = min(most, declared_most) if isinstance(declared_most, int) else most
    return changes


def _nullable(nodes: list[dict[str, Any]]) -> frozenset[int]:
    """Return the identities of schemas that accept null, as they say by other words than their type."""
    return _with_parts([node for node in nodes if says_nullable(node)])


def _with_parts(nullable: list[dict[str, Any]]) -> frozenset[int]:
    """Return the identities of schemas, and of all that their values have to match as well."""
    found: set[int] = set()
    pending = list(nullable)
    while pending:
        node = pending.pop()
        if id(node) not in found:
            found.add(id(node))
            every = node.get("allOf")
            pending += [one for one in every if isinstance(one, dict)] if isinstance(every, list) else []
    return frozenset(found)


def says_nullable(node: dict[str, Any]) -> bool:
    """Return whether a schema says that null is accepted: as OpenAPI 3.0 does, by its default, or by an option."""
    if node.get("nullable") is True or node.get("x-nullable") is True:
        return True
    options = node.get("enum")
    return node.get("default", ...) is None or (isinstance(options, list) and None in options)


def accept_null(node: dict[str, Any], edit: Edit, *, lone: bool) -> None:
    """Edit the keywords of a schema that refuse null. Subschemas stay where they are: references may lead to them."""
    edit.widens = True
    reference = node.get("$ref")
    if isinstance(reference, str) and lone:
        edit.dropped |= node.keys() - _DEFINITIONS
        edit.changes = {"anyOf": [{"$ref": reference}, _NULL]}
        edit.dropped.discard("anyOf")
        return
    types, options = node.get("type"), node.get("enum")
    if isinstance(types, str) and types != "null":
        edit.changes["type"] = [types, "null"]
    elif isinstance(types, list) and "null" not in types:
        edit.changes["type"] = [*types, "null"]
    if isinstance(options, list) and None not in options:
        edit.changes["enum"] = [*options, None]
    if node.get("const") is not None:
        edit.dropped.add("const")
        edit.changes["enum"] = [node["const"], None]
    alternatives = node.get("anyOf")
    if isinstance(alternatives, list):
        edit.changes["anyOf"] = alternatives = [*alternatives, _NULL]
    either = node.get("oneOf")
    if isinstance(either, list) and all(isinstance(one, dict) and _refuses_null(one) for one in either):
        edit.changes["oneOf"] = [*either, _NULL]
    if isinstance(reference, str):
        edit.dropped.add("$ref")
        referred = [{"$ref": reference}, _NULL]
        if isinstance(alternatives, list):
            every = node.get("allOf")
            edit.changes["allOf"] = [*(every if isinstance(every, list) else ()), {"anyOf": referred}]
        else:
            edit.changes["anyOf"] = referred


def _refuses_null(schema: dict[str, Any]) -> bool:
    types = schema.get("type")
    return isinstance(types, str | list) and "null" not in types and not says_nullable(schema)
