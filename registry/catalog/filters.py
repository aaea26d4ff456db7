"""Patterns of configuration that decide which tools, prompts and resources are shown, and which URIs may be read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from registry.catalog.names import NAME_SEPARATOR

# A server that decodes more often than this is not one whose URIs a pattern could describe.
_MAX_DECODINGS: Final = 3
# However many slashes there are between scheme and path: servers differ in what they read into them.
_ROOT: Final = re.compile(r":/+")
_SLASHES: Final = re.compile(r"/{2,}")


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Patterns of names, or of URIs; what `deny` matches stays out whatever `allow` says."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return not self.deny and "*" in self.allow

    def admits(self, name: str) -> bool:
        """Return whether a name passes."""
        return _matches_any(name, self.allow) and not _matches_any(name, self.deny)

    def allows_uri(self, uri: str) -> bool:
        """Return whether `allow` matches a URI, both as it is written and as its server may resolve it."""
        return allows_uri(uri, self.allow)

    def denies_uri(self, uri: str) -> bool:
        """Return whether `deny` matches a URI in any form that its server may take for the same."""
        if not self.deny:
            return False
        # Without regard to case: whether a server heeds it is not known, and what is denied must not get through.
        resolved = resolve_uri(uri)
        forms = {_folded(form) for form in (uri, resolved, resolved.partition("#")[0].partition("?")[0])}
        patterns = {_folded(pattern) for one in self.deny for pattern in (one, unquote(one))}
        return any(fnmatchcase(form, pattern) for form in forms for pattern in patterns)


OPEN: Final = NameFilter()


def allows_uri(uri: str, patterns: Iterable[str]) -> bool:
    """Return whether any pattern matches a URI, both as it is written and as its server may resolve it."""
    patterns = tuple(patterns)
    if "*" in patterns:
        return True
    return all(
        any(fnmatchcase(form, pattern) or fnmatchcase(form, unquote(pattern)) for pattern in patterns)
        for form in {uri, resolve_uri(uri)}
    )


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


def selects_name(pattern: str, *, server: str, original: str, shown: str, prefixed: bool) -> bool:
    """Return whether a pattern of a profile selects a tool or a prompt.

    A pattern with `__` matches the server and the name each on its own side: no server can get into a selection of
    another one's tools by what it calls its own. Without `__` it matches either name.

    Args:
        pattern: As configured.
        server: The alias of its server.
        original: Its name at the server.
        shown: Its name here.
        prefixed: Whether that begins with the alias.
    """
    alias, separator, local = pattern.partition(NAME_SEPARATOR)
    if not separator or not alias:
        return fnmatchcase(original, pattern) or fnmatchcase(shown, pattern)
    # An alias may be adapted in names, and the name behind it renamed or shortened; both forms are known to users.
    prefix, own = server, shown
    if prefixed:
        prefix, _, own = shown.partition(NAME_SEPARATOR)
    return (fnmatchcase(server, alias) or fnmatchcase(prefix, alias)) and (
        fnmatchcase(original, local) or fnmatchcase(own, local)
    )


def server_of(pattern: str) -> str | None:
    """Return the pattern of aliases in a pattern of names; None where it has none."""
    alias, separator, _ = pattern.partition(NAME_SEPARATOR)
    return alias if separator and alias else None


def _folded(uri: str) -> str:
    return _ROOT.sub(":/", uri.casefold(), count=1)


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
