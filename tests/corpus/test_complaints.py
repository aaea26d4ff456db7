"""Real servers complain of a missing parameter in their own words, and the gateway knows which one is meant."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from corpus.cases import catalog_of
from corpus.servers import commands, listings
from e2e.processes import RawStdio, raw_stdio

from gateway.calls.error_hints import with_hint
from gateway.errors import RpcError, relay

pytestmark = pytest.mark.heavy

# None of these calls gets as far as a network: every server looks at the arguments first.
CALLS: Mapping[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "everything": ("echo", {}, ("message",)),
    "filesystem": ("write_file", {"path": "/x"}, ("content",)),
    "memory": ("create_entities", {}, ("entities",)),
    "thinking": ("sequentialthinking", {"thought": "t"}, ("nextThoughtNeeded", "thoughtNumber", "totalThoughts")),
    "github": ("get_issue", {"owner": "o"}, ("repo", "issue_number")),
    "gitlab": ("get_file_contents", {"project_id": "1"}, ("file_path",)),
    "time": ("get_current_time", {}, ("timezone",)),
    "git": ("git_commit", {"repo_path": "/nowhere"}, ("message",)),
    "fetch": ("fetch", {"raw": True}, ("url",)),
    "sqlite": ("read_query", {}, ("query",)),
    "calculator": ("calculate", {}, ("expression",)),
    "obsidian": ("obsidian_append_content", {"filepath": "a"}, ("content",)),
    "duckduckgo": ("search", {"max_results": 5}, ("query",)),
}


async def answer(process: RawStdio, tool: str, arguments: dict[str, Any], server: str) -> dict[str, Any]:
    """The result as the gateway has it before it looks for a complaint."""
    reply = await process.reply("tools/call", {"name": tool, "arguments": arguments})
    if "error" not in reply:
        return dict(reply["result"])
    error = reply["error"]
    return relay(RpcError(error["code"], error["message"], error.get("data")), server=server, verbatim=False)


def test_the_missing_parameter_is_found_in_what_thirteen_real_servers_say() -> None:
    catalog = catalog_of(listings())
    told: dict[str, str] = {}

    async def ask(server: str, config: Mapping[str, Any], turns: anyio.CapacityLimiter) -> None:
        tool, arguments, missing = CALLS[server]
        async with turns, raw_stdio(config) as process:
            await process.initialize("2025-06-18")
            said = await answer(process, tool, arguments, server)
        wrapper = catalog.get_by_tool(server, tool)
        assert wrapper is not None
        enriched = with_hint(said, wrapper, arguments)
        assert enriched["content"][:-1] == said["content"], (server, said)
        told[server] = enriched["content"][-1]["text"]
        assert f"Missing: {', '.join(missing)}. Keys sent: " in told[server], (server, said, told[server])

    async def ask_all(scratch: Path) -> None:
        turns = anyio.CapacityLimiter(4)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for server, config in commands(scratch).items():
                    if server in CALLS:
                        group.start_soon(ask, server, config, turns)

    with tempfile.TemporaryDirectory() as scratch:
        anyio.run(ask_all, Path(scratch))
    assert set(told) == set(CALLS)
