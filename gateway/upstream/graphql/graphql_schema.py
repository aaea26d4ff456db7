"""Load the schema of an endpoint, and provide the tools that show and search it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final

import graphql as gql

from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError, error_result
from gateway.upstream.graphql.documents import MAX_TOKENS, SCHEMA_ERRORS
from gateway.upstream.graphql.folder import FilesUnusable
from gateway.upstream.graphql.responses import Endpoint, error_text, response_of
from registry.schema.display_text import excerpt

_DEFINITIONS: Final[dict[type[gql.Node], type[gql.Node]]] = {
    gql.ScalarTypeExtensionNode: gql.ScalarTypeDefinitionNode,
    gql.ObjectTypeExtensionNode: gql.ObjectTypeDefinitionNode,
    gql.InterfaceTypeExtensionNode: gql.InterfaceTypeDefinitionNode,
    gql.UnionTypeExtensionNode: gql.UnionTypeDefinitionNode,
    gql.EnumTypeExtensionNode: gql.EnumTypeDefinitionNode,
    gql.InputObjectTypeExtensionNode: gql.InputObjectTypeDefinitionNode,
    gql.SchemaExtensionNode: gql.SchemaDefinitionNode,
}
# The union of all entity types. Every subgraph (the schema of one service in an Apollo federation) uses `_Entity` but
# does not define it.
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
    """Return the document with definitions added for types that the document extends or references but does not define.

    The first extension of an undefined type becomes the definition, because a subgraph may extend the type `Query`
    without defining it. In a subgraph, a type that is only referenced becomes a scalar, and the endpoint validates the
    values. A referenced interface or union member becomes an empty interface or object type. In a complete schema, an
    undefined type is an error, except for types that GraphQL tools provide, such as `_Any` or `federation__FieldSet`.

    Args:
        document: The schema in the schema definition language (SDL).
        names_of_tools: Whether to add the types that GraphQL tools provide to a complete schema, too. This is slow.
    """
    defined: set[str | None] = {node.name.value for node in document.definitions if isinstance(node, _DEFINED)}
    if any(isinstance(node, gql.SchemaDefinitionNode) for node in document.definitions):
        defined.add(None)
    definitions: list[Any] = []
    for node in document.definitions:
        kind = _DEFINITIONS.get(type(node))
        name = getattr(getattr(node, "name", None), "value", None)
        if kind is None or name in defined or (name is None and not node.operation_types):  # type: ignore[attr-defined]
            definitions.append(node)
            continue
        defined.add(name)
        definitions.append(kind(**{key: getattr(node, key) for key in node.keys}))
    is_part = any(isinstance(node, gql.SchemaExtensionNode) for node in document.definitions) or any(
        definition is not node for definition, node in zip(definitions, document.definitions, strict=True)
    )
    if not is_part and not names_of_tools:
        return document
    entities = [node for node in definitions if isinstance(node, gql.ObjectTypeDefinitionNode) and _has_key(node)]
    if _ENTITY not in defined and entities:
        defined.add(_ENTITY)
        members = tuple(gql.NamedTypeNode(name=node.name) for node in entities)
        definitions.append(gql.UnionTypeDefinitionNode(name=gql.NameNode(value=_ENTITY), types=members))
    for type_name, node_type in _referenced_types(definitions):
        is_provided = is_part or type_name.startswith("_") or "__" in type_name
        if is_provided and type_name not in defined and type_name not in gql.specified_scalar_types:
            defined.add(type_name)
            definitions.append(node_type(name=gql.NameNode(value=type_name)))
    return gql.DocumentNode(definitions=tuple(definitions))


def _has_key(node: gql.ObjectTypeDefinitionNode) -> bool:
    return any(directive.name.value == "key" for directive in node.directives or ())


def _referenced_types(definitions: list[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Yield the name of every referenced type, and the kind of type that the reference requires.

    References that require an interface or object type come first, and references that permit a scalar come last.
    """
    for node in definitions:
        for reference in getattr(node, "interfaces", None) or ():
            yield reference.name.value, gql.InterfaceTypeDefinitionNode
        if isinstance(node, gql.UnionTypeDefinitionNode | gql.UnionTypeExtensionNode):
            for reference in node.types or ():
                yield reference.name.value, gql.ObjectTypeDefinitionNode
        for reference in getattr(node, "operation_types", None) or ():
            yield reference.type.name.value, gql.ObjectTypeDefinitionNode
    pending: list[Any] = list(definitions)
    while pending:
        node = pending.pop()
        if isinstance(node, gql.NamedTypeNode):
            yield node.name.value, gql.ScalarTypeDefinitionNode
        elif isinstance(node, list | tuple):
            pending += node
        elif isinstance(node, gql.Node):
            pending += [getattr(node, key, None) for key in node.keys if key not in ("loc", "directives")]


# The size limit of a schema. The introspection JSON of large public schemas has a few megabytes.
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
# Limits the time for parsing: a file of the maximum size with short tokens would occupy a thread for most of a minute.
_MAX_TOKENS: Final = 1_000_000
# The longest reason, in characters. The limit is needed because a reason has to fit in a table row.
_MAX_REASON: Final = 300


