"""Operations for a schema, one for each field of its roots, and arguments to call them with."""

from __future__ import annotations

from typing import Any

from graphql import (
    GraphQLEnumType,
    GraphQLField,
    GraphQLInputObjectType,
    GraphQLInputType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLSchema,
    get_named_type,
    is_leaf_type,
    is_object_type,
    is_required_argument,
    is_required_input_field,
)

SAMPLES: dict[str, Any] = {"Int": 1, "Float": 1.5, "String": "text", "Boolean": True, "ID": "id"}


def operations_of(schema: GraphQLSchema) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a document and arguments for every field of the roots, by the name of the operation."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for kind, root in (("query", schema.query_type), ("mutation", schema.mutation_type)):
        for name, field in root.fields.items() if root is not None else ():
            operation = f"{kind}{name[0].upper()}{name[1:]}"
            arguments = field.args.items()
            declared = ", ".join(f"${arg}: {one.type}" for arg, one in arguments)
            given = ", ".join(f"{arg}: ${arg}" for arg, _ in arguments)
            head = f"{kind} {operation}" + (f"({declared})" if declared else "")
            text = f"{head} {{\n  {name}{f'({given})' if given else ''}{selection(field, 2)}\n}}\n"
            values = {arg: sample(one.type) for arg, one in arguments if is_required_argument(one)}
            found[operation] = (text, values)
    return found


def selection(field: GraphQLField, depth: int) -> str:
    """Return what to ask of a field's value, with nothing that needs arguments."""
    kind = get_named_type(field.type)
    if is_leaf_type(kind):
        return ""
    parts = ["__typename"]
    for name, one in kind.fields.items() if is_object_type(kind) else ():
        if any(is_required_argument(arg) for arg in one.args.values()):
            continue
        if is_leaf_type(get_named_type(one.type)) or (depth > 1 and is_object_type(get_named_type(one.type))):
            parts.append(f"{name}{selection(one, depth - 1)}")
    return f" {{ {' '.join(parts[:15])} }}"


def sample(kind: GraphQLInputType) -> Any:
    """Return a value of this type with no more than it needs."""
    if isinstance(kind, GraphQLNonNull):
        kind = kind.of_type
    if isinstance(kind, GraphQLList):
        return [sample(kind.of_type)]
    if isinstance(kind, GraphQLEnumType):
        return next(iter(kind.values))
    if isinstance(kind, GraphQLInputObjectType):
        needed = {name: sample(one.type) for name, one in kind.fields.items() if is_required_input_field(one)}
        return needed or (
            {name: sample(one.type) for name, one in list(kind.fields.items())[:1]} if kind.is_one_of else {}
        )
    return SAMPLES.get(kind.name, "scalar")
