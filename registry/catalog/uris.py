"""Equivalent spellings of URIs for access rules, and qualified URIs for URIs that several servers list.

Servers parse the URI of a request before they look up the resource: with `new URL` in TypeScript, and with pydantic's
`AnyUrl` in Python. Both parsers follow the WHATWG URL Standard, so a pattern that is only compared with the text of the
request can be bypassed. The URI that is sent to a server is not changed by these functions.

A `ui://` URI belongs to an app. Hosts render apps only under that scheme, so the URI is qualified as `ui://ALIAS/rest`.
A `skill://` URI is qualified in the same way, so that it stays the path of a skill. Any other URI is qualified as
`typegate://ALIAS/URI`. Each of these forms can be split again, because an alias contains no slash.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from registry.catalog.names import ServerName
from registry.intake.item_intake import MAX_KEY_LENGTH, OWN_URI_PREFIX, is_own_uri
from registry.schema.json_values import containers, map_items, map_members
from registry.schema.packed_definition import PackedDefinition, members_of

MAX_URI_CHARS: Final = 8 * 1024
"""Longer URIs are not compared: they match every `deny` pattern and no `allow` pattern. No server or browser in wide
use accepts longer URIs, and the time to compare grows with the length.
"""
# Rounds of percent-decoding. Patterns cannot describe the URIs of a server that decodes more often.
_MAX_DECODINGS: Final = 3
# Maximum number of transformations applied in succession, such as decoding, parsing, and removing dot segments.
_ROUNDS: Final = 3
# The number of URIs whose spellings are cached. Spellings are needed for every request and listed item; typical URIs
# have 60 characters.
_REMEMBERED: Final = 8_192
# The spellings of a URI longer than this may take hundreds of kilobytes, so only a few URIs are cached: enough for all
# rules that apply to one request.
_LONG_CHARS: Final = 512
_REMEMBERED_LONG: Final = 16
# A longer spelling is not compared. A letter may become 18 letters by NFKC, or 9 characters by percent-encoding.
_MAX_SPELLING_CHARS: Final = 4 * MAX_URI_CHARS
_PATTERNS: Final = 1_024
# Any number of slashes between scheme and path, because servers interpret them differently.
_ROOT: Final = re.compile(r":/+")
_SLASHES: Final = re.compile(r"/{2,}")
# URL Standard, "basic URL parser": characters removed everywhere, and characters removed at both ends.
_REMOVED: Final = re.compile(r"[\t\n\r]")
_C0_AND_SPACE: Final = "".join(map(chr, range(0x21)))
_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_AUTHORITY: Final = re.compile(r"(?P<scheme>[a-z]+)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.S)
_DRIVE: Final = re.compile(r"^(file:/+[a-z])\|", re.I)
EXPRESSION: Final = re.compile(r"\{[^{}]*\}")
"""An expression of a URI template."""
_SPECIAL: Final = re.compile(r"([*?[])")
# Wildcards of a pattern, which are replaced with `_STAND_IN` while the pattern is parsed as a URL.
_WILDCARD: Final = re.compile(r"\*+|\?|\[!?\]?[^]/]*\]")
_STARS: Final = re.compile(r"\*+|\[\[\]")
_STAND_IN: Final = "zqwz"
_IPV6: Final = re.compile(r"//([^/?#\[]*)\[([0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*)\]", re.I)
_PORT_OF_ANY_HOST: Final = re.compile(r"[^/]*/*[^/?#]*\*[^/?#]*:\d")


def normalize_uri(uri: str) -> str | None:
    """Return a URI as a parser of the WHATWG URL Standard serializes it; None if it is not a valid URL.

    Source: https://url.spec.whatwg.org/#concept-basic-url-parser
    """
    # Imported lazily, as it is only needed for URI patterns. Servers in Python use the same parser.
    from pydantic_core import Url, ValidationError

    try:
        return str(Url(uri))
    except (ValidationError, UnicodeError, ValueError):
        return None


def resolve_uri(uri: str) -> str:
    """Return a URI without percent-encoding, dot segments, backslashes and repeated slashes.

    Source: RFC 3986, section 6.2.2 "Syntax-Based Normalization"; servers apply the other transformations as well.
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
        # MCP servers often begin a path where the authority would be, so dot segments are resolved there, too.
        authority, rest = "//", rest[2:]
    segments: list[str] = []
    for part in _SLASHES.sub("/", rest).split("/"):
        if part == "..":
            del segments[-1:]
        elif part != ".":
            segments.append(part)
    return f"{scheme}:{authority}{'/'.join(segments)}"


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
    """Return whether a pattern matches any spelling of a URI that its server may treat as the same URI."""
    if not patterns:
        return False
    if len(uri) > MAX_URI_CHARS:
        return True
    matches = _denying(patterns)
    spellings = (_spellings if len(uri) <= _LONG_CHARS else _spellings_of_long)(uri)
    return spellings is None or any(matches(form) for form in spellings)


