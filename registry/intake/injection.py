"""Texts that try to instruct a model instead of describing something: each sign has a weight, the sum is the score.

Nothing is removed because of them: an honest text may quote what a dishonest one says. Operators are told.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.schema.display_text import clean, excerpt

THRESHOLD: Final = 0.6
"""Score from which an item is flagged; chosen so that hardly one in a hundred tools of honest servers is."""
# Of one text: longer ones are documents, and their beginnings tell what they are.
_MAX_CHARS: Final = 20_000
# Texts of one definition; the largest known has a few hundred parameters.
_MAX_TEXTS: Final = 5_000
_MAX_DEPTH: Final = 64
_SHOWN_CHARS: Final = 120
# Words between the parts of a phrase: what people put there, and no other sentence.
_GAP: Final = r"\W+(?:\w+\W+){0,4}?"
_SELF: Final = r"(?:instructions?|prompts?|rules?|guidelines?|directives?|guardrails?|safety\W+measures)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One sign.

    Attributes:
        code: A stable word for tables and tests.
        weight: How much it says, from 0 to 1.
        where: The place in the definition.
        quoted: What was found, cut.
    """

    code: str
    weight: float
    where: str
    quoted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What the texts of one item amount to.

    Attributes:
        score: From 0 to 1.
        flags: The signs, the strongest first.
    """

    score: float
    flags: tuple[Flag, ...]


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_SIGNS: Final[tuple[tuple[str, float, re.Pattern[str]], ...]] = (
    ("overrides_instructions", 0.9, _words(
        rf"\b(?:ignore|disregard|forget|override|bypass|discard|do\W+not\W+follow|stop\W+following)\b{_GAP}"
        rf"(?:previous|prior|earlier|above|preceding|other|existing|original|system|safety|your|all)\b{_GAP}{_SELF}\b"
    )),
    ("overrides_instructions", 0.9, _words(
        rf"\b(?:ignore|disregard|forget|override)\W+(?:all|any|everything|your)\W+(?:\w+\W+)?"
        rf"(?:{_SELF}|above|before)\b"
    )),
    ("hides_from_user", 0.9, _words(
        r"\b(?:do\W+not|don\W?t|never|must\W+not|should\W+not|avoid)\W+(?:\w+\W+){0,2}?"
        r"(?:tell|mention|inform|reveal|show|notify|disclose|alert|telling|mentioning|informing|revealing|notifying)\b"
        r"(?:\W+\w+){0,6}?\W+(?:the\W+)?(?:user|human|operator|anyone)\b"
    )),
    ("hides_from_user", 0.9, _words(
        r"\bwithout\W+(?:telling|informing|notifying|asking|alerting|mentioning\W+(?:it|this)\W+to|the\W+knowledge\W+of)"
        r"\W+(?:the\W+)?(?:user|human|operator|anyone)\b"
    )),
    ("hides_from_user", 0.7, _words(
        r"\b(?:hide|conceal|keep)\W+(?:\w+\W+){0,4}?(?:secret|hidden|confidential|from)\W+(?:from\W+)?(?:the\W+)?"
        r"(?:user|human|operator)\b"
    )),
    ("poses_as_system", 0.7, re.compile(
        r"<\s*/?\s*(?:IMPORTANT|SYSTEM|SECRET|INSTRUCTIONS?|ADMIN|CRITICAL|OVERRIDE|HIDDEN|system|secret|important)\s*>"
        r"|<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?INST\]|<<SYS>>"
        r"|^\s*(?:#+\s*)?(?:SYSTEM|System)(?:\s+(?:PROMPT|MESSAGE|prompt|message|override|OVERRIDE))?\s*:", re.MULTILINE
    )),
    ("poses_as_system", 0.6, _words(
        r"\b(?:new|updated|real|true|actual|hidden|secret)\W+(?:system\W+)?(?:instructions?|directives?)\W*:"
        r"|\byou\W+are\W+now\W+(?:in\W+)?(?:\w+\W+){0,3}?(?:mode|unrestricted|jailbroken|free|dan)\b"
        r"|\b(?:developer|god|dan|jailbreak)\W+mode\W+(?:is\W+)?(?:on|enabled|activated)\b"
    )),
    ("wants_secrets", 0.8, _words(
        r"(?:read|open|cat|load|send|include|attach|pass|upload|copy|append|provide|put|insert|access|fetch|get)\b"
        r"[^.\n]{0,80}?(?:~/\.ssh|\.ssh/|id_rsa|id_ed25519|/etc/passwd|/etc/shadow|\.aws/credentials|\.cursor/mcp\.json"
        r"|mcp\.json|claude_desktop_config|\.env\b|\.netrc|\.npmrc|\.kube/config|private\W+key\W+of\W+the\W+user)"
    )),
    ("wants_secrets", 0.6, _words(
        r"\b(?:send|include|attach|pass|upload|append|forward|leak|put|insert|copy|reveal|output|print)\b[^.\n]{0,60}?"
        r"\b(?:system\W+prompt|whole\W+conversation|entire\W+conversation|full\W+conversation|(?:conversation|chat)\W+"
        r"history|all\W+(?:previous|prior)\W+messages|environment\W+variables|(?:user|your)(?:\W?s)?\W+"
        r"(?:credentials|passwords?|api\W+keys?|access\W+tokens?|secrets?))\b"
    )),
    ("sends_elsewhere", 0.8, _words(
        r"\b(?:send|sent|forward(?:ed)?|bcc|cc|post(?:ed)?|upload(?:ed)?|exfiltrate|leak|deliver(?:ed)?|copy|copied|email"
        r"(?:ed)?|mail(?:ed)?|redirect(?:ed)?|report)\b[^.\n]{0,80}?\b(?:all|every|each|any|always|must|a\W+copy|contents?"
        r"|instead)\b[^.\n]{0,80}?(?:[\w.+-]+@[\w-]+\.[\w.-]+|https?://[^\s\"'<>)]+)"
        r"|\b(?:all|every|each|any|always|must|instead)\b[^.\n]{0,80}?\b(?:send|sent|forward(?:ed)?|bcc|exfiltrate|leak"
        r"|upload(?:ed)?|redirect(?:ed)?)\b[^.\n]{0,80}?(?:[\w.+-]+@[\w-]+\.[\w.-]+|https?://[^\s\"'<>)]+)"
    )),
    ("acts_first", 0.4, _words(
        r"\b(?:before|prior\W+to)\W+(?:using|calling|invoking|running|executing|doing)\W+(?:this|any|every|each|other|all)"
        r"\W+(?:other\W+)?(?:tools?|functions?|actions?)?[^.\n]{0,40}?\b(?:you\W+must|must|always|read|send|call|first)\b"
    )),
    ("acts_first", 0.3, _words(
        r"\b(?:you\W+must|always|must\W+always)\W+(?:first\W+)?(?:call|use|invoke|run)\W+this\W+(?:tool|function)\W+"
        r"(?:first|before\W+any)\b"
    )),
    ("hidden_comment", 0.5, re.compile(r"<!--.{12,}?-->", re.DOTALL)),
    ("remote_image", 0.5, re.compile(r"!\[[^\]\n]{0,200}\]\(\s*https?://[^)\s]{0,400}[?&=][^)\s]{0,400}\)")),
)  # fmt: skip
# Around another tool's name they make a mention an instruction.
_STEERING: Final = _words(
    r"\b(?:when(?:ever)?|before|after|instead(?:\W+of)?|always|must|never|do\W+not|don\W?t|if|change|modify|replace|"
    r"override|redirect|bcc|pass|side\W?effect|present|also|rather\W+than|ignore|only)\b"
)
_STEERED_CHARS: Final = 80
# Servers do not know one another: hardly one names another's tool at all.
_MENTION: Final = 0.6
_STEERED: Final = 0.8
_HIDDEN: Final = 0.7
# A byte order mark or a soft hyphen is an accident of an editor; a message is longer.
_ACCIDENTAL_CHARS: Final = 3
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-]+[A-Za-z0-9]+)+")


def suspicion_of(texts: Iterable[tuple[str, str]], other_tools: Callable[[str], bool] | None = None) -> Suspicion:
    """Return what the texts of one item amount to.

    Args:
        texts: Each with its place in the definition.
        other_tools: Whether a word is the name of a tool of another server.
    """
    found: dict[tuple[str, str], Flag] = {}
    for where, text in texts:
        for flag in _flags(where, text[:_MAX_CHARS], other_tools):
            known = found.get((flag.code, flag.where))
            if known is None or known.weight < flag.weight:
                found[flag.code, flag.where] = flag
    # Of one kind of sign the strongest counts: to say a thing twice is no worse.
    strongest: dict[str, float] = {}
    for flag in found.values():
        strongest[flag.code] = max(strongest.get(flag.code, 0.0), flag.weight)
    innocence = 1.0
    for weight in strongest.values():
        innocence *= 1.0 - weight
    flags = sorted(found.values(), key=lambda flag: (-flag.weight, flag.code, flag.where))
    return Suspicion(score=round(1.0 - innocence, 2), flags=tuple(flags))


def texts_of(definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every text of a definition that a model reads, with its place: names of parameters and values too."""
    left = _MAX_TEXTS
    pending: list[tuple[str, Any, int]] = [("", dict(definition), 0)]
    while pending and left > 0:
        where, value, depth = pending.pop()
        if isinstance(value, str):
            left -= 1
            yield where, value
        elif depth >= _MAX_DEPTH:
            continue
        elif isinstance(value, dict):
            for name, member in value.items():
                # Neither is shown to a model by any host.
                if depth == 0 and name in ("_meta", "icons"):
                    continue
                path = f"{where}.{excerpt(name, 64)}".lstrip(".")
                if not name.isidentifier():
                    left -= 1
                    yield path, name
                pending.append((path, member, depth + 1))
        elif isinstance(value, list):
            pending += [(where, member, depth + 1) for member in value]


