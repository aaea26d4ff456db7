"""Large parts of requests and answers are processed outside the event loop, with equal results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server, tool

ROW = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": False}
# 0.8 s before they were moved, and about 60 ms now, of which the test allows a multiple for slow machines.
MOST_LOOP_MS = 250


def loop_ms(gateway: RunningGateway) -> float:
    """Return the processor time of the main thread, which runs the event loop."""
    pid = gateway.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


def answering(result: dict[str, Any]) -> dict[str, Any]:
    """Return the script of a server whose tool `big` has this result."""
    return {"tools": builtin_tools("big"), "behaviours": {"big": {"kind": "result", "with": {"result": result}}}}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count threads here")
@pytest.mark.heavy
async def test_hundred_thousand_links_arrive_without_blocking_the_event_loop(tmp_path: Path) -> None:
    links = [{"type": "resource_link", "uri": f"file:///{n}", "name": "n"} for n in range(100_000)]
    config, _ = scripted_stdio_server(tmp_path, "up", **answering({"content": links}))
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__big")
        before = loop_ms(gateway)
        result = await gateway.call("up__big")
        assert loop_ms(gateway) - before < MOST_LOOP_MS
        assert result["content"] == links


@pytest.mark.parametrize("meta", [{f"key{n}": n for n in range(400_000)}, {"key": [1] * 60_000}], ids=["many", "long"])
async def test_oversized_meta_is_omitted_and_reported(tmp_path: Path, meta: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "here"}]
    config, _ = scripted_stdio_server(tmp_path, "up", **answering({"content": content, "_meta": meta}))
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__big")
        result = await gateway.call("up__big")
        assert result["content"] == content
        assert result["_meta"]["typegate/leftOut"] == {"_meta": "it had more than 10,000 members or 50,000 values"}
        assert not meta.keys() & result["_meta"].keys()


async def test_meta_of_usual_size_arrives(tmp_path: Path) -> None:
    meta = {"example.com/trace": "x" * 1_000_000, "typegate/leftOut": "forged"}
    config, _ = scripted_stdio_server(tmp_path, "up", **answering({"content": [], "_meta": meta}))
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__big")
        result = await gateway.call("up__big")
        assert result["_meta"]["example.com/trace"] == meta["example.com/trace"]
        assert "typegate/leftOut" not in result["_meta"]


@pytest.mark.parametrize("name", ["up__load", "invoke_tool"])
async def test_rows_in_a_long_json_string_arrive_as_rows(tmp_path: Path, name: str) -> None:
    rows = [{"id": n} for n in range(30_000)]
    load = tool("load", rows={"type": "array", "items": ROW})
    config, recording = scripted_stdio_server(tmp_path, "up", tools=[load])
    whole = json.dumps({"rows": rows})
    sent = {"server": "up", "tool": "load", "arguments": whole} if name == "invoke_tool" else whole
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__load")
        for arguments in (sent, {"rows": json.dumps(rows)} if name == "up__load" else sent):
            result = await gateway.call(name, arguments, timeout_s=60)
            assert "isError" not in result or not result["isError"], result
            assert recording.calls("load")[-1]["arguments"] == {"rows": rows}
