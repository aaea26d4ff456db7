"""Text for people and models to read: without hidden characters, on one line, within a length."""

from __future__ import annotations

import re
import unicodedata

# Every repetition is bounded, so that a text of nothing but openings cannot make the search quadratic.
_TERMINAL_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, …
    r"|\x1b[ -/]{0,4}[0-~]"
)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"  # controls, halves of surrogate pairs
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"  # fillers, invisible operators, bidi overrides
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"  # tag characters: a whole hidden alphabet
    # Joiners and direction marks belong to emoji and to scripts that need them, not to ASCII.
    "|(?:(?<=[\x00-\x7f])|^)[\u061c\u200c-\u200f\ufe0e\ufe0f]"
    "|\r(?!\n)"
)
# One character class, so that the many texts in other languages that hide nothing cost a single fast search.
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# A cleaned text is shorter than the original: so much more is read that an excerpt is full nevertheless.
_READ_PER_SHOWN = 4
# Removing one character can bring two others together; three rounds are more than any honest text needs.
_MAX_CLEANING_ROUNDS = 3
_WORD_EDGE = re.compile(r"[^0-9A-Za-z]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def clean(text: str) -> str:
    """Return the text without terminal escapes, control, hidden and bidi-override characters.

    Line breaks and tabs stay. The same object is returned when there was nothing to remove.
    """
    if text.isascii() and text.isprintable():  # nearly every text, and much faster than a regular expression
        return text
    if not _SUSPECT.search(text):
        return text
    for _round in range(_MAX_CLEANING_ROUNDS):
        shorter = _HIDDEN.sub("", _TERMINAL_ESCAPE.sub("", text))
        if shorter == text:
            break
        text = shorter
    return text


def name_as_words(name: str) -> str:
    """Return a tool's name as separate words: `sendEMail_now` gives `send E Mail now`."""
    return " ".join(part for part in _WORD_EDGE.split(clean(name)) if part)


def excerpt(text: str, limit: int) -> str:
    """Return the text cleaned, on one line, and no longer than the limit."""
    line = " ".join(clean(text[: limit * _READ_PER_SHOWN]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def strip_accents(text: str) -> str:
    """Return the text without accents, and with compatible characters in their plain form; case stays."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
