"""Find rules, patterns and conditions that can never apply to the listed items.

Rules that may apply later are not reported, such as rules about a server that has not listed its items yet.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.listing import suggestion_for
from registry.catalog.names import NAME_SEPARATOR, ServerName, alias_prefix
from registry.catalog.shape import ServerShape, Shape, selects_name, server_of
from registry.catalog.uris import EXPRESSION, denies_uri
from registry.policy.policy import ServerRules
from registry.policy.rules import KINDS, ArgumentCondition, Conditions, Kind, Rule, reading_hints, tool_hints
from registry.schema.json_paths import composed_schemas, declared_properties

# A schema without restrictions; compared by identity.
_OPEN: Final[Mapping[str, Any]] = {}
_NUMERIC: Final = (int, float, str)
_COMPOSING: Final = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "then", "else")
_LIMITS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
# Sample values that stand for all values that the condition does not mention.
_OTHER_TEXT: Final = "\x00another text"
_OTHER_NUMBER: Final = 7_919_113


def missing_reason(condition: ArgumentCondition, schemas: Sequence[Any], *, permits: bool) -> str | None:
    """Return the reason why a condition can never hold; None if it can hold for at least one tool.

    Args:
        schemas: The input schema of each tool that the rule covers.
        permits: Whether the rule is an allow rule, which applies only if its conditions certainly hold.
    """
    is_declared = False
    described: list[str] = []
    for schema in schemas:
        for place in _schemas_at(schema, condition.path):
            is_declared = True
            if place is _OPEN or _can_hold(condition, place, schema, permits):
                return None
            described.append(_describe_permitted(place, schema, condition))
    if not is_declared:
        names = {name for schema in schemas for name in _paths(schema)} - {condition.path}
        return f"no tool that the rule covers has this argument{suggestion_for(condition.path, names)}"
    if condition.present is False:
        return "the argument is always sent, because the tool requires it"
    return f"no value that the argument may have fits ({'; '.join(dict.fromkeys(described))})"


def _schemas_at(root: Any, path: str) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the values that conditions find at a path; `_OPEN` if any value is possible."""
    pending: list[tuple[Any, str]] = [(root, path)]
    # Without it, circular references would not end, and several references to one schema would multiply at each level.
    seen: set[tuple[int, str]] = set()
    while pending:
        schema, remaining = pending.pop()
        if not isinstance(schema, dict):
            if schema is not False:
                yield _OPEN
            continue
        if (id(schema), remaining) in seen:
            continue
        seen.add((id(schema), remaining))
        if not remaining:
            yield schema
        nodes = list(composed_schemas(schema, root))
        below = [(item, remaining) for node in nodes for item in _item_schemas(node)]
        if remaining:
            properties = declared_properties(schema, root)
            for name, rest in _splits(remaining):
                if name in properties:
                    below.append((properties[name], rest))
                others = (node.get("additionalProperties") for node in nodes)
                below += [(other, rest) for other in others if isinstance(other, dict)]
            if _has_any_name(nodes, properties):
                yield _OPEN
        pending += reversed(below)


