"""Real servers report a missing parameter in their own words, and the gateway finds which one."""

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

from gateway.calls.advice.error_hints import with_hint
from gateway.protocol.gateway_errors import RpcError, relay

pytestmark = pytest.mark.heavy

# None of these calls reaches a network, because every server checks the arguments first.
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
    """Return the result of a call as the gateway receives it, before it looks for complaints about arguments."""
    reply = await process.reply("tools/call", {"name": tool, "arguments": arguments})
    if "error" not in reply:
        return dict(reply["result"])
    error = reply["error"]
    return relay(RpcError(error["code"], error["message"], error.get("data")), server=server, verbatim=False)


def test_missing_parameter_is_found_in_errors_of_thirteen_real_servers() -> None:
    catalog = catalog_of(listings())
    texts: dict[str, str] = {}

    async def ask(server: str, config: Mapping[str, Any], turns: anyio.CapacityLimiter) -> None:
        tool, arguments, missing = CALLS[server]
        async with turns, raw_stdio(config) as process:
            await process.initialize("2025-06-18")
            result = await answer(process, tool, arguments, server)
        wrapper = catalog.by_tool.get((server, tool))
        assert wrapper is not None
        enriched = with_hint(result, wrapper, arguments)
        assert enriched["content"][:-1] == result["content"], (server, result)
        texts[server] = enriched["content"][-1]["text"]
        assert f"Missing: {', '.join(missing)}. Keys sent: " in texts[server], (server, result, texts[server])

    async def ask_all(scratch: Path) -> None:
        turns = anyio.CapacityLimiter(4)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for server, config in commands(scratch).items():
                    if server in CALLS:
                        group.start_soon(ask, server, config, turns)

    with tempfile.TemporaryDirectory() as scratch:
        anyio.run(ask_all, Path(scratch))
    assert set(texts) == set(CALLS)
