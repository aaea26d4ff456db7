"""Starts the GraphQL server for a test: an entry for the configuration, its files, and the record."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio.abc import Process
from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import Recording, kill_and_wait, listening

_PROGRAM = Path(__file__).parent / "graphql_server.py"

HR_SDL = '''
"""How to look for people."""
input Filter { name: String = "x", either: [Filter!], role: Role, since: Date }
"""What somebody does."""
enum Role { CLERK COOK }
scalar Date @specifiedBy(url: "https://example.test/date")
scalar BigInt
type Employee { id: Int! name: String! salary: BigInt boss: Employee notes(last: Int = 3): String }
type Query {
  "Finds one employee."
  employee("The number on the badge." id: Int!): Employee
  find(filter: Filter, roles: [Role!]): [Employee!]!
  echo(id: ID, int: Int, float: Float, text: String, flag: Boolean, role: Role, list: [Int!], filter: Filter,
       date: Date, deep: [[String]]): String
}
type Mutation { "Ends a contract." fire(id: Int!): Employee  rename(id: Int!, name: String): String }
type Subscription { hired: Employee }
'''
GET_EMPLOYEE = '''"""Get one employee, with details if wanted."""
query GetEmployee(
  $id: Int! @mcpToolArg(description: "The number of the employee")
  $includeDetails: Boolean = false @mcpToolArg(description: "Whether to tell the salary")
) @mcpTool(name: "get_employee") {
  employee(id: $id) { id name salary @include(if: $includeDetails) }
}
'''
PLAIN = "query ListPeople {\r\n  find { id  name }  # people\r\n}\r\n"


@dataclass(slots=True, kw_only=True)
class GraphqlServer:
    """A running server with a folder of operations for it."""

    folder: Path
    schema_path: Path
    operations: Path
    script: dict[str, Any]
    recording: Recording
    port: int = 0
    process: Process | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}/graphql"

    def config(self, **more: Any) -> dict[str, Any]:
        """Return the entry for `mcpServers`; it uses introspection unless `schema` is given."""
        return {"type": "graphql", "endpoint": self.endpoint, "operations": str(self.operations), **more}

    @property
    def schema_file(self) -> dict[str, Any]:
        """The entry's part for a schema from the file."""
        return {"schema": str(self.schema_path)}

    def write(self, name: str, text: str | bytes) -> Path:
        """Write one operation file, at once, because the gateway may read it at any time."""
        path = self.operations / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.new")
        written.write_bytes(text.encode() if isinstance(text, str) else text)
        return written.replace(path)

    def change(self, **script: Any) -> None:
        """Change what the running server does; None takes a member out."""
        self.script = {key: value for key, value in (self.script | script).items() if value is not None}
        draft = self.folder / "script.draft"
        draft.write_text(json.dumps(self.script), encoding="utf-8")
        draft.replace(self.folder / "script.json")

    def sent(self) -> list[dict[str, Any]]:
        """Return the received operations: query, variables, operationName and headers of each."""
        return self.recording.events("graphql")

    def introspections(self) -> list[dict[str, Any]]:
        """Return the received introspection requests."""
        return self.recording.events("introspection")

    async def start(self) -> None:
        """Start the process; its port stays the same over restarts."""
        command = [sys.executable, str(_PROGRAM), "--port", str(self.port)]
        command += ["--script", str(self.folder / "script.json"), "--record", str(self.recording.path)]
        self.process, self.port = await listening(command)

    async def stop(self) -> None:
        """Kill the process at once and wait for its end."""
        if self.process is None:
            return
        process, self.process = self.process, None
        await kill_and_wait(process)


@asynccontextmanager
async def graphql_server(
    tmp_path: Path,
    operations: Mapping[str, str | bytes] | None = None,
    *,
    sdl: str = HR_SDL,
    started: bool = True,
    name: str = "graphql",
    **script: Any,
) -> AsyncIterator[GraphqlServer]:
    """Run a GraphQL server for as long as the block lasts, with operation files for it."""
    folder = tmp_path / name
    (folder / "operations").mkdir(parents=True)
    schema = folder / "schema.graphql"
    schema.write_text(sdl, encoding="utf-8")
    server = GraphqlServer(
        folder=folder,
        schema_path=schema,
        operations=folder / "operations",
        script={"sdl": str(schema), **script},
        recording=Recording(folder / "record.jsonl"),
    )
    server.change()
    for file, text in (operations or {}).items():
        server.write(file, text)
    if started:
        await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def graphql_gateway(
    tmp_path: Path, operations: Mapping[str, str | bytes] | None = None, /, *, sdl: str = HR_SDL, **config: Any
) -> AsyncIterator[tuple[GraphqlServer, RunningGateway]]:
    """Run such a server and a gateway that has it as `hr`, with these keys in its entry."""
    async with (
        graphql_server(tmp_path, operations, sdl=sdl) as server,
        running_gateway(tmp_path, {"hr": server.config(**config)}) as gateway,
    ):
        yield server, gateway