def _item_schemas(node: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of the items of a list."""
    items, first_items = node.get("items"), node.get("prefixItems")
    return [
        *([items] if isinstance(items, dict) else ()),
        *(first_items if isinstance(first_items, list) else ()),
    ]


def _has_any_name(nodes: Sequence[Mapping[str, Any]], properties: Mapping[str, Any]) -> bool:
    """Return whether an object may have members whose names the schema does not declare."""
    if any("patternProperties" in node for node in nodes):
        return True
    kinds = {kind for node in nodes for kind in _kinds(node)}
    return (
        not properties
        and (not kinds or "object" in kinds)
        and not any(node.get("additionalProperties") is False for node in nodes)
    )


def _splits(path: str) -> Iterator[tuple[str, str]]:
    yield path, ""
    for at, character in enumerate(path):
        if character == ".":
            yield path[:at], path[at + 1 :]


def _can_hold(condition: ArgumentCondition, place: Mapping[str, Any], root: Any, permits: bool) -> bool:
    if condition.present is False:
        required = root.get("required") if isinstance(root, dict) else None
        return not (isinstance(required, list) and condition.path in required)
    candidates = _candidates(condition, place, root)
    if candidates is None:
        return True
    # Ignore values whose type differs from the type that the condition expects. In case of doubt, the condition holds
    # for such values, but the author of the rule cannot have intended this.
    if condition.pattern is not None:
        candidates = [value for value in candidates if isinstance(value, str)]
    elif condition.above is not None or condition.below is not None:
        candidates = [value for value in candidates if not isinstance(value, bool) and isinstance(value, _NUMERIC)]
    holds = condition.permits if permits else condition.restricts
    return any(holds({condition.path: value}) for value in candidates)


def _candidates(condition: ArgumentCondition, place: Mapping[str, Any], root: Any) -> list[Any] | None:
    """Return sample values that a schema permits; None if no representative samples can be chosen.

    If the condition holds for any permitted value, it holds for one of the samples.
    """
    stated = condition.equals or ()
    bounds = [bound for bound in (condition.above, condition.below) if bound is not None]
    samples: list[Any] = []
    for node in composed_schemas(dict(place), root):
        if (listed := _listed_values(node)) is not None:
            samples += listed
            continue
        kinds = _kinds(node)
        if not kinds:
            if any(key in node for key in _COMPOSING):
                continue
            return None
        for kind in kinds:
            match kind:
                case "integer" | "number":
                    samples += _numbers(stated, bounds, node, integral=kind == "integer")
                case "string":
                    if condition.pattern is not None:
                        return None
                    samples += [value if isinstance(value, str) else json.dumps(value) for value in stated]
                    samples += [str(number) for number in _numbers([], bounds, {}, integral=False)] + [_OTHER_TEXT]
                case "boolean":
                    samples += [True, False]
                case "null":
                    samples.append(None)
                case "object":
                    samples += [value for value in stated if isinstance(value, dict)] + [{_OTHER_TEXT: _OTHER_TEXT}]
                case "array" if not isinstance(node.get("items"), dict):
                    return None
    return samples


def _numbers(stated: Sequence[Any], bounds: Sequence[float], node: Mapping[str, Any], *, integral: bool) -> list[float]:
    """Return sample numbers that a schema permits: numbers in the condition, and numbers near any bound."""
    numbers: list[float] = [_OTHER_NUMBER]
    for value in stated:
        with suppress(TypeError, ValueError, OverflowError):
            numbers.append(float(value) if not integral else int(float(value)))
    limits = {key: limit for key in _LIMITS if (limit := _limit(node, key)) is not None}
    middle = [sum(bounds) / 2] if len(bounds) == 2 else []
    for bound in (*bounds, *middle, *limits.values()):
        if math.isfinite(bound):
            steps = (-1, 0, 1) if integral else (-1, -0.001, 0, 0.001, 1)
            numbers += [math.floor(bound) + step if integral else bound + step for step in steps]
    return [number for number in numbers if all(_LIMITS[key](number, limit) for key, limit in limits.items())]


def _limit(node: Mapping[str, Any], key: str) -> float | None:
    limit = node.get(key)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _listed_values(node: Mapping[str, Any]) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    listed = node.get("enum")
    return listed if isinstance(listed, list) else None


def _kinds(node: Mapping[str, Any]) -> list[str]:
    declared = node.get("type")
    kinds = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    return [*kinds, "null"] if kinds and node.get("nullable") is True else [kind for kind in kinds if kind]


def _describe_permitted(place: Mapping[str, Any], root: Any, condition: ArgumentCondition) -> str:
    """Describe the permitted values, and suggest a permitted value that is similar to a value in the condition."""
    texts: list[str] = []
    for node in composed_schemas(dict(place), root):
        if (listed := _listed_values(node)) is not None:
            expected = [value for value in condition.equals or () if isinstance(value, str)]
            near = (
                suggestion_for(expected[0], [value for value in listed if isinstance(value, str)]) if expected else ""
            )
            texts.append(f"one of {', '.join(json.dumps(option) for option in listed[:8])}{near}")
        elif kinds := _kinds(node):
            texts.append(" or ".join(kinds))
    return ", ".join(texts)


def _paths(schema: Any) -> set[str]:
    """Return the names of arguments, and the paths of members of object arguments."""
    properties = declared_properties(schema, schema)
    inner = {f"{name}.{member}" for name, below in properties.items() for member in declared_properties(below, schema)}
    return {*properties, *inner}


_WORDS: Final = {
    "readOnlyHint": "readOnly",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "openWorld",
}
_OF_PROMPTS: Final[tuple[Kind, ...]] = ("prompts", "completions")
_OF_RESOURCES: Final[frozenset[Kind]] = frozenset({"resources", "completions"})
# Maximum number of texts with a suggestion. It is needed because comparing a name with two thousand names takes 0.1 s.
_MAX_SUGGESTED: Final = 20
_MAX_COMPARED: Final = 2_000
_WILD: Final = ("*", "?", "[")


@dataclass(slots=True)
class _Coverage:
    """The items covered by one rule.

    Attributes:
        tools: The covered tools, each with the configuration of its server.
        kinds: The kinds for which the rule covers at least one item.
        matched: The patterns of the rule that match at least one item.
        unknown: The aliases of servers that the rule may cover and whose items are not known yet.
    """

    tools: list[tuple[ToolWrapper, ServerShape]] = field(default_factory=list)
    kinds: set[Kind] = field(default_factory=set)
    matched: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


def find_unmatched(rules: Sequence[Rule], catalog: Catalog, shape: Shape, *, live_only: bool = False) -> list[str]:
    """Return a text for each rule, pattern or condition that matches nothing.

    Args:
        catalog: The listed items.
        shape: The configuration of the servers.
        live_only: Whether to ignore listings that were stored by an earlier run, as if the server had listed nothing
            yet.
    """
    coverage_of = {rule.name: _Coverage() for rule in rules}
    for server in dict.fromkeys([*shape.servers, *catalog.servers]):
        own, listing = shape.for_server(server), catalog.servers.get(server)
        prefix = alias_prefix(server, shape.max_length)
        covering = [rule for rule in rules if rule.what.covers_server(server, prefix, own)]
        is_known = listing is not None and (listing.origin == "live" or not live_only)
        for rule in covering:
            if not is_known:
                coverage_of[rule.name].unknown |= {server, prefix}
        if covering and is_known:
            _collect_matches(server, prefix, own, covering, catalog, coverage_of)
    texts: list[str] = []
    for rule in rules:
        # An empty catalog yields texts without suggestions.
        names = catalog if len(texts) < _MAX_SUGGESTED else Catalog()
        texts += [f"the rule '{rule.name}': {text}" for text in _texts(rule, coverage_of[rule.name], names)]
    return texts


def _collect_matches(
    server: str,
    prefix: str,
    shape: ServerShape,
    covering: list[Rule],
    catalog: Catalog,
    coverage_of: Mapping[str, _Coverage],
) -> None:
    index = ServerRules(covering)
    for wrapper in catalog.wrappers_of(server):
        for rule in index.rules_for(wrapper):
            for pattern in _patterns(rule):
                if pattern not in coverage_of[rule.name].matched and selects_name(
                    pattern, server=wrapper.server, original=wrapper.tool, exposed=wrapper.name, prefixed=shape.prefixed
                ):
                    coverage_of[rule.name].matched.add(pattern)
            if rule.what.covers_tool(wrapper, shape):
                coverage_of[rule.name].tools.append((wrapper, shape))
                coverage_of[rule.name].kinds.add("tools")
    part, listing = catalog.parts.get(ServerName(server)), catalog.servers[ServerName(server)]
    # Tools that the server's configuration hides, or that were quarantined as unusable, exist as well. A rule that
    # names one of them is not a mistake.
    hidden = {*(part.names if part is not None else ()), *(issue.tool for issue in listing.quarantined)}
    hidden.difference_update(wrapper.tool for wrapper in catalog.wrappers_of(server))
    items = catalog.prompts_and_resources
    prompts = [item for item in items.prompts if item.server == server]
    uris = [item for kind in (items.resources, items.templates, items.skills) for item in kind if item.server == server]
    for rule in covering:
        coverage, own = coverage_of[rule.name], _Coverage()
        _collect_item_matches(rule, shape, prompts, uris, own)
        if "completions" not in listing.capabilities:
            own.kinds.discard("completions")
        coverage.kinds |= own.kinds
        coverage.matched |= own.matched
        for pattern in _patterns(rule) if hidden else ():
            if any(
                selects_name(
                    pattern, server=server, original=name, exposed=f"{prefix}{NAME_SEPARATOR}{name}", prefixed=True
                )
                for name in hidden
            ):
                coverage.matched.add(pattern)


def _collect_item_matches(
    rule: Rule, shape: ServerShape, prompts: Iterable[ListedItem], uris: Iterable[ListedItem], coverage: _Coverage
) -> None:
    what = rule.what
    for prompt in prompts:
        coverage.kinds |= {kind for kind in _OF_PROMPTS if what.covers_prompt(prompt, shape, kind)}
        for pattern in what.patterns or ():
            if selects_name(
                pattern, server=prompt.server, original=prompt.original, exposed=prompt.key, prefixed=shape.prefixed
            ):
                coverage.matched.add(pattern)
    for item in uris:
        own = [pattern for pattern in what.patterns or () if _may_match_uri(pattern, item)]
        coverage.matched.update(own)
        if what.wrappers is None and (own or what.patterns is None):
            coverage.kinds |= what.kinds & _OF_RESOURCES


def _texts(rule: Rule, coverage: _Coverage, catalog: Catalog) -> Iterator[str]:
    """Yield the problems of one rule."""
    if not coverage.kinds and not coverage.unknown and not coverage.matched:
        yield f"covers no existing {', '.join(sorted(rule.what.kinds))}{_suggestion(rule, coverage, catalog)}"
        return
    for key, patterns in ((rule.effect, rule.what.patterns), ("wrappers", rule.what.wrappers)):
        for pattern in patterns or ():
            if pattern not in coverage.matched and not _is_unknown(pattern, coverage):
                yield f"{key}: {pattern} matches nothing that exists{_near_pattern(pattern, coverage, catalog)}"
    if coverage.unknown:
        # The rest of the rule may concern items that are not listed yet.
        return
    if rule.what.kinds != frozenset(KINDS) and rule.what.wrappers is None:
        for kind in sorted(rule.what.kinds - coverage.kinds):
            yield f"kinds: {kind}: the rule covers none of these, so the kind has no effect"
    yield from _condition_texts(rule, coverage)


def _condition_texts(rule: Rule, coverage: _Coverage) -> Iterator[str]:
    tools = coverage.tools
    if rule.conditions.hints:
        tools = [(tool, shape) for tool, shape in tools if rule.conditions.match_hints(tool_hints(tool, shape))]
        reads = coverage.kinds - {"tools"} and rule.conditions.match_hints(reading_hints())
        if not tools and not reads:
            yield f"when: {_describe_hints(rule.conditions)}: nothing that the rule covers has these hints"
            return
    yield from _argument_texts("when", rule, rule.conditions, tools)
    if rule.ask_conditions.hints:
        asking = [(tool, shape) for tool, shape in tools if rule.ask_conditions.match_hints(tool_hints(tool, shape))]
        if tools and not asking:
            yield f"ask.when: {_describe_hints(rule.ask_conditions)}: no tool that the rule covers has these hints"
            return
        tools = asking
    yield from _argument_texts("ask.when", rule, rule.ask_conditions, tools)


def _argument_texts(
    key: str, rule: Rule, conditions: Conditions, tools: Sequence[tuple[ToolWrapper, ServerShape]]
) -> Iterator[str]:
    if not tools or any(tool.unchecked is not None for tool, _ in tools):
        return  # the arguments of some tool are unknown
    schemas = [tool.input_schema for tool, _ in tools]
    for condition in conditions.arguments:
        reason = missing_reason(condition, schemas, permits=rule.effect == "allow")
        if reason is not None:
            yield f"{key}.arguments.{condition.path}: {reason}"


def _describe_hints(conditions: Conditions) -> str:
    return ", ".join(f"{_WORDS[name]} {str(value).lower()}" for name, value in conditions.hints.items())


def _patterns(rule: Rule) -> tuple[str, ...]:
    return (*(rule.what.patterns or ()), *(rule.what.wrappers or ()))


def _without_alias(pattern: str) -> str:
    alias = server_of(pattern)
    # If there is a colon before `__`, the pattern is a URI that contains `__`.
    return pattern if alias is None or ":" in alias else pattern.partition(NAME_SEPARATOR)[2]


def _is_unknown(pattern: str, coverage: _Coverage) -> bool:
    alias = server_of(pattern)
    return bool(coverage.unknown) and (
        alias is None or ":" in alias or any(fnmatchcase(server, alias) for server in coverage.unknown)
    )


def _may_match_uri(pattern: str, item: ListedItem) -> bool:
    """Return whether a pattern matches the URI of a resource, or may match a URI of a template."""
    alias = server_of(pattern)
    if alias is not None and ":" not in alias:
        if not fnmatchcase(item.server, alias):
            return False
        pattern = _without_alias(pattern)
    if denies_uri(item.original, (pattern,)):
        return True
    parts = EXPRESSION.split(item.original)
    if len(parts) == 1:
        return False
    # A template is a kind of pattern, too. A URI can match both the template and the pattern only if the texts before
    # their first wildcards agree.
    start = min((at for at in map(pattern.find, _WILD) if at >= 0), default=len(pattern))
    return parts[0].startswith(pattern[:start]) or pattern[:start].startswith(parts[0])


def _suggestion(rule: Rule, coverage: _Coverage, catalog: Catalog) -> str:
    patterns = _patterns(rule)
    return _near_pattern(patterns[0], coverage, catalog) if len(patterns) == 1 else ""


def _near_pattern(pattern: str, coverage: _Coverage, catalog: Catalog) -> str:
    items = catalog.prompts_and_resources
    if ":" in pattern:
        names = [item.original for kind in (items.resources, items.templates, items.skills) for item in kind]
        return suggestion_for(_without_alias(pattern), names[:_MAX_COMPARED])
    names = [wrapper.name if NAME_SEPARATOR in pattern else wrapper.tool for wrapper in catalog.wrappers]
    return suggestion_for(pattern, [*names, *(item.key for item in items.prompts)][:_MAX_COMPARED])
