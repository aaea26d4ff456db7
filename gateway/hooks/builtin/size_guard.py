"""`size_guard`: shortens results that are too large; they keep their structure and say what was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from gateway import wire
from gateway.hooks import settings
from gateway.hooks.hook import After, Call, Hook, Result
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES
from gateway.protocol import with_meta
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.schemas import digest

CUT_KEY: Final = "typegate/cut"
"""The member of a result's `_meta` that lists what was left out."""
# Cuts that are listed; a model needs to know that something is missing, not each of hundreds of places.
_MAX_LISTED_CUTS: Final = 20
# What a shortened value keeps at least: a line of text, from which one sees what it was.
_MIN_BYTES: Final = 40
# About 16,000 tokens: as much as hosts show a model before they cut a result themselves.
_DEFAULT_MAX_BYTES: Final = 64 * 1024
# For the sentence about cuts and their list; of a small limit half is for that.
_NOTICE_BYTES: Final = 1_000
_MARK_BYTES: Final = 60
_MARK: Final = "…"

Cut = dict[str, Any]
K = TypeVar("K")


class SizeGuard(Hook):
    """Bounds results. `config`: `maxBytes` (65,536).

    JSON stays JSON, also inside texts: long strings and lists are cut, members of objects stay. Other texts keep their
    beginning and their end. Binary items that are too large are left out. `structuredContent` is cut in the same way;
    if it no longer conforms to the tool's output schema, the result says so.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        settings.check_keys(config, "maxBytes")
        self._max_bytes = int(
            settings.number(config, "maxBytes", _DEFAULT_MAX_BYTES, least=1_000, most=MAX_PAYLOAD_BYTES)
        )

    def after_call(self, call: Call, result: Result) -> After:
        """Cut a result that is too large."""
        if len(wire.dumps(result.value)) <= self._max_bytes:
            return None
        cuts: list[Cut] = []
        value = dict(result.value)
        large = self._max_bytes > 4 * _NOTICE_BYTES
        budget = self._max_bytes - _NOTICE_BYTES if large else self._max_bytes // 2
        structured = "structuredContent" in value
        if structured:
            budget //= 2
            value["structuredContent"] = fitted(value["structuredContent"], budget, "structuredContent", cuts)
        content = value.get("content")
        items = content if isinstance(content, list) else []
        value["content"] = _content(items, budget, cuts)
        notice = _notice(cuts)
        if structured and not _conforms(call.definition, value["structuredContent"]):
            notice += " structuredContent does not fit the output schema of the tool any more."
        value["content"].append({"type": "text", "text": notice})
        return result.with_value(with_meta(value, CUT_KEY, cuts[:_MAX_LISTED_CUTS]))


def fitted(value: Any, budget: int, path: str, cuts: list[Cut]) -> Any:
    """Return a JSON value of about so many bytes at most; members of objects all stay."""
    size = _size(value)
    if size <= budget:
        return value
    if isinstance(value, str):
        return _shorter(value, budget, path, cuts)
    if isinstance(value, list):
        kept: list[Any] = []
        left = budget - 2
        for place, item in enumerate(value):
            item_size = _size(item) + 1
            if item_size > left:
                if not kept and left > _MIN_BYTES:
                    kept.append(fitted(item, left, f"{path}[{place}]", cuts))
                break
            kept.append(item)
            left -= item_size
        if len(kept) < len(value):
            cuts.append({"path": path, "kept": len(kept), "of": len(value), "what": "items"})
        return kept
    if isinstance(value, dict):
        left = budget - 2 - sum(len(key) + 4 for key in value)
        return _shared_out(value, left, lambda key, share: fitted(value[key], share, f"{path}.{key}", cuts))
    return value


def _content(items: list[Any], budget: int, cuts: list[Cut]) -> list[Any]:
    def fit(index: int, share: int) -> Any:
        return _item(items[index], _size(items[index]), share, f"content[{index}]", cuts)

    return list(_shared_out(dict(enumerate(items)), budget, fit).values())


def _shared_out(parts: dict[K, Any], budget: int, fit: Callable[[K, int], Any]) -> dict[K, Any]:
    """Fit each part into its share of a budget."""
    sizes = {key: _size(part) for key, part in parts.items()}
    fits: dict[K, Any] = {}
    # The smallest first: what they leave of their shares is for the large ones.
    for rank, key in enumerate(sorted(sizes, key=sizes.__getitem__)):
        fits[key] = fit(key, max(budget // (len(parts) - rank), _MIN_BYTES))
        budget -= _size(fits[key])
    return {key: fits[key] for key in parts}


def _item(item: Any, size: int, budget: int, path: str, cuts: list[Cut]) -> Any:
    if size <= budget or not isinstance(item, dict):
        return item
    text = item.get("text")
    if isinstance(text, str):
        return {**item, "text": _text(text, budget - (size - _size(text)), f"{path}.text", cuts)}
    inner = item.get("resource")
    if isinstance(inner, dict) and isinstance(inner.get("text"), str):
        room = budget - (size - _size(inner["text"]))
        return {**item, "resource": {**inner, "text": _text(inner["text"], room, f"{path}.resource.text", cuts)}}
    # Half of an image or a sound is of no use, so what is binary goes whole.
    cuts.append({"path": path, "kept": 0, "of": size, "what": "bytes"})
    kind = str(item.get("type"))[:40]
    return {"type": "text", "text": f"[{kind} of {size} bytes left out: larger than the limit of this gateway]"}


def _text(text: str, budget: int, path: str, cuts: list[Cut]) -> str:
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = wire.loads(text.encode("utf-8", "surrogatepass"))
        except wire.MalformedJson:
            return _shorter(text, budget, path, cuts)
        # Inside a string every quote is escaped and takes two bytes, so the room is found by trying.
        room = budget
        for _ in range(4):
            tried: list[Cut] = []
            made = wire.dumps(fitted(value, max(room, _MIN_BYTES), path, tried)).decode("utf-8", "surrogatepass")
            if (over := _size(made) - budget) <= 0:
                break
            room -= over + 16
        cuts += tried
        return made
    return _shorter(text, budget, path, cuts)


def _shorter(text: str, budget: int, path: str, cuts: list[Cut]) -> str:
    """The beginning and the end of a text, and between them how much is missing."""
    room = max(budget - _MARK_BYTES, _MIN_BYTES)
    kept = min(len(text), room)
    while kept > _MIN_BYTES and _size(text[: kept * 2 // 3]) + _size(text[len(text) - kept // 3 :]) > room + 4:
        kept = kept * 3 // 4
    cuts.append({"path": path, "kept": kept, "of": len(text), "what": "characters"})
    head, tail = kept * 2 // 3, kept - kept * 2 // 3
    return f"{text[:head]}{_MARK}[{len(text) - kept} characters left out]{_MARK}{text[len(text) - tail :]}"


def _notice(cuts: list[Cut]) -> str:
    parts = [f"{cut['path']}: {cut['kept']} of {cut['of']} {cut['what']}" for cut in cuts[:_MAX_LISTED_CUTS]]
    more = f"; and {len(cuts) - _MAX_LISTED_CUTS} more" if len(cuts) > _MAX_LISTED_CUTS else ""
    return f"Shortened by the gateway, because the result was too large. Kept: {'; '.join(parts)}{more}."


def _conforms(definition: Mapping[str, Any], value: Any) -> bool:
    schema = definition.get("outputSchema")
    if not isinstance(schema, dict):
        return True
    try:
        return schemas.validator(schema, digest(schema)).is_valid(value)
    except SchemaRejected:
        return True
    except NotChecked:
        return False  # it cannot be told in time, so nothing is promised


def _size(value: Any) -> int:
    return len(wire.dumps(value))
