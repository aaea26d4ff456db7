"""Included files are watched like the main one."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from support.gateways import RunningGateway, brief_pause, running_gateway
from support.upstreams.running import scripted_stdio_server, tool


async def until_described(gateway: RunningGateway, text: str) -> None:
    with anyio.fail_after(25):
        while (await gateway.tools())["a__read"]["description"] != text:
            await brief_pause()


async def until_warned(gateway: RunningGateway, part: str) -> None:
    with anyio.fail_after(25):
        while part not in str((await gateway.admin("config")).json()["warnings"]):
            await brief_pause()


async def until_error(gateway: RunningGateway, part: str) -> None:
    with anyio.fail_after(25):
        while part not in str((await gateway.admin("config")).json()["error"]):
            await brief_pause()


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
async def test_included_files_are_reloaded_as_they_appear_change_and_disappear(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    config, _ = scripted_stdio_server(tmp_path, "a", tools=[tool("read")])
    async with running_gateway(tmp_path, {"a": {**config, "copies": True}}, arguments=arguments) as gateway:
        await gateway.until_listed("a__read")
        more = gateway.config.parent / "supplements"
        whole = json.loads(gateway.config.read_text())
        gateway.config.write_text(json.dumps({**whole, "include": ["supplements/*.yaml"]}))
        await until_warned(gateway, "include[0]: supplements/*.yaml matches no file")
        more.mkdir()
        (more / "a.yaml").write_text("mcpServers: {a: {supplement: One.}}")
        await until_described(gateway, "Does read.\n\nOne.")
        (more / "a.yaml").write_text("mcpServers: {a: {supplement: Two.}}")
        await until_described(gateway, "Does read.\n\nTwo.")
        (more / "b.yaml").write_text("mcpServers: {a: {supplement: Three.}}")
        await until_error(gateway, "b.yaml: mcpServers.a.supplement: is also given in")
        assert (await gateway.tools())["a__read"]["description"] == "Does read.\n\nTwo."
        (more / "b.yaml").write_text("mcpServers: {a: {tools: {read: {supplement: Three.}}}}")
        await until_described(gateway, "Does read.\n\nTwo.\n\nThree.")
        (more / "a.yaml").unlink()
        await until_described(gateway, "Does read.\n\nThree.")
