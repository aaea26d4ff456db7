"""Add to an upstream's description what configuration and operators say about its server and tool.

The order is always: the upstream's text, the supplements of server, tool and profile, guidance by tag, siblings, and
notes; then, for hosts that search descriptions, the names of server and tool as words; then examples. The upstream's
text is never cut. Of what is added, examples are left out first, and the rest is cut with a mark, also where nothing of
it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.catalog.catalog import ToolWrapper
from registry.catalog.shape import ServerShape, ToolHints
from registry.schema.display_text import name_as_words
from registry.schema.packed_definition import members_of
from registry.schema.schemas import compact_json
from registry.views.profile import PROTOCOL_DIALECT, Profile

# What Claude Code shows of a description, the tightest limit of a widespread host that is no model API.
MAX_DESCRIPTION: Final = 2_048
_CUT_MARK: Final = " […]"
# Members of `_meta` that hosts of Anthropic read.
_SEARCH_HINT: Final = "anthropic/searchHint"
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextualDefinition:
    """A definition as a profile words it.

    Attributes:
        definition: The wrapper's own object if nothing is added.
        omitted: What of the added text did not fit, in words; None if all of it did.
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
    """Return a wrapper's definition as a profile shows it.

    Args:
        wrapper: The tool.
        shape: What configuration says about its server.
        profile: The profile that shows it.
        siblings: Related servers that are available now, each with its display name.
        limit: Of the description, in characters; the upstream's own text may be longer.
        strict: What is longer is cut by the dialect.
    """
    definition, hints = wrapper.definition, shape.hints_of(wrapper.tool)
    additions = [text for text in _additions(wrapper, shape, profile, siblings) if text]
    # Examples are all or nothing: half of one is no valid call.
    examples = _examples(shape.examples.get(wrapper.tool, ()))
    if profile.dialect == PROTOCOL_DIALECT and not additions and not examples:
        # Nearly every tool of most gateways, of which nothing has to be read then.
        return ContextualDefinition(definition=_with_hints(definition, hints))
    # Asked here, and not read in passing: dialects look at it next.
    text = definition.get("description")
    upstream = text if isinstance(text, str) else ""
    added = _distinct(additions, upstream)
    names = f"{shape.display_name or name_as_words(wrapper.server)}: {name_as_words(wrapper.tool)}"
    if profile.dialect != PROTOCOL_DIALECT and not _mentions_names(wrapper, " ".join([upstream, *added])):
        added.append(f"{names}.")
    shown, omitted = definition, list[str]()
    if added or examples:
        text, cut = _joined(upstream, added, limit, strict=strict)
        if cut:
            omitted.append(f"{cut} of {sum(map(len, added))} characters of what is added")
        if examples and len(text) + 2 + len(examples) <= limit:
            text = f"{text}\n\n{examples}" if text else examples
        elif examples:
            omitted.append("its examples")
        shown = {**members_of(definition), "description": text}
    if profile.dialect != PROTOCOL_DIALECT and not isinstance(definition.get("title"), str):
        shown = {**members_of(shown), "title": names}
    return ContextualDefinition(
        definition=_with_hints(shown, hints),
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
        shown = f" ({display_name})" if display_name != server else ""
        yield f"Related server: {server}{shown}."
    yield from (note.text for note in wrapper.notes)


def _mentions_names(wrapper: ToolWrapper, text: str) -> bool:
    """Return whether a text has the words of server and tool; hosts that search do not split names into words."""
    folded = text.casefold()
    return all(word in folded for word in name_as_words(f"{wrapper.server} {wrapper.tool}").casefold().split())


def _distinct(texts: Iterable[str | None], upstream: str) -> list[str]:
    kept: dict[str, None] = {}
    for text in texts:
        plain = text.strip() if text else ""
        # Supplements are often copied from the upstream, or from server to tool.
        if plain and plain != upstream.strip():
            kept.setdefault(plain)
    return list(kept)


def _joined(upstream: str, added: Sequence[str], limit: int, *, strict: bool) -> tuple[str, int]:
    """Return a text with what is added to it, and how many characters of that did not fit."""
    text = upstream
    for index, part in enumerate(added):
        # The two characters are the blank line between parts.
        room = limit - len(text) - (2 if text else 0)
        if len(part) > room:
            kept = part[: max(room - len(_CUT_MARK), 0)].rstrip()
            # Where the limit is strict, a mark beyond it would cost the upstream's text its end.
            if kept or not strict or len(text) + len(_CUT_MARK) <= limit:
                text += ("\n\n" if text and kept else "") + kept + _CUT_MARK
            return text, sum(map(len, added[index:])) - len(kept)
        text += ("\n\n" if text else "") + part
    return text, 0


def _examples(examples: Sequence[Any]) -> str:
    return "\n".join(["Examples:", *(compact_json(example) for example in examples)]) if examples else ""


def _with_hints(shown: Mapping[str, Any], hints: ToolHints) -> Mapping[str, Any]:
    """Add configured annotations and hints; the upstream's own annotations have precedence."""
    if hints.annotations:
        known = shown.get("annotations")
        # The upstream knows best what its tool does, so its own hints come last and hold.
        shown = {
            **members_of(shown),
            "annotations": {**hints.annotations, **(known if isinstance(known, dict) else {})},
        }
    added: dict[str, Any] = {}
    if hints.search_hint:
        added[_SEARCH_HINT] = hints.search_hint
    if hints.always_load:
        added[_ALWAYS_LOAD] = True
    if added:
        meta = shown.get("_meta")
        shown = {**members_of(shown), "_meta": {**(meta if isinstance(meta, dict) else {}), **added}}
    return shown
