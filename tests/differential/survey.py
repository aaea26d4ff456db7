"""List everything of one server and make calls, with the Python SDK in its `auto` mode; print a survey as JSON.

The plan is a JSON file: `target` (a URL, or `command`, `args`, `env` and `cwd`), `calls` (`[name, arguments]` each) and
`deadline_s` for each call. The survey is described in `surveys.Survey`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

# Some servers never answer a list that they declare.
_LIST_S = 20


def wire(model: Any) -> dict[str, Any]:
    """Return a model as it is sent."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def listed(client: Client, kind: str) -> Any:
    """Return all pages of one list, or `{"error": text}` where the client cannot read one of them."""
    ask = getattr(client, f"list_{kind}")
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    try:
        with anyio.fail_after(_LIST_S):
            while True:
                page = await ask(cursor=cursor) if cursor else await ask()
                found += map(wire, getattr(page, kind))
                cursor = page.next_cursor
                if not cursor:
                    return found
    except Exception as error:  # noqa: BLE001 - whatever a client makes of a list is an outcome to compare
        return {"error": f"{type(error).__name__}: {error}"[:400]}


async def called(client: Client, name: str, arguments: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """Return what one call gave: `result`, `error` or `late`."""
    with anyio.move_on_after(deadline_s):
        try:
            return {"result": wire(await client.call_tool(name, arguments))}
        except MCPError as error:
            return {"error": {"code": error.error.code, "message": error.error.message}}
        except Exception as error:  # noqa: BLE001 - the client refuses what it got
            return {"error": {"code": None, "message": f"{type(error).__name__}: {error}"[:1000]}}
    return {"late": True}


async def main(plan: dict[str, Any]) -> None:
    """Make the survey of a plan and print it."""
    target = plan["target"]
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(30, read=300)) as web:
        source = (
            streamable_http_client(target, http_client=web)
            if isinstance(target, str)
            else StdioServerParameters(**target)
        )
        async with Client(source, mode="auto") as client:
            capabilities = wire(client.server_capabilities)
            survey = {
                "tools": await listed(client, "tools") if "tools" in capabilities else [],
                "prompts": await listed(client, "prompts") if "prompts" in capabilities else [],
                "resources": await listed(client, "resources") if "resources" in capabilities else [],
                "templates": await listed(client, "resource_templates") if "resources" in capabilities else [],
                "calls": [await called(client, *call, plan["deadline_s"]) for call in plan["calls"]],
            }
            print(json.dumps(survey), flush=True)


if __name__ == "__main__":
    anyio.run(main, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