def _flags(where: str, text: str, other_tools: Callable[[str], bool] | None) -> Iterator[Flag]:
    cleaned = clean(text)
    if len(text) - len(cleaned) > _ACCIDENTAL_CHARS:
        yield Flag(code="hidden_text", weight=_HIDDEN, where=where, quoted=f"{len(text) - len(cleaned)} characters")
    if len(cleaned) < 8:
        return
    # Letters of other alphabets and full-width forms that read as these.
    plain = cleaned if cleaned.isascii() else unicodedata.normalize("NFKC", cleaned).translate(_LOOKALIKES)
    for code, weight, sign in _SIGNS:
        if (match := sign.search(plain)) is not None:
            yield Flag(code=code, weight=weight, where=where, quoted=excerpt(match[0], _SHOWN_CHARS))
    if other_tools is None:
        return
    for name in _NAME.finditer(plain):
        if other_tools(name[0]):
            start, end = max(0, name.start() - _STEERED_CHARS), name.end() + _STEERED_CHARS
            steers = _STEERING.search(plain, start, end) is not None
            weight = _STEERED if steers else _MENTION
            yield Flag(code="other_tool", weight=weight, where=where, quoted=excerpt(plain[start:end], _SHOWN_CHARS))


_LOOKALIKES: Final = str.maketrans("аеорсухіјѕԁһӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧАВЕКМНОРСТХ", "aeopcyxijsdhlABEZHIKMNOPTYXABEKMHOPCTX")
