"""Rewrite a pattern in the common syntax of ECMAScript with the `u` flag and Python's `re`.

Clients compile the patterns of output schemas. The TypeScript SDK uses Ajv, which sets the `u` flag, and the Python SDK
uses `re`. If Ajv does not accept a pattern, the TypeScript SDK rejects the whole list. The rewritten pattern uses a
small grammar that Ajv and `re` accept.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Final

# The same as `registry.schema.patterns.MAX_PATTERN_LENGTH`, which leaves room for 500 words as alternatives.
_MAX_LENGTH: Final = 4_096
# Maximum nesting of groups. It is limited because the parser is recursive.
_MAX_GROUPS: Final = 50
# A count has at most five digits, because engines refuse larger counts or stall.
_COUNT: Final = re.compile(r"\{(\d{1,5})(?:(,)(\d{1,5})?)?\}")
_GROUP_NAME: Final = re.compile(r"\?P?<([A-Za-z_]\w*)>|\?'([A-Za-z_]\w*)'")
_NAMED_REFERENCE: Final = re.compile(r"\(\?P=([A-Za-z_]\w*)\)|\\k(?:<([A-Za-z_]\w*)>|\{([A-Za-z_]\w*)\})")
_FLAGS: Final = re.compile(r"\(\?([aimsuxL]*)(?:-([imsx]+))?([:)])")
_REMARK: Final = re.compile(r"\(\?#[^)]*\)")
_CODE_POINT: Final = re.compile(
    r"\\(?:x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"
)
_LOW_SURROGATE: Final = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_HIGH: Final = range(0xD800, 0xDC00)
_SURROGATES: Final = range(0xD800, 0xE000)
_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/")
_CLASSES: Final = frozenset("dDwWsS")
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "a": 7, "e": 27}
# Escapes of other dialects that match several characters, or a position. `\Z` also matches before a final newline.
_PLACES: Final = {"A": "^", "z": "$", "Z": "(?=\\n?$)", "h": "[ \\t]", "R": "(?:\\r\\n|\\n|\\r)"}
# Members of a class that stay as written, because both engines read them alike.
_MEMBER: Final = r"(?:[^\\\]\[&~^\x00-\x1f-]|\\[$^\\.*+?()\[\]{}|/-]|\\[tnvfr])"
_AS_WRITTEN: Final = re.compile(rf"{_MEMBER}(?:-{_MEMBER})?")
_ASSERTIONS: Final = ("?=", "?!", "?<=", "?<!")


class _Unportable(Exception):
    """The pattern uses a construct that one of the engines lacks."""


# The same few patterns occur in thousands of schemas.
@lru_cache(maxsize=4096)
def portable(pattern: str) -> str | None:
    """Return a pattern for both engines that matches every text that `pattern` matches; None if there is none.

    Possessive quantifiers and atomic groups become ordinary quantifiers and groups, which match more. Below a keyword
    such as `not`, the result can therefore be used only if it equals the original pattern.
    """
    if len(pattern) > _MAX_LENGTH:
        return None
    try:
        source = _Reader(pattern).parse()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(source)
    except (_Unportable, re.error, RecursionError, OverflowError, ValueError):
        return None
    return source


class _Reader:
    """Parses a pattern of any common dialect and writes it in the common syntax."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._names: dict[str, int] = {}
        self._groups = 0
        self._depth = 0
        self._highest_reference = 0
        self._ignores_case = False
        self._dot = "."

    def parse(self) -> str:
        portable_text = self._parse_alternatives()
        if self._at < len(self._text) or self._highest_reference > self._groups:
            raise _Unportable
        return portable_text

    def _parse_alternatives(self) -> str:
        self._depth += 1
        if self._depth > _MAX_GROUPS:
            raise _Unportable
        before = self._ignores_case, self._dot
        parts: list[str] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                parts.append("|")
                continue
            atom, is_repeatable = self._parse_atom()
            parts.append(atom + self._parse_quantifier(is_repeatable))
        self._ignores_case, self._dot = before
        self._depth -= 1
        return "".join(parts)

    def _parse_atom(self) -> tuple[str, bool]:
        char = self._text[self._at]
        if char == "(":
            return self._parse_group()
        if char == "[":
            return self._parse_class(), True
        if char == "\\":
            return self._parse_escape()
        self._at += 1
        if char in "^$":
            return char, False
        if char == ".":
            return self._dot, True
        if char in "*+?":
            raise _Unportable
        return self._write_literal(ord(char)), True

    def _parse_quantifier(self, is_repeatable: bool) -> str:
        if self._at >= len(self._text):
            return ""
        char, quantifier = self._text[self._at], ""
        if char in "*+?":
            quantifier = char
            self._at += 1
        elif char == "{":
            count = _COUNT.match(self._text, self._at)
            if count is None:
                if self._text.startswith("{,", self._at):
                    raise _Unportable  # a count in Python, literal characters in ECMAScript
                return ""
            if count[3] is not None and int(count[3]) < int(count[1]):
                raise _Unportable
            quantifier = count[0]
            self._at = count.end()
        if not quantifier:
            return ""
        if not is_repeatable:
            raise _Unportable
        if self._text.startswith("?", self._at):
            quantifier += "?"
            self._at += 1
        elif self._text.startswith("+", self._at):
            self._at += 1  # possessive; an ordinary quantifier matches at least as much
        if self._text.startswith(("*", "+", "?"), self._at) or _COUNT.match(self._text, self._at):
            raise _Unportable
        return quantifier

    def _parse_group(self) -> tuple[str, bool]:
        text, at = self._text, self._at
        if remark := _REMARK.match(text, at):
            self._at = remark.end()
            return "", False
        if reference := _NAMED_REFERENCE.match(text, at):
            return self._parse_reference(reference)
        if (flags := _FLAGS.match(text, at)) and (flags[1] or flags[2]):
            return self._parse_flags(flags)
        self._at += 1
        opening = "("
        if text.startswith("?", self._at):
            opening = self._parse_opening()
        else:
            self._groups += 1
        inner = self._parse_alternatives()
        if self._at >= len(text):
            raise _Unportable
        self._at += 1
        return f"{opening}{inner})", opening[1:] not in _ASSERTIONS

    def _parse_opening(self) -> str:
        text = self._text
        for kind in ("?:", *_ASSERTIONS):
            if text.startswith(kind, self._at):
                self._at += len(kind)
                return "(" + kind
        if text.startswith("?>", self._at):
            self._at += 2
            return "(?:"  # atomic; an ordinary group matches at least as much
        if name := _GROUP_NAME.match(text, self._at):
            self._at = name.end()
            self._groups += 1
            self._names[name[1] or name[2]] = self._groups
            return "("
        raise _Unportable

    def _parse_flags(self, flags: re.Match[str]) -> tuple[str, bool]:
        on, off = flags[1], flags[2] or ""
        if set(on) & set("mxL") or set(off) & set("mx"):
            raise _Unportable
        before = self._ignores_case, self._dot
        self._ignores_case = ("i" in on or self._ignores_case) and "i" not in off
        self._dot = "[\\s\\S]" if "s" in on else "." if "s" in off else self._dot
        self._at = flags.end()
        if flags[3] == ")":
            return "", False  # the flags apply until the end of the group
        inner = self._parse_alternatives()
        self._ignores_case, self._dot = before
        if self._at >= len(self._text):
            raise _Unportable
        self._at += 1
        return f"(?:{inner})", True

    def _parse_reference(self, reference: re.Match[str]) -> tuple[str, bool]:
        group = self._names.get(next(name for name in reference.groups() if name))
        if group is None or self._ignores_case:
            raise _Unportable
        self._at = reference.end()
        return f"(?:\\{group})", True

    def _parse_escape(self) -> tuple[str, bool]:
        text, at = self._text, self._at
        if reference := _NAMED_REFERENCE.match(text, at):
            return self._parse_reference(reference)
        code = self._parse_code_point()
        if code is not None:
            if code in _SURROGATES:
                raise _Unportable
            return self._write_literal(code), True
        char = text[at + 1 : at + 2]
        self._at += 2
        if char in _CLASSES:
            return "\\" + char, True
        if char in ("b", "B"):
            return "\\" + char, False
        if char in _PLACES:
            return _PLACES[char], char in "hR"
        if "1" <= char <= "9" and not text[self._at : self._at + 1].isdigit() and not self._ignores_case:
            self._highest_reference = max(self._highest_reference, int(char))
            return f"(?:\\{char})", True
        raise _Unportable

    def _parse_code_point(self) -> int | None:
        """Read an escape of one character and return its code point; return None and read nothing for other escapes."""
        text, at = self._text, self._at
        if match := _CODE_POINT.match(text, at):
            code = int(next(digits for digits in match.groups() if digits), 16)
            self._at = match.end()
            if code in _HIGH and (low := _LOW_SURROGATE.match(text, self._at)):
                self._at = low.end()
                return 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
            if code > 0x10FFFF:
                raise _Unportable
            return code
        char = text[at + 1 : at + 2]
        if not char:
            raise _Unportable
        if char == "c" and re.match("[A-Za-z]", text[at + 2 : at + 3]):
            self._at += 3
            return ord(text[at + 2].upper()) - 64
        if char == "0" and not text[at + 2 : at + 3].isdigit():
            self._at += 2
            return 0
        if char in _CONTROLS or not (char.isascii() and char.isalnum()):
            self._at += 2
            return _CONTROLS.get(char, ord(char))
        return None

    def _write_literal(self, code: int) -> str:
        char = chr(code)
        if self._ignores_case and (swapped := _other_case(char)) != char:
            return f"[{char}{swapped}]"
        return _escape(char)

    def _parse_class(self) -> str:
        text = self._text
        self._at += 1
        negated = text.startswith("^", self._at)
        self._at += negated
        if text.startswith("]", self._at):
            raise _Unportable  # an empty class in ECMAScript, a literal bracket elsewhere
        members: list[str] = []
        after_range = True  # here a hyphen is a literal
        while not text.startswith("]", self._at):
            if self._at >= len(text) or text.startswith(("[:", "[.", "[=", "&&"), self._at):
                raise _Unportable
            start = self._at
            first = last = self._parse_member()
            is_range = False
            if isinstance(first, int) and text.startswith("-", self._at) and not text.startswith("-]", self._at):
                dash = self._at
                self._at += 1
                last = self._parse_member()
                is_range = isinstance(last, int)
                if not is_range:  # a class escape cannot end a range
                    self._at, last = dash, first
            portable_text = first if isinstance(first, str) else self._write_range(first, last)
            source = text[start : self._at]
            is_dash = source == "-" and (after_range or text.startswith("]", self._at))
            is_kept = is_dash or (not self._ignores_case and _AS_WRITTEN.fullmatch(source) is not None)
            members.append(source if is_kept else portable_text)
            after_range = is_range
        self._at += 1
        portable_text = "".join(members)
        if not portable_text:
            if negated:
                return "[\\s\\S]"
            raise _Unportable
        return f"[{'^' if negated else ''}{portable_text}]"

    def _parse_member(self) -> int | str:
        """Return the code point of one class member, or a nested class escape as text."""
        text, at = self._text, self._at
        if at >= len(text):
            raise _Unportable
        if text[at] != "\\":
            self._at += 1
            return ord(text[at])
        char = text[at + 1 : at + 2]
        if char == "b":
            self._at += 2
            return 8
        if char in ("h", "R") or char in _CLASSES:
            self._at += 2
            if char == "R":
                raise _Unportable
            return " \\t" if char == "h" else "\\" + char
        code = self._parse_code_point()
        if code is None:
            raise _Unportable
        return code

    def _write_range(self, first: int, last: int | str) -> str:
        assert isinstance(last, int)
        if last < first:
            raise _Unportable
        if first in _SURROGATES and last in _SURROGATES:
            return ""  # no text contains a lone surrogate
        if first in _SURROGATES or last in _SURROGATES:
            raise _Unportable
        low, high = chr(first), chr(last)
        portable_text = _escape(low, in_class=True)
        if first != last:
            portable_text += "-" + _escape(high, in_class=True)
        if not self._ignores_case:
            return portable_text
        if first == last:
            swapped = _other_case(low)
            return portable_text if swapped == low else portable_text + _escape(swapped, in_class=True)
        # The result has no flag to ignore case, so a range has to contain its letters in both cases.
        extra = {_other_case(chr(code)) for code in range(first, min(last, 0x7F) + 1)} - {
            chr(code) for code in range(first, min(last, 0x7F) + 1)
        }
        if last > 0x7F:
            raise _Unportable
        return portable_text + "".join(_escape(char, in_class=True) for char in sorted(extra))


def _other_case(char: str) -> str:
    swapped = char.swapcase()
    return swapped if len(swapped) == 1 else char


def _escape(char: str, *, in_class: bool = False) -> str:
    code = ord(char)
    if char in _SYNTAX or (in_class and char == "-"):
        return "\\" + char
    # In a class, `&&` and `~~` are operators in some engines.
    if code < 0x20 or code == 0x7F or (in_class and char in "&~"):
        return f"\\x{code:02x}"
    return char
