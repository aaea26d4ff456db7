"""Convert one document to a tool definition, and the types of its variables to JSON Schema.

The JSON Schema accepts the values that GraphQL accepts, with two exceptions: it does not accept a single value where
GraphQL expects a list, and it rejects undeclared variables, which GraphQL ignores. The endpoint, not the JSON Schema,
validates the range of an `Int` and the content of a custom scalar. A nullable argument accepts null, even if the
configuration omits null from the types that models see.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

import graphql as gql

from gateway.upstream.graphql.documents import Document, FileRejected, Fragment

_SCALARS: Final[Mapping[str, str | list[str]]] = {
    "Int": "integer",
    "Float": "number",
    "String": "string",
    "Boolean": "boolean",
    # "When coerced as an input type, any string or integer input value": GraphQL, "ID", "Input Coercion".
    "ID": ["string", "integer"],
}
# Marks a default value that JSON cannot express.
_NO_VALUE: Final = object()
# How many enum values to describe. Describing a list of all countries or currencies would take thousands of tokens.
_MAX_VALUES: Final = 60
# The longest integer literal to convert. Longer integers are mistakes, and parsing them is slow.
_MAX_DIGITS: Final = 400


def input_schema(
    variables: tuple[gql.VariableDefinitionNode, ...], schema: gql.GraphQLSchema, descriptions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON Schema of an operation's variables.

    An input object that is used once is inlined. An input object that is used repeatedly or recursively is defined in
    `$defs`.

    Args:
        variables: The variables of an operation that is valid for `schema`.
        descriptions: Descriptions by variable name. They replace the descriptions of the variables' types.
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
        property_schema = writer.schema(type_)
        if name in descriptions:
            property_schema = _with_description(property_schema, descriptions[name], type_)
        if variable.default_value is not None:
            property_schema = _with_default(property_schema, variable.default_value, type_)
        elif isinstance(type_, gql.GraphQLNonNull):
            required.append(name)
        properties[name] = property_schema
    object_schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        object_schema["required"] = required
    object_schema["additionalProperties"] = False
    if writer.definitions:
        object_schema["$defs"] = writer.definitions
    return object_schema


def type_description(type_: Any) -> str | None:
    """Return the description of a type, or None for built-in types, which need no explanation."""
    named_type = gql.get_named_type(type_)
    if isinstance(named_type, gql.GraphQLScalarType):
        return None if gql.is_specified_scalar_type(named_type) else _describe_scalar(named_type)
    return named_type.description or None if named_type is not None else None


def with_deprecation(schema: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return a copy of the schema that is marked as deprecated, with the reason in the description."""
    parts = [schema.get("description"), f"Deprecated: {reason}" if reason else "Deprecated."]
    return {**schema, "description": "\n\n".join(part for part in parts if part), "deprecated": True}


def _with_description(schema: dict[str, Any], description: str | None, type_: Any) -> dict[str, Any]:
    """Return a copy of the schema with the description, followed by the descriptions of the type's enum values."""
    parts = [description, _describe_enum_values(type_)]
    text = "\n\n".join(part for part in parts if part)
    return {**schema, "description": text} if text else schema


def _describe_enum_values(type_: Any) -> str:
    """Return the descriptions of enum values, with one line for each value that has a description."""
    type_ = type_.of_type if isinstance(type_, gql.GraphQLNonNull) else type_
    if not isinstance(type_, gql.GraphQLEnumType):
        return ""
    lines = []
    for name, value in type_.values.items():
        deprecated = value.deprecation_reason is not None
        parts = [value.description, f"Deprecated: {value.deprecation_reason}" if deprecated else None]
        if text := " ".join(" ".join(part.split()) for part in parts if part):
            lines.append(f"- {name}: {text}")
    first_lines = lines[:_MAX_VALUES]
    more = [f"- and {len(lines) - _MAX_VALUES} more"] if len(lines) > _MAX_VALUES else []
    return "\n".join([*first_lines, *more])


