"""Append configured texts and operators' notes to the descriptions of upstreams.

The order of a description is: the upstream's text; the configured supplements of server, tool and profile; the
profile's guidance for the server's tags; the related servers (siblings); operators' notes; the names of server and tool
as words, for hosts that search descriptions; and examples. The upstream's text is never cut. If the additions are too
long, examples are left out first. Then the other additions are cut, with a mark at the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.catalog.catalog import ToolWrapper
from registry.catalog.shape import ResultRules, ServerShape, ToolHints
from registry.schema.display_text import name_as_words
from registry.schema.packed_definition import members_of
from registry.schema.schemas import compact_json
from registry.views.profile import PROTOCOL_DIALECT, Profile

# The limit of Claude Code, which is the lowest limit of the common hosts. Some model APIs have lower limits; see the
# dialects.
MAX_DESCRIPTION: Final = 2_048
_CUT_MARK: Final = " […]"
# Members of `_meta` in a tool definition that Anthropic's hosts read.
_SEARCH_HINT: Final = "anthropic/searchHint"
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"
_REQUIRES_USER: Final = "anthropic/requiresUserInteraction"
_MAX_RESULT_CHARS: Final = "anthropic/maxResultSizeChars"

SELECT: Final = "_select"
"""The argument that names the part of the result that a call needs. The gateway does not send it to the upstream."""
_SELECT_SCHEMA: Final = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": (
        "Optional: the part of the result to return, to save tokens. Either a JMESPath expression, such as "
        '`items[].{id: id, title: title}`, or a list of JSON pointers, such as ["/items/0/title"].'
    ),
}
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf", "then", "else", "dependentSchemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextualDefinition:
    """A wrapper's definition with the configured texts of a profile added to its description.

    Attributes:
        definition: The definition; the wrapper's own object if nothing is added.
        omitted: A description of the added texts that did not fit; None if everything fits.
    """

    definition: Mapping[str, Any]
    omitted: str | None = None


def contextual_definition(
    wrapper: ToolWrapper,
    shape: ServerShape,
    profile: Profile,
    siblings: Mapping[str, str],
    *,
    limit: int = MAX_DESCRIPTION,
    strict: bool = False,
) -> ContextualDefinition:
    """Return a wrapper's definition with the configured texts of a profile added to its description.

    Args:
        shape: The configuration of the wrapper's server.
        siblings: The display names of the related servers that are currently available, by alias.
        limit: Maximum length of the description with additions. The upstream's own text may be longer.
        strict: Whether the dialect cuts descriptions that are longer than `limit`.
    """
    definition = wrapper.definition
    additions = [text for text in _additions(wrapper, shape, profile, siblings) if text]
    # Examples are added completely or not at all, because a part of an example is not a valid call.
    examples = _examples(shape.examples.get(wrapper.tool, ()))
    if profile.dialect == PROTOCOL_DIALECT and not additions and not examples:
        # Fast path for most tools: the packed definition does not have to be parsed.
        return ContextualDefinition(definition=definition)
    # `get` parses the packed definition and caches the result, which the conversion to the dialect needs as well.
    text = definition.get("description")
    upstream = text if isinstance(text, str) else ""
    added = _distinct(additions, upstream)
    names = f"{shape.display_name or name_as_words(wrapper.server)}: {name_as_words(wrapper.tool)}"
    if profile.dialect != PROTOCOL_DIALECT and not _mentions_names(wrapper, " ".join([upstream, *added])):
        added.append(f"{names}.")
    worded, omitted = definition, list[str]()
    if added or examples:
        text, cut = _join_texts(upstream, added, limit, strict=strict)
        if cut:
            omitted.append(f"{cut} of {sum(map(len, added))} characters of the additions")
        if examples and len(text) + 2 + len(examples) <= limit:
            text = f"{text}\n\n{examples}" if text else examples
        elif examples:
            omitted.append("its examples")
        worded = {**members_of(definition), "description": text}
    if profile.dialect != PROTOCOL_DIALECT and not isinstance(definition.get("title"), str):
        worded = {**members_of(worded), "title": names}
    return ContextualDefinition(
        definition=worded,
        omitted=f"{' and '.join(omitted)} left out: a description has {limit} characters" if omitted else None,
    )


def _additions(
    wrapper: ToolWrapper, shape: ServerShape, profile: Profile, siblings: Mapping[str, str]
) -> Iterable[str | None]:
    yield shape.supplement
    yield shape.supplements.get(wrapper.tool)
    yield profile.supplements.get(wrapper.name)
    for tag in shape.tags:
        yield profile.guidance.get(tag)
    for server, display_name in siblings.items():
        parenthesis = f" ({display_name})" if display_name != server else ""
        yield f"Related server: {server}{parenthesis}."
    yield from (note.text for note in wrapper.notes)


def _mentions_names(wrapper: ToolWrapper, text: str) -> bool:
    """Return whether a text contains all words of the server's and the tool's name.

    If not, the words are added, because hosts that search descriptions do not split names such as `get_balance`.
    """
    folded = text.casefold()
    return all(word in folded for word in name_as_words(f"{wrapper.server} {wrapper.tool}").casefold().split())


def _distinct(texts: Iterable[str | None], upstream: str) -> list[str]:
    distinct: dict[str, None] = {}
    for text in texts:
        plain = text.strip() if text else ""
        # Supplements often repeat the upstream's text, and tool supplements often repeat the server's supplement.
        if plain and plain != upstream.strip():
            distinct.setdefault(plain)
    return list(distinct)


def _join_texts(upstream: str, added: Sequence[str], limit: int, *, strict: bool) -> tuple[str, int]:
    """Return the upstream's text with the additions, and the number of characters of the additions that did not fit."""
    text = upstream
    for index, part in enumerate(added):
        # Reserve two characters for the blank line between parts.
        room = limit - len(text) - (2 if text else 0)
        if len(part) > room:
            beginning = part[: max(room - len(_CUT_MARK), 0)].rstrip()
            # If the limit is strict, omit a mark that would exceed the limit, because the dialect would then cut the
            # upstream's text.
            if beginning or not strict or len(text) + len(_CUT_MARK) <= limit:
                text += ("\n\n" if text and beginning else "") + beginning + _CUT_MARK
            return text, sum(map(len, added[index:])) - len(beginning)
        text += ("\n\n" if text else "") + part
    return text, 0