def pattern_of_template(template: str) -> str:
    """Return a pattern that matches the URIs to which a template expands."""
    return "*".join(_SPECIAL.sub(r"[\1]", literal) for literal in EXPRESSION.split(template))


@lru_cache(_REMEMBERED)
def _certain_spellings(uri: str) -> frozenset[str] | None:
    """Return the spellings that servers commonly derive from a URI; an `allow` pattern must match all of them.

    Return None if a spelling is too long to compare.
    """
    parsed = normalize_uri(uri)
    if parsed is not None and len(parsed) > _MAX_SPELLING_CHARS:
        return None
    return frozenset(
        form for spelling in (uri, parsed) if spelling is not None for form in (spelling, resolve_uri(spelling))
    )


@lru_cache(_REMEMBERED)
def _spellings(uri: str) -> frozenset[str] | None:
    """Return all spellings that a server may derive from a URI, folded as in `_denying`; None if any is too long."""
    spellings, latest = {uri}, {uri}
    for _ in range(_ROUNDS):
        derived = {form for spelling in latest for form in _transform_uri(spelling)}
        if any(len(form) > _MAX_SPELLING_CHARS for form in derived):
            return None
        latest = derived - spellings
        if not latest:
            break
        spellings |= latest
    # Include the forms without the query and fragment, because a server may ignore those.
    folded = frozenset(
        _fold_text(form)
        for spelling in spellings
        for form in (spelling, spelling.partition("#")[0].partition("?")[0], *_with_port(spelling))
    )
    return None if any(len(form) > _MAX_SPELLING_CHARS for form in folded) else folded


_certain_spellings_of_long: Final = lru_cache(_REMEMBERED_LONG)(_certain_spellings.__wrapped__)
_spellings_of_long: Final = lru_cache(_REMEMBERED_LONG)(_spellings.__wrapped__)


def _transform_uri(uri: str) -> Iterator[str]:
    yield unquote(uri)
    yield resolve_uri(uri)
    # Yield these even if this parser rejects the whole URI, because parsers differ in what they reject.
    yield _REMOVED.sub("", uri.strip(_C0_AND_SPACE))
    yield _DRIVE.sub(r"\1:", uri)
    parsed = normalize_uri(uri)
    if parsed is not None:
        yield parsed


def _with_port(uri: str) -> Iterator[str]:
    """Yield a URL with the default port of its scheme made explicit."""
    authority = _AUTHORITY.match(uri)
    if authority is not None and authority["scheme"] in _PORTS and not re.search(r":\d*$", authority["authority"]):
        yield f"{authority['scheme']}://{authority['authority']}:{_PORTS[authority['scheme']]}{authority['rest']}"


def _fold_text(text: str) -> str:
    # Servers may ignore case or normalize characters, and denied URIs must not get through.
    return _ROOT.sub(":/", unicodedata.normalize("NFKC", text).casefold(), count=1)