class _Writer:
    """Converts the types of one operation's variables to JSON Schema.

    Attributes:
        definitions: The JSON Schema of each input object that is used repeatedly, by type name.
    """

    def __init__(self, roots: list[gql.GraphQLInputType]) -> None:
        self._use_counts = _count_uses(roots)
        self.definitions: dict[str, Any] = {}

    def schema(self, type_: gql.GraphQLInputType) -> dict[str, Any]:
        """Return the JSON Schema of a type, including null for a nullable type."""
        if isinstance(type_, gql.GraphQLNonNull):
            return self._non_null_schema(type_.of_type)
        return _nullable(self._non_null_schema(type_))

    def _non_null_schema(self, type_: Any) -> dict[str, Any]:
        if isinstance(type_, gql.GraphQLNonNull):
            type_ = type_.of_type
        if isinstance(type_, gql.GraphQLList):
            return {"type": "array", "items": self.schema(type_.of_type)}
        if isinstance(type_, gql.GraphQLInputObjectType):
            return self._object_schema(type_)
        schema: dict[str, Any] = {}
        if isinstance(type_, gql.GraphQLEnumType):
            schema = {"type": "string", "enum": list(type_.values)}
        elif type_.name in _SCALARS:
            schema = {"type": _SCALARS[type_.name]}
        return _with_description(schema, type_description(type_), type_)

    def _object_schema(self, type_: gql.GraphQLInputObjectType) -> dict[str, Any]:
        if self._use_counts[type_.name] < 2:
            return self._members_schema(type_)
        if type_.name not in self.definitions:
            self.definitions[type_.name] = {}  # placeholder for recursive types
            self.definitions[type_.name] = self._members_schema(type_)
        return {"$ref": f"#/$defs/{type_.name}"}

    def _members_schema(self, type_: gql.GraphQLInputObjectType) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        if type_.description:
            schema["description"] = type_.description
        properties = {name: self._member_schema(field, type_.is_one_of) for name, field in type_.fields.items()}
        required = [name for name, field in type_.fields.items() if _is_required(field)]
        schema["properties"] = properties
        if required:
            schema["required"] = required
        if type_.is_one_of:
            schema |= {"minProperties": 1, "maxProperties": 1}
        return {**schema, "additionalProperties": False}

    def _member_schema(self, field: gql.GraphQLInputField, only_one: bool) -> dict[str, Any]:
        # A caller gives exactly one member of a @oneOf object, and this member must not be null.
        schema = self._non_null_schema(field.type) if only_one else self.schema(field.type)
        if field.description:
            schema = _with_description(schema, field.description, field.type)
        if field.deprecation_reason is not None:
            schema = with_deprecation(schema, field.deprecation_reason)
        default = _literal_of(field)
        return _with_default(schema, default, field.type) if default is not None else schema


def _count_uses(roots: list[gql.GraphQLInputType]) -> Counter[str]:
    """Count the references to each input object in these types and in the members of other input objects."""
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


def _describe_scalar(type_: gql.GraphQLScalarType) -> str | None:
    parts = [type_.description, f"Specified by {type_.specified_by_url}" if type_.specified_by_url else None]
    return "\n\n".join(part for part in parts if part) or f"A value of the scalar type {type_.name}"


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    # A custom scalar accepts any value, including null.
    if "type" not in schema:
        return schema
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    changed = {**schema, "type": [*kinds, "null"]}
    if "enum" in schema:
        changed["enum"] = [*schema["enum"], None]
    return changed


def _with_default(schema: dict[str, Any], literal: gql.ValueNode, type_: Any) -> dict[str, Any]:
    value = default_of(literal, type_)
    return schema if value is _NO_VALUE else {**schema, "default": value}


def default_of(literal: gql.ValueNode, type_: Any) -> Any:
    """Convert a literal to the equivalent JSON value, or to `_NO_VALUE` if JSON cannot express the value."""
    if isinstance(type_, gql.GraphQLNonNull):
        type_ = type_.of_type
    if isinstance(literal, gql.NullValueNode):
        return None
    if isinstance(type_, gql.GraphQLList):
        # "If the value is not a list, it is coerced to a list of one item": GraphQL, "List", "Input Coercion".
        items = literal.values if isinstance(literal, gql.ListValueNode) else (literal,)
        return _list_or_no_value([default_of(item, type_.of_type) for item in items])
    if isinstance(literal, gql.ListValueNode):
        return _list_or_no_value([default_of(item, None) for item in literal.values])
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
        # An ID is a string in JSON, even if it is an integer literal in the document.
        return literal.value if getattr(type_, "name", "") == "ID" else int(literal.value)
    if isinstance(literal, gql.FloatValueNode):
        number = float(literal.value)
        # 1e999 is a valid literal but not a JSON number.
        return number if math.isfinite(number) else _NO_VALUE
    if isinstance(literal, gql.StringValueNode | gql.EnumValueNode | gql.BooleanValueNode):
        return literal.value
    return _NO_VALUE


def _list_or_no_value(values: list[Any]) -> Any:
    return _NO_VALUE if any(value is _NO_VALUE for value in values) else values


