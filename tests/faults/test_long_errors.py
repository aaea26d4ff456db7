"""Errors of several megabytes are truncated, and other callers are answered concurrently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults.observing import cpu_of
from support.gateways import running_gateway, text_of
from support.pace import slowness
from support.upstreams.graphql_running import PLAIN, graphql_gateway
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

TEXT = "The rows are locked. " + "x" * 7_000_000


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_long_error_is_truncated_with_a_note(tmp_path: Path, over: str) -> None:
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
            assert "at most 65536 are forwarded" in json.dumps(result)
            assert len(json.dumps(result)) < 40_000
            assert cpu_of(gateway.process.pid) - before_s < 0.4 * slowness()
            assert len(gateway.logged()) < 20_000
            # A text in a result is not cut, because the model has asked for it.
            assert "isError" not in await gateway.call("up__echo", {"a": 1})

    if over == "http":
        async with scripted_http_server(tmp_path, "up", **script) as up:
            await check(up.config)
    else:
        config, _ = scripted_stdio_server(tmp_path, "up", **script)
        await check(config)


@pytest.mark.parametrize(("size", "is_cut"), [(16_384, False), (16_385, True)])
async def test_error_of_maximum_length_is_forwarded_whole(tmp_path: Path, size: int, is_cut: bool) -> None:
    behaviours = {"error": {"kind": "error", "with": {"message": "x" * size, "data": ["y" * 60_000]}}}
    config, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("error"), behaviours=behaviours)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__error")
        result = await gateway.call("up__error")
        assert ("x" * 16_384 in text_of(result), "(cut: " in text_of(result)) == (True, is_cut)
        assert "y" * 60_000 in json.dumps(result)


@pytest.mark.parametrize(
    ("errors", "begins"),
    [
        ([{"message": TEXT}], "The rows are locked. xxx"),
        ([{"message": "x" * 290_000}] * 25, "xxx"),
        (TEXT, "The rows are locked. xxx"),
        ({"message": {"detail": TEXT}}, "The rows are locked. xxx"),
        ([{"message": "No.", "path": ["y" * 1_000_000], "extensions": {"stack": "z" * 3_000_000}}], "No. (at yyy"),
    ],
    ids=["one", "many", "text", "nested", "data"],
)
async def test_long_graphql_error_is_truncated(tmp_path: Path, errors: Any, begins: str) -> None:
    async with graphql_gateway(tmp_path, {"a.graphql": PLAIN}) as (server, gateway):
        await gateway.until_listed("hr__list_people")
        server.change(fault={"kind": "answer", "body": json.dumps({"errors": errors})})
        before_s = cpu_of(gateway.process.pid)
        result = await gateway.call("hr__list_people")
        assert result["isError"]
        assert text_of(result).startswith(begins)
        assert len(text_of(result)) < 16_600
        assert "at most 65536 are forwarded" in json.dumps(result["_meta"])
        assert cpu_of(gateway.process.pid) - before_s < 0.4 * slowness()
        assert len(gateway.logged()) < 20_000


HIDDEN = "No \u202eseats\u200b \x1b[2Jleft\U000e0041."


@pytest.mark.heavy
async def test_hidden_characters_are_removed_from_errors(tmp_path: Path) -> None:
    behaviours = {"error": {"kind": "error", "with": {"message": HIDDEN}}}
    config, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("error"), behaviours=behaviours)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__error")
        assert "No seats left." in text_of(await gateway.call("up__error"))
    async with graphql_gateway(tmp_path, {"a.graphql": PLAIN}) as (server, other):
        await other.until_listed("hr__list_people")
        for errors in ([{"message": HIDDEN}], HIDDEN, {"error": HIDDEN}):
            server.change(fault={"kind": "answer", "body": json.dumps({"errors": errors})})
            assert text_of(await other.call("hr__list_people")) == "No seats left."
