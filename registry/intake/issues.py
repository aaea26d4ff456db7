"""Report an issue for each listed item that is not accepted, and detect texts that try to instruct a model.

Suspicious texts are reported to operators but not removed, because an honest text may quote a malicious one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from registry.errors import SchemaRejected
from registry.schema.display_text import clean, excerpt

THRESHOLD: Final = 0.6
"""Score at which an item is flagged. It is chosen so that fewer than one in a hundred honest tools are flagged."""
# Characters checked per text. Longer texts are documents, whose beginning is representative.
_MAX_CHARS: Final = 20_000
# Maximum number of texts checked per definition; the largest known definition has a few hundred parameters.
_MAX_TEXTS: Final = 5_000
_MAX_DEPTH: Final = 64
_SHOWN_CHARS: Final = 120
# Matches up to four words between the parts of a phrase; a longer gap would join unrelated sentences.
_GAP: Final = r"\W+(?:\w+\W+){0,4}?"
_SELF: Final = r"(?:instructions?|prompts?|rules?|guidelines?|directives?|guardrails?|safety\W+measures)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One sign of a suspicious text.

    Attributes:
        code: A stable word for tables and tests.
        weight: How strong the sign is, from 0 to 1.
        where: The place in the definition.
        quoted: An excerpt of the matching text.
    """

    code: str
    weight: float
    where: str
    quoted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The assessment of an item's texts.

    Attributes:
        score: From 0 to 1.
        flags: The signs, strongest first.
    """

    score: float
    flags: tuple[Flag, ...]


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_SIGNS: Final[tuple[tuple[str, float, re.Pattern[str]], ...]] = (
    (
        "overrides_instructions",
        0.9,
        _words(
            rf"\b(?:ignore|disregard|forget|override|bypass|discard|do\W+not\W+follow|stop\W+following)\b{_GAP}"
            rf"(?:previous|prior|earlier|above|preceding|other|existing|original|system|safety|your|all)\b{_GAP}{_SELF}\b"
        ),
    ),
    (
        "overrides_instructions",
        0.9,
        _words(
            rf"\b(?:ignore|disregard|forget|override)\W+(?:all|any|everything|your)\W+(?:\w+\W+)?"
            rf"(?:{_SELF}|above|before)\b"
        ),
    ),
    (
        "hides_from_user",
        0.9,
        _words(
            r"\b(?:do\W+not|don\W?t|never|must\W+not|should\W+not|avoid)\W+(?:\w+\W+){0,2}?"
            r"(?:tell|mention|inform|reveal|show|notify|disclose|alert|telling|mentioning|informing|revealing|notifying)\b"
            r"(?:\W+\w+){0,6}?\W+(?:the\W+)?(?:user|human|operator|anyone)\b"
        ),
    ),
    (
        "hides_from_user",
        0.9,
        _words(
            r"\bwithout\W+(?:telling|informing|notifying|asking|alerting|mentioning\W+(?:it|this)\W+to|the\W+knowledge\W+of)"
            r"\W+(?:the\W+)?(?:user|human|operator|anyone)\b"
        ),
    ),
    (
        "hides_from_user",
        0.7,
        _words(
            r"\b(?:hide|conceal|keep)\W+(?:\w+\W+){0,4}?(?:secret|hidden|confidential|from)\W+(?:from\W+)?(?:the\W+)?"
            r"(?:user|human|operator)\b"
        ),
    ),
    (
        "poses_as_system",
        0.7,
        re.compile(
            r"<\s*/?\s*(?:IMPORTANT|SYSTEM|SECRET|INSTRUCTIONS?|ADMIN|CRITICAL|OVERRIDE|HIDDEN|system|secret|important)\s*>"
            r"|<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?INST\]|<<SYS>>"
            r"|^\s*(?:#+\s*)?(?:SYSTEM|System)(?:\s+(?:PROMPT|MESSAGE|prompt|message|override|OVERRIDE))?\s*:",
            re.MULTILINE,
        ),
    ),
    (
        "poses_as_system",
        0.6,
        _words(
            r"\b(?:new|updated|real|true|actual|hidden|secret)\W+(?:system\W+)?(?:instructions?|directives?)\W*:"
            r"|\byou\W+are\W+now\W+(?:in\W+)?(?:\w+\W+){0,3}?(?:mode|unrestricted|jailbroken|free|dan)\b"
            r"|\b(?:developer|god|dan|jailbreak)\W+mode\W+(?:is\W+)?(?:on|enabled|activated)\b"
        ),
    ),
    (
        "wants_secrets",
        0.8,
        _words(
            r"(?:read|open|cat|load|send|include|attach|pass|upload|copy|append|provide|put|insert|access|fetch|get)\b"
            r"[^.\n]{0,80}?(?:~/\.ssh|\.ssh/|id_rsa|id_ed25519|/etc/passwd|/etc/shadow|\.aws/credentials|\.cursor/mcp\.json"
            r"|mcp\.json|claude_desktop_config|\.env\b|\.netrc|\.npmrc|\.kube/config|private\W+key\W+of\W+the\W+user)"
        ),
    ),
    (
        "wants_secrets",
        0.6,
        _words(
            r"\b(?:send|include|attach|pass|upload|append|forward|leak|put|insert|copy|reveal|output|print)\b[^.\n]{0,60}?"
            r"\b(?:system\W+prompt|whole\W+conversation|entire\W+conversation|full\W+conversation|(?:conversation|chat)\W+"
            r"history|all\W+(?:previous|prior)\W+messages|environment\W+variables|(?:user|your)(?:\W?s)?\W+"
            r"(?:credentials|passwords?|api\W+keys?|access\W+tokens?|secrets?))\b"
        ),
    ),
    (
        "sends_elsewhere",
        0.8,
        _words(
            r"\b(?:send|sent|forward(?:ed)?|bcc|cc|post(?:ed)?|upload(?:ed)?|exfiltrate|leak|deliver(?:ed)?|copy|copied|email"
            r"(?:ed)?|mail(?:ed)?|redirect(?:ed)?|report)\b[^.\n]{0,80}?\b(?:all|every|each|any|always|must|a\W+copy|contents?"
            r"|instead)\b[^.\n]{0,80}?(?:[\w.+-]+@[\w-]+\.[\w.-]+|https?://[^\s\"'<>)]+)"
            r"|\b(?:all|every|each|any|always|must|instead)\b[^.\n]{0,80}?\b(?:send|sent|forward(?:ed)?|bcc|exfiltrate|leak"
            r"|upload(?:ed)?|redirect(?:ed)?)\b[^.\n]{0,80}?(?:[\w.+-]+@[\w-]+\.[\w.-]+|https?://[^\s\"'<>)]+)"
        ),
    ),
    (
        "acts_first",
        0.4,
        _words(
            r"\b(?:before|prior\W+to)\W+(?:using|calling|invoking|running|executing|doing)\W+(?:this|any|every|each|other|all)"
            r"\W+(?:other\W+)?(?:tools?|functions?|actions?)?[^.\n]{0,40}?\b(?:you\W+must|must|always|read|send|call|first)\b"
        ),
    ),
    (
        "acts_first",
        0.3,
        _words(
            r"\b(?:you\W+must|always|must\W+always)\W+(?:first\W+)?(?:call|use|invoke|run)\W+this\W+(?:tool|function)\W+"
            r"(?:first|before\W+any)\b"
        ),
    ),
    ("hidden_comment", 0.5, re.compile(r"<!--.{12,}?-->", re.DOTALL)),
    ("remote_image", 0.5, re.compile(r"!\[[^\]\n]{0,200}\]\(\s*https?://[^)\s]{0,400}[?&=][^)\s]{0,400}\)")),
)
# Words that, near another tool's name, turn a mention into an instruction.
_STEERING: Final = _words(
    r"\b(?:when(?:ever)?|before|after|instead(?:\W+of)?|always|must|never|do\W+not|don\W?t|if|change|modify|replace|"
    r"override|redirect|bcc|pass|side\W?effect|present|also|rather\W+than|ignore|only)\b"
)
_STEERED_CHARS: Final = 80
# Servers do not know each other, so mentioning another server's tool is suspicious in itself.
_MENTION: Final = 0.6
_STEERED: Final = 0.8
_HIDDEN: Final = 0.7
# A byte order mark or soft hyphen is usually an accident; hidden messages are longer.
_ACCIDENTAL_CHARS: Final = 3
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-]+[A-Za-z0-9]+)+")


def suspicion_of(
    texts: Iterable[tuple[str, str]],
    other_tools: Callable[[str], bool] | None = None,
    harmless: set[str] | None = None,
) -> Suspicion:
    """Assess the texts of one item.

    Args:
        texts: Pairs of a place in the definition and the text.
        other_tools: Returns whether a word is the name of another server's tool.
        harmless: Texts known to have no flag. They are skipped, because tools of a server often share texts. Texts in
            which no flag is found are added to the set.
    """
    strongest_flags: dict[tuple[str, str], Flag] = {}
    for where, text in texts:
        if harmless is not None and text in harmless:
            continue
        flags = list(_find_flags(where, text[:_MAX_CHARS], other_tools))
        if not flags and harmless is not None:
            harmless.add(text)
        for flag in flags:
            earlier = strongest_flags.get((flag.code, flag.where))
            if earlier is None or earlier.weight < flag.weight:
                strongest_flags[flag.code, flag.where] = flag
    # Only the strongest sign of each kind counts, because repetition adds no suspicion.
    strongest: dict[str, float] = {}
    for flag in strongest_flags.values():
        strongest[flag.code] = max(strongest.get(flag.code, 0.0), flag.weight)
    innocence = 1.0
    for weight in strongest.values():
        innocence *= 1.0 - weight
    by_weight = sorted(strongest_flags.values(), key=lambda flag: (-flag.weight, flag.code, flag.where))
    return Suspicion(score=round(1.0 - innocence, 2), flags=tuple(by_weight))


# Signs that are also found in honest documents: a README has comments, badges and instructions for its readers.
_SIGNS_OF_DOCUMENTS: Final = frozenset({"hidden_comment", "remote_image", "acts_first"})
# The overlap of the parts of a text: longer than any phrase that a sign matches, so that no phrase is split.
_OVERLAP_CHARS: Final = 500


def suspicion_of_result(texts: Iterable[str]) -> Suspicion:
    """Return the assessment of the worst part of a result's texts, which are documents rather than descriptions.

    Each part of a long text is assessed alone, because weak signs would add up in a long document.
    """
    worst = Suspicion(score=0.0, flags=())
    for text in texts:
        for at in range(0, len(text), _MAX_CHARS - _OVERLAP_CHARS):
            suspicion = suspicion_of([("", text[at : at + _MAX_CHARS])])
            flags = tuple(flag for flag in suspicion.flags if flag.code not in _SIGNS_OF_DOCUMENTS)
            score = max((flag.weight for flag in flags), default=0.0)
            if score > worst.score:
                worst = Suspicion(score=score, flags=flags)
    return worst


def texts_of(definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every text of a definition that a model may read, with its place.

    This includes member names, such as names of parameters, that are not valid identifiers.
    """
    texts_left = _MAX_TEXTS
    pending: list[tuple[str, Any, int]] = [("", dict(definition), 0)]
    while pending and texts_left > 0:
        where, value, depth = pending.pop()
        if isinstance(value, str):
            texts_left -= 1
            yield where, value
        elif depth >= _MAX_DEPTH:
            continue
        elif isinstance(value, dict):
            for name, member in value.items():
                # Hosts do not show these members to models.
                if depth == 0 and name in ("_meta", "icons"):
                    continue
                path = f"{where}.{excerpt(name, 64)}".lstrip(".")
                if not name.isidentifier():
                    texts_left -= 1
                    yield path, name
                pending.append((path, member, depth + 1))
        elif isinstance(value, list):
            pending += [(where, member, depth + 1) for member in value]