# The boundaries between words in camel case. An `s` after capitals marks a plural: `getIDs` becomes `get_ids`.
_WORD_EDGE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])")
# How many field names a generated description contains. More names would make the description hard to read.
_MAX_FIELDS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A tool and the document that its calls send.

    Attributes:
        name: The name of the tool.
        file: The path of the file, relative to the folder.
        definition: The tool as an MCP server would list it.
        text: The document to send, including the fragments from other files that the operation uses.
        operation_name: The name of the operation in the document; None if the operation has no name.
        mutation: Whether the operation is a mutation.
        notes: Warnings for the author of the file.
    """

    name: str
    file: str
    definition: dict[str, Any]
    text: str
    operation_name: str | None
    mutation: bool
    notes: tuple[FileRejected, ...] = ()


def tool_of(document: Document, schema: gql.GraphQLSchema, shared: Mapping[str, Fragment]) -> Operation:
    """Create the tool of a document that contains an operation.

    Args:
        shared: Fragments from files that contain only fragments. The tool sends the fragments that the operation uses.

    Raises:
        FileRejected: The document is not valid for this schema.
    """
    operation = document.operation
    assert operation is not None
    root = schema.get_root_type(operation.operation)
    if root is None:
        detail = f"the schema has no {operation.operation.value} type"
        raise FileRejected.at("not_in_schema", detail, operation, document.file)
    shared_fragments = _used_fragments(document, shared)
    # Validate the document and the shared fragments together, so that an error in a fragment names the fragment's file.
    combined = gql.DocumentNode(
        definitions=(*document.node.definitions, *(fragment.node for fragment in shared_fragments))
    )
    notes: list[FileRejected] = []
    for error in gql.validate(schema, combined):
        refused = FileRejected.from_graphql_error("not_in_schema", error, document.file)
        if not _is_nullable_condition(error, combined):
            raise refused
        advice = "Strict endpoints refuse this document: declare the variable as Boolean!, or give it a default."
        detail = f"{refused.detail} {advice}"
        notes.append(FileRejected("nullable_condition", detail, refused.place))
    own_name = operation.name.value if operation.name is not None else None
    # A document with a single operation may omit the operation's name. Then the file name becomes the tool name.
    name = document.tool_name or (snake_case(own_name) if own_name else PurePosixPath(document.file).stem)
    mutation = operation.operation == gql.OperationType.MUTATION
    fragments = {node.name.value: node for node in combined.definitions if isinstance(node, gql.FragmentDefinitionNode)}
    fields = list(_root_fields(operation, root, fragments))
    info = gql.TypeInfo(schema)
    uses = _Uses(info)
    gql.visit(combined, gql.TypeInfoVisitor(info, uses))
    inputs = input_schema(
        operation.variable_definitions or (), schema, _descriptions(document, operation, schema, uses.described)
    )
    for variable, reason in uses.deprecated.items():
        if variable in inputs["properties"]:
            inputs["properties"][variable] = with_deprecation(inputs["properties"][variable], reason)
    description = document.description or _describe_operation(operation, fields, own_name)
    return Operation(
        name=name,
        file=document.file,
        definition={
            "name": name,
            "description": "\n".join([description, *uses.deprecated_fields[:_MAX_FIELDS]]),
            "inputSchema": inputs,
            "annotations": {"readOnlyHint": False, "destructiveHint": True} if mutation else {"readOnlyHint": True},
        },
        # Send the original text: an endpoint with an allowlist compares documents byte for byte.
        text="\n\n".join([document.sent, *(fragment.text for fragment in shared_fragments)]),
        operation_name=own_name,
        mutation=mutation,
        notes=tuple(notes),
    )


def snake_case(name: str) -> str:
    """Convert a name to snake case: `GetHTTPServer2Names` becomes `get_http_server2_names`."""
    parts = (part for word in name.split("_") for part in ([word] if not word else _WORD_EDGE.split(word)))
    return "_".join(parts).lower()


def _is_nullable_condition(error: gql.GraphQLError, document: gql.DocumentNode) -> bool:
    """Return whether the error reports a nullable variable that is the condition of @include or @skip.

    The gateway does not reject documents with this error: they are common, and some endpoints accept them.
    """
    if len(error.nodes or ()) != 2 or error.nodes is None or not isinstance(error.nodes[1], gql.VariableNode):
        return False
    if not isinstance(error.nodes[0], gql.VariableDefinitionNode) or gql.print_ast(error.nodes[0].type) != "Boolean":
        return False
    return any(node is error.nodes[1] for node in _find_conditions(document))


def _find_conditions(document: gql.DocumentNode) -> Iterator[gql.Node]:
    pending: list[Any] = list(document.definitions)
    while pending:
        node = pending.pop()
        for directive in getattr(node, "directives", None) or ():
            if directive.name.value in ("include", "skip"):
                yield from (argument.value for argument in directive.arguments or ())
        if getattr(node, "selection_set", None) is not None:
            pending += node.selection_set.selections


def _used_fragments(document: Document, shared: Mapping[str, Fragment]) -> list[Fragment]:
    """Return the shared fragments that a document uses directly or indirectly, sorted by name."""
    # Visit each fragment once, so that the loop ends even if fragments form a cycle, which validation rejects later.
    needed: dict[str, Fragment] = {}
    pending: list[gql.Node] = list(document.node.definitions)
    while pending:
        for name in _fragment_spreads(pending.pop()):
            if name not in document.fragments and name not in needed and name in shared:
                needed[name] = shared[name]
                pending.append(shared[name].node)
    return [needed[name] for name in sorted(needed)]


def _fragment_spreads(node: gql.Node) -> Iterator[str]:
    pending: list[Any] = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, gql.FragmentSpreadNode):
            yield node.name.value
        selection_set = getattr(node, "selection_set", None)
        if selection_set is not None:
            pending += selection_set.selections


def _root_fields(
    operation: gql.OperationDefinitionNode,
    root: gql.GraphQLObjectType,
    fragments: Mapping[str, gql.FragmentDefinitionNode],
) -> Iterator[tuple[str, gql.GraphQLField | None]]:
    """Yield the name and definition of each top-level field of the operation, including fields in fragments."""
    # Push selections onto the stack in reverse, so that fields are yielded in document order.
    pending: list[gql.SelectionNode] = list(reversed(operation.selection_set.selections))
    opened: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, gql.FieldNode):
            yield node.name.value, root.fields.get(node.name.value)
        elif isinstance(node, gql.InlineFragmentNode):
            pending += reversed(node.selection_set.selections)
        elif isinstance(node, gql.FragmentSpreadNode) and node.name.value not in opened:
            opened.add(node.name.value)
            pending += reversed(fragments[node.name.value].selection_set.selections)


def _describe_operation(
    operation: gql.OperationDefinitionNode, fields: list[tuple[str, gql.GraphQLField | None]], name: str | None
) -> str:
    # Use the schema's description of the first described field, if any, instead of a generated description.
    described = next((field.description for _, field in fields if field is not None and field.description), None)
    if described is not None:
        return described
    names = list(dict.fromkeys(name for name, _ in fields))
    listed = ", ".join(names[:_MAX_FIELDS]) + (" and others" if len(names) > _MAX_FIELDS else "")
    return f"Runs the GraphQL {operation.operation.value}{f' {name}' if name else ''}: {listed}."


def _descriptions(
    document: Document, operation: gql.OperationDefinitionNode, schema: gql.GraphQLSchema, described: Mapping[str, str]
) -> dict[str, str]:
    """Return each variable's description: from the document, else from its type, else from an argument that uses it."""
    descriptions = dict(document.arguments)
    for variable in operation.variable_definitions or ():
        name = variable.variable.name.value
        if name not in descriptions:
            of_type = type_description(gql.type_from_ast(schema, variable.type))
            if (text := of_type or described.get(name)) is not None:
                descriptions[name] = text
    return descriptions


