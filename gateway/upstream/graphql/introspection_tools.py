"""Two tools that know the schema itself, only where they are configured: one shows it, one sends any document."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import graphql as gql

from gateway.errors import error_result
from gateway.upstream.graphql.documents import MAX_TOKENS
from gateway.upstream.graphql.rejections import SCHEMA_ERRORS
from registry.schema.display_text import excerpt

GET_SCHEMA: Final = "get_schema"
EXECUTE: Final = "execute_graphql"
NAMES: Final = frozenset({GET_SCHEMA, EXECUTE})
# Characters, about 15,000 tokens: what a model reads at once without losing what it was about.
MAX_TEXT: Final = 60_000
# Printing more types than these takes seconds, and their text is over the bound above anyway.
_MAX_TYPES_PRINTED: Final = 2_000
# Type names may be of any length; the parser's reasons quote the document.
_MAX_SHOWN_NAME: Final = 100
_MAX_SHOWN_REASON: Final = 500


def definitions(*, exclude_mutations: bool) -> list[dict[str, Any]]:
    """The definitions of both tools."""
    kinds = "Queries only." if exclude_mutations else "Queries and mutations; no subscriptions."
    return [
        {
            "name": GET_SCHEMA,
            "description": "Tells the GraphQL schema as SDL: all of it where it is small, otherwise its root fields "
            "and the names of its types. With `type`, one type in full.",
            "inputSchema": {
                "type": "object",
                "properties": {"type": {"type": "string", "description": "The name of one type, as Query."}},
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
                    "operationName": {"type": "string", "description": "Which operation, where there are several."},
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
    """Answer `get_schema`."""
    try:
        return _schema_text(schema, arguments)
    except SCHEMA_ERRORS as error:
        # Boundary: what is wrong with a schema spoils only the answers that show that part of it.
        return error_result(f"This part of the schema cannot be told ({type(error).__name__}).")


def _schema_text(schema: gql.GraphQLSchema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    wanted = arguments.get("type")
    if isinstance(wanted, str) and wanted:
        found = schema.type_map.get(wanted)
        if found is None:
            near = get_close_matches(wanted, list(schema.type_map), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            return error_result(f"The schema has no type {excerpt(wanted, _MAX_SHOWN_NAME)}.{hint}")
        return _text(gql.print_type(found))
    whole = gql.print_schema(schema) if len(schema.type_map) < _MAX_TYPES_PRINTED else ""
    if whole and len(whole) <= MAX_TEXT:
        return _text(whole)
    return _text(_outline(schema))


def _outline(schema: gql.GraphQLSchema) -> str:
    roots: list[gql.GraphQLObjectType] = [
        root for root in (schema.query_type, schema.mutation_type) if root is not None
    ]
    parts = ["The schema is too large to be told at once. Ask for one type by its name."]
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
        for name, one in schema.type_map.items()
        if not gql.is_introspection_type(one) and not gql.is_specified_scalar_type(one) and one not in roots
    ]
    parts.append(f"Other types: {', '.join(names)}")
    return "\n\n".join(parts)


def _text(text: str) -> dict[str, Any]:
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 40].rstrip() + "\n[…] ask for one type by its name"
    return {"content": [{"type": "text", "text": cut}]}


def payload_of(arguments: Mapping[str, Any], *, exclude_mutations: bool) -> dict[str, Any] | str:
    """What `execute_graphql` sends, or the reason why it sends nothing.

    Where mutations are excluded no document with one is sent, whichever of its operations is named: which one
    runs is for the endpoint to say.
    """
    query, name = arguments.get("query"), arguments.get("operationName")
    if not isinstance(query, str):
        return "query is no text."
    try:
        document = gql.parse(query, max_tokens=MAX_TOKENS)
    except gql.GraphQLSyntaxError as error:
        line, column = error.locations[0] if error.locations else (1, 1)
        reason = excerpt(error.message.removeprefix("Syntax Error: "), _MAX_SHOWN_REASON)
        return f"the document is no GraphQL: {reason} (line {line}, column {column})."
    operations = [node for node in document.definitions if isinstance(node, gql.OperationDefinitionNode)]
    if not operations:
        return "the document holds no operation."
    if any(node.operation == gql.OperationType.SUBSCRIPTION for node in operations):
        return "a subscription cannot be answered by a tool call."
    if exclude_mutations and any(node.operation == gql.OperationType.MUTATION for node in operations):
        return "mutations are excluded by the configuration of this server."
    if name is None and len(operations) > 1:
        names = ", ".join(node.name.value for node in operations if node.name is not None)
        return f"the document holds several operations; name one as operationName: {names}."
    payload: dict[str, Any] = {"query": query, "variables": arguments.get("variables") or {}}
    return payload | ({"operationName": name} if isinstance(name, str) else {})
