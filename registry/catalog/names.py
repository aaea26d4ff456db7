"""Compile wrapper names: sanitise, shorten, injective; nothing routes by splitting."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NewType

from registry.errors import AliasError, RegistryError

ServerName = NewType("ServerName", str)
ToolName = NewType("ToolName", str)
WrapperName = NewType("WrapperName", str)

BUILTIN_NAMES: Final = frozenset({"invoke_tool", "find_tools", "list_servers", "get_server_details"})

SEPARATOR: Final = "__"
MIN_NAME_LENGTH: Final = 21
"""Shortest limit that still holds `x-` + 8 hex, the separator, and one character + 8 hex."""

_MAX_ALIAS_LENGTH: Final = 64
_DIGEST_LENGTH: Final = 8
_TOOL_ROOM: Final = 18
"""Characters kept for the tool when the alias is long: a readable head and tail beside the digest."""

_ALIAS = re.compile(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")
_CLEAN = re.compile(r"[A-Za-z0-9_-]+")
_UNCLEAN = re.compile(r"[^A-Za-z0-9_-]+")
_VERBATIM = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledName:
    """A wrapper's name, and why it is not simply `alias__tool` (None when it is)."""

    name: WrapperName
    reason: str | None


def fold(name: str) -> str:
    """Return the form in which two names may not be equal: `-` as `_`, case ignored."""
    return name.replace("-", "_").casefold()


def check_aliases(aliases: Iterable[str], *, max_length: int = 48) -> None:
    """Accept aliases that compile into distinct prefixes.

    Raises:
        AliasError: an alias breaks the grammar, or two of them look the same to a host.
    """
    given = list(aliases)
    malformed = [a for a in given if len(a) > _MAX_ALIAS_LENGTH or not _ALIAS.fullmatch(a)]
    alike: dict[str, list[str]] = defaultdict(list)
    for alias in given:
        if alias not in malformed:
            alike[fold(_alias_part(alias, max_length))].append(alias)
    clashes = [group for group in alike.values() if len(group) > 1]
    if not malformed and not clashes:
        return
    sentences = []
    if malformed:
        named = ", ".join(repr(a) for a in malformed)
        sentences.append(
            f"server aliases must be letters and digits, joined by single '-' or '_', at most "
            f"{_MAX_ALIAS_LENGTH} characters: {named}"
        )
    for group in clashes:
        named = ", ".join(repr(a) for a in group)
        sentences.append(f"server aliases look the same once compiled into tool names: {named}")
    offenders = [a for a in given if a in malformed or any(a in group for group in clashes)]
    raise AliasError(offenders, "; ".join(sentences))


def compile_names(
    server: ServerName,
    tools: Iterable[ToolName],
    *,
    max_length: int = 48,
    prefixed: bool = True,
    renames: Mapping[ToolName, str] = {},
) -> dict[ToolName, CompiledName]:
    """Give every tool of one server its wrapper name, whatever their order.

    A shortened or sanitised name carries 8 hex digits of a digest of its own (server, tool) pair, so
    no other tool or server can change it. Names that are clean but look alike to a host
    (`list-items`, `List_Items`) are told apart in the same way; the one that is already in folded
    form stays plain.

    Raises:
        RegistryError: the limit is too small to hold distinct names.
    """
    if max_length < MIN_NAME_LENGTH:
        raise RegistryError(f"names need at least {MIN_NAME_LENGTH} characters, not {max_length}")
    prefix = _alias_part(server, max_length) + SEPARATOR if prefixed else ""
    forms = {tool: _Form(server, tool, prefix, max_length, prefixed, renames.get(tool)) for tool in tools}
    _tell_apart(forms.values(), verbatim_allowed=not prefixed)
    return {tool: CompiledName(name=form.name, reason=form.reason) for tool, form in forms.items()}


