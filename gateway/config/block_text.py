"""Change one member in the block style of YAML (lines with indentation) and leave the rest of the file as it is."""

from __future__ import annotations

import io
import re
from textwrap import dedent
from typing import Any, Final

from gateway.config.flow_text import Value

# The header of a block scalar: its indicators and an optional comment.
_HEADER: Final = re.compile(r"[|>][^\s#]*([^\r\n]*)")
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
# An alias and everything that may precede it after a colon or a dash.
_ALIAS: Final = re.compile(r"(?:\s|#[^\n]*|,|\[|-\s)*(\*[^\s,\]}]+)")
_COMMENT_LINE: Final = re.compile(r"[ \t]*#[^\n]*\n?")
# Wider than any line, so that ruamel.yaml does not wrap text.
_WIDTH: Final = 100_000


def in_yaml(text: str) -> Value:
    """Return the position of the top-level value in a YAML text, with the positions of all values in it."""
    from ruamel.yaml import YAML

    return _locate_value(text, YAML(typ="rt", pure=True).compose(text), 0)


def with_member(text: str, holder: Value, key: str, value: Any) -> str:
    """Return the text with a member of a mapping replaced, or added at the end."""
    if key in holder.members:
        start, old = holder.members[key]
        return _with_value(text, old, value, _column(text, start))
    column = _column(text, min(start for start, _ in holder.members.values()))
    return _insert_lines(text, holder.end, _lines({key: value}, text, column))


def without_member(text: str, holder: Value, key: str) -> str:
    """Return the text without a member of a mapping. Comment lines within the member are kept."""
    start, value = holder.members[key]
    line = _line_start(text, start)
    if not text[line:start].strip():
        return _without_lines(text, line, value.end)
    # The member follows the dash of a list item, so the next member takes its place.
    following = min(position for position, _ in holder.members.values() if position > start)
    return text[:start] + text[following:]


def with_item(text: str, holder: Value, value: Any) -> str:
    """Return the text with an item added at the end of a list."""
    return _insert_lines(text, holder.end, _lines([value], text, _column(text, holder.items[0].lead - 1)))


def without_item(text: str, item: Value) -> str:
    """Return the text without an item of a list."""
    return _without_lines(text, _line_start(text, item.lead), item.end)


def _with_value(text: str, old: Value, value: Any, column: int) -> str:
    """Return the text with the value of a member replaced. `column` is the column of the member."""
    header = _HEADER.match(text, old.start)
    if old.is_block:
        end = _line_end(text, old.lead)
        head, tail = text[: old.lead], text[old.lead : end]
        following = _without_lines(text[end + 1 :], 0, old.end - end - 1)
        following = (_newline(text) if following else "") + following.removesuffix("\n" if following == "\n" else "")
    elif header is not None and text[old.start] in "|>" and header.end() < old.end:
        head, tail, following = text[: old.start].rstrip(" "), header[1].rstrip(), text[old.end :]
    else:
        end = _line_end(text, old.end)
        head, tail, following = text[: old.start].rstrip(" "), text[old.end : end], text[end:]
    if isinstance(value, dict | list) and value:
        indent = column + (len(_unit(text)) if isinstance(value, dict) else _offset(text))
        lines = _newline(text) + _lines(value, text, indent)
        return head + tail + lines + following
    return f"{head} {_lines([value], text, 0).strip()[1:].strip()}{tail}{following}"


def _locate_value(text: str, node: Any, lead: int) -> Value:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    if node.start_mark.index < lead:
        # For an alias, ruamel.yaml returns the node of its anchor, which is earlier in the text.
        alias = _ALIAS.match(text, lead)
        assert alias is not None
        return Value(alias.start(1), alias.end(1), lead=lead, is_alias=True)
    properties = _PROPERTIES.match(text, node.start_mark.index)
    start = properties.end() if properties is not None else node.start_mark.index
    is_collection = isinstance(node, MappingNode | SequenceNode)
    located = Value(min(start, node.end_mark.index), node.end_mark.index, lead=lead)
    located.is_block = is_collection and not node.flow_style
    if isinstance(node, MappingNode):
        for key, value in node.value:
            colon = text.index(":", key.end_mark.index)
            located.members[str(key.value)] = (key.start_mark.index, _locate_value(text, value, colon + 1))
    elif isinstance(node, SequenceNode):
        at = located.start
        for item in node.value:
            at = _after_dash(text, at, item) if located.is_block else at
            located.items.append(_locate_value(text, item, at))
            at = located.items[-1].end
    elif node.style in ("|", ">"):
        located.end = _end_of_block_scalar(text, located)
    if located.is_block:
        located.end = max(
            (each.end for each in (*(value for _, value in located.members.values()), *located.items)), default=start
        )
    return located


def _after_dash(text: str, at: int, item: Any) -> int:
    """Return the offset after the dash of a list item: the last dash between `at` and the item."""
    if item.start_mark.index >= at:
        return text.rindex("-", at, item.start_mark.index) + 1 if "-" in text[at : item.start_mark.index] else at
    alias = _ALIAS.match(text, at)
    assert alias is not None
    return text.rindex("-", at, alias.start(1)) + 1


def _end_of_block_scalar(text: str, value: Value) -> int:
    """Return the offset after the last line of a block scalar, without comments that belong to the next value."""
    lines = text[value.start : value.end].splitlines(keepends=True)
    first = next((line for line in lines[1:] if line.strip()), "")
    indent = len(first) - len(first.lstrip(" "))
    while len(lines) > 1 and (not lines[-1].strip() or len(lines[-1]) - len(lines[-1].lstrip(" ")) < indent):
        lines.pop()
    return value.start + len("".join(lines).rstrip("\r\n"))


def _insert_lines(text: str, after: int, lines: str) -> str:
    """Return the text with lines inserted after the line that contains the offset `after`."""
    at = _line_end(text, after)
    return text[:at] + _newline(text) + lines + text[at:]


def _without_lines(text: str, start: int, end: int) -> str:
    """Return the text without the lines from `start` to `end`, except those that are comments."""
    end = min(_line_end(text, max(start, end)) + 1, len(text))
    comments = [line for line in text[start:end].splitlines(keepends=True) if _COMMENT_LINE.fullmatch(line)]
    return text[:start] + "".join(comments) + text[end:]


def _lines(value: Any, text: str, column: int) -> str:
    """Serialize a mapping or list in the block style of `text`, indented to `column`, without the last line break."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt", pure=True)
    yaml.width = _WIDTH
    offset = _offset(text)
    yaml.indent(mapping=len(_unit(text)), sequence=offset + 2, offset=offset)
    stream = io.StringIO()
    yaml.dump(value, stream)
    lines = dedent(stream.getvalue()).rstrip("\n").split("\n")
    return _newline(text).join(" " * column + line if line else line for line in lines)


def _unit(text: str) -> str:
    """Return the indentation of the first nested mapping."""
    indentation = re.search(r"^( +)[^\s#-]", text, re.MULTILINE)
    return indentation[1] if indentation else "  "


def _offset(text: str) -> int:
    """Return the indentation of the first list's dashes, relative to the key of the list; 2 if there is no list."""
    dash = re.search(r"^( *)[^\s#-][^\n]*:[^\S\n]*\n(?:[^\S\n]*(?:#[^\n]*)?\n)*( *)- ", text, re.MULTILINE)
    return max(0, len(dash[2]) - len(dash[1])) if dash else 2


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _column(text: str, at: int) -> int:
    return at - _line_start(text, at)


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - 1 if end > at and text[end - 1] == "\r" else end
