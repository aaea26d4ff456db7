"""Patterns of configuration that decide which tools, prompts and resources are shown, and which URIs may be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.uri_spellings import allows_uri, denies_uri


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
        """Return whether `allow` matches a URI in every form in which its server may read it."""
        return allows_uri(uri, self.allow)

    def denies_uri(self, uri: str) -> bool:
        """Return whether `deny` matches a URI in any spelling that its server may take for the same URI."""
        return denies_uri(uri, self.deny)


OPEN: Final = NameFilter()


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


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
