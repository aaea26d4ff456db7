"""The lock file: what is approved of each server, as a text that is reviewed in git.

It holds the approved definitions, so that a server's tools can be listed as approved whatever it lists today, and
their digests, so that a reviewer sees at a glance what has changed and a slip of an editor is noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from registry.errors import LockfileRejected
from registry.lock.digests import digest_of, plain
from registry.lock.surface import KEYS, LOCKED_KINDS, Definition, LockedKind, Surface, digests_of
from registry.schema.packed_definition import PackedDefinition

VERSION: Final = 1
"""Of the file's form; another one is not read."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Ten thousand tools with large schemas. A larger file is a mistaken path, which is not to fill the memory."""
# Deeper than the definitions that intake admits, and well inside the interpreter's own limit.
_MAX_DEPTH: Final = 200
_SHOWN_CHARS: Final = 80
_CONFIGURATION: Final = re.compile(r'\ufeff?\s*\{\s*"configuration"\s*:\s*("(?:[^"\\]|\\.)*")')
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Lockfile:
    """What is approved, by the aliases of servers.

    Attributes:
        configuration: The configuration file that it belongs to, relative to the lock file; empty where it names none.
    """

    servers: Mapping[str, Surface] = field(default_factory=dict)
    configuration: str = ""
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    def to_text(self) -> str:
        """Return the file: sorted, indented, and the same for equal content however it came together."""
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """The same in pieces: no step of a file of megabytes keeps other threads waiting."""
        servers = ((alias, _entry(self.servers[alias])) for alias in sorted(self.servers))
        named = [("configuration", _leaf(self.configuration, 1))] if self.configuration else []
        members = [*named, ("lockVersion", iter([str(VERSION)])), ("servers", _object_of(servers, 1))]
        # What a reviewer would not see is written out: texts of servers are somebody else's.
        yield from map(_with_escapes, _object_of(members, 0))
        yield "\n"

    def digest(self) -> bytes:
        """The SHA-256 of the file: equal for equal content."""
        if not self._digest:
            hashed = sha256()
            for piece in self.pieces():
                hashed.update(piece.encode("utf-8", "surrogatepass"))
            object.__setattr__(self, "_digest", hashed.digest())
        return self._digest

    def with_server(self, alias: str, surface: Surface | None) -> Lockfile:
        """Return the file with another entry of one server, or without one."""
        others = {name: one for name, one in self.servers.items() if name != alias}
        return Lockfile(others if surface is None else {**others, alias: surface}, self.configuration)


def parse_lockfile(text: str) -> Lockfile:
    """Read a lock file.

    Raises:
        LockfileRejected: It is none, of another version, or says something else than its digests.
    """
    if len(text) > MAX_BYTES:
        raise LockfileRejected("is too big; expected at most 64 MiB")
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        marks = "; it holds the marks of a merge" if re.search(r"^(?:<{7}|>{7}|={7})", text, re.MULTILINE) else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise LockfileRejected(f"is not JSON at {where}: {error.msg}{marks}") from None
    except (RecursionError, ValueError):
        raise LockfileRejected("is nested too deeply, or holds numbers too long to read") from None
    _check_depth(document)
    root = _object(document, "the file")
    version = root.get("lockVersion")
    if version != VERSION or isinstance(version, bool):
        what = "has no lockVersion" if version is None else "is of another version"
        raise LockfileRejected(f"{what}; expected {VERSION}", key="lockVersion")
    _only(root, ("configuration", "lockVersion", "servers"), "")
    configuration = root.get("configuration", "")
    if not isinstance(configuration, str):
        raise LockfileRejected("is no text; expected the name of a configuration file", key="configuration")
    servers = _object(root.get("servers"), "servers")
    return Lockfile({alias: _surface(entry, f"servers.{alias}") for alias, entry in servers.items()}, configuration)


def configuration_in(beginning: str) -> str:
    """Return the configuration that a lock file names, from the beginning of its text; empty where it names none."""
    found = _CONFIGURATION.match(beginning)
    try:
        return str(json.loads(found[1])) if found is not None else ""
    except ValueError:
        return ""


