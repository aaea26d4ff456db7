"""A minimal proxy built with the SDK: its server in front, and one client behind."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.client import Client
from mcp.server import Server, ServerRequestContext


async def main() -> None:
    """Serve `argv[1]` at port `argv[2]`."""
    url, port = sys.argv[1:]
    async with Client(url) as client:

        async def list_tools(
            context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
        ) -> types.ListToolsResult:
            return await client.list_tools()

        async def call_tool(
            context: ServerRequestContext[Any], params: types.CallToolRequestParams
        ) -> types.CallToolResult:
            return await client.call_tool(params.name, params.arguments or {})

        server = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
        app = server.streamable_http_app(json_response=True)
        config = uvicorn.Config(app, host="127.0.0.1", port=int(port), access_log=False, log_level="error")
        await uvicorn.Server(config).serve()


anyio.run(main, backend_options={"use_uvloop": True})