class SchemaUnusable(GatewayError):
    """The endpoint does not return a usable schema; the message gives the reason."""


def read_schema_file(path: Path) -> bytes:
    """Return the content of a schema file.

    Raises:
        FilesUnusable: The file cannot be read, or is too large.
    """
    try:
        if not path.is_file():
            raise FilesUnusable(f"schema: {path}: there is no such file")
        with path.open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise FilesUnusable(f"schema: {path}: {error.strerror or error}") from None
    if len(data) > MAX_SCHEMA_BYTES:
        raise FilesUnusable(f"schema: {path}: it has more than {MAX_SCHEMA_BYTES} bytes")
    return data


def load_schema(data: bytes, name: str) -> gql.GraphQLSchema:
    """Parse a schema file as SDL or introspection JSON, depending on its first character.

    Undefined directives are accepted, because they are meant for the server that the schema was written for.

    Raises:
        FilesUnusable: The file is not valid SDL or introspection JSON, or defines no root type.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FilesUnusable(f"schema: {name}: it is not UTF-8") from None
    if text.lstrip()[:1] == "{":
        try:
            return _from_introspection(json_bytes.loads(text.encode()))
        except json_bytes.MalformedJson as error:
            raise FilesUnusable(f"schema: {name}: it is not JSON ({_reason(str(error))})") from None
        except ValueError as error:
            raise FilesUnusable(f"schema: {name}: {_reason(str(error))}") from None
    try:
        document = gql.parse(gql.Source(text, name), max_tokens=_MAX_TOKENS)
        schema = _build_schema(document)
    except gql.GraphQLSyntaxError as error:
        line, column = error.locations[0] if error.locations else (1, 1)
        raise FilesUnusable(f"schema: {name}:{line}:{column}: {_reason(error.message)}") from None
    except SCHEMA_ERRORS as error:  # boundary: an invalid schema may raise any of these
        raise FilesUnusable(f"schema: {name}: {_reason(str(error) or type(error).__name__)}") from None
    if schema.query_type is None and schema.mutation_type is None:
        raise FilesUnusable(f"schema: {name}: it defines no type Query")
    return schema


def _build_schema(document: gql.DocumentNode) -> gql.GraphQLSchema:
    try:
        return gql.build_ast_schema(completed(document), assume_valid=True, assume_valid_sdl=True)
    except SCHEMA_ERRORS:
        full_document = completed(document, names_of_tools=True)
        return gql.build_ast_schema(full_document, assume_valid=True, assume_valid_sdl=True)


def _from_introspection(introspection: Any) -> gql.GraphQLSchema:
    if isinstance(introspection, dict) and isinstance(introspection.get("data"), dict):
        introspection = introspection["data"]
    if not isinstance(introspection, dict) or not isinstance(introspection.get("__schema"), dict):
        raise ValueError("it has no __schema; expected SDL or the response to an introspection query")
    try:
        return gql.build_client_schema(introspection, assume_valid=True)  # type: ignore[arg-type] # raises if invalid
    except SCHEMA_ERRORS as error:  # boundary: an invalid schema may raise any of these
        raise ValueError(_reason(str(error) or type(error).__name__)) from None


async def fetch_introspection(endpoint: Endpoint) -> bytes:
    """Request the schema from the endpoint (introspection). If the endpoint rejects the query, send a simpler query.

    Raises:
        SchemaUnusable: The endpoint does not return its schema.
        ConnectionLost, HttpStatusError: See `Endpoint.post`.
    """
    reason = ""
    # Request the newest features first: `oneOf` and deprecated arguments improve the tool definitions.
    newest = gql.get_introspection_query(
        specified_by_url=True, directive_is_repeatable=True, input_value_deprecation=True, one_of=True
    )
    for query in (newest, gql.get_introspection_query()):
        payload = {"query": query, "operationName": "IntrospectionQuery"}
        answer = await endpoint.post(payload, limit_bytes=MAX_SCHEMA_BYTES)
        response = await run_in_thread(partial(response_of, answer))
        if isinstance(response.get("data"), dict) and isinstance(response["data"].get("__schema"), dict):
            return answer.body
        errors = response.get("errors")
        reason = (
            excerpt(error_text(errors) if isinstance(errors, list) else "", _MAX_REASON) or "the answer has no schema"
        )
    raise SchemaUnusable(f"the endpoint does not return its schema ({reason}); name a file under `schema`")


def load_introspection(body: bytes) -> gql.GraphQLSchema:
    """Parse a response returned by `fetch_introspection`.

    Raises:
        SchemaUnusable: The response is not a valid schema.
    """
    try:
        return _from_introspection(json_bytes.loads(body))
    except ValueError as error:
        raise SchemaUnusable(f"the schema of the endpoint is invalid: {_reason(str(error))}") from None


def _reason(text: str) -> str:
    return excerpt(text.removeprefix("Syntax Error: "), _MAX_REASON)


GET_SCHEMA: Final = "get_schema"
EXECUTE: Final = "execute_graphql"
NAMES: Final = frozenset({GET_SCHEMA, EXECUTE})
# The longest text that `get_schema` returns, in characters: about 15,000 tokens. A longer text would occupy too much of
# a model's context.
MAX_TEXT: Final = 60_000
# Schemas with more types are not printed as a whole: printing would take seconds, and the text would exceed `MAX_TEXT`.
_MAX_TYPES_PRINTED: Final = 2_000
# The limits of quoted text, in characters. Type names may have any length, and parser errors quote the document.
_MAX_SHOWN_NAME: Final = 100
_MAX_SHOWN_REASON: Final = 500


def definitions(*, exclude_mutations: bool) -> list[dict[str, Any]]:
    """Return the definitions of the tools `get_schema` and `execute_graphql`."""
    kinds = "Queries only." if exclude_mutations else "Queries and mutations; no subscriptions."
    return [
        {
            "name": GET_SCHEMA,
            "description": "Returns the GraphQL schema as SDL: all of it if it is small, otherwise its root fields "
            "and the names of its types. With `type`, one type in full.",
            "inputSchema": {
                "type": "object",
                "properties": {"type": {"type": "string", "description": "The name of one type, such as Query."}},
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": True},
        },
        {
            "name": EXECUTE,
            "description": f"Sends a GraphQL document. {kinds}",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "The document."},
                    "variables": {"type": "object", "description": "Values of its variables, by name."},
                    "operationName": {"type": "string", "description": "The operation to run, if there are several."},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": True}
            if exclude_mutations
            else {"readOnlyHint": False, "destructiveHint": True},
        },
    ]


def get_schema_result(schema: gql.GraphQLSchema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a call of `get_schema`."""
    try:
        return _schema_text(schema, arguments)
    except SCHEMA_ERRORS as error:
        # Boundary: an invalid part of a schema must not affect calls that request other parts.
        return error_result(f"This part of the schema cannot be shown ({type(error).__name__}).")


