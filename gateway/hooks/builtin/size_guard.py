"""`size_guard`: results that are too large are made smaller, keep their structure, and say what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway import wire
from gateway.hooks.builtin import settings
from gateway.hooks.hook import After, Call, Hook, Result
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.schemas import digest

CUT_KEY: Final = "typegate/cut"
"""The member of a result's `_meta` that lists what was left out."""
_MAX_TOLD: Final = 20
_LEAST: Final = 40
_MARK: Final = "…"

Cut = dict[str, Any]


class SizeGuard(Hook):
    """Bounds results. `config`: `maxBytes` (65,536).

    JSON stays JSON, in texts too: long strings and lists are cut, members of objects stay. Other texts keep their
    beginning and their end. What is binary and too large is left out. `structuredContent` is cut in the same way;
    where the outcome does not fit the tool's output schema the result says so.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        settings.known(config, "maxBytes")
        self._max_bytes = int(settings.number(config, "maxBytes", 65_536, least=1_000, most=8 * 2**20))

    def after_call(self, call: Call, result: Result) -> After:
        """Cut a result that is too large."""
        if len(wire.dumps(result.value)) <= self._max_bytes:
            return None
        cuts: list[Cut] = []
        value = dict(result.value)
        budget = self._max_bytes - 1_000 if self._max_bytes > 4_000 else self._max_bytes // 2
        structured = "structuredContent" in value
        if structured:
            budget //= 2
            value["structuredContent"] = fitted(value["structuredContent"], budget, "structuredContent", cuts)
        content = value.get("content")
        items = content if isinstance(content, list) else []
        value["content"] = _content(items, budget, cuts)
        told = _told(cuts)
        if structured and not _conforms(call.definition, value["structuredContent"]):
            told += " structuredContent does not fit the output schema of the tool any more."
        value["content"].append({"type": "text", "text": told})
        meta = value.get("_meta")
        value["_meta"] = {**(meta if isinstance(meta, dict) else {}), CUT_KEY: cuts[:_MAX_TOLD]}
        return result.with_value(value)


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
                if not kept and left > _LEAST:
                    kept.append(fitted(item, left, f"{path}[{place}]", cuts))
                break
            kept.append(item)
            left -= item_size
        if len(kept) < len(value):
            cuts.append({"path": path, "kept": len(kept), "of": len(value), "what": "items"})
        return kept
    if isinstance(value, dict):
        sizes = {key: _size(one) for key, one in value.items()}
        left = budget - 2 - sum(len(key) + 4 for key in value)
        made: dict[str, Any] = {}
        for place, key in enumerate(sorted(value, key=lambda one: sizes[one])):
            share = max(left // (len(value) - place), _LEAST)
            made[key] = fitted(value[key], share, f"{path}.{key}", cuts)
            left -= _size(made[key])
        return {key: made[key] for key in value}
    return value


def _content(items: list[Any], budget: int, cuts: list[Cut]) -> list[Any]:
    sizes = [_size(item) for item in items]
    left, made = budget, dict[int, Any]()
    for rank, place in enumerate(sorted(range(len(items)), key=lambda one: sizes[one])):
        share = max(left // (len(items) - rank), _LEAST)
        made[place] = _item(items[place], sizes[place], share, f"content[{place}]", cuts)
        left -= _size(made[place])
    return [made[place] for place in range(len(items))]


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
    cuts.append({"path": path, "kept": 0, "of": size, "what": "bytes"})
    kind = str(item.get("type"))[:40]
    return {"type": "text", "text": f"[{kind} of {size} bytes left out: larger than the limit of this gateway]"}


def _text(text: str, budget: int, path: str, cuts: list[Cut]) -> str:
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = wire.loads(text.encode("utf-8", "surrogatepass"))
        except wire.MalformedJson:
            return _shorter(text, budget, path, cuts)
        # Inside a string every quote is written with a backslash, and is two bytes.
        room = budget
        for _ in range(4):
            tried: list[Cut] = []
            made = wire.dumps(fitted(value, max(room, _LEAST), path, tried)).decode("utf-8", "surrogatepass")
            if (over := _size(made) - budget) <= 0:
                break
            room -= over + 16
        cuts += tried
        return made
    return _shorter(text, budget, path, cuts)


def _shorter(text: str, budget: int, path: str, cuts: list[Cut]) -> str:
    """The beginning and the end of a text, and between them how much is missing."""
    room = max(budget - 60, _LEAST)
    kept = min(len(text), room)
    while kept > _LEAST and _size(text[: kept * 2 // 3]) + _size(text[len(text) - kept // 3 :]) > room + 4:
        kept = kept * 3 // 4
    cuts.append({"path": path, "kept": kept, "of": len(text), "what": "characters"})
    head, tail = kept * 2 // 3, kept - kept * 2 // 3
    return f"{text[:head]}{_MARK}[{len(text) - kept} characters left out]{_MARK}{text[len(text) - tail :]}"


def _told(cuts: list[Cut]) -> str:
    parts = [f"{cut['path']}: {cut['kept']} of {cut['of']} {cut['what']}" for cut in cuts[:_MAX_TOLD]]
    more = f"; and {len(cuts) - _MAX_TOLD} more" if len(cuts) > _MAX_TOLD else ""
    return f"Shortened by the gateway, because the result was too large. Kept: {'; '.join(parts)}{more}."


def _conforms(definition: Mapping[str, Any], value: Any) -> bool:
    schema = definition.get("outputSchema")
    if not isinstance(schema, dict):
        return True
    try:
        return schemas.validator(schema, digest(schema)).is_valid(value)
    except SchemaRejected:
        return True


def _size(value: Any) -> int:
    return len(wire.dumps(value))
