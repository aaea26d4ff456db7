"""The SDL of a part of a schema, as subgraphs and modules keep it, made into one that stands for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import graphql as gql

_DEFINITIONS: Final[dict[type[gql.Node], type[gql.Node]]] = {
    gql.ScalarTypeExtensionNode: gql.ScalarTypeDefinitionNode,
    gql.ObjectTypeExtensionNode: gql.ObjectTypeDefinitionNode,
    gql.InterfaceTypeExtensionNode: gql.InterfaceTypeDefinitionNode,
    gql.UnionTypeExtensionNode: gql.UnionTypeDefinitionNode,
    gql.EnumTypeExtensionNode: gql.EnumTypeDefinitionNode,
    gql.InputObjectTypeExtensionNode: gql.InputObjectTypeDefinitionNode,
    gql.SchemaExtensionNode: gql.SchemaDefinitionNode,
}
# The union of all types with keys, which every subgraph has and none defines.
_ENTITY: Final = "_Entity"
_DEFINED: Final = (
    gql.ScalarTypeDefinitionNode,
    gql.ObjectTypeDefinitionNode,
    gql.InterfaceTypeDefinitionNode,
    gql.UnionTypeDefinitionNode,
    gql.EnumTypeDefinitionNode,
    gql.InputObjectTypeDefinitionNode,
)


def completed(document: gql.DocumentNode, *, names_of_tools: bool = False) -> gql.DocumentNode:
    """Return the document with definitions of what it extends or names without defining it.

    The first extension of a type that is defined elsewhere takes the place of its definition: a subgraph of a
    federation has `extend type Query` alone. In such a part a type that is only named becomes a scalar, whose values
    are left to the endpoint; as an interface or a member of a union it becomes an empty one of that kind. In a whole
    schema it is a mistake, unless its name is one of those that tools provide, as `_Any` or `federation__FieldSet`.

    Args:
        document: The SDL.
        names_of_tools: A whole schema is searched for such names, which takes a while.
    """
    known: set[str | None] = {node.name.value for node in document.definitions if isinstance(node, _DEFINED)}
    if any(isinstance(node, gql.SchemaDefinitionNode) for node in document.definitions):
        known.add(None)
    definitions: list[Any] = []
    for node in document.definitions:
        kind = _DEFINITIONS.get(type(node))
        name = getattr(getattr(node, "name", None), "value", None)
        if kind is None or name in known or (name is None and not node.operation_types):  # type: ignore[attr-defined] # of a schema
            definitions.append(node)
            continue
        known.add(name)
        definitions.append(kind(**{key: getattr(node, key) for key in node.keys}))
    is_part = any(isinstance(node, gql.SchemaExtensionNode) for node in document.definitions) or any(
        kept is not node for kept, node in zip(definitions, document.definitions, strict=True)
    )
    if not is_part and not names_of_tools:
        return document
    entities = [node for node in definitions if isinstance(node, gql.ObjectTypeDefinitionNode) and _has_key(node)]
    if _ENTITY not in known and entities:
        known.add(_ENTITY)
        members = tuple(gql.NamedTypeNode(name=node.name) for node in entities)
        definitions.append(gql.UnionTypeDefinitionNode(name=gql.NameNode(value=_ENTITY), types=members))
    for named, made in _named(definitions):
        is_provided = is_part or named.startswith("_") or "__" in named
        if is_provided and named not in known and named not in gql.specified_scalar_types:
            known.add(named)
            definitions.append(made(name=gql.NameNode(value=named)))
    return gql.DocumentNode(definitions=tuple(definitions))


def _has_key(node: gql.ObjectTypeDefinitionNode) -> bool:
    return any(directive.name.value == "key" for directive in node.directives or ())


def _named(definitions: list[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Yield every type that is named, and what it has to be there; those that can be no scalars come first."""
    for node in definitions:
        for one in getattr(node, "interfaces", None) or ():
            yield one.name.value, gql.InterfaceTypeDefinitionNode
        if isinstance(node, gql.UnionTypeDefinitionNode | gql.UnionTypeExtensionNode):
            for one in node.types or ():
                yield one.name.value, gql.ObjectTypeDefinitionNode
        for one in getattr(node, "operation_types", None) or ():
            yield one.type.name.value, gql.ObjectTypeDefinitionNode
    pending: list[Any] = list(definitions)
    while pending:
        node = pending.pop()
        if isinstance(node, gql.NamedTypeNode):
            yield node.name.value, gql.ScalarTypeDefinitionNode
        elif isinstance(node, list | tuple):
            pending += node
        elif isinstance(node, gql.Node):
            pending += [getattr(node, key, None) for key in node.keys if key not in ("loc", "directives")]
