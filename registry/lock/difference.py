"""The difference between two definitions as people read it: a line for each value that was there, and that is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from registry.lock.changes import Change
from registry.lock.digests import canonical
from registry.schema.display_text import excerpt

# Two screens; whoever wants more compares the definitions themselves, which stand in the lock file.
_MAX_LINES: Final = 80
# A paragraph: longer texts are cut around the place where they differ.
_MAX_CHARS: Final = 400
# Words of context on each side of a changed part of a text.
_CONTEXT_CHARS: Final = 60
_MAX_STEPS: Final = 12
_ABSENT: Final = object()
_ENTIRE: Final = ("description", "title", "inputSchema", "outputSchema", "annotations", "arguments")


def difference(change: Change) -> tuple[str, ...]:
    """Return the lines that show a change: the path, then `- ` what was and `+ ` what is; bounded."""
    lines: list[str] = []
    if change.was is not None:
        lines += ["name", f"- {excerpt(change.was, _MAX_CHARS)}", f"+ {excerpt(change.name, _MAX_CHARS)}"]
    before, after = change.before, change.after
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for path, was, now in _differences(before, after, ()):
            if path != ("name",) or change.was is None:
                lines += [_path(path), *_values(was, now)]
    elif change.kind in ("instructions", "server"):
        lines += _values(_ABSENT if before is None else before, _ABSENT if after is None else after)
    else:
        sign, whole = ("+", after) if before is None else ("-", before)
        shown = ((member, whole[member]) for member in _ENTIRE if isinstance(whole, Mapping) and member in whole)
        lines += [f"{sign} {member}: {_shown(value)}" for member, value in shown]
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"… and {len(lines) - _MAX_LINES} more lines"]
    return tuple(lines)


def _differences(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the path of each difference, as deep as both sides are objects."""
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if was is not _ABSENT and now is not _ABSENT and canonical(was) == canonical(now):
            continue
        if isinstance(was, dict) and isinstance(now, dict) and len(path) < _MAX_STEPS:
            yield from _differences(was, now, (*path, key))
        elif was is not now:
            yield (*path, key), was, now


def _path(path: tuple[str, ...]) -> str:
    return ".".join(excerpt(step, 64) for step in path)


def _values(was: Any, now: Any) -> list[str]:
    if isinstance(was, str) and isinstance(now, str):
        was, now = _around_the_change(was, now)
    return [f"{sign} {_shown(value)}" for sign, value in (("-", was), ("+", now)) if value is not _ABSENT]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    return excerpt(text, _MAX_CHARS) or '""'


def _around_the_change(was: str, now: str) -> tuple[str, str]:
    """Cut what two long texts have in common, so that the place where they differ is shown."""
    if max(len(was), len(now)) <= _MAX_CHARS:
        return was, now
    start = next((at for at, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), None)
    start = min(len(was), len(now)) if start is None else start
    start = max(0, start - _CONTEXT_CHARS)
    cut = "…" if start else ""
    return cut + was[start:], cut + now[start:]
