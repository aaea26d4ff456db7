"""The lock file: the approved definitions of each server and their digests, as a text that can be reviewed in git.

The definitions let the gateway show the approved form of a tool even if the server lists another form. The
digests show a reviewer which parts of a definition changed, and reveal accidental edits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

from registry.errors import LockfileRejected
from registry.schema.packed_definition import PackedDefinition

# Schema keywords for people and models, which do not affect validation.
PROSE: Final = frozenset({"title", "description", "$comment", "examples", "default", "deprecated"})
# Keywords whose value is a schema, a list of schemas, or an object with schemas by name. In the value of any other
# keyword, a member called `title` is not a keyword.
SCHEMA_KEYWORDS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_MAPS: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"}
)


def canonical(value: Any) -> str:
    """Return a text that is equal for equal JSON values. The order of keys does not matter, and 1.0 equals 1."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, as 64 hexadecimal digits."""
    # The catalog's short digests are not sufficient here: an attacker could find two definitions with the same digest.
    return sha256(canonical(value).encode()).hexdigest()


def without_prose(schema: Any) -> Any:
    """Return a schema without the keywords in `PROSE`."""
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in PROSE:
            continue
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            stripped[keyword] = {name: without_prose(each) for name, each in value.items()}
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            stripped[keyword] = [without_prose(each) for each in value]
        elif keyword in SCHEMA_KEYWORDS:
            stripped[keyword] = without_prose(value)
        else:
            stripped[keyword] = value
    return stripped


def prose_of(schema: Any) -> Any:
    """Return only the keywords of a schema that are in `PROSE`, nested as in the schema; None if there are none."""
    if not isinstance(schema, dict):
        return None
    prose: dict[str, Any] = {}
    for keyword, value in schema.items():
        part: Any = None
        if keyword in PROSE:
            part = [value]  # in a list, to distinguish a null value from a missing one
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            part = {name: text for name, each in value.items() if (text := prose_of(each)) is not None} or None
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            texts = [prose_of(each) for each in value]
            part = texts if any(text is not None for text in texts) else None
        elif keyword in SCHEMA_KEYWORDS:
            part = prose_of(value)
        if part is not None:
            prose[keyword] = part
    return prose or None


# Names of JSON types, which do not count as texts that a model reads.
_TYPE_NAMES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Standard keywords of all drafts. The name of any other keyword counts as a text that a model may read.
_KEYWORDS: Final = frozenset(
    {
        *PROSE,
        *SCHEMA_KEYWORDS,
        *SCHEMA_LISTS,
        *SCHEMA_MAPS,
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$id",
        "$recursiveAnchor",
        "$recursiveRef",
        "$ref",
        "$schema",
        "$vocabulary",
        "const",
        "contentEncoding",
        "contentMediaType",
        "dependentRequired",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "id",
        "maxContains",
        "maximum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minimum",
        "minItems",
        "minLength",
        "minProperties",
        "multipleOf",
        "nullable",
        "pattern",
        "readOnly",
        "required",
        "type",
        "uniqueItems",
        "writeOnly",
    }
)
# Keywords that contain names of object members. A name counts as the same text in all of these keywords.
_NAMING: Final = frozenset({"dependencies", "dependentRequired", "dependentSchemas", "properties", "required"})
# Keywords whose subschemas describe the same value as the schema that contains the keyword.
_IN_PLACE: Final = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
Text = tuple[tuple[str, ...], str]
"""A place and a text. The place is the path of the value that the text describes, followed by the kind of text."""