def _entry(surface: Surface) -> Iterator[str]:
    members: dict[str, Iterator[str]] = {"identity": _leaf(surface.identity, 3)}
    if surface.instructions:
        said = {"digest": digest_of(surface.instructions), "text": surface.instructions}
        members["instructions"] = _leaf(said, 3)
    for kind in LOCKED_KINDS:
        if surface.of(kind):
            members[kind] = _object_of(_items(kind, surface.of(kind)), 3)
    return _object_of(((name, members[name]) for name in sorted(members)), 2)


def _items(kind: LockedKind, items: Mapping[str, Definition]) -> Iterator[tuple[str, Iterator[str]]]:
    for name in sorted(items):
        yield name, _leaf({"definition": items[name], "digests": digests_of(kind, items[name])}, 4)


def _object_of(members: Iterable[tuple[str, Iterator[str]]], depth: int) -> Iterator[str]:
    """An object as `json.dumps` writes it, its members one by one, so that no more than one is held at a time."""
    opening = "{"
    for name, value in members:
        yield f"{opening}\n{_INDENT * (depth + 1)}{json.dumps(name, ensure_ascii=False)}: "
        yield from value
        opening = ","
    yield "{}" if opening == "{" else f"\n{_INDENT * depth}}}"


def _leaf(value: Any, depth: int) -> Iterator[str]:
    text = json.dumps(plain(value), sort_keys=True, indent=_INDENT, ensure_ascii=False)
    # No text in it has a line break that is not written out.
    yield text.replace("\n", f"\n{_INDENT * depth}")


def _surface(value: Any, key: str) -> Surface:
    entry = _object(value, key)
    _only(entry, ("identity", "instructions", *LOCKED_KINDS), key)
    identity, said = entry.get("identity"), entry.get("instructions")
    if not isinstance(identity, str):
        raise LockfileRejected("is missing or no text; expected what is started or connected to", key=f"{key}.identity")
    instructions: Any = None
    if said is not None:
        where = f"{key}.instructions"
        instructions = _object(said, where).get("text")
        if not isinstance(instructions, str):
            raise LockfileRejected("is missing or no text; expected the approved instructions", key=f"{where}.text")
        if _object(said, where).get("digest") != digest_of(instructions):
            raise _edited(where)
    items = {
        kind: {name: _definition(kind, name, one, f"{key}.{kind}") for name, one in _object(entry[kind], key).items()}
        for kind in LOCKED_KINDS
        if kind in entry
    }
    return Surface(identity=identity, instructions=instructions, items=items)


def _definition(kind: LockedKind, name: str, value: Any, key: str) -> Definition:
    where = f"{key}.{name[:_SHOWN_CHARS]}"
    entry = _object(value, where)
    _only(entry, ("definition", "digests"), where)
    definition = _object(entry.get("definition"), f"{where}.definition")
    if definition.get(KEYS[kind]) != name:
        raise LockfileRejected(f"is not the definition of {name[:_SHOWN_CHARS]}", key=f"{where}.definition")
    if entry.get("digests") != digests_of(kind, definition):
        raise _edited(where)
    return PackedDefinition.of(definition) if kind == "tools" else definition


def _edited(key: str) -> LockfileRejected:
    # What was approved is what was reviewed: nobody reviews a definition under the digests of another one.
    return LockfileRejected(
        "its digests are not those of its definition; expected what `typegate lock` or `typegate approve` wrote",
        key=key,
    )


def _object(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LockfileRejected("is missing or no object; expected what `typegate lock` writes", key=key)
    return value


def _only(entry: Mapping[str, Any], known: tuple[str, ...], key: str) -> None:
    for name in entry:
        if name not in known:
            where = f"{key}.{name[:_SHOWN_CHARS]}".lstrip(".")
            raise LockfileRejected(f"unknown key; expected one of {', '.join(known)}", key=where)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise LockfileRejected(f"the key {twice[:_SHOWN_CHARS]!r} stands twice in one object; expected it once")
    return found


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise LockfileRejected(f"is nested too deeply; expected at most {_MAX_DEPTH} levels")


def _with_escapes(text: str) -> str:
    """Write out what is not printable, line breaks of the file apart."""
    hidden = {char for char in set(text) if not char.isprintable() and char != "\n"}
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in hidden})
