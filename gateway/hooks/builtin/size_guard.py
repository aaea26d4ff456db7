"""`size_guard`: shorten results that are too large."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from gateway.hooks import payloads
from gateway.hooks.hook import After, Call, Hook, Result
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES
from gateway.protocol import json_bytes
from gateway.protocol.versions import with_meta
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.schemas import digest

CUT_KEY: Final = "typegate/cut"
"""The member of a result's `_meta` that lists the cuts."""
# Maximum number of cuts to list: a model has to learn that something is missing, but not where in hundreds of places.
_MAX_LISTED_CUTS: Final = 20
# Minimum size of a shortened value: a line of text, enough to recognize the original.
_MIN_BYTES: Final = 40
# About 16,000 tokens, which is as much as hosts give to a model before they shorten a result themselves.
_DEFAULT_MAX_BYTES: Final = 64 * 1024
# The size reserved for the notice and the list of cuts; if `maxBytes` is small, half of it is reserved instead.
_NOTICE_BYTES: Final = 1_000
_MARK_BYTES: Final = 60
_MARK: Final = "…"

Cut = dict[str, Any]
K = TypeVar("K")


class SizeGuard(Hook):
    """Bounds the size of results. `config`: `maxBytes` (65,536).

    JSON stays valid, also JSON inside texts: long strings and lists are cut, and all members of objects are kept. Other
    texts keep their beginning and end. Binary items that are too large are removed. `structuredContent` is cut like
    other JSON; if it no longer conforms to the tool's output schema, the result says so.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        payloads.check_keys(config, "maxBytes")
        self._max_bytes = int(
            payloads.read_number(config, "maxBytes", _DEFAULT_MAX_BYTES, least=1_000, most=MAX_PAYLOAD_BYTES)
        )

    def after_call(self, call: Call, result: Result) -> After:
        """Shorten a result that is too large."""
        if len(json_bytes.dumps(result.value)) <= self._max_bytes:
            return None
        cuts: list[Cut] = []
        value = dict(result.value)
        large = self._max_bytes > 4 * _NOTICE_BYTES
        budget = self._max_bytes - _NOTICE_BYTES if large else self._max_bytes // 2
        structured = "structuredContent" in value
        if structured:
            budget //= 2
            value["structuredContent"] = shorten(value["structuredContent"], budget, "structuredContent", cuts)
        content = value.get("content")
        items = content if isinstance(content, list) else []
        value["content"] = _shorten_content(items, budget, cuts)
        notice = _notice(cuts)
        if structured and not _conforms(call.definition, value["structuredContent"]):
            notice += " structuredContent no longer conforms to the tool's output schema."
        value["content"].append({"type": "text", "text": notice})
        return result.with_value(with_meta(value, CUT_KEY, cuts[:_MAX_LISTED_CUTS]))


def shorten(value: Any, budget: int, path: str, cuts: list[Cut]) -> Any:
    """Return a JSON value shortened to about `budget` bytes, keeping all members of objects, and append to `cuts`."""
    size = _size(value)
    if size <= budget:
        return value
    if isinstance(value, str):
        return _cut_text(value, budget, path, cuts)
    if isinstance(value, list):
        shortened: list[Any] = []
        bytes_left = budget - 2
        for place, item in enumerate(value):
            item_size = _size(item) + 1
            if item_size > bytes_left:
                if not shortened and bytes_left > _MIN_BYTES:
                    shortened.append(shorten(item, bytes_left, f"{path}[{place}]", cuts))
                break
            shortened.append(item)
            bytes_left -= item_size
        if len(shortened) < len(value):
            cuts.append({"path": path, "kept": len(shortened), "of": len(value), "what": "items"})
        return shortened
    if isinstance(value, dict):
        bytes_left = budget - 2 - sum(len(key) + 4 for key in value)
        return _distribute(value, bytes_left, lambda key, share: shorten(value[key], share, f"{path}.{key}", cuts))
    return value


def _shorten_content(items: list[Any], budget: int, cuts: list[Cut]) -> list[Any]:
    def fit(index: int, share: int) -> Any:
        return _shorten_item(items[index], _size(items[index]), share, f"content[{index}]", cuts)

    return list(_distribute(dict(enumerate(items)), budget, fit).values())


def _distribute(parts: dict[K, Any], budget: int, fit: Callable[[K, int], Any]) -> dict[K, Any]:
    """Fit each part into its share of the budget.

    Args:
        fit: Receives a key and a size in bytes, and returns the part of this key shortened to the size.
    """
    sizes = {key: _size(part) for key, part in parts.items()}
    fits: dict[K, Any] = {}
    # Smallest first, so that the unused rest of their shares is available to larger parts.
    for rank, key in enumerate(sorted(sizes, key=sizes.__getitem__)):
        fits[key] = fit(key, max(budget // (len(parts) - rank), _MIN_BYTES))
        budget -= _size(fits[key])
    return {key: fits[key] for key in parts}


def _shorten_item(item: Any, size: int, budget: int, path: str, cuts: list[Cut]) -> Any:
    if size <= budget or not isinstance(item, dict):
        return item
    text = item.get("text")
    if isinstance(text, str):
        return {**item, "text": _shorten_text(text, budget - (size - _size(text)), f"{path}.text", cuts)}
    inner = item.get("resource")
    if isinstance(inner, dict) and isinstance(inner.get("text"), str):
        room = budget - (size - _size(inner["text"]))
        return {
            **item,
            "resource": {**inner, "text": _shorten_text(inner["text"], room, f"{path}.resource.text", cuts)},
        }
    # A part of an image or audio file is useless, so binary items are removed completely.
    cuts.append({"path": path, "kept": 0, "of": size, "what": "bytes"})
    kind = str(item.get("type"))[:40]
    return {"type": "text", "text": f"[{kind} of {size} bytes left out: larger than the limit of this gateway]"}


def _shorten_text(text: str, budget: int, path: str, cuts: list[Cut]) -> str:
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json_bytes.loads(text.encode("utf-8", "surrogatepass"))
        except json_bytes.MalformedJson:
            return _cut_text(text, budget, path, cuts)
        # Inside a string, each quote is escaped and takes two bytes, so find by trial the budget that fits.
        room = budget
        for _ in range(4):
            tried: list[Cut] = []
            shortened = json_bytes.dumps(shorten(value, max(room, _MIN_BYTES), path, tried)).decode(
                "utf-8", "surrogatepass"
            )
            if (over := _size(shortened) - budget) <= 0:
                break
            room -= over + 16
        cuts += tried
        return shortened
    return _cut_text(text, budget, path, cuts)


def _cut_text(text: str, budget: int, path: str, cuts: list[Cut]) -> str:
    """Return the beginning and the end of a text, with the number of omitted characters between them."""
    room = max(budget - _MARK_BYTES, _MIN_BYTES)
    kept_chars = min(len(text), room)
    while (
        kept_chars > _MIN_BYTES
        and _size(text[: kept_chars * 2 // 3]) + _size(text[len(text) - kept_chars // 3 :]) > room + 4
    ):
        kept_chars = kept_chars * 3 // 4
    cuts.append({"path": path, "kept": kept_chars, "of": len(text), "what": "characters"})
    head, tail = kept_chars * 2 // 3, kept_chars - kept_chars * 2 // 3
    return f"{text[:head]}{_MARK}[{len(text) - kept_chars} characters left out]{_MARK}{text[len(text) - tail :]}"


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
        return False  # conformance could not be checked in time, so do not claim it


def _size(value: Any) -> int:
    return len(json_bytes.dumps(value))
