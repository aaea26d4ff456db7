"""Derive the form of a schema for checks, which accepts every value that the schema accepts.

The checked form differs where a check must not or cannot enforce the schema: null is accepted where `nullable` or a
default of null allows it, `format` and the `content` keywords are not enforced, and patterns that cannot be run are
left out.
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
from registry.schema.weakening import Edit, apply_edits, schema_objects

_NULL: Final[dict[str, Any]] = {"type": "null"}
# These keywords are removed, because the compiler would enforce them in drafts 6 and 7.
_ANNOTATIONS: Final = frozenset({"contentEncoding", "contentMediaType", "contentSchema"})
# If a subschema of one of these keywords accepts more, the keyword accepts less. A `format` that is not enforced in
# such a subschema therefore has to be taken into account.
_REVERSING: Final = frozenset({"not", "if", "oneOf", "maxContains"})
_OF_INTEREST: Final = _ANNOTATIONS | {"pattern", "patternProperties"}
_DEFINITIONS: Final = frozenset({"$defs", "definitions", "$schema", "$id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedForm:
    """A schema in its checked form.

    Attributes:
        schema: The checked form, whose patterns can all be run; the original object if nothing had to change.
        runnable: The patterns of the original schema, with the form in which each is run.
        left_out: The patterns that cannot be run.
    """

    schema: Any
    runnable: dict[str, RunnablePattern]
    left_out: tuple[str, ...]

    @property
    def backtracking(self) -> bool:
        """True if a pattern needs the backtracking engine."""
        return any(pattern.engine == "backtracking" for pattern in self.runnable.values())


def checked_form(
    schema: Any,
    *,
    lone_references: bool = False,
    without_quadratic: bool = False,
    max_weight: int = PATTERN_BYTES,
) -> CheckedForm:
    """Return the checked form of a schema, which has to be shallow enough for recursion.

    Args:
        schema: The schema.
        lone_references: Whether the schema's draft ignores keywords next to a `$ref`.
        without_quadratic: Leave out patterns that may exceed `BACKTRACK_LIMIT` steps.
        max_weight: Leave out patterns whose compiled form has more bytes than this.
    """
    if not _is_of_interest(schema):
        return CheckedForm(schema=schema, runnable={}, left_out=())
    document = SchemaDocument(schema)
    nodes = schema_objects(schema, document)
    form = _Form(
        lone_references=lone_references,
        without_quadratic=without_quadratic,
        max_weight=max_weight,
        affordable=_affordable(nodes),
        nullable=_nullable(nodes),
        widened_by_formats=any(not _REVERSING.isdisjoint(node) for node in nodes),
    )
    changed = apply_edits(schema, form.edit, document, nodes)
    return CheckedForm(schema=changed, runnable=form.runnable, left_out=tuple(dict.fromkeys(form.left_out)))


def with_nulls_spelled_out(schema: Any, *, lone_references: bool) -> Any:
    """Return a schema in which types and alternatives express what `nullable` says."""
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

    return apply_edits(schema, edit, document, nodes)


def _is_of_interest(schema: Any) -> bool:
    """Return whether an object in a schema, at any depth, has keywords that the checked form changes."""
    has_format = is_reversed = False
    for node in containers(schema):
        if not isinstance(node, dict):
            continue
        if not _OF_INTEREST.isdisjoint(node) or says_nullable(node):
            return True
        has_format = has_format or "format" in node
        is_reversed = is_reversed or not _REVERSING.isdisjoint(node)
    return has_format and is_reversed


@dataclass(slots=True, kw_only=True)
class _Form:
    lone_references: bool
    without_quadratic: bool
    max_weight: int
    affordable: frozenset[str]
    nullable: frozenset[int]
    widened_by_formats: bool
    left_out: list[str] = field(default_factory=list)
    runnable: dict[str, RunnablePattern] = field(default_factory=dict)

    def edit(self, node: dict[str, Any]) -> Edit:
        edit = Edit()
        if self.widened_by_formats and "format" in node:
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
        runnable = self._runnable(pattern)
        if runnable is None:
            edit.dropped.add("pattern")
            edit.widens = True
        elif runnable.lengths is not None:
            edit.changes |= _with_lengths(node, runnable)
        elif runnable.source != pattern:
            edit.changes["pattern"] = runnable.source

    def _edit_members(self, node: dict[str, Any], members: dict[str, Any], edit: Edit) -> None:
        runnable_members: dict[str, Any] = {}
        for name, child in members.items():
            runnable = self._runnable(name)
            # No keyword limits the length of a name, and two patterns with the same source would collide.
            if runnable is not None and (runnable.lengths is not None or runnable.source in runnable_members):
                self.left_out.append(name)
                runnable = None
            if runnable is not None:
                runnable_members[runnable.source] = child
        if list(runnable_members) != list(members):
            edit.changes["patternProperties"] = runnable_members
        if len(runnable_members) < len(members):
            # A name that the removed pattern matches must not be refused as undeclared.
            edit.dropped |= {"additionalProperties"} & node.keys()
            edit.widens = edit.uncovers = True

    def _runnable(self, pattern: str) -> RunnablePattern | None:
        runnable = runnable_pattern(pattern) if pattern in self.affordable else None
        if runnable is None or (self.without_quadratic and runnable.quadratic) or runnable.weight > self.max_weight:
            self.left_out.append(pattern)
            return None
        self.runnable[pattern] = runnable
        return runnable


def _affordable(nodes: list[dict[str, Any]]) -> frozenset[str]:
    """Return the patterns of schemas that can be compiled within `MAX_COMPILE_COST`, starting with the cheapest."""
    patterns: set[str] = set()
    for node in nodes:
        if isinstance(pattern := node.get("pattern"), str):
            patterns.add(pattern)
        if isinstance(members := node.get("patternProperties"), dict):
            patterns.update(members)
    cost, affordable = 0, []
    for own, pattern in sorted((compile_cost(pattern), pattern) for pattern in patterns):
        cost += own
        if cost > MAX_COMPILE_COST:
            break
        affordable.append(pattern)
    return frozenset(affordable)


def _with_lengths(node: dict[str, Any], runnable: RunnablePattern) -> dict[str, Any]:
    """Return the keywords that replace a counted pattern: a pattern without the count, and length limits."""
    assert runnable.lengths is not None
    least, most = runnable.lengths
    declared_least, declared_most = node.get("minLength"), node.get("maxLength")
    changes: dict[str, Any] = {"pattern": runnable.source}
    changes["minLength"] = max(least, declared_least) if isinstance(declared_least, int) else least
    if most is not None:
        changes["maxLength"] = min(most, declared_most) if isinstance(declared_most, int) else most
    return changes


def _nullable(nodes: list[dict[str, Any]]) -> frozenset[int]:
    """Return the identities of schemas that accept null by something other than their type."""
    return _with_parts([node for node in nodes if says_nullable(node)])


def _with_parts(nullable: list[dict[str, Any]]) -> frozenset[int]:
    """Return the identities of the given schemas and of their `allOf` parts, at any depth."""
    identities: set[int] = set()
    pending = list(nullable)
    while pending:
        node = pending.pop()
        if id(node) not in identities:
            identities.add(id(node))
            every = node.get("allOf")
            pending += [part for part in every if isinstance(part, dict)] if isinstance(every, list) else []
    return frozenset(identities)


def says_nullable(node: dict[str, Any]) -> bool:
    """Return whether a schema accepts null by `nullable` (OpenAPI 3.0), by its default, or by an `enum` member."""
    if node.get("nullable") is True or node.get("x-nullable") is True:
        return True
    options = node.get("enum")
    return node.get("default", ...) is None or (isinstance(options, list) and None in options)


def accept_null(node: dict[str, Any], edit: Edit, *, lone: bool) -> None:
    """Edit a schema's keywords to accept null. Subschemas keep their positions, because references may lead to them."""
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
    if isinstance(either, list) and all(isinstance(branch, dict) and _refuses_null(branch) for branch in either):
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