class _Form:
    """One tool on its way to a name; `level` counts how much digest it needs."""

    __slots__ = ("level", "name", "pair", "part", "prefix", "reason", "renamed", "room", "verbatim")

    def __init__(
        self,
        server: ServerName,
        tool: ToolName,
        prefix: str,
        max_length: int,
        prefixed: bool,
        rename: str | None,
    ) -> None:
        self.pair = (server, tool)
        self.part = tool if rename is None else rename
        self.prefix = prefix
        self.renamed = rename is not None
        self.room = max_length - len(prefix)
        self.reason: str | None = None
        self.verbatim = not prefixed and _VERBATIM.fullmatch(self.part) is not None
        self.level = 0
        if not self.verbatim and (why := self._impurity(prefixed)) is not None:
            self.level, self.reason = 1, why
        elif self.renamed:
            self.reason = "renamed by configuration"
        elif prefixed and not prefix.startswith(server + SEPARATOR):
            self.reason = "the server's alias was adapted"
        self.name = self._render()

    def _impurity(self, prefixed: bool) -> str | None:
        if not self.part:
            return "the tool's name is empty"
        if not _CLEAN.fullmatch(self.part):
            return "the tool's name has characters that hosts replace"
        if not prefixed and not self.part[0].isalpha():
            return "the tool's name does not begin with a letter"
        if len(self.part) > self.room:
            return f"longer than {self.room + len(self.prefix)} characters"
        return None

    def raise_level(self, reason: str) -> None:
        self.level += 1
        self.verbatim = False
        self.reason = reason if self.level == 1 else self.reason
        self.name = self._render()

    def _render(self) -> WrapperName:
        if self.level == 0:
            return WrapperName(self.prefix + self.part)
        length = min(_DIGEST_LENGTH << (self.level - 1), max(self.room - 1, _DIGEST_LENGTH), 64)
        digest = _pair_digest(*self.pair)[:length]
        plain = unicodedata.normalize("NFKD", self.part[:2048])
        plain = "".join(c for c in plain if not unicodedata.combining(c))
        plain = _UNCLEAN.sub("_", plain).strip("_-") or "tool"
        if not self.prefix and not plain[0].isalpha():
            plain = "t" + plain
        room = self.room - length
        if len(plain) + 1 <= room:
            return WrapperName(f"{self.prefix}{plain}_{digest}")
        if room < 6:
            return WrapperName(f"{self.prefix}{plain[:room]}{digest}")
        tail = (room - 2) * 2 // 5
        head = room - 2 - tail
        return WrapperName(f"{self.prefix}{plain[:head]}_{plain[-tail:]}_{digest}")


def _tell_apart(forms: Iterable[_Form], *, verbatim_allowed: bool) -> None:
    """Raise the level of names that look alike until none do; the outcome has no order in it."""
    everyone = list(forms)
    for _round in range(8):
        groups: dict[str, list[_Form]] = defaultdict(list)
        for form in everyone:
            groups[fold(form.name)].append(form)
        crowded = [group for group in groups.values() if len(group) > 1]
        if verbatim_allowed:
            # Without a prefix an exact name is a promise; only two equal ones can clash.
            crowded = [group for group in crowded if not all(f.verbatim and not f.renamed for f in group)]
        if not crowded:
            return
        for folded_group in crowded:
            _crowd_out(folded_group)


def _crowd_out(group: list[_Form]) -> None:
    digested = [form for form in group if form.level]
    exact = [form for form in group if form.verbatim and not form.renamed]
    plain = [form for form in group if not form.level]
    keepers: list[_Form]
    if exact:
        keepers = exact
    elif digested:
        keepers = digested if len(digested) == 1 else []
    else:
        # A renamed tool and a tool that has that very name are equal: neither may win by order.
        keepers = [form for form in plain if form.name == form.prefix + fold(form.part)]
        keepers = keepers if len(keepers) == 1 else [form for form in keepers if not form.renamed]
    for form in group:
        if form not in keepers:
            form.raise_level("looks the same as a sibling's name to a host")


def _alias_part(alias: str, max_length: int) -> str:
    """Return the alias as it appears in names: a letter first, short enough to leave room for a tool."""
    part = alias if alias[:1].isalpha() else "s" + alias
    room = max(_DIGEST_LENGTH + 2, max_length - len(SEPARATOR) - _TOOL_ROOM)
    if len(part) <= room:
        return part
    digest = sha256(alias.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return part[: room - _DIGEST_LENGTH - 1].rstrip("-_") + "-" + digest


def _pair_digest(server: str, tool: str) -> str:
    # The separator cannot occur in an alias, so two pairs never give the same text.
    return sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()
