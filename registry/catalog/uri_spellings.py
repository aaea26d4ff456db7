"""The spellings of a URI that a server may take for the same URI, and patterns that are compared with all of them.

Servers parse the URI of a request before they look it up: `new URL` in TypeScript, pydantic's `AnyUrl` in Python. Both
follow the WHATWG URL Standard, so that a pattern which is compared with the text of the request alone can be bypassed.
The URI that is sent to a server is never changed by this.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

MAX_URI_CHARS: Final = 8 * 1024
"""Longer URIs are not compared: they match every pattern that denies, and none that allows. No server or browser in
wide use takes longer ones, and comparing takes time with their length."""
# A server that decodes more often than this is not one whose URIs a pattern could describe.
_MAX_DECODINGS: Final = 3
# Transformations that are applied one after the other, such as decode, parse, then remove dot segments.
_ROUNDS: Final = 3
# Spellings are needed for every request and every listed item; URIs in use have 60 characters.
_REMEMBERED: Final = 8_192
# Spellings of a longer URI have hundreds of kilobytes together: thousands of them would fill the memory, and some are
# enough for all rules that one request is compared with.
_LONG_CHARS: Final = 512
_REMEMBERED_LONG: Final = 16
# A spelling that is longer is not compared either: one letter may stand for eighteen others, or for nine characters of
# percent-encoding.
_MAX_SPELLING_CHARS: Final = 4 * MAX_URI_CHARS
_PATTERNS: Final = 1_024
# However many slashes there are between scheme and path: servers differ in what they read into them.
_ROOT: Final = re.compile(r":/+")
_SLASHES: Final = re.compile(r"/{2,}")
# URL Standard, "basic URL parser": removed wherever they are, and at both ends.
_REMOVED: Final = re.compile(r"[\t\n\r]")
_C0_AND_SPACE: Final = "".join(map(chr, range(0x21)))
_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_AUTHORITY: Final = re.compile(r"(?P<scheme>[a-z]+)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.S)
_DRIVE: Final = re.compile(r"^(file:/+[a-z])\|", re.I)
EXPRESSION: Final = re.compile(r"\{[^{}]*\}")
"""One expression of a URI template."""
_SPECIAL: Final = re.compile(r"([*?[])")
# What stands for a text in a pattern, replaced by letters while the pattern is parsed as a URL.
_WILDCARD: Final = re.compile(r"\*+|\?|\[!?\]?[^]/]*\]")
_STARS: Final = re.compile(r"\*+|\[\[\]")
_STAND_IN: Final = "zqwz"
_IPV6: Final = re.compile(r"//([^/?#\[]*)\[([0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*)\]", re.I)
_PORT_OF_ANY_HOST: Final = re.compile(r"[^/]*/*[^/?#]*\*[^/?#]*:\d")


def normalize_uri(uri: str) -> str | None:
    """Return a URI as a parser of the WHATWG URL Standard writes it; None if it is not a valid URL.

    Source: https://url.spec.whatwg.org/#concept-basic-url-parser
    """
    # Late: servers without patterns for URIs do without it. It is the parser of Python servers.
    from pydantic_core import Url, ValidationError

    try:
        return str(Url(uri))
    except (ValidationError, UnicodeError, ValueError):
        return None


def resolve_uri(uri: str) -> str:
    """Return a URI without percent-encoding, dot segments, backslashes and repeated slashes.

    Source: RFC 3986, section 6.2.2 "Syntax-Based Normalization"; the rest is what servers do beyond it.
    """
    for _ in range(_MAX_DECODINGS):
        decoded = unquote(uri)
        if decoded == uri:
            break
        uri = decoded
    scheme, colon, rest = uri.partition(":")
    if not colon:
        return uri
    rest = rest.replace("\\", "/")
    authority = ""
    if rest.startswith("//"):
        # In the URIs of MCP servers a path often begins where an authority would stand: its dots count too.
        authority, rest = "//", rest[2:]
    kept: list[str] = []
    for part in _SLASHES.sub("/", rest).split("/"):
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    return f"{scheme}:{authority}{'/'.join(kept)}"


def allows_uri(uri: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches a URI as written, as a URL parser reads it, and as its server resolves it."""
    patterns = tuple(patterns)
    if "*" in patterns:
        return True
    if not patterns or len(uri) > MAX_URI_CHARS:
        return False
    matches = _allowing(patterns)
    spellings = (_certain_spellings if len(uri) <= _LONG_CHARS else _certain_spellings_of_long)(uri)
    return spellings is not None and all(matches(form) for form in spellings)


