"""Derive wrapper names that are valid for hosts, short, and distinct.

Calls are routed by looking up the whole name, never by splitting it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Final, NewType

from registry.errors import AliasError, RegistryError
from registry.schema.display_text import strip_accents

ServerName = NewType("ServerName", str)
ToolName = NewType("ToolName", str)
WrapperName = NewType("WrapperName", str)

BUILTIN_NAMES: Final = frozenset({"invoke_tool", "find_tools", "list_servers", "get_server_details", "read_result"})

NAME_SEPARATOR: Final = "__"
# Model APIs accept 64 characters, and hosts add a prefix of up to 16 (`mcp__gateway__`).
DEFAULT_NAME_LENGTH: Final = 48
# 32 bits: equal digests are unlikely among the thousands of tools of one gateway. If they occur, they are lengthened.
_DIGEST_LENGTH: Final = 8
# The shortest limit that fits an alias of `x-` and a digest, the separator, and a tool name of 1 letter and a digest.
MIN_NAME_LENGTH: Final = 2 + _DIGEST_LENGTH + len(NAME_SEPARATOR) + 1 + _DIGEST_LENGTH
# The limit of model APIs for a whole name. A longer alias would never fit into a name.
_MAX_ALIAS_LENGTH: Final = 64
# Characters reserved for the tool if the alias is long: a digest, and a few characters for a readable head and tail.
_TOOL_CHARS: Final = 18
# With fewer characters besides the digest, head and tail would be one or two letters each; keep only the head.
_MIN_READABLE_CHARS: Final = 6
# A SHA-256 digest has 64 hexadecimal digits. The length starts at 8 and doubles, so three rounds use all of them.
_MAX_DIGEST_LENGTH: Final = 64
_MAX_ROUNDS: Final = 8
# A tool's own name can have any length; the readable part is derived from this many characters at its beginning.
_READ_CHARS: Final = 2048

_ALIAS = re.compile(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")
_CLEAN = re.compile(r"[A-Za-z0-9_-]+")
_UNCLEAN = re.compile(r"[^A-Za-z0-9_-]+")
# The tool name format that the protocol recommends. An unprefixed tool with such a name keeps it exactly.
_VERBATIM = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledName:
    """A wrapper's name, and the reason if it is not simply `alias__tool`."""

    name: WrapperName
    reason: str | None


def normalized_name(name: str) -> str:
    """Return the form of a name that must be unique: lower case, with `_` for `-`."""
    # Several hosts replace `-` with `_`, and some compare names case-insensitively.
    return name.replace("-", "_").casefold()


def check_aliases(aliases: Iterable[str], *, max_length: int = DEFAULT_NAME_LENGTH) -> None:
    """Check that aliases compile into distinct prefixes.

    Raises:
        AliasError: An alias is malformed, or two aliases look the same to a host.
    """
    all_aliases = list(aliases)
    malformed = [alias for alias in all_aliases if len(alias) > _MAX_ALIAS_LENGTH or not _ALIAS.fullmatch(alias)]
    alike: dict[str, list[str]] = defaultdict(list)
    for alias in all_aliases:
        if alias not in malformed:
            alike[normalized_name(alias_prefix(alias, max_length))].append(alias)
    clashes = [group for group in alike.values() if len(group) > 1]
    sentences = []
    if malformed:
        form = f"letters and digits, joined by single '-' or '_', at most {_MAX_ALIAS_LENGTH} characters"
        sentences.append(f"server aliases must be {form}: {', '.join(map(repr, malformed))}")
    for group in clashes:
        quoted = ", ".join(map(repr, group))
        sentences.append(f"server aliases look the same once compiled into tool names: {quoted}")
    if sentences:
        offenders = {*malformed, *chain.from_iterable(clashes)}
        raise AliasError([alias for alias in all_aliases if alias in offenders], "; ".join(sentences))


def compile_names(
    server: ServerName,
    tools: Iterable[ToolName],
    *,
    max_length: int = DEFAULT_NAME_LENGTH,
    prefixed: bool = True,
    renames: Mapping[ToolName, str] = {},
) -> dict[ToolName, CompiledName]:
    """Return the wrapper name of each tool of one server, independently of the order of tools.

    A shortened or sanitised name ends with 8 hexadecimal digits of the digest of its (server, tool) pair, so it
    does not depend on any other tool. Valid names that look alike to a host (`list-items`, `List_Items`) get a digest
    as well, except for a name that is already in normalized form.

    Raises:
        RegistryError: `max_length` is too small for distinct names.
    """
    if max_length < MIN_NAME_LENGTH:
        raise RegistryError(f"names need at least {MIN_NAME_LENGTH} characters, not {max_length}")
    prefix = alias_prefix(server, max_length) + NAME_SEPARATOR if prefixed else ""
    candidates = {tool: _NameCandidate(server, tool, prefix, max_length, prefixed, renames.get(tool)) for tool in tools}
    _resolve_collisions(list(candidates.values()), verbatim_allowed=not prefixed)
    return {tool: CompiledName(name=candidate.name, reason=candidate.reason) for tool, candidate in candidates.items()}