def strings_of(value: Any, place: tuple[str, ...] = ()) -> Iterator[Text]:
    """Yield every string and member name in a JSON value with its place. Places do not include list positions."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield (*place, "{}"), name
            yield from strings_of(each, (*place, name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings_of(each, place)


def strings_of_schema(schema: Any, place: tuple[str, ...] = ()) -> Iterator[Text]:
    """Yield every text in a schema that a model reads, except for standard keywords and names of types.

    Texts in equivalent keywords have the same place: values in `enum` and `const`, and names in `properties` and
    `required`.
    """
    if not isinstance(schema, Mapping):
        yield from strings_of(schema, place)
        return
    for keyword, value in schema.items():
        if keyword not in _KEYWORDS:
            yield (*place, "keyword"), keyword
        yield from _strings_of_keyword(keyword, value, place)


def _strings_of_keyword(keyword: str, value: Any, place: tuple[str, ...]) -> Iterator[Text]:
    inner = place if keyword in _IN_PLACE else (*place, keyword)
    if keyword == "type":
        yield from (text for text in strings_of(value, inner) if text[1] not in _TYPE_NAMES)
    elif keyword in ("enum", "const"):
        yield from strings_of(value, (*place, "value"))
    elif keyword in SCHEMA_MAPS and isinstance(value, Mapping):
        for name, each in value.items():
            yield (*place, "name" if keyword in _NAMING else keyword), name
            if isinstance(each, list):
                yield from strings_of(each, (*place, "name"))
            else:
                yield from strings_of_schema(each, inner if keyword in _IN_PLACE else (*inner, name))
    elif keyword in ("required", "dependentRequired"):
        names = [*value, *value.values()] if isinstance(value, Mapping) else value
        yield from strings_of(names, (*place, "name"))
    elif keyword in SCHEMA_LISTS and isinstance(value, list):
        for each in value:
            yield from strings_of_schema(each, inner)
    elif keyword in SCHEMA_KEYWORDS:
        yield from strings_of_schema(value, inner)
    else:
        yield from strings_of(value, inner)


# Members of a tool's definition that the digest `hints` leaves out. It covers `annotations` separately, without title.
_OTHERS: Final = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations"})


def tool_digests(definition: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a tool: `text`, `input`, `output` and `hints`. They do not depend on the tool's name."""
    annotations = definition.get("annotations")
    hints = dict(annotations) if isinstance(annotations, dict) else {}
    title = hints.pop("title", None)
    return {
        "text": digest_of(
            [
                definition.get("title"),
                definition.get("description"),
                title,
                prose_of(definition.get("inputSchema")),
                prose_of(definition.get("outputSchema")),
            ]
        ),
        "input": digest_of(without_prose(definition.get("inputSchema"))),
        "output": digest_of(without_prose(definition.get("outputSchema"))),
        "hints": digest_of([hints, {key: value for key, value in definition.items() if key not in _OTHERS}]),
    }


