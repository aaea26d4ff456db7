"""Shape one result: apply the caller's selection, cut what is too large, and read parts of a stored result.

The functions of this module are pure functions of JSON values. They run as jobs: on the event loop if the value is
small, and in the check process (`check_process`) if the value is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from gateway.calls.selection import (
    INLINE_STEPS,
    MAX_STEPS,
    Selection,
    SelectionRefused,
    SelectionTooCostly,
    resolve_pointer,
    select,
)
from gateway.protocol import json_bytes
from registry.schema.display_text import excerpt

INLINE_BYTES: Final = 64 * 1024
"""The largest result that is processed on the event loop. Parsing this many bytes takes less than a millisecond."""
CUT_KEY: Final = "typegate/parts"
"""The member of a result's `_meta` that lists the cuts and selections, and contains the handle of the whole value."""
# Bytes within the size limit of a result that are reserved for notices about cuts.
_NOTICE_BYTES: Final = 700
# A longer line of text is split into several lines, so that each line fits into the smallest permitted size limit.
_LINE_CHARS: Final = 400
# A member of an object is not cut below this size, which is enough to recognize the value.
_LEAST_BYTES: Final = 200
_MAX_CUTS: Final = 5
_MAX_NAME_CHARS: Final = 100
Unit = Literal["items", "lines", "members"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One place at which a value was cut.

    Attributes:
        pointer: The JSON pointer of the list, object or text in the stored value.
        shown: The number of leading units that are shown.
        of: The total number of units.
        unit: The unit that these numbers count: list items, lines of text, or members of an object.
    """

    pointer: str
    shown: int
    of: int
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A result after shaping.

    Attributes:
        members: The new `content` and, if present, the new `structuredContent` of the result.
        stored: The whole value to store, as JSON, so that the caller can read the parts that are not shown; None if
            everything is shown.
        meta: The description of cuts and selections for `_meta`.
    """

    members: dict[str, Any]
    stored: bytes | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """One value of a result: the structured content, or an item of the content.

    Attributes:
        kind: `structured` for structured content; `json` for a text that is a JSON object or list; `item` for a content
            item that is never changed.
        value: The value of the part: the parsed JSON, the text, or the whole content item. Selections and cuts apply to
            this value.
        item: The content item, or an `_Uncut` after the value was cut; None for structured content that was not cut.
        linked: True if the shaped result contains a link instead of this binary item.
    """

    kind: Literal["structured", "json", "text", "binary", "item"]
    value: Any
    item: Any = None
    linked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeJob:
    """Select and cut a result.

    Attributes:
        selection: The part that the caller needs; None for everything.
        max_bytes, max_binary_bytes, binary_types: As in `registry.catalog.shape.ResultRules`.
        handle: The handle under which the value will be stored.
        objects_only: True if the caller's protocol version allows only objects as structured content.
        name: The name of the tool, which appears in the names of links.
    """

    handle: str
    name: str
    selection: Selection | None = None
    max_bytes: int | None = None
    max_binary_bytes: int | None = None
    binary_types: tuple[str, ...] | None = None
    objects_only: bool = False

    def run(self, text: bytes, *, inline: bool = False) -> Shaped | None:
        """Return the shaped result; None if the result needs no change.

        Args:
            text: The `content` and `structuredContent` of the result, as JSON.
            inline: True on the event loop, where a selection may take fewer steps than in the check process.

        Raises:
            SelectionTooCostly: The selection takes too many steps for the event loop.
        """
        result = json_bytes.loads(text)
        parts = _parts_of(result)
        originals = [part.value for part in parts]
        problem, selected = "", False
        hints: tuple[str, ...] = ()
        if self.selection is not None:
            try:
                hints, selected = self._select(parts, len(text), INLINE_STEPS if inline else MAX_STEPS)
            except SelectionRefused as refused:
                if inline and isinstance(refused, SelectionTooCostly):
                    raise
                problem = str(refused)
            values = [part.value for part in parts if part.kind in ("structured", "json")]
            if not problem and hints and all(value is None or value in ([], {}) for value in values):
                problem = "; ".join(hints)
        if problem:
            return self._nothing_selected(problem, parts, originals)
        links = self._mark_links(parts)
        cuts = self._cut(parts)
        if not (selected or links or cuts or self.selection is not None):
            return None
        stored = json_bytes.dumps(_join_values([_before_cut(part) for part in parts])) if links or cuts else None
        notices = [*self._notices(cuts), *(f"[`_select`: {hint}.]" for hint in hints)]
        if self.selection is not None and not selected:
            notices.append("[`_select` was not applied: the result is not JSON.]")
        changed = selected or bool(cuts)
        members = self._members(result, parts, changed=changed)
        members["content"] += [{"type": "text", "text": notice} for notice in notices]
        meta: dict[str, Any] = {"selected": True} if selected else {}
        if stored is not None:
            meta |= {"handle": self.handle, "cuts": [_row(cut) for cut, _ in cuts[:_MAX_CUTS]]}
        return Shaped(members=members, stored=stored, meta=meta)

    def _select(self, parts: list[_Part], size: int, steps: int) -> tuple[tuple[str, ...], bool]:
        """Apply the selection to every JSON part. Return hints about unknown fields, and whether a JSON part exists."""
        assert self.selection is not None
        hints: list[set[str]] = []
        all_hints: dict[str, None] = {}
        for part in parts:
            if part.kind in ("structured", "json"):
                outcome = select(part.value, self.selection, most_steps=steps, most_bytes=size)
                part.value = outcome.value
                all_hints.update(dict.fromkeys(outcome.hints))
                hints.append(set(outcome.hints))
        # If there are several parts, some of them may lack a field. Report a field only if all parts lack it.
        everywhere = set.intersection(*hints) if hints else set()
        return tuple(hint for hint in all_hints if hint in everywhere or len(hints) == 1), bool(hints)

    def _nothing_selected(self, problem: str, parts: list[_Part], originals: list[Any]) -> Shaped:
        text = f"Nothing selected: {problem}."
        if self.handle:
            again = json_bytes.dumps({"handle": self.handle, "select": "…"}).decode()
            text += (
                f" The tool was called, and its result is stored: do not repeat the call, but select from the result "
                f"with read_result, as in {again}."
            )
        other_items = [part.item for part in parts if part.kind in ("binary", "item")]
        return Shaped(
            members={"content": [{"type": "text", "text": text}, *other_items]},
            stored=json_bytes.dumps(_join_values(originals)) if self.handle else None,
            meta={"selected": False, **({"handle": self.handle} if self.handle else {})},
        )

    def _mark_links(self, parts: list[_Part]) -> bool:
        """Mark the binary parts that are too large or of an excluded type; return whether any part was marked.

        The result will contain a link instead of each marked part.
        """
        most = self.max_bytes if self.max_binary_bytes is None else self.max_binary_bytes
        for part in parts:
            if part.kind == "binary":
                data, media_type = binary_of(part.item)
                refused = self.binary_types is not None and not any(
                    fnmatchcase(media_type, pattern) for pattern in self.binary_types
                )
                part.linked = bool(self.handle) and (refused or (most is not None and len(data) * 3 // 4 > most))
        return any(part.linked for part in parts)

    def _cut(self, parts: list[_Part]) -> list[tuple[Cut, int]]:
        """Cut the parts until their total size is within the limit; return each cut with the index of the part."""
        if self.max_bytes is None or not self.handle:
            return []
        sizes = {
            number: _size(part.value)
            for number, part in enumerate(parts)
            if part.kind in ("structured", "json", "text")
        }
        if sum(sizes.values()) <= self.max_bytes:
            return []
        cuts: list[tuple[Cut, int]] = []
        budget = max(self.max_bytes - _NOTICE_BYTES, self.max_bytes // 2)
        # Start with the smallest part: the bytes that small parts do not use are shared among the larger parts.
        for rank, number in enumerate(sorted(sizes, key=sizes.__getitem__)):
            share = budget // (len(sizes) - rank)
            part = parts[number]
            part_cuts: list[Cut] = []
            pointer = "" if len(parts) == 1 else f"/{number}"
            shortened = cut(part.value, max(share, _LEAST_BYTES), pointer, part_cuts)
            budget -= min(_size(shortened), share)
            if part_cuts:
                part.item = _Uncut(part.item, part.value)
                part.value = shortened
                cuts += [(each, number) for each in part_cuts]
        return cuts

    def _notices(self, cuts: list[tuple[Cut, int]]) -> list[str]:
        return [notice_of(each, self.handle) for each, _ in cuts[:_MAX_CUTS]]

    def _members(self, result: dict[str, Any], parts: list[_Part], *, changed: bool) -> dict[str, Any]:
        members: dict[str, Any] = {"content": []}
        for number, part in enumerate(parts):
            if part.kind == "structured":
                if not changed:
                    members["structuredContent"] = part.value
                    members["content"] += [item for item in result["content"] if _is_text(item)]
                    continue
                if isinstance(part.value, dict) or not self.objects_only:
                    members["structuredContent"] = part.value
                members["content"].append(_text_item(part.value))
            elif part.linked:
                members["content"].append(self._link_to(part, "" if len(parts) == 1 else f"/{number}"))
            elif part.kind in ("json", "text") and changed:
                before = part.item.item if isinstance(part.item, _Uncut) else part.item
                members["content"].append(_with_text(before, part.value))
            else:
                members["content"].append(part.item)
        return members

    def _link_to(self, part: _Part, pointer: str) -> dict[str, Any]:
        data, media_type = binary_of(part.item)
        link: dict[str, Any] = {
            "type": "resource_link",
            "uri": f"{self.handle}#{pointer}" if pointer else self.handle,
            "name": excerpt(f"{self.name} {part.item.get('type')}", _MAX_NAME_CHARS),
            "description": "Left out of the result for its size or type. Read it with resources/read, or read_result.",
            "size": len(data) * 3 // 4,
        }
        return link | ({"mimeType": media_type} if media_type else {})


@dataclass(slots=True)
class _Uncut:
    """The content item and the value of a part before it was cut."""

    item: Any
    value: Any


def _before_cut(part: _Part) -> Any:
    return part.item.value if isinstance(part.item, _Uncut) else part.value


def _join_values(values: list[Any]) -> Any:
    """Return the value to store under a handle: the only part of the result, or the list of all parts."""
    return values[0] if len(values) == 1 else values


def _parts_of(result: dict[str, Any]) -> list[_Part]:
    """Return the parts of a result. If there is structured content, text items are not parts, as they repeat it."""
    content = result.get("content")
    items = content if isinstance(content, list) else []
    parts: list[_Part] = []
    structured = "structuredContent" in result
    if structured:
        parts.append(_Part("structured", result["structuredContent"]))
    for item in items:
        if _is_text(item):
            if not structured:
                parts.append(_text_part(item, item["text"]))
        elif isinstance(item, dict) and binary_of(item)[0]:
            parts.append(_Part("binary", item, item))
        elif isinstance(item, dict) and _embedded_text(item) is not None:
            parts.append(_text_part(item, item["resource"]["text"]))
        else:
            parts.append(_Part("item", item, item))
    return parts


def _text_part(item: Any, text: str) -> _Part:
    value = _json_in(text)
    return _Part("text", text, item) if value is None else _Part("json", value, item)


def _json_in(text: str) -> Any:
    """Parse a text that is a JSON object or list; return None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json_bytes.loads(text.encode("utf-8", "surrogatepass"))
    except json_bytes.MalformedJson:
        return None


def _is_text(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str)


def _embedded_text(item: dict[str, Any]) -> str | None:
    resource = item.get("resource")
    text = resource.get("text") if item.get("type") == "resource" and isinstance(resource, dict) else None
    return text if isinstance(text, str) else None


def binary_of(item: Any) -> tuple[str, str]:
    """Return the base64 data of a content item and its media type; two empty texts if the item has no such data."""
    if not isinstance(item, dict):
        return "", ""
    resource = item.get("resource")
    holder, member = (resource, "blob") if isinstance(resource, dict) else (item, "data")
    data, media_type = holder.get(member), holder.get("mimeType")
    return (data, media_type if isinstance(media_type, str) else "") if isinstance(data, str) else ("", "")


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json_bytes.dumps(value).decode("utf-8", "surrogatepass")


def _text_item(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": _text_of(value)}


def _with_text(item: dict[str, Any], value: Any) -> dict[str, Any]:
    """Return a content item with another text and the same annotations."""
    if item.get("type") == "text":
        return {**item, "text": _text_of(value)}
    return {**item, "resource": {**item["resource"], "text": _text_of(value)}}


def _row(shortening: Cut) -> dict[str, Any]:
    return {"pointer": shortening.pointer, "shown": shortening.shown, "of": shortening.of, "unit": shortening.unit}


def notice_of(shortening: Cut, handle: str, *, first: int = 0, select: str = "") -> str:
    """Return the notice about one cut, with the call of `read_result` that continues after the cut.

    Args:
        first: The index of the first item that is shown.
        select: The selection that produced the value. The next call has to repeat it. Empty without a selection.
    """
    offset = first + shortening.shown
    again: dict[str, Any] = {"handle": handle}
    if select:
        again["select"] = select
    elif shortening.pointer:
        again["pointer"] = shortening.pointer
    place = f" at {shortening.pointer}" if shortening.pointer and not select else ""
    call = json_bytes.dumps({**again, "offset": offset}).decode()
    extent = f"{shortening.unit} {first + 1} to {offset}" if first else f"the first {shortening.shown}"
    return f"[Cut: {extent} of {shortening.of} {shortening.unit}{place} are shown. Read on with read_result {call}.]"


def cut(value: Any, budget: int, pointer: str, cuts: list[Cut], first: int = 0) -> Any:
    """Return a JSON value cut to about `budget` bytes.

    Lists are cut after a complete item, and texts after a complete line. In objects, the largest members are cut first.
    At least one item or line remains, but an item may be cut itself. Numbers, booleans and null are not cut.

    Args:
        pointer: The JSON pointer of the value.
        cuts: The list to which the cuts are added, outer cuts first.
        first: If the value is a list: the index of its first item in the stored list.
    """
    if isinstance(value, str):
        return _cut_text(value, budget, pointer, cuts)
    if isinstance(value, list):
        return _cut_list(value, budget, pointer, cuts, first)
    if isinstance(value, dict):
        return _cut_object(value, budget, pointer, cuts)
    return value


def _cut_text(text: str, budget: int, pointer: str, cuts: list[Cut]) -> str:
    if len(text) * 4 <= budget or _size(text) <= budget:
        return text
    lines = split_lines(text)
    count = _fitting(lines, budget, _size)
    if count < len(lines):
        cuts.append(Cut(pointer=pointer, shown=count, of=len(lines), unit="lines"))
    return "".join(lines[:count])


def _fitting(items: list[Any], budget: int, size: Callable[[Any], int]) -> int:
    """Return how many leading items fit into the budget; the result is at least 1 unless there are no items."""
    for number, item in enumerate(items):
        budget -= size(item)
        if budget < 0:
            return max(number, 1)
    return len(items)


def _cut_list(items: list[Any], budget: int, pointer: str, cuts: list[Cut], first: int) -> list[Any]:
    count = _fitting(items, budget - 2, lambda item: _size(item) + 1)
    if count < len(items):
        cuts.append(Cut(pointer=pointer, shown=count, of=len(items), unit="items"))
    if count == 1 and _size(items[0]) > budget:
        return [cut(items[0], budget, f"{pointer}/{first}", cuts)]
    return items[:count]


def _cut_object(value: dict[str, Any], budget: int, pointer: str, cuts: list[Cut]) -> dict[str, Any]:
    sizes = {key: _size(member) + len(key) + 4 for key, member in value.items()}
    total = sum(sizes.values())
    if total <= budget:
        return value
    shortened = dict(value)
    # Cut the largest members first, so that as many members as possible remain whole.
    for key in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= budget or sizes[key] <= _LEAST_BYTES:
            break
        room = max(budget - (total - sizes[key]), _LEAST_BYTES)
        shortened[key] = cut(value[key], room, f"{pointer}/{_step(key)}", cuts)
        after = _size(shortened[key]) + len(key) + 4
        total, sizes[key] = total - sizes[key] + after, after
    if total > budget + _LEAST_BYTES:
        count = _fitting(list(shortened), budget, sizes.__getitem__)
        if count < len(shortened):
            cuts[:] = [each for each in cuts if not each.pointer.startswith(f"{pointer}/")]
            cuts.append(Cut(pointer=pointer, shown=count, of=len(shortened), unit="members"))
            return {key: shortened[key] for key in list(shortened)[:count]}
    return shortened


def _step(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def split_lines(text: str) -> list[str]:
    """Split a text at line breaks, and split lines of more than `_LINE_CHARS`. Joining the pieces restores the text."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        lines += [line[at : at + _LINE_CHARS] for at in range(0, len(line), _LINE_CHARS)]
    return lines


def _size(value: Any) -> int:
    return len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else len(json_bytes.dumps(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob:
    """Read a part of a stored value.

    Attributes:
        handle: The handle of the stored value, which appears in notices.
        pointer: The JSON pointer of the part.
        selection: The selection to apply to the part; None for the whole part.
        written: The expression as the caller wrote it, for notices; empty if the selection is not an expression.
        offset: The number of items, members or lines to skip.
        limit: The maximum number of items, members or lines to return; None for as many as fit.
        max_bytes: The maximum size of the answer.
    """

    handle: str
    pointer: str = ""
    selection: Selection | None = None
    written: str = ""
    offset: int = 0
    limit: int | None = None
    max_bytes: int = INLINE_BYTES

    def run(self, text: bytes, *, inline: bool = False) -> list[dict[str, Any]]:
        """Return the content items of the answer.

        Args:
            text: The stored value as JSON.
            inline: True on the event loop, where a selection may take fewer steps.

        Raises:
            SelectionRefused: The part does not exist, or the selection does not fit it. The text is for the model.
        """
        value = resolve_pointer(json_bytes.loads(text), self.pointer)
        notices: list[str] = []
        if self.selection is not None:
            steps = INLINE_STEPS if inline else MAX_STEPS
            selected = select(value, self.selection, most_steps=steps, most_bytes=len(text))
            if selected.is_empty and selected.hints:
                raise SelectionRefused("; ".join(selected.hints))
            value = selected.value
            notices += [f"[`select`: {hint}.]" for hint in selected.hints]
        if binary_of(value)[0]:
            return [value]
        units: Unit = "members" if isinstance(value, dict) else "items" if isinstance(value, list) else "lines"
        items = list(value.items()) if isinstance(value, dict) else value
        if isinstance(value, str):
            items = split_lines(value)
        total = len(items) if isinstance(items, list) else 1
        if self.offset and self.offset >= total:
            raise SelectionRefused(f"there are {total} {units}, and the offset is {self.offset}")
        if isinstance(items, list) and (self.offset or (self.limit is not None and self.limit < total)):
            end = total if self.limit is None else self.offset + self.limit
            items = items[self.offset : end]
            value = "".join(items) if units == "lines" else dict(items) if units == "members" else items
        cuts: list[Cut] = []
        budget = max(self.max_bytes - _NOTICE_BYTES, self.max_bytes // 2)
        shortened = cut(value, budget, self.pointer, cuts, self.offset) if _size(value) > self.max_bytes else value
        outer = [each for each in cuts if each.pointer == self.pointer]
        count = outer[0].shown if outer else len(items) if isinstance(items, list) else 1
        if self.offset + count < total:
            shortening = Cut(pointer=self.pointer, shown=count, of=total, unit=units)
            notices.append(notice_of(shortening, self.handle, first=self.offset, select=self.written))
        inner = [each for each in cuts if each.pointer != self.pointer]
        if inner and self.selection is None:
            notices += [notice_of(each, self.handle) for each in inner[:_MAX_CUTS]]
        elif inner:
            notices.append("[Cut: select less of each item to see it whole.]")
        return [_text_item(shortened), *({"type": "text", "text": notice} for notice in notices)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractJob:
    """Extract a part of a stored value, as an argument of another tool or as the contents of a resource.

    Attributes:
        pointer: The JSON pointer of the part.
        as_text: True to return text: a part that is not text is then serialized as JSON.
    """

    pointer: str = ""
    as_text: bool = True

    def run(self, text: bytes, *, inline: bool = False) -> bytes:
        """Return the value as JSON.

        Raises:
            SelectionRefused: The stored value has no part at this pointer.
        """
        value = resolve_pointer(json_bytes.loads(text), self.pointer)
        return json_bytes.dumps(_text_of(value) if self.as_text else value)


ValueJob = ShapeJob | ReadJob | ExtractJob
