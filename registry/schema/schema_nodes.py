"""The compiled subschemas of a document, and the parts of a value to which each of them applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from registry.schema.alternatives import Alternatives
from registry.schema.json_paths import MISSING, JsonPath, value_at
from registry.schema.json_values import containers, without_keys
from registry.schema.references import SUBSCHEMA_LISTS, SUBSCHEMA_MAPS, SchemaDocument

if TYPE_CHECKING:
    import jsonschema_rs

_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_OF_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("additionalItems", "contains", "unevaluatedItems")


class Application(NamedTuple):
    """A schema and a value to which it may be applied."""

    path: JsonPath
    schema: dict[str, Any]
    value: Any


class TooManyApplications(Exception):
    """There are more applications than the limit allows."""


def applications(document: SchemaDocument, schema: Any, value: Any, limit: int) -> Iterator[Application]:  # noqa: C901 - one loop per kind of keyword
    """Yield every pair of a schema and a value that a validator may check, in no particular order.

    The number of pairs measures the cost of a check: a schema that two alternatives apply is yielded twice.

    Raises:
        TooManyApplications: There are more than `limit` pairs.
    """
    # The last element lists the references followed at this value, so that a cycle of references ends.
    pending: list[tuple[JsonPath, Any, Any, tuple[int, ...]]] = [((), schema, value, ())]
    count = 0
    while pending:
        path, node, value, followed = pending.pop()
        if not isinstance(node, dict):
            continue
        count += 1
        if count > limit:
            raise TooManyApplications
        yield Application(path, node, value)
        for target in document.targets(node):
            if id(target) not in followed:
                pending.append((path, target, value, (*followed, id(target))))
        for word in _IN_PLACE_LISTS:
            if isinstance(branches := node.get(word), list):
                pending += [(path, branch, value, followed) for branch in branches]
        for word in _IN_PLACE:
            if word in node:
                pending.append((path, node[word], value, followed))
        for word in _IN_PLACE_MAPS:
            if isinstance(branches := node.get(word), dict):
                pending += [(path, branch, value, followed) for branch in branches.values()]
        if isinstance(value, dict):
            for below in _members(node, value):
                pending.append(((*path, below[0]), below[1], below[2], ()))
        elif isinstance(value, list):
            for position, inner, item in _items(node, value):
                pending.append(((*path, position), inner, item, ()))
        # Limit pending work, too: a schema may have many alternatives, and a value may have many members.
        if len(pending) > limit:
            raise TooManyApplications


def _members(node: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    properties = node.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    fewer, more = (properties, value) if len(properties) < len(value) else (value, properties)
    for name in fewer:
        if name in more:
            yield name, properties[name], value[name]
    if isinstance(names := node.get("propertyNames"), dict):
        for name in value:
            yield name, names, name
    if isinstance(patterns := node.get("patternProperties"), dict):
        for below in patterns.values():
            for name, child in value.items():
                yield name, below, child
    for word in _OF_MEMBERS:
        if isinstance(below := node.get(word), dict):
            for name, child in value.items():
                if name not in properties:
                    yield name, below, child


def _items(node: dict[str, Any], value: list[Any]) -> Iterator[tuple[int, Any, Any]]:
    for word in ("items", "prefixItems"):
        below = node.get(word)
        if isinstance(below, list):
            for position, (inner, item) in enumerate(zip(below, value, strict=False)):
                yield position, inner, item
        elif isinstance(below, dict):
            for position, item in enumerate(value):
                yield position, below, item
    for word in _OF_ITEMS:
        if isinstance(below := node.get(word), dict):
            for position, item in enumerate(value):
                yield position, below, item


# The URI by which compiled subschemas refer to the document. It is never fetched.
_DOCUMENT_URI: Final = "urn:typegate:schema"
# Characters that a pointer may contain unescaped in a URI fragment (RFC 3986, section 3.5).
_IN_FRAGMENTS: Final = "/~!$&'()*+,;=:@"


class CompiledParts:
    """Validators of the subschemas of a document, by pointer.

    The compiler copies everything that a reference leads to. For 100 definitions that refer to each other, compiling
    all of them takes 3 s and half a gigabyte; compiling the few that a value needs takes tens of milliseconds.
    """

    def __init__(self, schema: Any, dialect: str, options: dict[str, Any], *, one_by_one: bool) -> None:
        """Compile all subschemas, or prepare to compile them on demand.

        Args:
            schema: The document, which is known to compile.
            dialect: The validator class of `jsonschema_rs`.
            options: Options of the compiler.
            one_by_one: Compile each subschema on demand.
        """
        self._schema = schema
        self._dialect = dialect
        self._options = options
        self._registry: jsonschema_rs.Registry | None = None
        self._all: jsonschema_rs.ValidatorMap | None = None
        if not one_by_one:
            self._compile_all()

    def validator_at(self, pointer: str) -> jsonschema_rs.Validator | None:
        """Return the validator of the subschema at a pointer; None if there is no schema.

        If subschemas are compiled on demand, the schema paths in the validator's errors start at the root of the
        document; otherwise, they start at the subschema.
        """
        import jsonschema_rs  # lazy, to keep the import of the registry fast

        if self._all is not None:
            return self._all.get(pointer)
        try:
            if self._registry is None:
                draft = getattr(jsonschema_rs, self._dialect.removesuffix("Validator"))
                self._registry = jsonschema_rs.Registry([(_DOCUMENT_URI, self._schema)], draft=draft)
            make = getattr(jsonschema_rs, self._dialect)
            reference = {"$ref": f"{_DOCUMENT_URI}#{quote(pointer[1:], safe=_IN_FRAGMENTS)}"}
            validator: jsonschema_rs.Validator = make(reference, registry=self._registry, **self._options)
            return validator
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            # The cause may be an `$id` that is only valid in the context of the whole document.
            self._compile_all()
            return self.validator_at(pointer)

    def _compile_all(self) -> None:
        import jsonschema_rs

        options = self._options
        self._all = jsonschema_rs.validator_map_for(self._schema, **options)


# Limit of the number of references times the number of objects in a document. Above the limit, compiling all subschemas
# takes 10 to 100 ms or more.
_LABORIOUS: Final = 20_000
# Keywords whose subschemas are searched for the failing part; and annotations, which do not affect validity.
_FOLLOWED: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "items", "prefixItems", "$defs", "definitions"}
)
_ANNOTATIONS: Final = frozenset({"description", "title", "default", "examples", "$schema", "$id", "$comment"})
# Keywords that are checked without a validator, because a validator would copy the value into each of its errors.
_CHECKED_DIRECTLY: Final = frozenset({"type", "required"})
_ABOUT_OTHERS: Final = ("properties", "patternProperties", "additionalProperties")
# Keywords that can fail because another member is missing, although every present member is valid.
_NEEDING_OTHER_MEMBERS: Final = ("minProperties", "dependentRequired", "dependencies", "dependentSchemas")
# Only a validator of the whole schema knows which members these keywords evaluate.
_COMPOSING: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
# Before 2019-09, a `$ref` replaces all keywords next to it.
_LONE_REFERENCES: Final = frozenset({"Draft4Validator", "Draft6Validator", "Draft7Validator"})
_UNEVALUATING: Final = frozenset({"Draft201909Validator", "Draft202012Validator"})


class SchemaNodes:
    """All subschemas of one document, by pointer.

    Attributes:
        is_laborious: Whether compiling a subschema may take many milliseconds.
    """

    def __init__(self, schema: Any, dialect: str, options: dict[str, Any]) -> None:
        """Index the subschemas.

        Args:
            schema: The document.
            dialect: The validator class of `jsonschema_rs`.
            options: Options of the compiler.
        """
        self.document = SchemaDocument(schema)
        self.lone_references = dialect in _LONE_REFERENCES
        self.knows_unevaluated = dialect in _UNEVALUATING
        self.positional_keyword = "prefixItems" if dialect == "Draft202012Validator" else "items"
        self._dialect = dialect
        self._root = schema
        self._pointers = _pointers(schema)
        self.is_laborious = self.document.reference_count * len(self._pointers) > _LABORIOUS
        self._compiled = CompiledParts(schema, dialect, options, one_by_one=self.is_laborious)
        self._nodes_by_pointer: dict[str, SchemaNode | None] = {}

    @property
    def root(self) -> Any:
        """The whole document."""
        return self._root

    def node_at(self, pointer: str, schema: Any) -> SchemaNode | None:
        """Return the subschema at a pointer; None if it is not a schema."""
        try:
            return self._nodes_by_pointer[pointer]
        except KeyError:
            pass
        self._nodes_by_pointer[pointer] = None  # during the lookup: references may lead back here
        node: SchemaNode | None = None
        if self.is_laborious:
            if isinstance(schema, dict | bool):
                node = SchemaNode(self, pointer, schema, self._shared_target(schema))
        elif (validator := self._compiled.validator_at(pointer)) is not None:
            node = SchemaNode(self, pointer, schema, validator)
        self._nodes_by_pointer[pointer] = node
        return node

    def require_validator(self, pointer: str) -> jsonschema_rs.Validator:
        """Return the validator of the subschema at a pointer.

        Raises:
            ValueError: There is no schema at the pointer.
        """
        validator = self._compiled.validator_at(pointer)
        if validator is None:
            raise ValueError(f"no schema: {pointer}")
        return validator

    def _shared_target(self, schema: Any) -> SchemaNode | None:
        """Return the target if this schema is only a reference, so that the target is not compiled twice."""
        if not isinstance(schema, dict) or "$ref" not in schema:
            return None
        if not self.lone_references and schema.keys() - _ANNOTATIONS != {"$ref"}:
            return None
        [target, *more_targets] = self.document.targets(schema) or (None,)
        return None if target is None or target is schema or more_targets else self.node_of(target)

    def node_of(self, schema: object) -> SchemaNode | None:
        """Return the node of a schema object that is part of the document."""
        pointer = self._pointers.get(id(schema))
        return self.node_at(pointer, schema) if pointer is not None else None

    def compile_keywords(self, schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
        """Compile some keywords of a schema on their own; return None if that is impossible."""
        import jsonschema_rs  # lazy, to keep the import of the registry fast

        has_references = any("$ref" in part for part in containers(schema) if isinstance(part, dict))
        if isinstance(self._root, dict) and has_references:
            schema = {**schema, **{word: self._root[word] for word in ("$defs", "definitions") if word in self._root}}
        try:
            make = getattr(jsonschema_rs, self._dialect)
            validator: jsonschema_rs.Validator = make(schema, validate_formats=False, offline=True, mask="the value")
            return validator
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            return None


class SchemaNode:
    """One subschema of a document. `schema` is empty for a boolean schema."""

    def __init__(
        self, nodes: SchemaNodes, pointer: str, schema: Any, compiled: jsonschema_rs.Validator | SchemaNode | None
    ) -> None:
        """Create the node of a subschema.

        Args:
            nodes: All subschemas of the document.
            pointer: The position of the subschema in the document.
            schema: The subschema.
            compiled: The validator of the subschema, or the node of the target if the subschema is only a reference;
                None to compile the subschema on demand.
        """
        self._nodes = nodes
        self._pointer = pointer
        self._compiled = compiled
        self.schema: dict[str, Any] = schema if isinstance(schema, dict) else {}

    @cached_property
    def validator(self) -> jsonschema_rs.Validator:
        """The validator of the whole subschema."""
        compiled = self._compiled
        if compiled is None:
            return self._nodes.require_validator(self._pointer)
        return compiled.validator if isinstance(compiled, SchemaNode) else compiled

    @cached_property
    def is_valid(self) -> Callable[[Any], bool]:
        """A function that returns whether a value matches the subschema."""
        return self.validator.is_valid

    @cached_property
    def steps(self) -> list[str | int]:
        """The path of the subschema in the document."""
        return _steps(self._pointer)

    def whole_path(self, path: list[str | int]) -> list[str | int]:
        """Return the schema path of an error from the root of the document; unchanged if it starts there already."""
        is_below = value_at(self.schema, path[:-1]) is not MISSING and not self._nodes.is_laborious
        return [*self.steps, *path] if is_below else path

    @cached_property
    def in_place(self) -> list[SchemaNode]:
        """Other schemas that a value also has to match: the targets of references, and the members of `allOf`."""
        nodes = [self._nodes.node_of(target) for target in self._nodes.document.targets(self.schema)]
        if not self._is_reference:
            nodes += self._listed_children("allOf")
        return [node for node in nodes if node is not None]

    @cached_property
    def alternatives(self) -> list[tuple[list[SchemaNode], Alternatives]]:
        """The branches of `anyOf` and of `oneOf`."""
        lists = [self._listed_children(word) for word in ("anyOf", "oneOf") if not self._is_reference]
        return [
            (branches, Alternatives([node.schema for node in branches], self._nodes.root))
            for nodes in lists
            if (branches := [node for node in nodes if node is not None])
        ]

    @cached_property
    def members(self) -> dict[str, SchemaNode]:
        """The schemas of the declared members."""
        declared = self.schema.get("properties")
        if not isinstance(declared, dict) or self._is_reference:
            return {}
        children = ((name, self._child(f"properties/{_escape_key(name)}", below)) for name, below in declared.items())
        return {name: node for name, node in children if node is not None}

    @cached_property
    def undeclared_members(self) -> SchemaNode | None:
        """The schema of undeclared members; None if there is none, or if there are `patternProperties`."""
        below = self.schema.get("additionalProperties")
        if not isinstance(below, dict) or "patternProperties" in self.schema or self._is_reference:
            return None
        return self._child("additionalProperties", below)

    @cached_property
    def first_items(self) -> list[SchemaNode | None]:
        """The schemas of items by position."""
        # 2020-12 uses `prefixItems`; earlier drafts use a list in `items`.
        return [] if self._is_reference else self._listed_children(self._nodes.positional_keyword)

    @cached_property
    def items(self) -> SchemaNode | None:
        """The schema of the items that follow `first_items`."""
        below = self.schema.get("items")
        return self._child("items", below) if isinstance(below, dict) and not self._is_reference else None

    @cached_property
    def is_closed(self) -> bool:
        """True if every undeclared member is rejected."""
        return self.schema.get("additionalProperties") is False and not self.schema.get("patternProperties")

    @cached_property
    def own_keywords(self) -> dict[str, Any]:
        """The keywords that need a validator, because they are neither followed into subparts nor checked directly."""
        if self._is_reference:
            return {}
        schema = self.schema
        excluded = _FOLLOWED | _ANNOTATIONS | _CHECKED_DIRECTLY
        if self.is_closed or self.undeclared_members is not None:
            excluded |= {"additionalProperties", "patternProperties", "unevaluatedProperties"}
        if not _COMPOSING.isdisjoint(schema):
            excluded |= _UNEVALUATED
        own = without_keys(schema, excluded)
        if own.keys() & {*_ABOUT_OTHERS, *_UNEVALUATED} and isinstance(declared := schema.get("properties"), dict):
            own["properties"] = dict.fromkeys(declared, True)
        if "unevaluatedItems" in own:
            for word in schema.keys() & {"items", "prefixItems"}:
                own[word] = [True] * len(schema[word]) if isinstance(schema[word], list) else True
        return own

    @cached_property
    def own_validator(self) -> jsonschema_rs.Validator | None:
        """The validator of `own_keywords`; None if there are none, or if they cannot be compiled on their own."""
        return self._nodes.compile_keywords(self.own_keywords) if self.own_keywords else None

    @cached_property
    def single_member_validator(self) -> jsonschema_rs.Validator | None:
        """Like `own_validator`, but without keywords that require other members; for objects with a single member."""
        return self._nodes.compile_keywords(without_keys(self.own_keywords, _NEEDING_OTHER_MEMBERS))

    @cached_property
    def is_followed(self) -> bool:
        """True if every invalid value has an invalid subpart or an error that the search reports."""
        is_opaque = not _COMPOSING.isdisjoint(self.schema) and not _UNEVALUATED.isdisjoint(self.schema)
        return not is_opaque and (not self.own_keywords or self.own_validator is not None)

    @cached_property
    def _is_reference(self) -> bool:
        return "$ref" in self.schema and self._nodes.lone_references

    def _child(self, step: str, schema: Any) -> SchemaNode | None:
        return self._nodes.node_at(f"{self._pointer}/{step}", schema)

    def _listed_children(self, word: str) -> list[SchemaNode | None]:
        schemas = self.schema.get(word)
        return (
            [self._child(f"{word}/{n}", schema) for n, schema in enumerate(schemas)]
            if isinstance(schemas, list)
            else []
        )


def _pointers(schema: Any) -> dict[int, str]:
    """Return the pointer of every object in a schema, by the object's identity."""
    pointers: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(schema, "#")]
    while pending:
        node, pointer = pending.pop()
        if isinstance(node, dict):
            pointers.setdefault(id(node), pointer)
            pending += [(child, f"{pointer}/{_escape_key(key)}") for key, child in node.items()]
        elif isinstance(node, list):
            pending += [(child, f"{pointer}/{index}") for index, child in enumerate(node)]
    return pointers


def _escape_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _steps(pointer: str) -> list[str | int]:
    """Split a pointer into steps, with integers for positions in lists."""
    steps: list[str | int] = []
    for step in pointer.split("/")[1:]:
        before = steps[-1] if steps else ""
        positional = (
            before in SUBSCHEMA_LISTS and step.isdecimal() and (len(steps) < 2 or steps[-2] not in SUBSCHEMA_MAPS)
        )
        steps.append(int(step) if positional else step.replace("~1", "/").replace("~0", "~"))
    return steps
