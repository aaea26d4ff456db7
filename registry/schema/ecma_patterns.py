"""Rewrites a pattern of ECMAScript, or of Python, in the syntax that the engines here read; its meaning stays."""

from __future__ import annotations

import re
from typing import Final

# Escapes that mean one character in ECMAScript or Python and that the engines refuse, inside a class and outside.
_CHARACTERS: Final = {"\\0": "\\x00", "\\a": "\\x07", "\\e": "\\x1b"}
# The end of the text, as Python writes it. In ECMAScript it would be the letter, which nobody escapes.
_PLACES: Final = {"\\Z": "\\z"}
_QUANTIFIER: Final = re.compile(r"\{\d+(?:,\d*)?\}")
_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_PAIR: Final = re.compile(f"({_HIGH})({_LOW})")
_CLASS_PAIR: Final = re.compile(rf"\[{_HIGH}-{_HIGH}\]\[{_LOW}-{_LOW}\]")
_HALF_RANGE: Final = re.compile(rf"(?:{_HIGH}|{_LOW})-(?:{_HIGH}|{_LOW})|{_HIGH}|{_LOW}")
_TOKEN: Final = re.compile(r"\\(?:[ux]\{[0-9a-fA-F]+\}|[pP]\{[^}]*\}|k<\w+>|.)|.", re.DOTALL)
_CLASS_ESCAPES: Final = frozenset({"\\d", "\\D", "\\s", "\\S", "\\w", "\\W"})


def to_engine_syntax(pattern: str) -> str:
    """Return a pattern in the syntax of the engines, for one that they do not read as it stands.

    What it cannot rewrite is returned as it is, and then no engine takes it.
    """
    tokens = _TOKEN.findall(_without_surrogates(pattern))
    out: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token == "[":
            text, index = _class(tokens, index)
            out.append(text)
            continue
        out.append(_outside_class(token, "".join(tokens[index : index + 24]), out))
        index += 1
    return re.sub(r"\(\?#[^)]*\)", "", "".join(out))


def _outside_class(token: str, ahead: str, before: list[str]) -> str:
    if token in _CHARACTERS:
        return _CHARACTERS[token]
    if token in _PLACES:
        return _PLACES[token]
    if token.startswith("\\k<"):
        return f"(?P={token[3:-1]})"
    if token == "<" and before[-2:] == ["(", "?"] and ahead[1:2] not in ("=", "!"):
        return "P<"
    if token == "{" and not _QUANTIFIER.match(ahead):
        return "\\{"  # no quantifier, so the character itself
    if len(token) == 2 and token[0] == "\\" and ord(token[1]) > 127:
        return token[1]
    return token


def _class(tokens: list[str], start: int) -> tuple[str, int]:
    """Return one class of characters rewritten, and where its tokens end."""
    index = start + 1
    negated = index < len(tokens) and tokens[index] == "^"
    index += negated
    if index < len(tokens) and tokens[index] == "]" and "]" not in tokens[index + 1 :]:
        # In ECMAScript an empty class matches nothing, and its opposite everything.
        return ("[\\s\\S]" if negated else "[^\\s\\S]"), index + 1
    members: list[str] = []
    while index < len(tokens) and tokens[index] != "]":
        token = tokens[index]
        if token == "\\b":
            token = "\\x08"
        elif token == "-" and (
            (members and members[-1] in _CLASS_ESCAPES)
            or tokens[index + 1 : index + 2] in [[c] for c in _CLASS_ESCAPES]
        ):
            token = "\\-"  # beside a class there is no range
        elif token in ("[", "&", "~"):
            token = "\\" + token  # the engines have classes inside classes, and operators on them
        elif len(token) == 2 and token[0] == "\\" and ord(token[1]) > 127:
            token = token[1]
        members.append(_CHARACTERS.get(token, token))
        index += 1
    return f"[{'^' if negated else ''}{''.join(members)}]", index + 1


def _without_surrogates(pattern: str) -> str:
    """Return a pattern without halves of surrogate pairs, which no text that is checked holds."""
    if "\\u" not in pattern:
        return pattern
    pattern = _CLASS_PAIR.sub(r"[\\u{10000}-\\u{10FFFF}]", pattern)
    pattern = _PAIR.sub(lambda pair: f"\\u{{{_code_point(pair[1], pair[2]):X}}}", pattern)
    return _HALF_RANGE.sub("", pattern)


def _code_point(high: str, low: str) -> int:
    return 0x10000 + ((int(high[2:], 16) - 0xD800) << 10) + (int(low[2:], 16) - 0xDC00)