def _schema_text(schema: gql.GraphQLSchema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    type_name = arguments.get("type")
    if isinstance(type_name, str) and type_name:
        type_ = schema.type_map.get(type_name)
        if type_ is None:
            near = get_close_matches(type_name, list(schema.type_map), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            return error_result(f"The schema has no type {excerpt(type_name, _MAX_SHOWN_NAME)}.{hint}")
        return _text(gql.print_type(type_))
    full_text = gql.print_schema(schema) if len(schema.type_map) < _MAX_TYPES_PRINTED else ""
    if full_text and len(full_text) <= MAX_TEXT:
        return _text(full_text)
    return _text(_outline(schema))


def _outline(schema: gql.GraphQLSchema) -> str:
    roots: list[gql.GraphQLObjectType] = [
        root for root in (schema.query_type, schema.mutation_type) if root is not None
    ]
    parts = ["The schema is too large to be shown as a whole. Ask for one type by its name."]
    for root in roots:
        fields = [
            f"  {name}({', '.join(f'{arg}: {argument.type}' for arg, argument in field.args.items())}): {field.type}"
            if field.args
            else f"  {name}: {field.type}"
            for name, field in root.fields.items()
        ]
        parts.append(f"type {root.name} {{\n" + "\n".join(fields) + "\n}")
    names = [
        name
        for name, type_ in schema.type_map.items()
        if not gql.is_introspection_type(type_) and not gql.is_specified_scalar_type(type_) and type_ not in roots
    ]
    parts.append(f"Other types: {', '.join(names)}")
    return "\n\n".join(parts)


def _text(text: str) -> dict[str, Any]:
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 40].rstrip() + "\n[…] ask for one type by its name"
    return {"content": [{"type": "text", "text": cut}]}


def payload_of(arguments: Mapping[str, Any], *, exclude_mutations: bool) -> dict[str, Any] | str:
    """Return the payload that `execute_graphql` sends, or the reason why nothing is sent.

    If mutations are excluded, reject every document that contains a mutation, even if `operationName` names a query:
    the endpoint decides which operation runs.
    """
    query, name = arguments.get("query"), arguments.get("operationName")
    if not isinstance(query, str):
        return "query is not a string."
    try:
        document = gql.parse(query, max_tokens=MAX_TOKENS)
    except gql.GraphQLSyntaxError as error:
        line, column = error.locations[0] if error.locations else (1, 1)
        reason = excerpt(error.message.removeprefix("Syntax Error: "), _MAX_SHOWN_REASON)
        return f"the document is not valid GraphQL: {reason} (line {line}, column {column})."
    operations = [node for node in document.definitions if isinstance(node, gql.OperationDefinitionNode)]
    if not operations:
        return "the document has no operation."
    if any(node.operation == gql.OperationType.SUBSCRIPTION for node in operations):
        return "subscriptions are not supported in tool calls."
    if exclude_mutations and any(node.operation == gql.OperationType.MUTATION for node in operations):
        return "mutations are excluded by the configuration of this server."
    if name is None and len(operations) > 1:
        names = ", ".join(node.name.value for node in operations if node.name is not None)
        return f"the document has several operations; name one as operationName: {names}."
    payload: dict[str, Any] = {"query": query, "variables": arguments.get("variables") or {}}
    return payload | ({"operationName": name} if isinstance(name, str) else {})
