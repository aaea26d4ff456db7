"""Clean text for people and models: remove hidden characters, join lines, and limit the length."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection
from typing import Any

from registry.schema.json_values import map_items

# Every repetition is bounded, so that a text full of escape openings cannot make the search quadratic.
_TERMINAL_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, …
    r"|\x1b[ -/]{0,4}[0-~]"
)
# Format characters that are visible: signs of Arabic and other scripts that precede numbers.
_DRAWN = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
# Code points with the property Default_Ignorable_Code_Point that are not in the categories below: fillers, selectors.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
# Joiners, direction marks and variation selectors are part of emoji and of some scripts.
_JOINERS = frozenset("\u061c\u200c\u200d\u200e\u200f\ufe0e\ufe0f")
_JOINER_RUN = re.compile(f"(^|[^{''.join(sorted(_JOINERS))}])([{''.join(sorted(_JOINERS))}]+)", re.DOTALL)
_EMOJI_JOIN = "\ufe0f\u200d"
_KEPT_CONTROLS = frozenset("\t\n\r")
# Controls, format, surrogates, private use, line and paragraph separators are invisible or differ between fonts.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_ASCII_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_ASCII = bytes(range(0x80))
_LONE_RETURN = re.compile("\r(?!\n)")
# Blocks that Unicode reserves for future emoji (Extended_Pictographic, but not yet assigned).
_PICTOGRAPHIC = (range(0x1F000, 0x1FB00), range(0x1FC00, 0x1FFFE))
# Cleaning shortens a text, so an excerpt reads this many times its limit.
_READ_PER_SHOWN = 4
_WORD_EDGE = re.compile(r"[^0-9A-Za-z]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def clean(text: str) -> str:
    """Remove terminal escapes and invisible characters from a text.

    These are control, format, private-use and tag characters, fillers, selectors and bidirectional overrides. Line
    breaks and tabs stay, and so do joiners where a script can need them. Returns the same object if nothing changed.
    """
    if text.isascii():
        # Fast path for nearly every text: `isprintable` is much faster than a regular expression.
        if text.isprintable() or not _ASCII_CONTROLS.search(text):
            return text
    elif not any(char in _JOINERS or is_hidden(char) for char in set(text)) and not _LONE_RETURN.search(text):
        return text
    cleaned = _TERMINAL_ESCAPE.sub("", text)
    cleaned = cleaned.translate({ord(char): None for char in set(cleaned) if is_hidden(char)})
    # Joiners come last, because the characters between a joiner and its neighbour are removed above.
    cleaned = _JOINER_RUN.sub(_keep_one_joiner, _LONE_RETURN.sub("", cleaned))
    return text if cleaned == text else cleaned


def clean_json(value: Any) -> Any:
    """Clean every text in a JSON value, including member names; return the same object if nothing changed."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return map_items(value, clean_json)
    if isinstance(value, dict):
        cleaned = {clean(name): clean_json(member) for name, member in value.items()}
        same = all(name in cleaned and cleaned[name] is member for name, member in value.items())
        return value if same else cleaned
    return value


def is_clean_json(text: bytes) -> bool:
    """Return whether a JSON text certainly contains no characters that `clean` would remove.

    This is much faster than cleaning each text of a large value, and the result is true for most values.
    """
    if b"\\u" in text or b"\\b" in text or b"\\f" in text or b"\\r" in text:
        return False  # an escaped control character, or a backslash before one of these letters
    if b"\x7f" in text:
        return False
    try:
        beyond_ascii = text.translate(None, _ASCII).decode()
    except UnicodeDecodeError:
        return False
    # Whether `clean` removes a joiner depends on the characters next to it, so a text with a joiner is not certain.
    return not any(char in _JOINERS or is_hidden(char) for char in set(beyond_ascii))


def visible(text: str) -> str:
    """Write the characters that `clean` would remove as JSON escapes."""
    if clean(text) is text:
        return text
    unseen = (char for char in set(text) if char in _JOINERS or char == "\r" or is_hidden(char))
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in unseen})


def visible_json(value: Any) -> Any:
    """Apply `visible` to every text in a JSON value, including member names."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return map_items(value, visible_json)
    if isinstance(value, dict):
        return {visible(name): visible_json(member) for name, member in value.items()}
    return value


def is_hidden(char: str) -> bool:
    """Return whether a character is invisible or has no defined appearance; false for joiners, tabs and line breaks."""
    if char.isprintable():  # nearly every character, decided by a single table lookup
        return _IGNORABLE.match(char) is not None and char not in _JOINERS
    if char in _JOINERS or char in _KEPT_CONTROLS or char in _DRAWN:
        return False
    if unicodedata.category(char) in _HIDDEN_CATEGORIES or _IGNORABLE.match(char):
        return True
    # An unassigned code point may be an emoji newer than this Python, but only in the blocks for emoji.
    return unicodedata.category(char) == "Cn" and not any(ord(char) in block for block in _PICTOGRAPHIC)


def _keep_one_joiner(match: re.Match[str]) -> str:
    """Keep one joiner of a run if the character before it can be joined; longer runs can only hide a message."""
    before, run = match.groups()
    if not _can_join(before):
        return str(before)
    return before + (_EMOJI_JOIN if run.startswith(_EMOJI_JOIN) else run[0])


def _can_join(char: str) -> bool:
    """Return whether a joiner or direction mark has a meaning after this character, as in emoji and joining scripts."""
    if char <= "\x7f":
        return False
    if unicodedata.bidirectional(char) in ("R", "AL", "AN", "NSM"):
        return True
    category = unicodedata.category(char)
    # Letters without case belong to joining scripts, or are wide (such as Chinese characters).
    return category in ("So", "Sk", "Mc", "Cn") or (category == "Lo" and unicodedata.east_asian_width(char) == "N")


def name_as_words(name: str) -> str:
    """Split a tool's name into words: `sendEMail_now` becomes `send E Mail now`."""
    return " ".join(part for part in _WORD_EDGE.split(clean(name)) if part)


def excerpt(text: str, limit: int) -> str:
    """Return the cleaned text on one line, cut at `limit` characters."""
    line = " ".join(clean(text[: limit * _READ_PER_SHOWN]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def join_names(names: Collection[str], limit: int) -> str:
    """Join the first `limit` names with commas, and say how many more there are."""
    first_names = ", ".join([*names][:limit])
    return first_names + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def strip_accents(text: str) -> str:
    """Remove accents and replace compatibility characters with their plain form; the case stays."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