def plain(value: Any) -> Any:
    """Return a JSON value in which all whole numbers are integers, such as 1 instead of 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


LockedKind = Literal["tools", "prompts", "resourceTemplates", "skills"]
# Resources are not locked, because they depend on the current state of the server.
LOCKED_KINDS: Final[tuple[LockedKind, ...]] = ("tools", "prompts", "resourceTemplates", "skills")
KEYS: Final[Mapping[LockedKind, str]] = {
    "tools": "name",
    "prompts": "name",
    "resourceTemplates": "uriTemplate",
    "skills": "uri",
}

Definition = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """The part of a server's listing that the lock file records, as checked and repaired by the gateway.

    Attributes:
        identity: The program or address of the server: the package and its version, or the URL's origin and the issuer.
        instructions: The server's instructions to models.
        items: The definitions of each kind, by upstream name.
    """

    identity: str = ""
    instructions: str | None = None
    items: Mapping[LockedKind, Mapping[str, Definition]] = field(default_factory=dict)

    def definitions(self, kind: LockedKind) -> Mapping[str, Definition]:
        """Return the definitions of one kind, by name."""
        return self.items.get(kind, {})


def by_name(definitions: Iterable[Definition], kind: LockedKind) -> dict[str, Definition]:
    """Return definitions by their name, URI template or URI. If a name occurs more than once, the first one counts."""
    named: dict[str, Definition] = {}
    for definition in definitions:
        name = definition.get(KEYS[kind])
        if isinstance(name, str):
            named.setdefault(name, definition)
    return named


def digests_of(kind: LockedKind, definition: Definition) -> dict[str, str]:
    """Return the digests of an item of any kind: `text`, `input`, `output` and `hints`."""
    return tool_digests(as_tool(kind, definition))


def as_tool(kind: LockedKind, definition: Definition) -> Definition:
    """Return a definition converted to the form of a tool, so that the same comparison works for all kinds."""
    if kind == "tools":
        return definition
    if kind == "skills":
        # Every member of a skill, including the digests of its files, counts as text for models.
        return {"_skill": {key: value for key, value in definition.items() if key != KEYS[kind]}}
    if kind == "resourceTemplates":
        # A template is identified by its URI, so its name is an ordinary text.
        text_members = {key: value for key, value in definition.items() if key not in (KEYS[kind], "annotations")}
        return {**text_members, "_name": definition.get("name"), "_annotations": definition.get("annotations")}
    arguments = definition.get("arguments")
    named_arguments = (
        [argument for argument in arguments if isinstance(argument, dict)] if isinstance(arguments, list) else []
    )
    schema = {
        "type": "object",
        "properties": {
            str(argument.get("name")): {
                key: value for key, value in argument.items() if key not in ("name", "required")
            }
            for argument in named_arguments
        },
        "required": [str(argument.get("name")) for argument in named_arguments if argument.get("required") is True],
        "additionalProperties": False,
    }
    return {**{key: value for key, value in definition.items() if key != "arguments"}, "inputSchema": schema}


VERSION: Final = 1
"""Version of the file format; no other version is read."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a lock file: enough for ten thousand tools with large schemas. A larger file is not a lock file."""
# Maximum depth of a lock file: deeper than any definition that the gateway accepts, and far below the recursion limit.
_MAX_DEPTH: Final = 200
_SHOWN_CHARS: Final = 80
_CONFIGURATION: Final = re.compile(r'\ufeff?\s*\{\s*"configuration"\s*:\s*("(?:[^"\\]|\\.)*")')
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Lockfile:
    """The content of a lock file.

    Attributes:
        servers: The approved surfaces, by server alias.
        configuration: The path of the configuration file, relative to the lock file; empty if the lock file names none.
    """

    servers: Mapping[str, Surface] = field(default_factory=dict)
    configuration: str = ""
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    def to_text(self) -> str:
        """Return the sorted and indented text of the file. Lock files with equal content have equal texts."""
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """Yield the text of the file in pieces, so that creating one piece does not block other threads for long."""
        servers = ((alias, _entry_pieces(self.servers[alias])) for alias in sorted(self.servers))
        configuration = [("configuration", _value_pieces(self.configuration, 1))] if self.configuration else []
        members = [*configuration, ("lockVersion", iter([str(VERSION)])), ("servers", _object_pieces(servers, 1))]
        # Escape invisible characters: the texts come from servers, and a reviewer has to see every character.
        yield from map(_with_escapes, _object_pieces(members, 0))
        yield "\n"

    def digest(self) -> bytes:
        """Return the SHA-256 of the file's text."""
        if not self._digest:
            hashed = sha256()
            for piece in self.pieces():
                hashed.update(piece.encode("utf-8", "surrogatepass"))
            object.__setattr__(self, "_digest", hashed.digest())
        return self._digest

    def with_server(self, alias: str, surface: Surface | None) -> Lockfile:
        """Return a copy in which the entry of one server is replaced, or removed if `surface` is None."""
        servers = {name: locked for name, locked in self.servers.items() if name != alias}
        return Lockfile(servers if surface is None else {**servers, alias: surface}, self.configuration)


def parse_lockfile(text: str) -> Lockfile:
    """Parse a lock file.

    Raises:
        LockfileRejected: The text is not a lock file, has another version, or contains a digest that does not match.
    """
    if len(text) > MAX_BYTES:
        raise LockfileRejected("is too big; expected at most 64 MiB")
    try:
        document = json.loads(text, object_pairs_hook=_object_without_duplicates)
    except json.JSONDecodeError as error:
        marks = "; it contains merge conflict markers" if re.search(r"^(?:<{7}|>{7}|={7})", text, re.MULTILINE) else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise LockfileRejected(f"is not JSON at {where}: {error.msg}{marks}") from None
    except (RecursionError, ValueError):
        raise LockfileRejected("is nested too deeply, or contains numbers that are too long") from None
    _check_depth(document)
    root = _require_object(document, "the file")
    version = root.get("lockVersion")
    if version != VERSION or isinstance(version, bool):
        what = "has no lockVersion" if version is None else "has another version"
        raise LockfileRejected(f"{what}; expected {VERSION}", key="lockVersion")
    _check_known_keys(root, ("configuration", "lockVersion", "servers"), "")
    configuration = root.get("configuration", "")
    if not isinstance(configuration, str):
        raise LockfileRejected("is not text; expected the name of a configuration file", key="configuration")
    servers = _require_object(root.get("servers"), "servers")
    return Lockfile({alias: _surface(entry, f"servers.{alias}") for alias, entry in servers.items()}, configuration)


def configuration_in(beginning: str) -> str:
    """Return the path of the configuration file from the beginning of a lock file's text; empty if there is none."""
    match = _CONFIGURATION.match(beginning)
    try:
        return str(json.loads(match[1])) if match is not None else ""
    except ValueError:
        return ""


