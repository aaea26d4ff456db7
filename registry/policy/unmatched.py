"""Rules, patterns and conditions that can never apply to what servers list: most are slips.

What cannot be known yet is not reported: a rule may be about a server that has not listed anything so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.filters import selects_name, server_of
from registry.catalog.names import NAME_SEPARATOR, ServerName, alias_prefix
from registry.catalog.prompts_and_resources import ListedItem
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.unmatched import near_miss
from registry.catalog.uri_spellings import EXPRESSION, denies_uri
from registry.policy.conditions import Conditions
from registry.policy.possible_values import missing_reason
from registry.policy.rules import KINDS, Kind, Rule, reading_hints, tool_hints
from registry.policy.server_rules import ServerRules

_WORDS: Final = {"readOnlyHint": "readOnly", "destructiveHint": "destructive", "idempotentHint": "idempotent",
                 "openWorldHint": "openWorld"}  # fmt: skip
_OF_PROMPTS: Final[tuple[Kind, ...]] = ("prompts", "completions")
_OF_RESOURCES: Final[frozenset[Kind]] = frozenset({"resources", "completions"})
# To compare a name with two thousand others takes a tenth of a second, and a screen shows no more texts.
_MAX_SUGGESTED: Final = 20
_MAX_COMPARED: Final = 2_000
_WILD: Final = ("*", "?", "[")


@dataclass(slots=True)
class _Found:
    """What one rule covers.

    Attributes:
        tools: The tools.
        kinds: Kinds of which it covers something.
        matched: Patterns that match something.
        unknown: Aliases of servers that it may cover and that have not listed anything.
    """

    tools: list[tuple[ToolWrapper, ServerShape]] = field(default_factory=list)
    kinds: set[Kind] = field(default_factory=set)
    matched: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


def unmatched_parts(rules: Sequence[Rule], catalog: Catalog, shape: Shape, *, live_only: bool = False) -> list[str]:
    """Return a text for each rule, and each pattern and condition of one, that nothing answers to.

    Args:
        rules: The rules.
        catalog: What servers list.
        shape: What is configured for them.
        live_only: Whether a list of a former run counts as unknown.
    """
    found = {rule.name: _Found() for rule in rules}
    for server in dict.fromkeys([*shape.servers, *catalog.servers]):
        own, listing = shape.of(server), catalog.servers.get(server)
        prefix = alias_prefix(server, shape.max_length)
        covering = [rule for rule in rules if rule.what.covers_server(server, prefix, own)]
        is_known = listing is not None and (listing.origin == "live" or not live_only)
        for rule in covering:
            if not is_known:
                found[rule.name].unknown |= {server, prefix}
        if covering and is_known:
            _look_at(server, own, covering, catalog, found)
    texts: list[str] = []
    for rule in rules:
        # Without names, nothing is suggested.
        names = catalog if len(texts) < _MAX_SUGGESTED else Catalog()
        texts += [f"the rule '{rule.name}': {text}" for text in _texts(rule, found[rule.name], names)]
    return texts


def _look_at(
    server: str, shape: ServerShape, covering: list[Rule], catalog: Catalog, found: Mapping[str, _Found]
) -> None:
    index = ServerRules(covering)
    for wrapper in catalog.wrappers_of(server):
        for rule in index.about(wrapper):
            for pattern in _patterns(rule):
                if pattern not in found[rule.name].matched and selects_name(
                    pattern, server=wrapper.server, original=wrapper.tool, shown=wrapper.name, prefixed=shape.prefixed
                ):
                    found[rule.name].matched.add(pattern)
            if rule.what.covers_tool(wrapper, shape):
                found[rule.name].tools.append((wrapper, shape))
                found[rule.name].kinds.add("tools")
    part, listing = catalog.parts.get(ServerName(server)), catalog.servers[ServerName(server)]
    # What the entry of a server hides is there all the same: a rule about it is no slip.
    hidden = {*(part.names if part is not None else ()), *(one.tool for one in listing.quarantined)}
    hidden.difference_update(wrapper.tool for wrapper in catalog.wrappers_of(server))
    items = catalog.prompts_and_resources
    prompts = [item for item in items.prompts if item.server == server]
    uris = [item for kind in (items.resources, items.templates) for item in kind if item.server == server]
    for rule in covering:
        one, own = found[rule.name], _Found()
        _look_at_items(rule, shape, prompts, uris, own)
        if "completions" not in listing.capabilities:
            own.kinds.discard("completions")
        one.kinds |= own.kinds
        one.matched |= own.matched
        for pattern in _patterns(rule) if hidden else ():
            if any(fnmatchcase(name, _local(pattern)) for name in hidden):
                one.matched.add(pattern)


def _look_at_items(
    rule: Rule, shape: ServerShape, prompts: Iterable[ListedItem], uris: Iterable[ListedItem], found: _Found
) -> None:
    what = rule.what
    for prompt in prompts:
        found.kinds |= {kind for kind in _OF_PROMPTS if what.covers_prompt(prompt, shape, kind)}
        for pattern in what.patterns or ():
            if selects_name(
                pattern, server=prompt.server, original=prompt.original, shown=prompt.key, prefixed=shape.prefixed
            ):
                found.matched.add(pattern)
    for item in uris:
        own = [pattern for pattern in what.patterns or () if _may_match_uri(pattern, item)]
        found.matched.update(own)
        if what.wrappers is None and (own or what.patterns is None):
            found.kinds |= what.kinds & _OF_RESOURCES


def _texts(rule: Rule, found: _Found, catalog: Catalog) -> Iterator[str]:
    """Yield what is wrong with one rule."""
    if not found.kinds and not found.unknown and not found.matched:
        what = "no tool" if rule.what.kinds == {"tools"} else f"none of the {', '.join(sorted(rule.what.kinds))}"
        yield f"covers {what} that there {'is' if what == 'no tool' else 'are'}{_near(rule, found, catalog)}"
        return
    for key, patterns in ((rule.effect, rule.what.patterns), ("wrappers", rule.what.wrappers)):
        for pattern in patterns or ():
            if pattern not in found.matched and not _is_unknown(pattern, found):
                yield f"{key}: {pattern} matches nothing that there is{_near_pattern(pattern, found, catalog)}"
    if found.unknown:
        # Of what is not listed yet, anything may be meant.
        return
    if rule.what.kinds != frozenset(KINDS) and rule.what.wrappers is None:
        for kind in sorted(rule.what.kinds - found.kinds):
            yield f"kinds: {kind}: there are none that it covers, so that this kind has no effect"
    yield from _of_conditions(rule, found)


def _of_conditions(rule: Rule, found: _Found) -> Iterator[str]:
    tools = found.tools
    if rule.conditions.hints:
        tools = [(tool, shape) for tool, shape in tools if rule.conditions.fit(tool_hints(tool, shape))]
        reads = found.kinds - {"tools"} and rule.conditions.fit(reading_hints())
        if not tools and not reads:
            yield f"when: {_marks(rule.conditions)}: nothing that it covers is marked so"
            return
    yield from _of_arguments("when", rule, rule.conditions, tools)
    if rule.asked.hints:
        asked = [(tool, shape) for tool, shape in tools if rule.asked.fit(tool_hints(tool, shape))]
        if tools and not asked:
            yield f"ask.when: {_marks(rule.asked)}: no tool that it covers is marked so"
            return
        tools = asked
    yield from _of_arguments("ask.when", rule, rule.asked, tools)


def _of_arguments(
    key: str, rule: Rule, conditions: Conditions, tools: Sequence[tuple[ToolWrapper, ServerShape]]
) -> Iterator[str]:
    for condition in conditions.arguments if tools else ():
        schemas = [tool.input_schema for tool, _ in tools if tool.unchecked is None]
        if len(schemas) < len(tools):
            continue  # the arguments of one of them are not known
        reason = missing_reason(condition, schemas, permits=rule.effect == "allow")
        if reason is not None:
            yield f"{key}.arguments.{condition.path}: {reason}"


def _marks(conditions: Conditions) -> str:
    return ", ".join(f"{_WORDS[name]} {str(wanted).lower()}" for name, wanted in conditions.hints.items())


def _patterns(rule: Rule) -> tuple[str, ...]:
    return (*(rule.what.patterns or ()), *(rule.what.wrappers or ()))


def _local(pattern: str) -> str:
    alias = server_of(pattern)
    # What has a colon in front of `__` is a URI with these characters in it.
    return pattern if alias is None or ":" in alias else pattern.partition(NAME_SEPARATOR)[2]


def _is_unknown(pattern: str, found: _Found) -> bool:
    alias = server_of(pattern)
    return bool(found.unknown) and (
        alias is None or ":" in alias or any(fnmatchcase(server, alias) for server in found.unknown)
    )


def _may_match_uri(pattern: str, item: ListedItem) -> bool:
    """Return whether a pattern matches a resource, or may match one that a template stands for."""
    alias = server_of(pattern)
    if alias is not None and ":" not in alias:
        if not fnmatchcase(item.server, alias):
            return False
        pattern = _local(pattern)
    if denies_uri(item.original, (pattern,)):
        return True
    parts = EXPRESSION.split(item.original)
    if len(parts) == 1:
        return False
    # Two patterns: what stands before their first wildcards has to agree.
    start = min((at for at in map(pattern.find, _WILD) if at >= 0), default=len(pattern))
    return parts[0].startswith(pattern[:start]) or pattern[:start].startswith(parts[0])


def _near(rule: Rule, found: _Found, catalog: Catalog) -> str:
    patterns = _patterns(rule)
    return _near_pattern(patterns[0], found, catalog) if len(patterns) == 1 else ""


def _near_pattern(pattern: str, found: _Found, catalog: Catalog) -> str:
    items = catalog.prompts_and_resources
    if ":" in pattern:
        names = [item.original for kind in (items.resources, items.templates) for item in kind]
        return near_miss(_local(pattern), names[:_MAX_COMPARED])
    names = [one.name if NAME_SEPARATOR in pattern else one.tool for one in catalog.wrappers]
    return near_miss(pattern, [*names, *(item.key for item in items.prompts)][:_MAX_COMPARED])
