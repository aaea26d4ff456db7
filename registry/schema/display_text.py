"""Text for people and models to read: without hidden characters, on one line, within a length."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection
from typing import Any

from registry.schema.json_values import map_items

# Every repetition is bounded, so that a text of nothing but openings cannot make the search quadratic.
_TERMINAL_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, …
    r"|\x1b[ -/]{0,4}[0-~]"
)
# Format characters that are drawn: signs of Arabic and other scripts in front of numbers.
_DRAWN = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
# Default_Ignorable_Code_Point beyond the categories below, for which Python has no table: fillers and selectors.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
# Joiners, direction marks and variation selectors belong to emoji and to scripts that need them.
_JOINERS = frozenset("\u061c\u200c\u200d\u200e\u200f\ufe0e\ufe0f")
_JOINER_RUN = re.compile(f"(^|[^{''.join(sorted(_JOINERS))}])([{''.join(sorted(_JOINERS))}]+)", re.DOTALL)
_EMOJI_JOIN = "\ufe0f\u200d"
_KEPT_CONTROLS = frozenset("\t\n\r")
# Controls, format, surrogates, private use, line and paragraph separators: nothing of it is drawn, or all fonts differ.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_ASCII_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_LONE_RETURN = re.compile("\r(?!\n)")
# Where Unicode reserves places for emoji to come: Extended_Pictographic without being assigned.
_PICTOGRAPHIC = (range(0x1F000, 0x1FB00), range(0x1FC00, 0x1FFFE))
# A cleaned text is shorter than the original: so much more is read that an excerpt is full nevertheless.
_READ_PER_SHOWN = 4
_WORD_EDGE = re.compile(r"[^0-9A-Za-z]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def clean(text: str) -> str:
    """Return the text without terminal escapes and without characters that readers do not see.

    Those are control, format, private-use and tag characters, fillers, selectors and bidirectional overrides. Line
    breaks and tabs stay, and joiners where a script can need them. The same object is returned when there was nothing
    to remove.
    """
    if text.isascii():
        # Nearly every text; much faster than a regular expression where there is one line.
        if text.isprintable() or not _ASCII_CONTROLS.search(text):
            return text
    elif not any(char in _JOINERS or is_hidden(char) for char in set(text)) and not _LONE_RETURN.search(text):
        return text
    kept = _TERMINAL_ESCAPE.sub("", text)
    kept = kept.translate({ord(char): None for char in set(kept) if is_hidden(char)})
    # Last: whatever stood between a joiner and what it joins is gone by now.
    kept = _JOINER_RUN.sub(_joined, _LONE_RETURN.sub("", kept))
    return text if kept == text else kept


def clean_json(value: Any) -> Any:
    """Return a JSON value with every text in it cleaned, names of members too; the same object if nothing changed."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return map_items(value, clean_json)
    if isinstance(value, dict):
        cleaned = {clean(name): clean_json(member) for name, member in value.items()}
        same = all(name in cleaned and cleaned[name] is member for name, member in value.items())
        return value if same else cleaned
    return value


def visible(text: str) -> str:
    """Return the text with escapes, as in JSON, in place of characters that `clean` would remove."""
    if clean(text) is text:
        return text
    unseen = (char for char in set(text) if char in _JOINERS or char == "\r" or is_hidden(char))
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in unseen})


def visible_json(value: Any) -> Any:
    """Return a JSON value with every text in it, names of members too, as `visible` shows it."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return map_items(value, visible_json)
    if isinstance(value, dict):
        return {visible(name): visible_json(member) for name, member in value.items()}
    return value


def is_hidden(char: str) -> bool:
    """Return whether a character is not drawn, or may be drawn as anything; not so for joiners and breaks."""
    if char.isprintable():  # all but a few, at the cost of a look into Python's own table
        return _IGNORABLE.match(char) is not None and char not in _JOINERS
    if char in _JOINERS or char in _KEPT_CONTROLS or char in _DRAWN:
        return False
    if unicodedata.category(char) in _HIDDEN_CATEGORIES or _IGNORABLE.match(char):
        return True
    # What is not assigned may be a new emoji that this Python does not know; anywhere else it is nothing.
    return unicodedata.category(char) == "Cn" and not any(ord(char) in block for block in _PICTOGRAPHIC)


def _joined(found: re.Match[str]) -> str:
    """What stays of joiners in a row: one, after what a script or an emoji can join; more only hide a message."""
    before, run = found.groups()
    if not _can_join(before):
        return str(before)
    return before + (_EMOJI_JOIN if run.startswith(_EMOJI_JOIN) else run[0])


def _can_join(char: str) -> bool:
    """Whether a joiner or a direction mark can mean something after a character: in emoji, and in scripts that join."""
    if char <= "\x7f":
        return False
    if unicodedata.bidirectional(char) in ("R", "AL", "AN", "NSM"):
        return True
    category = unicodedata.category(char)
    # Letters without case are those of scripts that join, or are as wide as they are high, as Chinese ones.
    return category in ("So", "Sk", "Mc", "Cn") or (category == "Lo" and unicodedata.east_asian_width(char) == "N")


def name_as_words(name: str) -> str:
    """Return a tool's name as separate words: `sendEMail_now` gives `send E Mail now`."""
    return " ".join(part for part in _WORD_EDGE.split(clean(name)) if part)


def excerpt(text: str, limit: int) -> str:
    """Return the text cleaned, on one line, and no longer than the limit."""
    line = " ".join(clean(text[: limit * _READ_PER_SHOWN]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def listed(names: Collection[str], limit: int) -> str:
    """Return names as a sentence lists them: the first ones, and how many more there are."""
    shown = ", ".join([*names][:limit])
    return shown + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def strip_accents(text: str) -> str:
    """Return the text without accents, and with compatible characters in their plain form; case stays."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