def _examples(examples: Sequence[Any]) -> str:
    return "\n".join(["Examples:", *(compact_json(example) for example in examples)]) if examples else ""


def with_hints(
    definition: Mapping[str, Any], hints: ToolHints, *, load: bool = False, asks: bool = False
) -> Mapping[str, Any]:
    """Add configured annotations and hints to a definition.

    The upstream's own annotations and its own limit for results take precedence over the configuration.

    Args:
        load: Whether hosts should load the tool immediately even if `always_load` is not set.
        asks: Whether a person, possibly the user of the host, has to allow every call of the tool.
    """
    if hints.annotations:
        declared = definition.get("annotations")
        definition = {
            **members_of(definition),
            "annotations": {**hints.annotations, **(declared if isinstance(declared, dict) else {})},
        }
    added: dict[str, Any] = {}
    if hints.search_hint:
        added[_SEARCH_HINT] = hints.search_hint
    if hints.always_load or load:
        added[_ALWAYS_LOAD] = True
    if asks:
        added[_REQUIRES_USER] = True
    if added or hints.max_result_chars is not None:
        meta = definition.get("_meta")
        declared = meta if isinstance(meta, dict) else {}
        if hints.max_result_chars is not None and _MAX_RESULT_CHARS not in declared:
            added[_MAX_RESULT_CHARS] = hints.max_result_chars
        definition = {**members_of(definition), "_meta": {**declared, **added}} if added else definition
    return definition


def takes_selection(schema: object) -> bool:
    """Return whether the argument `_select` can be added to an input schema.

    It cannot be added if the tool has an argument of this name, or if another part of the schema refuses additional
    arguments.
    """
    if not isinstance(schema, dict):
        return False
    if "$ref" in schema or "$dynamicRef" in schema or "propertyNames" in schema or "maxProperties" in schema:
        return False
    declared = schema.get("properties")
    if isinstance(declared, dict) and SELECT in declared:
        return False
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and patterns:
        return False
    for keyword in _ALTERNATIVES:
        parts = schema.get(keyword, ())
        parts = parts.values() if keyword == "dependentSchemas" and isinstance(parts, dict) else parts
        for part in (parts,) if isinstance(parts, dict) else parts:
            closed = isinstance(part, dict) and part.get("additionalProperties", True) is not True
            if closed or not takes_selection(part):
                return False
    return True


def with_result_rules(definition: Mapping[str, Any], rules: ResultRules) -> Mapping[str, Any]:
    """Return the definition of a tool whose results may be returned in parts.

    The definition has no `outputSchema`, because clients that validate results would reject a part of a result. It has
    the argument `_select` if the rules allow it. If the rules do not permit parts, the definition is unchanged.
    """
    if not rules.select and rules.max_bytes is None:
        return definition
    adapted = {name: member for name, member in members_of(definition).items() if name != "outputSchema"}
    schema = adapted.get("inputSchema")
    if rules.select and isinstance(schema, dict):
        properties = schema.get("properties")
        own = properties if isinstance(properties, dict) else {}
        adapted["inputSchema"] = {**schema, "properties": {**own, SELECT: _SELECT_SCHEMA}}
    return adapted
