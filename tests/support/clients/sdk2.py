"""A client on the Python SDK 2 in either era: connects, lists, calls, prints a report as JSON.

See `installed.report` for its options and its report; `--mode` is legacy, auto or 2026-07-28.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client


def wire(model: Any) -> dict[str, Any]:
    """Return a model as it is sent."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main() -> None:
    """Run the calls and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--target", required=True)
    parser.add_argument("--calls", type=json.loads, default=[])
    parser.add_argument("--headers", type=json.loads, default={})
    parser.add_argument("--surface", type=json.loads, default=None)
    options = parser.parse_args()
    changes = 0

    async def note(message: Any) -> None:
        nonlocal changes
        changes += getattr(message, "method", None) == "notifications/tools/list_changed"

    async with httpx2.AsyncClient(headers=options.headers, timeout=httpx2.Timeout(30, read=300)) as web:
        if options.target.startswith("{"):
            target = StdioServerParameters(**json.loads(options.target))
        elif options.target.endswith("/sse"):
            target = sse_client(options.target, headers=options.headers)
        else:
            target = streamable_http_client(options.target, http_client=web)
        async with Client(target, mode=options.mode, message_handler=note) as client:
            tools: list[dict[str, Any]] = []
            page = await client.list_tools()
            tools += map(wire, page.tools)
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += map(wire, page.tools)
            outcomes: list[dict[str, Any]] = []
            progress: list[int] = []
            for call in options.calls:
                seen: list[float] = []

                async def on_progress(
                    done: float, total: float | None, text: str | None, seen: list[float] = seen
                ) -> None:
                    seen.append(done)

                try:
                    result = await client.call_tool(call["name"], call.get("arguments"), progress_callback=on_progress)
                    outcomes.append({"result": wire(result)})
                except MCPError as error:
                    outcomes.append({"error": wire(error.error)})
                progress.append(len(seen))
            surface: dict[str, Any] = {}
            if options.surface is not None:
                surface = {
                    "prompts": [*map(wire, (await client.list_prompts()).prompts)],
                    "resources": [*map(wire, (await client.list_resources()).resources)],
                    "resourceTemplates": [*map(wire, (await client.list_resource_templates()).resource_templates)],
                    "gets": [wire(await client.get_prompt(name)) for name in options.surface.get("gets", ())],
                    "reads": [wire(await client.read_resource(uri)) for uri in options.surface.get("reads", ())],
                }
            report = surface | {
                "protocol": client.protocol_version,
                "server": client.server_info and wire(client.server_info),
                "instructions": client.instructions,
                "tools": tools,
                "calls": outcomes,
                "progress": progress,
                "changes": changes,
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    anyio.run(main)
