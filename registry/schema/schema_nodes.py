"""The schemas inside a document, each compiled, with what of it applies to a value and what to the parts of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from registry.schema.alternatives import Alternatives
from registry.schema.compiled_parts import CompiledParts
from registry.schema.json_paths import MISSING, value_at
from registry.schema.json_values import containers, without_keys
from registry.schema.references import SUBSCHEMA_LISTS, SUBSCHEMA_MAPS, SchemaDocument

if TYPE_CHECKING:
    import jsonschema_rs

# References times objects in a document: compiling all schemas of one with so many takes some 10 to 100 ms.
_LABORIOUS: Final = 20_000
# Keywords of which the failing part is looked for, and those that say nothing of a value.
_FOLLOWED: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "items", "prefixItems", "$defs", "definitions"}
)
_SAYING_NOTHING: Final = frozenset({"description", "title", "default", "examples", "$schema", "$id", "$comment"})
# Keywords that are looked at without a validator, which would copy the value into each of its errors.
_TOLD: Final = frozenset({"type", "required"})
_ABOUT_OTHERS: Final = ("properties", "patternProperties", "additionalProperties")
# Keywords that fail for the lack of something, also where all that is there is right.
_OF_THE_WHOLE: Final = ("minProperties", "dependentRequired", "dependencies", "dependentSchemas")
# What alternatives and the like evaluate is not known without them.
_COMPOSING: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
# Before 2019-09 a reference stood for all that is beside it.
_LONE_REFERENCES: Final = frozenset({"Draft4Validator", "Draft6Validator", "Draft7Validator"})
_UNEVALUATING: Final = frozenset({"Draft201909Validator", "Draft202012Validator"})


class SchemaNodes:
    """All schemas of one document, found by their pointers.

    Attributes:
        is_laborious: Whether compiling any of its schemas takes many milliseconds.
    """

    def __init__(self, schema: Any, dialect: str, options: dict[str, Any]) -> None:
        """Prepare to look at schemas.

        Args:
            schema: The document.
            dialect: The class that compiles it.
            options: For the compiler.
        """
        self.document = SchemaDocument(schema)
        self.lone_references = dialect in _LONE_REFERENCES
        self.knows_unevaluated = dialect in _UNEVALUATING
        self.word_of_places = "prefixItems" if dialect == "Draft202012Validator" else "items"
        self._dialect = dialect
        self._root = schema
        self._pointers = _pointers(schema)
        self.is_laborious = self.document.reference_count * len(self._pointers) > _LABORIOUS
        self._compiled = CompiledParts(schema, dialect, options, one_by_one=self.is_laborious)
        self._known: dict[str, SchemaNode | None] = {}

    @property
    def root(self) -> Any:
        """The document."""
        return self._root

    def at(self, pointer: str, schema: Any) -> SchemaNode | None:
        """Return the schema at a pointer; None if it is not one."""
        try:
            return self._known[pointer]
        except KeyError:
            pass
        self._known[pointer] = None  # while it is looked up: references may lead back to it
        node: SchemaNode | None = None
        if self.is_laborious:
            if isinstance(schema, dict | bool):
                node = SchemaNode(self, pointer, schema, self._shared(schema))
        elif (validator := self._compiled.at(pointer)) is not None:
            node = SchemaNode(self, pointer, schema, validator)
        self._known[pointer] = node
        return node

    def validator(self, pointer: str) -> jsonschema_rs.Validator:
        """Return the schema at a pointer, compiled.

        Raises:
            ValueError: There is none.
        """
        validator = self._compiled.at(pointer)
        if validator is None:
            raise ValueError(f"no schema: {pointer}")
        return validator

    def _shared(self, schema: Any) -> SchemaNode | None:
        """Return the schema that this one stands for: it need not be compiled twice."""
        if not isinstance(schema, dict) or "$ref" not in schema:
            return None
        if not self.lone_references and schema.keys() - _SAYING_NOTHING != {"$ref"}:
            return None
        [target, *others] = self.document.targets(schema) or (None,)
        return None if target is None or target is schema or others else self.of(target)

    def of(self, schema: object) -> SchemaNode | None:
        """Return what is known of a schema, which is part of the document."""
        pointer = self._pointers.get(id(schema))
        return self.at(pointer, schema) if pointer is not None else None

    def compiled(self, schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
        """Return a validator of some keywords of a schema; None if they do not stand for themselves."""
        import jsonschema_rs  # here, so that importing the registry stays quick

        if isinstance(self._root, dict) and any("$ref" in one for one in containers(schema) if isinstance(one, dict)):
            schema = {**schema, **{word: self._root[word] for word in ("$defs", "definitions") if word in self._root}}
        try:
            make = getattr(jsonschema_rs, self._dialect)
            validator: jsonschema_rs.Validator = make(schema, validate_formats=False, offline=True, mask="the value")
            return validator
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            return None


class SchemaNode:
    """One schema in a document.

    Attributes:
        schema: The schema itself.
    """

    def __init__(
        self, nodes: SchemaNodes, pointer: str, schema: Any, compiled: jsonschema_rs.Validator | SchemaNode | None
    ) -> None:
        """Note where a schema is.

        Args:
            nodes: All of its document.
            pointer: Its place there.
            schema: The schema.
            compiled: The same compiled, or another node that it stands for; None where it is compiled when needed.
        """
        self._nodes = nodes
        self._pointer = pointer
        self._compiled = compiled
        self.schema: dict[str, Any] = schema if isinstance(schema, dict) else {}

    @cached_property
    def validator(self) -> jsonschema_rs.Validator:
        """The whole schema, compiled."""
        compiled = self._compiled
        if compiled is None:
            return self._nodes.validator(self._pointer)
        return compiled.validator if isinstance(compiled, SchemaNode) else compiled

    @cached_property
    def is_valid(self) -> Callable[[Any], bool]:
        """Tells whether a value fits the schema."""
        return self.validator.is_valid

    @cached_property
    def steps(self) -> list[str | int]:
        """The path of the schema in the document."""
        return _steps(self._pointer)

    def whole_path(self, path: list[str | int]) -> list[str | int]:
        """Return the path of an error's schema in the document; it begins there where a reference was followed."""
        is_below = value_at(self.schema, path[:-1]) is not MISSING and not self._nodes.is_laborious
        return [*self.steps, *path] if is_below else path

    @cached_property
    def in_place(self) -> list[SchemaNode]:
        """Schemas that a value has to fit as well: those referred to, and all of `allOf`."""
        found = [self._nodes.of(target) for target in self._nodes.document.targets(self.schema)]
        if not self._is_reference:
            found += self._listed("allOf")
        return [node for node in found if node is not None]

    @cached_property
    def alternatives(self) -> list[tuple[list[SchemaNode], Alternatives]]:
        """The schemas of `anyOf` and `oneOf`."""
        lists = [self._listed(word) for word in ("anyOf", "oneOf") if not self._is_reference]
        return [
            (found, Alternatives([node.schema for node in found], self._nodes.root))
            for nodes in lists
            if (found := [node for node in nodes if node is not None])
        ]

    @cached_property
    def members(self) -> dict[str, SchemaNode]:
        """The schemas of declared members."""
        declared = self.schema.get("properties")
        if not isinstance(declared, dict) or self._is_reference:
            return {}
        found = ((name, self._below(f"properties/{_escaped(name)}", below)) for name, below in declared.items())
        return {name: node for name, node in found if node is not None}

    @cached_property
    def others(self) -> SchemaNode | None:
        """The schema of all members that are not declared, unless patterns tell them apart."""
        below = self.schema.get("additionalProperties")
        if not isinstance(below, dict) or "patternProperties" in self.schema or self._is_reference:
            return None
        return self._below("additionalProperties", below)

    @cached_property
    def first_items(self) -> list[SchemaNode | None]:
        """The schemas of items by their position."""
        # The word is another since 2020-12; in other dialects neither says anything.
        return [] if self._is_reference else self._listed(self._nodes.word_of_places)

    @cached_property
    def items(self) -> SchemaNode | None:
        """The schema of all other items."""
        below = self.schema.get("items")
        return self._below("items", below) if isinstance(below, dict) and not self._is_reference else None

    @cached_property
    def is_closed(self) -> bool:
        """Whether undeclared members are refused, whatever they are called."""
        return self.schema.get("additionalProperties") is False and not self.schema.get("patternProperties")

    @cached_property
    def own(self) -> dict[str, Any]:
        """What the schema says apart from what is followed."""
        if self._is_reference:
            return {}
        schema = self.schema
        told = _FOLLOWED | _SAYING_NOTHING | _TOLD
        if self.is_closed or self.others is not None:
            told |= {"additionalProperties", "patternProperties", "unevaluatedProperties"}
        if not _COMPOSING.isdisjoint(schema):
            told |= _UNEVALUATED
        own = without_keys(schema, told)
        if own.keys() & {*_ABOUT_OTHERS, *_UNEVALUATED} and isinstance(declared := schema.get("properties"), dict):
            own["properties"] = dict.fromkeys(declared, True)
        if "unevaluatedItems" in own:
            for word in schema.keys() & {"items", "prefixItems"}:
                own[word] = [True] * len(schema[word]) if isinstance(schema[word], list) else True
        return own

    @cached_property
    def own_validator(self) -> jsonschema_rs.Validator | None:
        """A validator of what the schema says apart from what is followed."""
        return self._nodes.compiled(self.own) if self.own else None

    @cached_property
    def validator_of_one(self) -> jsonschema_rs.Validator | None:
        """The same validator, for a member on its own: without what fails for the lack of others."""
        return self._nodes.compiled(without_keys(self.own, _OF_THE_WHOLE))

    @cached_property
    def is_followed(self) -> bool:
        """Whether a value that does not fit has a part that does not, or another error that is told."""
        unsaid = not _COMPOSING.isdisjoint(self.schema) and not _UNEVALUATED.isdisjoint(self.schema)
        return not unsaid and (not self.own or self.own_validator is not None)

    @cached_property
    def _is_reference(self) -> bool:
        return "$ref" in self.schema and self._nodes.lone_references

    def _below(self, step: str, schema: Any) -> SchemaNode | None:
        return self._nodes.at(f"{self._pointer}/{step}", schema)

    def _listed(self, word: str) -> list[SchemaNode | None]:
        schemas = self.schema.get(word)
        return [self._below(f"{word}/{n}", one) for n, one in enumerate(schemas)] if isinstance(schemas, list) else []


def _pointers(schema: Any) -> dict[int, str]:
    """Return the pointer of every object in a schema, by identity."""
    found: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(schema, "#")]
    while pending:
        node, pointer = pending.pop()
        if isinstance(node, dict):
            found.setdefault(id(node), pointer)
            pending += [(child, f"{pointer}/{_escaped(key)}") for key, child in node.items()]
        elif isinstance(node, list):
            pending += [(child, f"{pointer}/{index}") for index, child in enumerate(node)]
    return found


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _steps(pointer: str) -> list[str | int]:
    """Return the steps of a pointer, with numbers where they stand for positions in a list."""
    steps: list[str | int] = []
    for step in pointer.split("/")[1:]:
        before = steps[-1] if steps else ""
        positional = (
            before in SUBSCHEMA_LISTS and step.isdecimal() and (len(steps) < 2 or steps[-2] not in SUBSCHEMA_MAPS)
        )
        steps.append(int(step) if positional else step.replace("~1", "/").replace("~0", "~"))
    return steps