class _NameCandidate:
    """The tentative name of one tool.

    Attributes:
        level: 0 for a name without a digest, 1 with a digest of normal length; each level doubles the length.
        verbatim: True if the tool's own name is kept exactly.
    """

    __slots__ = ("level", "name", "pair", "part", "prefix", "reason", "renamed", "room", "verbatim")

    def __init__(
        self, server: ServerName, tool: ToolName, prefix: str, max_length: int, prefixed: bool, rename: str | None
    ) -> None:
        self.pair = (server, tool)
        self.part = tool if rename is None else rename
        self.prefix = prefix
        self.renamed = rename is not None
        self.room = max_length - len(prefix)
        self.reason: str | None = None
        self.verbatim = not prefixed and _VERBATIM.fullmatch(self.part) is not None
        self.level = 0
        if not self.verbatim and (flaw := self._flaw(prefixed)) is not None:
            self.level, self.reason = 1, flaw
        elif self.renamed:
            self.reason = "renamed by configuration"
        elif prefixed and not prefix.startswith(server + NAME_SEPARATOR):
            self.reason = "the server's alias was adapted"
        self.name = self._render()

    def _flaw(self, prefixed: bool) -> str | None:
        if not self.part:
            return "the tool's name is empty"
        if not _CLEAN.fullmatch(self.part):
            return "the tool's name has characters that hosts replace"
        if not prefixed and not self.part[0].isalpha():
            return "the tool's name does not begin with a letter"
        if len(self.part) > self.room:
            return f"longer than {self.room + len(self.prefix)} characters"
        return None

    @property
    def is_normalized(self) -> bool:
        return self.name == self.prefix + normalized_name(self.part)

    def lengthen_digest(self, reason: str) -> None:
        self.level += 1
        self.verbatim = False
        self.reason = reason if self.level == 1 else self.reason
        self.name = self._render()

    def _render(self) -> WrapperName:
        if self.level == 0:
            return WrapperName(self.prefix + self.part)
        length = min(_DIGEST_LENGTH << (self.level - 1), max(self.room - 1, _DIGEST_LENGTH), _MAX_DIGEST_LENGTH)
        digest = _pair_digest(*self.pair)[:length]
        plain = _UNCLEAN.sub("_", strip_accents(self.part[:_READ_CHARS])).strip("_-") or "tool"
        if not self.prefix and not plain[0].isalpha():
            plain = "t" + plain
        room = self.room - length
        if len(plain) + 1 <= room:
            return WrapperName(f"{self.prefix}{plain}_{digest}")
        if room < _MIN_READABLE_CHARS:
            return WrapperName(f"{self.prefix}{plain[:room]}{digest}")
        # Names differ at both ends: the verb comes first, and the end distinguishes siblings.
        tail = (room - 2) * 2 // 5
        head = room - 2 - tail
        return WrapperName(f"{self.prefix}{plain[:head]}_{plain[-tail:]}_{digest}")


def _resolve_collisions(candidates: list[_NameCandidate], *, verbatim_allowed: bool) -> None:
    """Lengthen the digests of names that look alike until all names are distinct, independently of their order."""
    for _round in range(_MAX_ROUNDS):
        groups: dict[str, list[_NameCandidate]] = defaultdict(list)
        for candidate in candidates:
            groups[normalized_name(candidate.name)].append(candidate)
        collisions = [group for group in groups.values() if len(group) > 1]
        if verbatim_allowed:
            # An unprefixed verbatim name must not change, even if a host cannot distinguish it from a sibling's name.
            collisions = [group for group in collisions if not all(c.verbatim and not c.renamed for c in group)]
        if not collisions:
            return
        for group in collisions:
            _resolve_collision(group)


def _resolve_collision(group: list[_NameCandidate]) -> None:
    digested = [candidate for candidate in group if candidate.level]
    exact = [candidate for candidate in group if candidate.verbatim and not candidate.renamed]
    plain = [candidate for candidate in group if not candidate.level]
    keepers: list[_NameCandidate]
    if exact:
        keepers = exact
    elif digested:
        keepers = digested if len(digested) == 1 else []
    else:
        keepers = [candidate for candidate in plain if candidate.is_normalized]
        # A tool keeps its own name; another tool that configuration renames to that name gets a digest.
        keepers = keepers if len(keepers) == 1 else [candidate for candidate in keepers if not candidate.renamed]
    for candidate in group:
        if candidate not in keepers:
            candidate.lengthen_digest("looks the same as a sibling's name to a host")


def alias_prefix(alias: str, max_length: int) -> str:
    """Return an alias as it appears in names: it starts with a letter and leaves room for the tool's name."""
    part = alias if alias[:1].isalpha() else "s" + alias
    room = max(_DIGEST_LENGTH + 2, max_length - len(NAME_SEPARATOR) - _TOOL_CHARS)
    if len(part) <= room:
        return part
    digest = sha256(alias.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return part[: room - _DIGEST_LENGTH - 1].rstrip("-_") + "-" + digest


def _pair_digest(server: str, tool: str) -> str:
    # An alias contains no NUL, so different pairs give different texts. Upstream names may have lone surrogates.
    return sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()