def denies_uri(uri: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a pattern matches a URI in any spelling that its server may take for the same URI."""
    if not patterns:
        return False
    if len(uri) > MAX_URI_CHARS:
        return True
    matches = _denying(patterns)
    spellings = (_spellings if len(uri) <= _LONG_CHARS else _spellings_of_long)(uri)
    return spellings is None or any(matches(form) for form in spellings)


def pattern_of_template(template: str) -> str:
    """Return a pattern for the URIs that a template stands for."""
    return "*".join(_SPECIAL.sub(r"[\1]", literal) for literal in EXPRESSION.split(template))


@lru_cache(_REMEMBERED)
def _certain_spellings(uri: str) -> frozenset[str] | None:
    """What every server sees in one way or another; a pattern that allows has to match all of these.

    None where one of them is too long to be compared.
    """
    parsed = normalize_uri(uri)
    if parsed is not None and len(parsed) > _MAX_SPELLING_CHARS:
        return None
    return frozenset(form for one in (uri, parsed) if one is not None for form in (one, resolve_uri(one)))


@lru_cache(_REMEMBERED)
def _spellings(uri: str) -> frozenset[str] | None:
    """What a server may make of a URI, in the form in which `_denying` compares; None where one of them is too long."""
    found, latest = {uri}, {uri}
    for _ in range(_ROUNDS):
        made = {form for one in latest for form in _transformed(one)}
        if any(len(form) > _MAX_SPELLING_CHARS for form in made):
            return None
        latest = made - found
        if not latest:
            break
        found |= latest
    # Without a query or fragment: a server may ignore both.
    folded = frozenset(
        _folded(form) for one in found for form in (one, one.partition("#")[0].partition("?")[0], *_with_port(one))
    )
    return None if any(len(form) > _MAX_SPELLING_CHARS for form in folded) else folded


_certain_spellings_of_long: Final = lru_cache(_REMEMBERED_LONG)(_certain_spellings.__wrapped__)
_spellings_of_long: Final = lru_cache(_REMEMBERED_LONG)(_spellings.__wrapped__)


def _transformed(uri: str) -> Iterator[str]:
    yield unquote(uri)
    yield resolve_uri(uri)
    # Also where the whole is not a valid URL here: parsers differ in what they refuse.
    yield _REMOVED.sub("", uri.strip(_C0_AND_SPACE))
    yield _DRIVE.sub(r"\1:", uri)
    parsed = normalize_uri(uri)
    if parsed is not None:
        yield parsed


def _with_port(uri: str) -> Iterator[str]:
    """Yield a URL with the port that goes without saying."""
    found = _AUTHORITY.match(uri)
    if found is not None and found["scheme"] in _PORTS and not re.search(r":\d*$", found["authority"]):
        yield f"{found['scheme']}://{found['authority']}:{_PORTS[found['scheme']]}{found['rest']}"


def _folded(text: str) -> str:
    # Whether a server heeds case, or forms of one letter, is not known, and what is denied must not get through.
    return _ROOT.sub(":/", unicodedata.normalize("NFKC", text).casefold(), count=1)


@lru_cache(_PATTERNS)
def _allowing(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return _matcher(form for pattern in patterns for form in _pattern_spellings(pattern))


@lru_cache(_PATTERNS)
def _denying(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return _matcher(_folded(form) for pattern in patterns for form in _pattern_spellings(pattern))


def _matcher(patterns: Iterable[str]) -> Callable[[str], object]:
    return re.compile("|".join(dict.fromkeys(map(translate, patterns)))).match


def _pattern_spellings(pattern: str) -> Iterator[str]:
    """Yield a pattern as it is written, and as a URL parser would read a URI that it matches."""
    yield pattern
    yield unquote(pattern)
    # No set of characters is written like an IPv6 address; the brackets are part of the URI.
    pattern = _IPV6.sub(r"//\1[[]\2]", _DRIVE.sub(r"\1:", pattern))
    yield pattern
    for wildcard in (_WILDCARD, _STARS):  # a `?` may begin a query
        wild = wildcard.findall(pattern)
        parsed = normalize_uri(wildcard.sub(lambda found: "[" if found[0] == "[[]" else _STAND_IN, pattern))
        wild = [one for one in wild if one != "[[]"]
        # A host that is a wildcard may have any port: without the default one it would match other ports, too.
        if parsed is None or parsed.count(_STAND_IN) != len(wild) or _PORT_OF_ANY_HOST.match(pattern):
            continue
        pieces = [piece.replace("[", "[[]") for piece in parsed.split(_STAND_IN)]
        restored = _DRIVE.sub(
            r"\1:", "".join(piece for pair in zip(pieces, [*wild, ""], strict=True) for piece in pair)
        )
        yield restored
        yield unquote(restored)
