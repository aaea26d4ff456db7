"""A client on the Python SDK before version 2: connects, lists, calls, prints a report as JSON.

It runs in a separate virtual environment; see `installed.report` for its options and its report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError


def wire(model: Any) -> dict[str, Any]:
    """Return a model as it is sent."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main() -> None:
    """Run the calls and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--calls", type=json.loads, default=[])
    parser.add_argument("--headers", type=json.loads, default={})
    parser.add_argument("--surface", type=json.loads, default=None)
    options = parser.parse_args()
    if options.target.startswith("{"):
        transport = stdio_client(StdioServerParameters(**json.loads(options.target)))
    elif options.target.endswith("/sse"):
        transport = sse_client(options.target, headers=options.headers)
    else:
        transport = streamablehttp_client(options.target, headers=options.headers)
    changes = 0

    async def note(message: Any) -> None:
        nonlocal changes
        method = getattr(getattr(message, "root", None), "method", None)
        changes += method == "notifications/tools/list_changed"

    async with AsyncExitStack() as stack:
        streams = await stack.enter_async_context(transport)
        session = ClientSession(streams[0], streams[1], message_handler=note)
        await stack.enter_async_context(session)
        hello = await session.initialize()
        tools: list[dict[str, Any]] = []
        page = await session.list_tools()
        tools += map(wire, page.tools)
        while page.nextCursor:
            page = await session.list_tools(page.nextCursor)
            tools += map(wire, page.tools)
        outcomes: list[dict[str, Any]] = []
        progress: list[int] = []
        for call in options.calls:
            seen: list[float] = []

            async def on_progress(done: float, total: float | None, text: str | None, seen: list[float] = seen) -> None:
                seen.append(done)

            try:
                result = await session.call_tool(call["name"], call.get("arguments"), progress_callback=on_progress)
                outcomes.append({"result": wire(result)})
            except McpError as error:
                outcomes.append({"error": wire(error.error)})
            progress.append(len(seen))
        surface: dict[str, Any] = {}
        if options.surface is not None:
            surface = {
                "prompts": [*map(wire, (await session.list_prompts()).prompts)],
                "resources": [*map(wire, (await session.list_resources()).resources)],
                "resourceTemplates": [*map(wire, (await session.list_resource_templates()).resourceTemplates)],
                "gets": [wire(await session.get_prompt(name)) for name in options.surface.get("gets", ())],
                "reads": [wire(await session.read_resource(uri)) for uri in options.surface.get("reads", ())],
            }
        report = surface | {
            "protocol": str(hello.protocolVersion),
            "server": wire(hello.serverInfo),
            "instructions": hello.instructions,
            "tools": tools,
            "calls": outcomes,
            "progress": progress,
            "changes": changes,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
