"""Change one member in JSON or the flow style of YAML (braces) and leave the rest of the file as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Whitespace between tokens, with comments, which JSON with Comments allows.
_GAP: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMENT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\n]*|/\*.*?\*/|(?<=\s)#[^\n]*)', re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_WORD: Final = re.compile(r"[^\s,\]}/]+")


@dataclass(slots=True)
class Value:
    """The position of a value in a text.

    Attributes:
        start: Offset of the first character.
        end: Offset after the last character.
        members: The members of an object by key, each with the offset of its key and its value.
        items: The items of a list.
        lead: Offset after the colon or dash before the value; YAML only.
        is_block: Whether the value is a mapping or list in block style, which ends with its last value; YAML only.
        is_alias: Whether the value is a reference to an anchor; YAML only.
    """

    start: int
    end: int = 0
    members: dict[str, tuple[int, Value]] = field(default_factory=dict)
    items: list[Value] = field(default_factory=list)
    lead: int = 0
    is_block: bool = False
    is_alias: bool = False


def in_json(text: str) -> Value:
    """Return the position of the top-level value in a valid JSON text, with the positions of all values in it."""
    return _scan_value(text, _gap(text, int(text.startswith("\ufeff"))))


def with_member(text: str, holder: Value, key: str, value: Any) -> str:
    """Return the text with a member of an object replaced, or added at the end. Values on one line stay on one line."""
    unit = _unit(text)
    if key in holder.members:
        start, old = holder.members[key]
        margin = None if "\n" not in text[old.start : old.end] else _indentation(text, start)
        # In YAML, the old value may be empty. Without this space, the new value would follow the colon directly.
        gap = " " if text[old.start - 1] == ":" and old.lead else ""
        return text[: old.start] + gap + _dump_value(value, unit, margin) + text[old.end :]
    values = [member for _, member in holder.members.values()]
    return _insert_member(text, holder, values, f"{json.dumps(key, ensure_ascii=False)}: ", value)


def with_item(text: str, holder: Value, value: Any) -> str:
    """Return the text with an item added at the end of a list."""
    return _insert_member(text, holder, holder.items, "", value)


def _insert_member(text: str, holder: Value, present: Sequence[Value], name: str, value: Any) -> str:
    unit, outer = _unit(text), _indentation(text, holder.start)
    last = max((each.end for each in present), default=holder.start + 1)
    gap = text[last : holder.end - 1]
    # Insert the comma directly after the last value, before any comment that follows the value.
    comma = "," if present and not _COMMENT.sub("", gap).strip().startswith(",") else ""
    head, end = text[:last] + comma + gap.rstrip(), text[holder.end - 1 :]
    if "\n" not in text[holder.start : holder.end]:
        return f"{head}{' ' if present else ''}{name}{_dump_value(value, unit, None)}{end}"
    return f"{head}\n{outer}{unit}{name}{_dump_value(value, unit, outer + unit)}\n{outer}{end}"


def without_member(text: str, holder: Value, key: str) -> str:
    """Return the text without a member of an object."""
    start, value = holder.members[key]
    return _remove_item(text, start, value.end)


def without_item(text: str, item: Value) -> str:
    """Return the text without an item of a list."""
    return _remove_item(text, item.start, item.end)


def _remove_item(text: str, start: int, end: int) -> str:
    head, tail = text[:start].rstrip(), text[end:]
    if tail.lstrip().startswith(","):
        return head + tail.lstrip()[1:]
    # For the last element, also remove the preceding comma, if only whitespace is in between.
    return head.removesuffix(",") + tail


def has_comments(text: str, value: Value) -> bool:
    """Return true if a value contains a comment."""
    return any(match[1] for match in _COMMENT.finditer(text[value.start : value.end]))


def _scan_value(text: str, at: int) -> Value:
    scanned = Value(at)
    if text[at] not in "{[":
        token = (_STRING if text[at] == '"' else _WORD).match(text, at)
        assert token is not None
        scanned.end = token.end()
        return scanned
    at = _gap(text, at + 1)
    while text[at] not in "}]":
        key_start, key = at, None
        if text[scanned.start] == "{":
            key_token = _STRING.match(text, at)
            assert key_token is not None
            key = json.loads(key_token[0])
            at = _gap(text, _gap(text, key_token.end()) + 1)
        member = _scan_value(text, at)
        if key is not None:
            scanned.members[key] = (key_start, member)
        else:
            scanned.items.append(member)
        at = _gap(text, member.end)
        if text[at] == ",":
            at = _gap(text, at + 1)
    scanned.end = at + 1
    return scanned


def _gap(text: str, at: int) -> int:
    match = _GAP.match(text, at)
    return match.end() if match is not None else at


def _unit(text: str) -> str:
    indent = re.search(r"\n([ \t]+)\S", text)
    return indent[1] if indent else "  "


def _indentation(text: str, at: int) -> str:
    """Return the indentation of the line that contains an offset."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _dump_value(value: Any, unit: str, margin: str | None) -> str:
    """Serialize a value on one line or, with a margin, on several lines. `margin` indents all lines after the first."""
    if margin is None:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{margin}")