def _entry_pieces(surface: Surface) -> Iterator[str]:
    members: dict[str, Iterator[str]] = {"identity": _value_pieces(surface.identity, 3)}
    if surface.instructions:
        stated = {"digest": digest_of(surface.instructions), "text": surface.instructions}
        members["instructions"] = _value_pieces(stated, 3)
    for kind in LOCKED_KINDS:
        if surface.definitions(kind):
            members[kind] = _object_pieces(_item_pieces(kind, surface.definitions(kind)), 3)
    return _object_pieces(((name, members[name]) for name in sorted(members)), 2)


def _item_pieces(kind: LockedKind, items: Mapping[str, Definition]) -> Iterator[tuple[str, Iterator[str]]]:
    for name in sorted(items):
        yield name, _value_pieces({"definition": items[name], "digests": digests_of(kind, items[name])}, 4)


def _object_pieces(members: Iterable[tuple[str, Iterator[str]]], depth: int) -> Iterator[str]:
    """Yield an object as `json.dumps` writes it, member by member, so that only one member is in memory at a time."""
    opening = "{"
    for name, value in members:
        yield f"{opening}\n{_INDENT * (depth + 1)}{json.dumps(name, ensure_ascii=False)}: "
        yield from value
        opening = ","
    yield "{}" if opening == "{" else f"\n{_INDENT * depth}}}"


def _value_pieces(value: Any, depth: int) -> Iterator[str]:
    text = json.dumps(plain(value), sort_keys=True, indent=_INDENT, ensure_ascii=False)
    # Line breaks inside strings are escaped, so this only indents the lines of the JSON.
    yield text.replace("\n", f"\n{_INDENT * depth}")


def _surface(value: Any, key: str) -> Surface:
    entry = _require_object(value, key)
    _check_known_keys(entry, ("identity", "instructions", *LOCKED_KINDS), key)
    identity, stated = entry.get("identity"), entry.get("instructions")
    if not isinstance(identity, str):
        raise LockfileRejected("is missing or not text; expected a program or an address", key=f"{key}.identity")
    instructions: Any = None
    if stated is not None:
        where = f"{key}.instructions"
        instructions = _require_object(stated, where).get("text")
        if not isinstance(instructions, str):
            raise LockfileRejected("is missing or not text; expected the approved instructions", key=f"{where}.text")
        if _require_object(stated, where).get("digest") != digest_of(instructions):
            raise _digest_mismatch(where)
    items = {
        kind: {
            name: _definition(kind, name, item, f"{key}.{kind}")
            for name, item in _require_object(entry[kind], key).items()
        }
        for kind in LOCKED_KINDS
        if kind in entry
    }
    return Surface(identity=identity, instructions=instructions, items=items)


def _definition(kind: LockedKind, name: str, value: Any, key: str) -> Definition:
    where = f"{key}.{name[:_SHOWN_CHARS]}"
    entry = _require_object(value, where)
    _check_known_keys(entry, ("definition", "digests"), where)
    definition = _require_object(entry.get("definition"), f"{where}.definition")
    if definition.get(KEYS[kind]) != name:
        raise LockfileRejected(f"is not the definition of {name[:_SHOWN_CHARS]}", key=f"{where}.definition")
    if entry.get("digests") != digests_of(kind, definition):
        raise _digest_mismatch(where)
    return PackedDefinition.pack(definition) if kind == "tools" else definition


def _digest_mismatch(key: str) -> LockfileRejected:
    # Reject the file, because a reviewer who compares only the digests would miss a change to the definition.
    return LockfileRejected(
        "its digests do not match its definition; expected the output of `typegate lock` or `typegate approve`",
        key=key,
    )


def _require_object(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LockfileRejected("is missing or not an object; expected the output of `typegate lock`", key=key)
    return value


def _check_known_keys(entry: Mapping[str, Any], allowed: tuple[str, ...], key: str) -> None:
    for name in entry:
        if name not in allowed:
            where = f"{key}.{name[:_SHOWN_CHARS]}".lstrip(".")
            raise LockfileRejected(f"unknown key; expected one of {', '.join(allowed)}", key=where)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(name for name in members if names.count(name) > 1)
        raise LockfileRejected(f"the key {twice[:_SHOWN_CHARS]!r} occurs twice in one object; expected it once")
    return members


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
    """Escape characters that are not printable, except for line breaks."""
    hidden = {char for char in set(text) if not char.isprintable() and char != "\n"}
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in hidden})
