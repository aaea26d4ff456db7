"""The schema of an endpoint: from a file, as SDL or introspection JSON, or from the endpoint itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import graphql as gql

from gateway import wire
from gateway.errors import GatewayError
from gateway.upstream.graphql.endpoint import Endpoint
from gateway.upstream.graphql.folder import FilesUnusable
from gateway.upstream.graphql.rejections import SCHEMA_ERRORS
from gateway.upstream.graphql.responses import error_text, response_of
from gateway.upstream.graphql.subgraph import completed
from gateway.worker_thread import run_in_thread
from registry.schema.display_text import excerpt

# Large public schemas have some megabytes as introspection JSON.
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
# Fewer than a file of that size may hold: text made of short tokens would keep a thread busy for most of a minute.
_MAX_TOKENS: Final = 1_000_000
# A row of a table.
_MAX_REASON: Final = 300


class SchemaUnusable(GatewayError):
    """The endpoint gives no schema to hold operations against; the text says why."""


def read_schema_file(path: Path) -> bytes:
    """The content of a schema file.

    Raises:
        FilesUnusable: It cannot be read, or is too large.
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
    """The schema that a file holds; whether it is SDL or JSON is seen from its first character.

    Directives that it does not define are let pass: they are for the servers of their authors.

    Raises:
        FilesUnusable: It is neither.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FilesUnusable(f"schema: {name}: it is not UTF-8") from None
    if text.lstrip()[:1] == "{":
        try:
            return _from_introspection(wire.loads(text.encode()))
        except wire.MalformedJson as error:
            raise FilesUnusable(f"schema: {name}: it is not JSON ({_reason(str(error))})") from None
        except ValueError as error:
            raise FilesUnusable(f"schema: {name}: {_reason(str(error))}") from None
    try:
        document = gql.parse(gql.Source(text, name), max_tokens=_MAX_TOKENS)
        schema = _built(document)
    except gql.GraphQLSyntaxError as error:
        line, column = error.locations[0] if error.locations else (1, 1)
        raise FilesUnusable(f"schema: {name}:{line}:{column}: {_reason(error.message)}") from None
    except SCHEMA_ERRORS as error:  # boundary: whatever a schema provokes spoils that schema only
        raise FilesUnusable(f"schema: {name}: {_reason(str(error) or type(error).__name__)}") from None
    if schema.query_type is None and schema.mutation_type is None:
        raise FilesUnusable(f"schema: {name}: it defines no type Query")
    return schema


def _built(document: gql.DocumentNode) -> gql.GraphQLSchema:
    try:
        return gql.build_ast_schema(completed(document), assume_valid=True, assume_valid_sdl=True)
    except SCHEMA_ERRORS:
        whole = completed(document, names_of_tools=True)
        return gql.build_ast_schema(whole, assume_valid=True, assume_valid_sdl=True)


def _from_introspection(found: Any) -> gql.GraphQLSchema:
    if isinstance(found, dict) and isinstance(found.get("data"), dict):
        found = found["data"]
    if not isinstance(found, dict) or not isinstance(found.get("__schema"), dict):
        raise ValueError("it holds no __schema; expected SDL or the answer to an introspection")
    try:
        return gql.build_client_schema(found, assume_valid=True)  # type: ignore[arg-type] # it raises for what is none
    except SCHEMA_ERRORS as error:  # boundary: whatever a schema provokes spoils that schema only
        raise ValueError(_reason(str(error) or type(error).__name__)) from None


async def fetch_introspection(endpoint: Endpoint) -> bytes:
    """Ask the endpoint for its schema; older servers are asked for less.

    Raises:
        SchemaUnusable: It does not say.
        ConnectionLost, HttpStatusError: As `Endpoint.post`.
    """
    reason = ""
    # The newest features first: `oneOf` and deprecated arguments make better tools.
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
    raise SchemaUnusable(f"the endpoint does not tell its schema ({reason}); name a file under `schema`")


def load_introspection(body: bytes) -> gql.GraphQLSchema:
    """The schema in an answer that `fetch_introspection` gave.

    Raises:
        SchemaUnusable: It is none.
    """
    try:
        return _from_introspection(wire.loads(body))
    except ValueError as error:
        raise SchemaUnusable(f"the schema of the endpoint is of no use: {_reason(str(error))}") from None


def _reason(text: str) -> str:
    return excerpt(text.removeprefix("Syntax Error: "), _MAX_REASON)
