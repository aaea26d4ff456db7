"""The types of variables as JSON Schema: what it accepts, a server's own coercion accepts.

The converse holds too, but for deliberate limits: a list has to be a list, and there is no member beside the declared
ones. The range of an `Int` is left open, as is the content of a custom scalar: there
the server has the last word. An argument that may be null accepts it, whatever a profile shows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import graphql as gql

_SCALARS: Final[Mapping[str, str | list[str]]] = {
    "Int": "integer",
    "Float": "number",
    "String": "string",
    "Boolean": "boolean",
    # "When coerced as an input type, any string or integer input value": GraphQL, "ID", "Input Coercion".
    "ID": ["string", "integer"],
}
# A default that no JSON value stands for.
_NO_VALUE: Final = object()
# Values of an enum that are described: lists of countries and currencies would cost a model thousands of tokens.
_MAX_VALUES: Final = 60
# Longer integers are no number that anybody means, and slow to read.
_MAX_DIGITS: Final = 400


def input_schema(
    variables: tuple[gql.VariableDefinitionNode, ...], schema: gql.GraphQLSchema, descriptions: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON Schema of an operation's variables.

    An input object that is used once is written where it is used; one that is used again, or contains itself,
    is under `$defs`.

    Args:
        variables: Of an operation that is valid for the schema.
        schema: Where their types are.
        descriptions: Of single variables; they take precedence over the description of the type.
    """
    types: dict[str, Any] = {
        variable.variable.name.value: gql.type_from_ast(schema, variable.type) for variable in variables
    }
    writer = _Writer(list(types.values()))
    properties: dict[str, Any] = {}
    required: list[str] = []
    for variable in variables:
        name = variable.variable.name.value
        type_ = types[name]
        made = writer.schema(type_)
        if name in descriptions:
            made = _described(made, descriptions[name], type_)
        if variable.default_value is not None:
            made = _with_default(made, variable.default_value, type_)
        elif isinstance(type_, gql.GraphQLNonNull):
            required.append(name)
        properties[name] = made
    whole: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        whole["required"] = required
    whole["additionalProperties"] = False
    if writer.definitions:
        whole["$defs"] = writer.definitions
    return whole


def type_description(type_: Any) -> str | None:
    """The description of the type itself; none for the built-in ones, which everybody knows."""
    named = gql.get_named_type(type_)
    if isinstance(named, gql.GraphQLScalarType):
        return None if gql.is_specified_scalar_type(named) else _of_scalar(named)
    return named.description or None if named is not None else None


