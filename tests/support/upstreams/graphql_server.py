"""A real GraphQL server over HTTP on 127.0.0.1, on graphql-core: `--port 0` prints the port as the first line.

Fields that the script's `root` does not name are mocked by their types. The script is read again for each
request, so that a test can change the server while it runs:

sdl             path of the schema; read again when the file has changed
root            values by field, at any depth; {"$error": text} in the place of one fails there
echo            names of fields that give back their arguments as JSON text
extensions      put beside `data`
introspection   false: refused; "old": only what servers of 2018 know
fault           what happens instead of an answer to an operation, see `fault`; with "introspection": true
                to an introspection instead
content_type    of answers; otherwise what the request accepts
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

from graphql import (
    GraphQLEnumType,
    GraphQLError,
    GraphQLList,
    GraphQLNonNull,
    GraphQLResolveInfo,
    GraphQLSchema,
    build_schema,
    execute_sync,
    get_named_type,
    is_abstract_type,
    is_leaf_type,
    parse,
    validate,
)
from wire import JSON, Gone, Request, Wire

MOCKS: dict[str, Any] = {"Int": 1, "Float": 1.5, "String": "text", "Boolean": True, "ID": "id"}
NEW = ("specifiedByURL", "isOneOf", "isRepeatable", "args(includeDeprecated", "inputFields(includeDeprecated")


class Server:
    """All connections of one server."""

    def __init__(self, script: Path, record: Path) -> None:
        self.path = script
        self.record_path = record
        self.schema: tuple[object, GraphQLSchema] | None = None
        self.script: dict[str, Any] = {}

    def look(self) -> GraphQLSchema:
        """Read the script and, if it has changed, the schema."""
        self.script = json.loads(self.path.read_text(encoding="utf-8"))
        text = Path(self.script["sdl"]).read_text(encoding="utf-8")
        if self.schema is None or self.schema[0] != text:
            self.schema = (text, build_schema(text, assume_valid=True, assume_valid_sdl=True))
        return self.schema[1]

    def record(self, **event: Any) -> None:
        """Write one line."""
        with self.record_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        wire = Wire(reader, writer)
        try:
            while not writer.is_closing():
                await self.exchange(await wire.request(), wire)
        except (Gone, ValueError):
            pass
        finally:
            writer.close()

    async def exchange(self, request: Request, wire: Wire) -> None:
        """Answer one request."""
        schema = self.look()
        try:
            body = json.loads(request.body)
        except ValueError:
            body = {}
        asks = "__schema" in str(body.get("query"))
        kind = "introspection" if asks else "graphql"
        self.record(event=kind, method=request.method, target=request.target, headers=request.headers, **body)
        fault = self.script.get("fault")
        if fault and bool(fault.get("introspection")) == asks:
            return await self.fault(wire, fault, request)
        if asks and not self.allowed(str(body.get("query"))):
            return await self.answer(wire, request, 400, {"errors": [{"message": "introspection is not allowed"}]})
        status, answer = self.run(schema, body)
        return await self.answer(wire, request, status, answer)

    def allowed(self, query: str) -> bool:
        """Return whether this introspection is answered."""
        allowed = self.script.get("introspection", True)
        return allowed is True or (allowed == "old" and not any(word in query for word in NEW))

    async def answer(self, wire: Wire, request: Request, status: int, answer: dict[str, Any]) -> None:
        """Send a response as the request accepts it."""
        modern = "application/graphql-response+json"
        kind = modern if modern in request.headers.get("accept", "") else JSON
        kind = self.script.get("content_type", kind)
        await wire.respond(status if kind == modern else 200, json.dumps(answer).encode(), kind)

    def run(self, schema: GraphQLSchema, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Validate and execute one document."""
        try:
            document = parse(body["query"])
        except (GraphQLError, KeyError) as error:
            return 400, {"errors": [{"message": str(error)}]}
        errors = validate(schema, document)
        if errors:
            return 400, {"errors": [error.formatted for error in errors]}
        result = execute_sync(
            schema,
            document,
            root_value=self.script.get("root", {}),
            variable_values=body.get("variables"),
            operation_name=body.get("operationName"),
            field_resolver=self.resolve,
            type_resolver=lambda value, info, kind: info.schema.get_possible_types(kind)[0].name,
        )
        # Without data there was no execution: the request itself was at fault.
        request_error = result.data is None and bool(result.errors) and all(e.path is None for e in result.errors or ())
        answer: dict[str, Any] = {} if request_error else {"data": result.data}
        if result.errors:
            answer["errors"] = [error.formatted for error in result.errors]
        if "extensions" in self.script:
            answer["extensions"] = self.script["extensions"]
        return (400 if request_error else 200), answer

    def resolve(self, parent: Any, info: GraphQLResolveInfo, **arguments: Any) -> Any:
        """Return the value of a field: the scripted one, or one that matches its type."""
        if info.field_name in self.script.get("echo", ()):
            return json.dumps(arguments, sort_keys=True)
        if isinstance(parent, dict) and info.field_name in parent:
            value = parent[info.field_name]
            if isinstance(value, dict) and "$error" in value:
                raise GraphQLError(value["$error"])
            return value
        return mocked(info.return_type)

    async def fault(self, wire: Wire, fault: dict[str, Any], request: Request) -> None:
        """Misbehave."""
        body, kind = str(fault.get("body", "")).encode(), fault.get("content_type", JSON)
        match fault["kind"]:
            case "hang":
                await wire.gone()
            case "answer":
                headers = {name.replace("-", "_"): value for name, value in fault.get("headers", {}).items()}
                await wire.respond(fault.get("status", 200), body, kind, **headers)
            case "deep":
                deep = b'{"data":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
                await wire.respond(200, deep, kind)
            case "half_body":
                await wire.respond(200, b'{"data": {"emp', kind, content_length="1000")
                wire.writer.close()
            case "reset":
                raw = wire.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                wire.writer.transport.abort()
            case "big":
                size = int(fault["bytes"])
                head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n"
                await wire.send(head.encode() + b'{"data": {"a": "')
                for _ in range(size // 65_536):
                    await wire.send(b"x" * 65_536)
            case "slow_bytes":
                await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
                for _ in range(1000):
                    await wire.send(b" ")
                    await asyncio.sleep(0.1)


def mocked(kind: Any) -> Any:
    """Return a value of this type; objects are resolved field by field."""
    if isinstance(kind, GraphQLNonNull):
        kind = kind.of_type
    if isinstance(kind, GraphQLList):
        return [mocked(kind.of_type)]
    if isinstance(kind, GraphQLEnumType):
        return next(iter(kind.values.values())).value
    if is_leaf_type(kind):
        return MOCKS.get(kind.name, "scalar")
    return {} if is_abstract_type(kind) or get_named_type(kind) else None


async def main() -> None:
    """Serve until killed."""
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--script", type=Path, required=True)
    options.add_argument("--record", type=Path, required=True)
    given = options.parse_args()
    server = Server(given.script, given.record)
    listener = await asyncio.start_server(server.connection, "127.0.0.1", given.port, limit=2**24)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