@lru_cache(_PATTERNS)
def _allowing(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return _matcher(form for pattern in patterns for form in _pattern_spellings(pattern))


@lru_cache(_PATTERNS)
def _denying(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return _matcher(_fold_text(form) for pattern in patterns for form in _pattern_spellings(pattern))


def _matcher(patterns: Iterable[str]) -> Callable[[str], object]:
    return re.compile("|".join(dict.fromkeys(map(translate, patterns)))).match


def _pattern_spellings(pattern: str) -> Iterator[str]:
    """Yield a pattern as written, and as a URL parser would read a URI that it matches."""
    yield pattern
    yield unquote(pattern)
    # Brackets around an IPv6 address are part of the URI, not a set of characters.
    pattern = _IPV6.sub(r"//\1[[]\2]", _DRIVE.sub(r"\1:", pattern))
    yield pattern
    for wildcard in (_WILDCARD, _STARS):  # `_STARS` keeps `?`, which may begin a query
        wild = wildcard.findall(pattern)
        parsed = normalize_uri(wildcard.sub(lambda match: "[" if match[0] == "[[]" else _STAND_IN, pattern))
        wild = [text for text in wild if text != "[[]"]
        # Parsing drops a default port; with a wildcard host the pattern would then match other ports as well.
        if parsed is None or parsed.count(_STAND_IN) != len(wild) or _PORT_OF_ANY_HOST.match(pattern):
            continue
        pieces = [piece.replace("[", "[[]") for piece in parsed.split(_STAND_IN)]
        restored = _DRIVE.sub(
            r"\1:", "".join(piece for pair in zip(pieces, [*wild, ""], strict=True) for piece in pair)
        )
        yield restored
        yield unquote(restored)


UI_PREFIX: Final = "ui://"
"""The prefix of apps' URIs (MCP Apps, "UI Resource Format")."""
SKILL_PREFIX: Final = "skill://"
"""The usual prefix of the URIs of skills (MCP extension io.modelcontextprotocol/skills, "Resource Mapping")."""
_KEPT_PREFIXES: Final = (UI_PREFIX, SKILL_PREFIX)
# `ui.resourceUri`, and the flat forms `ui/resourceUri` and `openai/outputTemplate`.
_URI_MEMBERS: Final = ("resourceUri", "outputTemplate")
# Matches URLs that every parser accepts, which are nearly all URLs; any other URL is parsed.
_USUAL_URL: Final = re.compile(r"(?!https?:|wss?:|ftp:)[a-z][a-z0-9+.-]*:(?://[A-Za-z0-9._~-]*(?:[/?#].*)?|[^/].*)")


def kept_prefix(uri: str) -> str:
    """Return the scheme of a URI, with `://`, if its qualified form keeps it; otherwise an empty string."""
    return next((prefix for prefix in _KEPT_PREFIXES if uri.startswith(prefix)), "")


def qualified_uri(server: str, uri: str) -> str:
    """Return the qualified form of a server's URI, which is distinct among the URIs of all servers."""
    prefix = kept_prefix(uri)
    if prefix:
        return f"{prefix}{server}/{uri.removeprefix(prefix)}"
    return f"{OWN_URI_PREFIX}{server}/{uri}"


def split_qualified_uri(uri: str, servers: Collection[str]) -> tuple[ServerName, str] | None:
    """Split a qualified URI with a kept scheme into the server and the upstream's URI; None if the alias is unknown."""
    prefix = kept_prefix(uri)
    if not prefix:
        return None
    alias, slash, rest = uri.removeprefix(prefix).partition("/")
    return (ServerName(alias), prefix + rest) if slash and alias in servers else None


def is_url(uri: str) -> bool:
    """Return whether Python SDK 1.x, whose models parse URLs, accepts a URI. If not, that SDK rejects the list."""
    return _USUAL_URL.fullmatch(uri) is not None or normalize_uri(uri) is not None


def shared_uris(claims: Mapping[str, Collection[ServerName]]) -> frozenset[str]:
    """Return the URIs to qualify: URIs of several servers, and URIs that equal the qualified form of such a URI.

    Args:
        claims: The servers that list or name each URI.
    """
    shared = {uri for uri, servers in claims.items() if len(servers) > 1}
    latest = shared
    while latest:
        qualified = {qualified_uri(server, uri) for uri in latest for server in claims[uri]}
        latest = {uri for uri in qualified if uri in claims} - shared
        shared |= latest
    return frozenset(shared)


def uris_in_meta(tools: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the URIs in the `_meta` of tools: app URIs in any member, other URIs only in members that hosts read."""
    uris: dict[str, None] = {}
    for tool in tools:
        if isinstance(tool, PackedDefinition) and not any(map(tool.holds, (UI_PREFIX, *_URI_MEMBERS))):
            continue  # fast path for nearly all tools
        for container in containers(members_of(tool).get("_meta")):
            members = container.items() if isinstance(container, dict) else (("", value) for value in container)
            uris.update(
                (value, None)
                for name, value in members
                if isinstance(value, str) and (value.startswith(UI_PREFIX) or (value and name.endswith(_URI_MEMBERS)))
            )
    return tuple(uri for uri in uris if not is_own_uri(uri) and len(uri) <= MAX_KEY_LENGTH)


def with_renamed(value: Any, rename: Callable[[str], str]) -> Any:
    """Return a JSON value with `rename` applied to every string; the same object if nothing changed."""
    if isinstance(value, str):
        renamed = rename(value)
        return value if renamed == value else renamed
    if isinstance(value, list):
        return map_items(value, lambda item: with_renamed(item, rename))
    if isinstance(value, dict):
        return map_members(value, lambda member: with_renamed(member, rename))
    return value


def with_renamed_meta(definition: Mapping[str, Any], keys: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a definition whose `_meta` has exposed instead of upstream URIs; the same object if nothing changed.

    Args:
        definition: The definition of a tool, prompt, resource or template.
        keys: The exposed URIs that differ from the upstream's, keyed by upstream URI.
    """
    if not keys or (isinstance(definition, PackedDefinition) and not definition.may_have("_meta")):
        return definition
    members = members_of(definition)
    meta = members.get("_meta")
    renamed = with_renamed(meta, lambda text: keys.get(text, text))
    return definition if renamed is meta else {**members, "_meta": renamed}