def with_deprecation(made: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return a schema that says that its value is deprecated, and why."""
    parts = [made.get("description"), f"Deprecated: {reason}" if reason else "Deprecated."]
    return {**made, "description": "\n\n".join(part for part in parts if part), "deprecated": True}


def _described(made: dict[str, Any], description: str | None, type_: Any) -> dict[str, Any]:
    """Return a schema with a description, to which that of the values of an enum is added."""
    parts = [description, _of_values(type_)]
    text = "\n\n".join(part for part in parts if part)
    return {**made, "description": text} if text else made


def _of_values(type_: Any) -> str:
    """Return what the schema says of the values of an enum, a line for each that has something to say."""
    type_ = type_.of_type if isinstance(type_, gql.GraphQLNonNull) else type_
    if not isinstance(type_, gql.GraphQLEnumType):
        return ""
    lines = []
    for name, value in type_.values.items():
        deprecated = value.deprecation_reason is not None
        parts = [value.description, f"Deprecated: {value.deprecation_reason}" if deprecated else None]
        if told := " ".join(" ".join(part.split()) for part in parts if part):
            lines.append(f"- {name}: {told}")
    shown = lines[:_MAX_VALUES]
    more = [f"- and {len(lines) - _MAX_VALUES} more"] if len(lines) > _MAX_VALUES else []
    return "\n".join([*shown, *more])


class _Writer:
    """Writes the types of one operation; input objects that are met again become definitions."""

    def __init__(self, roots: list[gql.GraphQLInputType]) -> None:
        self._uses = _uses(roots)
        self.definitions: dict[str, Any] = {}

    def schema(self, type_: gql.GraphQLInputType) -> dict[str, Any]:
        """What a value of this type looks like, null included where it may be."""
        if isinstance(type_, gql.GraphQLNonNull):
            return self._plain(type_.of_type)
        return _nullable(self._plain(type_))

    def _plain(self, type_: Any) -> dict[str, Any]:
        if isinstance(type_, gql.GraphQLNonNull):
            type_ = type_.of_type
        if isinstance(type_, gql.GraphQLList):
            return {"type": "array", "items": self.schema(type_.of_type)}
        if isinstance(type_, gql.GraphQLInputObjectType):
            return self._object(type_)
        made: dict[str, Any] = {}
        if isinstance(type_, gql.GraphQLEnumType):
            made = {"type": "string", "enum": list(type_.values)}
        elif type_.name in _SCALARS:
            made = {"type": _SCALARS[type_.name]}
        return _described(made, type_description(type_), type_)

    def _object(self, type_: gql.GraphQLInputObjectType) -> dict[str, Any]:
        if self._uses[type_.name] < 2:
            return self._members(type_)
        if type_.name not in self.definitions:
            self.definitions[type_.name] = {}  # begun: a type that contains itself finds it here
            self.definitions[type_.name] = self._members(type_)
        return {"$ref": f"#/$defs/{type_.name}"}

    def _members(self, type_: gql.GraphQLInputObjectType) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object"}
        if type_.description:
            made["description"] = type_.description
        properties = {name: self._member(one, type_.is_one_of) for name, one in type_.fields.items()}
        required = [name for name, one in type_.fields.items() if _is_required(one)]
        made["properties"] = properties
        if required:
            made["required"] = required
        if type_.is_one_of:
            made |= {"minProperties": 1, "maxProperties": 1}
        return {**made, "additionalProperties": False}

    def _member(self, field: gql.GraphQLInputField, only_one: bool) -> dict[str, Any]:
        # In a @oneOf object the one member that is given must not be null.
        made = self._plain(field.type) if only_one else self.schema(field.type)
        if field.description:
            made = _described(made, field.description, field.type)
        if field.deprecation_reason is not None:
            made = with_deprecation(made, field.deprecation_reason)
        default = _literal_of(field)
        return _with_default(made, default, field.type) if default is not None else made


def _uses(roots: list[gql.GraphQLInputType]) -> Counter[str]:
    """How often each input object is referred to, from these types and from each other."""
    uses: Counter[str] = Counter()
    pending = [gql.get_named_type(root) for root in roots]
    while pending:
        type_ = pending.pop()
        if isinstance(type_, gql.GraphQLInputObjectType):
            uses[type_.name] += 1
            if uses[type_.name] == 1:
                pending += [gql.get_named_type(field.type) for field in type_.fields.values()]
    return uses


def _is_required(field: gql.GraphQLInputField) -> bool:
    return isinstance(field.type, gql.GraphQLNonNull) and _literal_of(field) is None


def _literal_of(field: gql.GraphQLInputField) -> gql.ValueNode | None:
    default = field.default
    if default is None:
        return None
    if default.literal is not None:
        return default.literal
    return gql.ast_from_value(default.value, field.type)


def _of_scalar(type_: gql.GraphQLScalarType) -> str | None:
    parts = [type_.description, f"Specified by {type_.specified_by_url}" if type_.specified_by_url else None]
    return "\n\n".join(part for part in parts if part) or f"A value of the scalar type {type_.name}"


def _nullable(made: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in made:
        return {"anyOf": [made, {"type": "null"}]}
    # A custom scalar accepts anything anyway.
    if "type" not in made:
        return made
    kinds = made["type"] if isinstance(made["type"], list) else [made["type"]]
    changed = {**made, "type": [*kinds, "null"]}
    if "enum" in made:
        changed["enum"] = [*made["enum"], None]
    return changed


def _with_default(made: dict[str, Any], literal: gql.ValueNode, type_: Any) -> dict[str, Any]:
    value = default_of(literal, type_)
    return made if value is _NO_VALUE else {**made, "default": value}


def default_of(literal: gql.ValueNode, type_: Any) -> Any:
    """A literal of the document as the JSON value that would be sent for it."""
    if isinstance(type_, gql.GraphQLNonNull):
        type_ = type_.of_type
    if isinstance(literal, gql.NullValueNode):
        return None
    if isinstance(type_, gql.GraphQLList):
        # "If the value is not a list, it is coerced to a list of one item": GraphQL, "List", "Input Coercion".
        items = literal.values if isinstance(literal, gql.ListValueNode) else (literal,)
        return _whole([default_of(item, type_.of_type) for item in items])
    if isinstance(literal, gql.ListValueNode):
        return _whole([default_of(item, None) for item in literal.values])
    if isinstance(literal, gql.ObjectValueNode):
        fields = type_.fields if isinstance(type_, gql.GraphQLInputObjectType) else {}
        members = {
            node.name.value: default_of(node.value, fields[node.name.value].type if node.name.value in fields else None)
            for node in literal.fields
        }
        return _NO_VALUE if _NO_VALUE in members.values() else members
    if isinstance(literal, gql.IntValueNode):
        if len(literal.value) > _MAX_DIGITS:
            return _NO_VALUE
        # An ID is a string in JSON, however it is written in a document.
        return literal.value if getattr(type_, "name", "") == "ID" else int(literal.value)
    if isinstance(literal, gql.FloatValueNode):
        number = float(literal.value)
        # 1e999 is a valid literal and no JSON number.
        return number if math.isfinite(number) else _NO_VALUE
    if isinstance(literal, gql.StringValueNode | gql.EnumValueNode | gql.BooleanValueNode):
        return literal.value
    return _NO_VALUE


def _whole(values: list[Any]) -> Any:
    return _NO_VALUE if any(value is _NO_VALUE for value in values) else values
