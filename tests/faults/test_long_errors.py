"""Errors of megabytes: the caller gets their beginning, and other callers are answered meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults.observing import cpu_of
from support.gateways import running_gateway, text_of
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

TEXT = "The rows are locked. " + "x" * 7_000_000


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_a_long_error_is_cut_with_a_note(tmp_path: Path, over: str) -> None:
    script: dict[str, Any] = {
        "tools": builtin_tools("echo", "error"),
        "behaviours": {"error": {"kind": "error", "with": {"message": TEXT, "data": {"why": "y" * 500_000}}}},
    }

    async def check(config: Any) -> None:
        async with running_gateway(tmp_path, {"up": config}) as gateway:
            await gateway.until_listed("up__error")
            before_s = cpu_of(gateway.process.pid)
            result = await gateway.call("up__error")
            assert result["isError"]
            assert text_of(result).startswith("The rows are locked. xxx")
            assert "these are the first 16384 of 7000021 characters" in text_of(result)
            assert "at most 65536 are passed on" in json.dumps(result)
            assert len(json.dumps(result)) < 40_000
            assert cpu_of(gateway.process.pid) - before_s < 0.4
            assert len(gateway.logged()) < 20_000
            # What a tool says in a result is what its model has asked for.
            assert "isError" not in await gateway.call("up__echo", {"a": 1})

    if over == "http":
        async with scripted_http_server(tmp_path, "up", **script) as up:
            await check(up.config)
    else:
        config, _ = scripted_stdio_server(tmp_path, "up", **script)
        await check(config)


@pytest.mark.parametrize(("size", "is_cut"), [(16_384, False), (16_385, True)])
async def test_an_error_of_the_greatest_length_is_passed_on_whole(tmp_path: Path, size: int, is_cut: bool) -> None:
    behaviours = {"error": {"kind": "error", "with": {"message": "x" * size, "data": ["y" * 60_000]}}}
    config, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("error"), behaviours=behaviours)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__error")
        result = await gateway.call("up__error")
        assert ("x" * 16_384 in text_of(result), "(cut: " in text_of(result)) == (True, is_cut)
        assert "y" * 60_000 in json.dumps(result)