class _Uses(gql.Visitor):
    """A visitor that collects the descriptions and deprecations of the fields and arguments that an operation uses.

    Attributes:
        described: For each variable, the description of the first described argument or member that uses the variable.
        deprecated: For each variable that a deprecated argument or member uses, the deprecation reason.
        deprecated_fields: Messages about the deprecated fields that the operation selects.
    """

    def __init__(self, info: gql.TypeInfo) -> None:
        super().__init__()
        self.described: dict[str, str] = {}
        self.deprecated: dict[str, str] = {}
        self.deprecated_fields: list[str] = []
        self._info = info

    def enter_field(
        self, node: gql.FieldNode, _key: object, _parent: object, _path: object, _ancestors: object
    ) -> None:
        """Record the field if it is deprecated."""
        field = self._info.get_field_def()
        if field is not None and field.deprecation_reason is not None:
            text = f"Deprecated field {node.name.value}: {' '.join(field.deprecation_reason.split())}"
            if text not in self.deprecated_fields:
                self.deprecated_fields.append(text)

    def enter_variable(
        self, node: gql.VariableNode, _key: object, parent: object, _path: object, _ancestors: object
    ) -> None:
        """Record the description and deprecation of the argument or input object member that uses the variable."""
        name = node.name.value
        target: gql.GraphQLArgument | gql.GraphQLInputField | None = None
        if isinstance(parent, gql.ArgumentNode):
            target = self._info.get_argument()
        elif isinstance(parent, gql.ObjectFieldNode):
            owner = gql.get_named_type(self._info.get_parent_input_type())
            if isinstance(owner, gql.GraphQLInputObjectType) and parent.name.value in owner.fields:
                target = owner.fields[parent.name.value]
        if target is not None and target.description:
            self.described.setdefault(name, target.description)
        if target is not None and target.deprecation_reason is not None:
            self.deprecated.setdefault(name, target.deprecation_reason)