def _find_flags(where: str, text: str, other_tools: Callable[[str], bool] | None) -> Iterator[Flag]:
    cleaned = clean(text)
    if len(text) - len(cleaned) > _ACCIDENTAL_CHARS:
        yield Flag(code="hidden_text", weight=_HIDDEN, where=where, quoted=f"{len(text) - len(cleaned)} characters")
    if len(cleaned) < 8:
        return
    # Fold letters of other alphabets and full-width forms that look like ASCII letters.
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


# Enough for one sentence; details may quote patterns and names of any length.
_MAX_DETAIL: Final = 300
# The longest tool name that model APIs accept, so that every callable name is shown in full.
_MAX_SHOWN_NAME: Final = 128

UNCHECKED_CODES: Final = frozenset({"broken_ref", "remote_ref", "schema_unchecked"})
"""Codes of repairs that weaken the validation of a tool's arguments."""

# The repairs of one item: pairs of a stable code and one sentence.
RepairNotes = list[tuple[str, str]]
# A definition in the form in which it is stored in memory.
Item = TypeVar("Item", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemIssue:
    """Why an item was quarantined or repaired, or which configuration for it had no effect.

    Attributes:
        tool: The item's name as far as it can be shown; for kinds other than tools, the item's key.
        code: A stable word for tables and tests.
        detail: One sentence for a person.
        kind: The kind of item, named like its list in the protocol.
    """

    tool: str
    code: str
    detail: str
    kind: str = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeResult(Generic[Item]):
    """The outcome for one listing; items that needed no repair are the same objects as in the input."""

    items: tuple[Item, ...]
    quarantined: tuple[ItemIssue, ...]
    repaired: tuple[ItemIssue, ...]


def check_each(
    items: Iterable[object],
    check: Callable[[Any, RepairNotes], Item | None],
    *,
    key: str,
    kind: str,
    noun: str,
) -> IntakeResult[Item]:
    """Check every item of a list separately, so that a bad definition does not affect other items; never raises.

    Args:
        items: Any JSON values.
        check: Returns the definition to admit, or None to omit the item without quarantine, and adds repairs to the
            notes. Raises SchemaRejected to quarantine the item.
        key: The member that identifies an item.
        kind: The kind of items, named like their list in the protocol.
        noun: The word for an item in messages, if the item cannot be identified.
    """
    admitted: list[Item] = []
    quarantined: list[ItemIssue] = []
    repaired: list[ItemIssue] = []
    for index, item in enumerate(items):
        name = item.get(key) if isinstance(item, dict) else None
        label = excerpt(name, _MAX_SHOWN_NAME) if isinstance(name, str) else ""
        label = label or f"({noun} {index + 1})"
        notes: RepairNotes = []
        try:
            definition = check(item, notes)
        except SchemaRejected as rejected:
            quarantined.append(_issue(label, rejected.code, rejected.detail, kind))
            continue
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            # Boundary: an error provoked by a hostile definition must not affect other items.
            quarantined.append(_issue(label, "unreadable", f"{type(error).__name__}: {error}", kind))
            continue
        if definition is not None:
            admitted.append(definition)
        repaired += [_issue(label, code, detail, kind) for code, detail in dict.fromkeys(notes)]
    return IntakeResult(items=tuple(admitted), quarantined=tuple(quarantined), repaired=tuple(repaired))


def _issue(item: str, code: str, detail: str, kind: str) -> ItemIssue:
    return ItemIssue(tool=item, code=code, detail=excerpt(detail, _MAX_DETAIL), kind=kind)
