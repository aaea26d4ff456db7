"""Change one member of an object in the text of a file, JSON or the flow style of YAML; all of the rest stays."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Of the editors' dialect too: what may stand between two tokens.
_GAP: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMENT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\n]*|/\*.*?\*/|(?<=\s)#[^\n]*)', re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_WORD: Final = re.compile(r"[^\s,\]}/]+")


@dataclass(slots=True)
class Value:
    """Where a value stands in a text.

    Attributes:
        start, end: Its first character, and that after its last.
        members: Of an object, by key: where the key begins, and the value.
        items: Of a list, in their order.
        lead: Where the colon or the dash before it ends; YAML only.
        is_block: It is a mapping or a list in block style, which ends with its last value; YAML only.
        is_alias: It is a reference to an anchor; YAML only.
    """

    start: int
    end: int = 0
    members: dict[str, tuple[int, Value]] = field(default_factory=dict)
    items: list[Value] = field(default_factory=list)
    lead: int = 0
    is_block: bool = False
    is_alias: bool = False


def in_json(text: str) -> Value:
    """Where the value of a JSON text stands, with every value below it. The text is known to be sound."""
    return _value(text, _gap(text, int(text.startswith("\ufeff"))))


def with_member(text: str, holder: Value, key: str, value: Any) -> str:
    """The text with this member in an object, in place of one of the same key or as its last one.

    What was written on one line stays on one line.
    """
    unit = _unit(text)
    if key in holder.members:
        start, old = holder.members[key]
        margin = None if "\n" not in text[old.start : old.end] else _margin(text, start)
        # In YAML nothing may stand there, right behind the colon.
        gap = " " if text[old.start - 1] == ":" and old.lead else ""
        return text[: old.start] + gap + _dumped(value, unit, margin) + text[old.end :]
    values = [one for _, one in holder.members.values()]
    return _extended(text, holder, values, f"{json.dumps(key, ensure_ascii=False)}: ", value)


def with_item(text: str, holder: Value, value: Any) -> str:
    """The text with this item at the end of a list."""
    return _extended(text, holder, holder.items, "", value)


def _extended(text: str, holder: Value, known: Sequence[Value], name: str, value: Any) -> str:
    unit, outer = _unit(text), _margin(text, holder.start)
    last = max((one.end for one in known), default=holder.start + 1)
    gap = text[last : holder.end - 1]
    # Behind the value itself: a comment after it is about it.
    comma = "," if known and not _COMMENT.sub("", gap).strip().startswith(",") else ""
    head, end = text[:last] + comma + gap.rstrip(), text[holder.end - 1 :]
    if "\n" not in text[holder.start : holder.end]:
        return f"{head}{' ' if known else ''}{name}{_dumped(value, unit, None)}{end}"
    return f"{head}\n{outer}{unit}{name}{_dumped(value, unit, outer + unit)}\n{outer}{end}"


def without_member(text: str, holder: Value, key: str) -> str:
    """The text without this member of an object."""
    start, value = holder.members[key]
    return _cut(text, start, value.end)


def without_item(text: str, item: Value) -> str:
    """The text without this item of a list."""
    return _cut(text, item.start, item.end)


def _cut(text: str, start: int, end: int) -> str:
    head, tail = text[:start].rstrip(), text[end:]
    if tail.lstrip().startswith(","):
        return head + tail.lstrip()[1:]
    # The last one: the comma before it goes with it, where nothing but spaces stands between.
    return head.removesuffix(",") + tail


def has_comments(text: str, value: Value) -> bool:
    """Whether a comment stands inside a value."""
    return any(found[1] for found in _COMMENT.finditer(text[value.start : value.end]))


def _value(text: str, at: int) -> Value:
    found = Value(at)
    if text[at] not in "{[":
        token = (_STRING if text[at] == '"' else _WORD).match(text, at)
        assert token is not None
        found.end = token.end()
        return found
    at = _gap(text, at + 1)
    while text[at] not in "}]":
        key_start, key = at, None
        if text[found.start] == "{":
            named = _STRING.match(text, at)
            assert named is not None
            key = json.loads(named[0])
            at = _gap(text, _gap(text, named.end()) + 1)
        member = _value(text, at)
        if key is not None:
            found.members[key] = (key_start, member)
        else:
            found.items.append(member)
        at = _gap(text, member.end)
        if text[at] == ",":
            at = _gap(text, at + 1)
    found.end = at + 1
    return found


def _gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found is not None else at


def _unit(text: str) -> str:
    indent = re.search(r"\n([ \t]+)\S", text)
    return indent[1] if indent else "  "


def _margin(text: str, at: int) -> str:
    """The spaces before the line in which a place is."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _dumped(value: Any, unit: str, margin: str | None) -> str:
    """A value as text: on lines of its own, each but the first behind this margin, or on one line."""
    if margin is None:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{margin}")
