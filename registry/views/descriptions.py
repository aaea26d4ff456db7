"""Descriptions that know their context: what configuration and operators add to an upstream's words.

The order is always: the upstream's text, its server's supplement, the tool's, guidance by tag, siblings, notes;
then, for hosts that search, the words of server and tool that none of these has; then examples. The upstream's text
is never cut: what is added is, with a mark, and examples go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from registry.catalog.catalog import ToolWrapper
from registry.catalog.shape import ServerShape
from registry.schema.schemas import text_of
from registry.schema.text import words
from registry.views.profile import PROTOCOL, Profile

MAX_DESCRIPTION: Final = 2_048
_CUT: Final = " […]"
_SEARCH_HINT: Final = "anthropic/searchHint"
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"


def worded(
    wrapper: ToolWrapper,
    shape: ServerShape,
    profile: Profile,
    siblings: Mapping[str, str],
    *,
    limit: int = MAX_DESCRIPTION,
) -> dict[str, Any]:
    """Return a wrapper's definition as a profile shows it; the same object where nothing is added.

    Args:
        wrapper: The tool.
        shape: What configuration says of its server.
        profile: Who is shown it.
        siblings: The servers to name that are served now, each with its display name.
        limit: Of the description, in characters; what the upstream wrote may be longer.
    """
    definition = wrapper.definition
    said = definition.get("description")
    upstream = said if isinstance(said, str) else ""
    added = _distinct(_additions(wrapper, shape, profile, siblings), upstream)
    spoken = f"{shape.display_name or words(wrapper.server)}: {words(wrapper.tool)}"
    if profile.dialect != PROTOCOL and not _speaks_of(wrapper, " ".join([upstream, *added])):
        added.append(f"{spoken}.")
    examples = _examples(shape.examples.get(wrapper.tool, ()))
    shown = definition
    if added or examples:
        text = _joined(upstream, added, limit)
        if examples and len(text) + 2 + len(examples) <= limit:
            text = f"{text}\n\n{examples}" if text else examples
        shown = {**definition, "description": text}
    if profile.dialect != PROTOCOL and not isinstance(definition.get("title"), str):
        shown = {**shown, "title": spoken}
    return _hinted(shown, wrapper, shape)


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


def _speaks_of(wrapper: ToolWrapper, text: str) -> bool:
    """Tell whether a description has the words of server and tool: the search of hosts does not split names."""
    said = text.casefold()
    return all(word in said for word in words(f"{wrapper.server} {wrapper.tool}").casefold().split())


def _distinct(texts: Iterable[str | None], upstream: str) -> list[str]:
    kept: dict[str, None] = {}
    for text in texts:
        plain = text.strip() if text else ""
        if plain and plain != upstream.strip():
            kept.setdefault(plain)
    return list(kept)


def _joined(upstream: str, added: Sequence[str], limit: int) -> str:
    text = upstream
    for part in added:
        room = limit - len(text) - (2 if text else 0)
        if len(part) > room:
            if room > len(_CUT):
                text += ("\n\n" if text else "") + part[: room - len(_CUT)].rstrip() + _CUT
            break
        text += ("\n\n" if text else "") + part
    return text


def _examples(examples: Sequence[Any]) -> str:
    return "\n".join(["Examples:", *(text_of(example) for example in examples)]) if examples else ""


def _hinted(shown: dict[str, Any], wrapper: ToolWrapper, shape: ServerShape) -> dict[str, Any]:
    """Set hints that configuration gives and the upstream does not."""
    annotations = shape.annotations.get(wrapper.tool)
    known = shown.get("annotations")
    if annotations:
        shown = {**shown, "annotations": {**annotations, **(known if isinstance(known, dict) else {})}}
    hints: dict[str, Any] = {}
    if wrapper.tool in shape.search_hints:
        hints[_SEARCH_HINT] = shape.search_hints[wrapper.tool]
    if wrapper.tool in shape.always_load:
        hints[_ALWAYS_LOAD] = True
    if hints:
        meta = shown.get("_meta")
        shown = {**shown, "_meta": {**(meta if isinstance(meta, dict) else {}), **hints}}
    return shown
