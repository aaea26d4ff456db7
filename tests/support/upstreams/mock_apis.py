"""Generated calls against a server that is made from the document, and validates every request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from support.clients.installed import node22, npm
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.schema_values import SchemaValues
from support.upstreams.published_apis import published
from support.upstreams.running import kill_and_wait, unused_port

from gateway.upstream.openapi.openapi_schemas import parse_document
from registry.schema import schemas

PRISM = ("@stoplight/prism-cli@5.14.2",)
# Prism fails for array parameters that are not sent, cannot distinguish an integer in a path from
# text or a list of one file from a file, and requires `readOnly` members below `oneOf`.
DOCUMENTS = (
    "@readme/oas-examples/2.0/json/petstore.json",
    "@readme/oas-examples/3.0/json/complex-nesting.json",
    "@readme/oas-examples/3.0/json/form-data.json",
    "@readme/oas-examples/3.0/json/polymorphism.json",
    "@readme/oas-examples/3.0/json/star-trek.json",
    "@readme/oas-examples/3.0/json/uspto.json",
    "@readme/oas-examples/3.1/json/schema-types.json",
    "@readme/oas-examples/3.1/json/train-travel.json",
)


class MockServerEnded(Exception):
    """The mock server cannot serve a document."""


@asynccontextmanager
async def mock_server(document: Path, log: Path) -> AsyncIterator[str]:
    """Run Prism, which answers 4xx to every request that does not fit the document.

    Raises:
        MockServerEnded: Prism does not accept the document.
    """
    modules = await anyio.to_thread.run_sync(npm, "prism", PRISM)
    port = unused_port()
    command = [str(node22()), str(modules / "@stoplight/prism-cli/dist/index.js"), "mock", "--errors"]
    with log.open("wb") as sink:
        process = await anyio.open_process([*command, "-p", str(port), str(document)], stdout=sink, stderr=sink)
    try:
        with anyio.move_on_after(300) as waiting:  # large documents take a minute
            while b"is listening" not in await anyio.Path(log).read_bytes():
                if process.returncode is not None:
                    raise MockServerEnded((await anyio.Path(log).read_text())[-500:])
                await brief_pause()
        if waiting.cancelled_caught:
            raise MockServerEnded("it does not listen after 300 s")
        yield f"http://127.0.0.1:{port}"
    finally:
        await kill_and_wait(process)


def credentials_of(document: dict[str, Any]) -> dict[str, str]:
    """Return headers that satisfy every security scheme of a document."""
    declared = document.get("components", {}).get("securitySchemes", {}) | document.get("securityDefinitions", {})
    headers = {"Authorization": "Bearer x"}
    for scheme in declared.values():
        if scheme["type"] == "apiKey" and scheme["in"] == "header":
            headers[scheme["name"]] = "x"
        if scheme["type"] == "basic" or scheme.get("scheme") == "basic":
            headers["Authorization"] = "Basic eDp4"
    return headers


async def rejected_calls(file: str, folder: Path, calls: int) -> tuple[int, list[str]]:
    """Return how many calls were made, and those that the mock server or the gateway rejected."""
    document = await anyio.to_thread.run_sync(published, file, folder)
    written = parse_document(document.read_bytes(), document.name)
    main = str((written.get("servers") or [{}])[0].get("url", ""))
    rejected: list[str] = []
    made = seed = 0
    turns = anyio.Semaphore(8)
    eager = {"profiles": {"default": {"disclosure": "eager"}}}
    async with mock_server(document, folder / "prism.log") as origin:
        entry = {"spec": str(document), "baseUrl": origin, "headers": credentials_of(written), "callTimeout": 60}
        async with running_gateway(folder, {"api": entry}, gateway=eager) as gateway:
            gateway.client.timeout = 180  # large lists, on a busy machine
            with anyio.fail_after(300):
                while (await gateway.server("api"))["state"] != "ready":
                    await brief_pause()
            # Other servers that the document names for a part of its operations are not the mock server.
            tools = {
                name: tool
                for name, tool in (await gateway.tools()).items()
                if urlsplit(tool["_meta"]["openapi/operation"].get("server", main)).netloc == urlsplit(main).netloc
            }
            while made < calls and seed < 2 * calls:
                seed += 1
                async with anyio.create_task_group() as group:
                    for name, tool in list(tools.items())[: calls - made]:
                        schema = tool["inputSchema"]
                        arguments = SchemaValues(schema, seed).value({**schema, "$defs": {}})
                        if schemas.compile_schema(schema).is_valid(arguments):
                            made += 1
                            group.start_soon(_call, gateway, name, arguments, rejected, turns)
    return made, rejected


async def _call(
    gateway: RunningGateway, name: str, arguments: dict[str, Any], rejected: list[str], turns: anyio.Semaphore
) -> None:
    async with turns:
        result = await gateway.call(name, arguments, timeout_s=60)
    text = text_of(result)
    if "characters that a header cannot contain" in text:
        return  # the schema of the header allows any text, HTTP does not
    if result.get("isError") and ("stoplight.io/prism" in text or "Not sent" in text or "Not called" in text):
        rejected.append(f"{name} {json.dumps(arguments)[:300]}: {text[-700:]}")
