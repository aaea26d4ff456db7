"""The manual page about prompts and resources: its client is run, and its tables are compared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.features_of_input import QUESTIONS as EXAMPLES
from e2e.lanes import Lane, entries
from support.gateways import MODERN, running_gateway, serving
from support.guide_pages import ORIGIN, code_blocks, local_config, section, symptoms, table
from support.hosts_connected import http_host
from support.upstreams.full_running import FullServer, full_http, full_stdio

from gateway.calls.builtin_tools import BUILTIN_PROMPTS
from gateway.calls.forwarding import MAX_ROUNDS
from gateway.calls.item_requests import _MAX_OWNERS
from gateway.config.auth_config import QuotaLimits
from gateway.downstream.subscriptions import MAX_SUBSCRIBED
from gateway.protocol.versions import QUESTIONS
from gateway.upstream.inbound_messages import ASK_S
from registry.catalog.uris import qualified_uri

PAGE = "prompts-and-resources"


@pytest.mark.heavy
async def test_client_on_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    server, client = code_blocks(PAGE, "python")
    (tmp_path / "notes.py").write_text(server)
    config = local_config(code_blocks(PAGE, "yaml")[0].replace("notes.py", str(tmp_path / "notes.py")), tmp_path)
    async with serving(config, tmp_path) as gateway:
        await gateway.until_listed("kitchen__clear", "garage__clear")
        (tmp_path / "client.py").write_text(client.replace(ORIGIN, gateway.origin))
        with anyio.fail_after(30):
            ended = await anyio.run_process([sys.executable, str(tmp_path / "client.py")], stderr=subprocess.PIPE)
    assert ended.stdout.decode() == code_blocks(PAGE, "text")[0]


def test_shared_uris_are_formed_as_the_page_says() -> None:
    for row in table(section(PAGE, "Resources")):
        own, exposed = (re.findall(r"`([^`]+)`", cell)[0] for cell in row)
        assert qualified_uri("kitchen", own) == exposed


def test_names_and_limits_on_the_page_match_the_program() -> None:
    rows = table(section(PAGE, "User input during a call"))
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == QUESTIONS
    text = section(PAGE, "User input during a call")
    assert f"One caller can have {QuotaLimits().private_connections} such connections" in text
    assert f"can ask {MAX_ROUNDS} times" in text
    assert "ten minutes" in text
    assert ASK_S == 600
    assert f"can have {MAX_SUBSCRIBED:,}." in section(PAGE, "Forwarded features")
    assert "up to eight connected servers" in section(PAGE, "Resources")
    assert _MAX_OWNERS == 8
    assert all(f"`{prompt['name']}`" in section(PAGE, "Prompts") for prompt in BUILTIN_PROMPTS)


def documented(beginning: str) -> list[str]:
    """Return the parts of a message of the page between its ellipses."""
    [text] = [text for text in symptoms(PAGE) if beginning in text]
    return [part.strip() for part in text.split("…") if part.strip()]


def ask_params(lane: Lane) -> dict[str, Any]:
    """Return the params of a call in which the server asks the user."""
    return {"name": lane.name("ask"), "arguments": {"requests": {"who": EXAMPLES["who"]}}}


async def test_unknown_items_and_pages_are_refused_as_on_the_page(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        for method, params, message in (
            ("prompts/get", {"name": "review"}, "Unknown prompt"),
            ("resources/read", {"uri": "notes://today"}, "Resource not found"),
            ("prompts/list", {"cursor": "2"}, "Invalid cursor"),
        ):
            headers = {"mcp-name": params["uri"]} if "uri" in params else {}
            answer = await gateway.rpc(method, params, headers=headers)
            assert answer["error"]["message"].startswith(documented(message)[0])


@pytest.mark.heavy
async def test_input_works_or_is_refused_as_the_page_says(tmp_path: Path) -> None:
    asking = full_stdio(tmp_path, "asking", modern=False, elicitation=True)
    quiet = full_stdio(tmp_path, "quiet", modern=False)
    async with full_http(tmp_path, "new", modern=True) as new:
        servers = [new, asking, quiet]
        async with (
            running_gateway(tmp_path, entries(servers)) as gateway,
            http_host(gateway.url, MODERN, gateway.client) as modern,
            http_host(gateway.url, "2025-11-25", gateway.client) as earlier,
            http_host(gateway.url, "2025-11-25", gateway.client, declared={"elicitation": {"url": {}}}) as unable,
        ):

            async def answer(host: Any, server: FullServer) -> str:
                lane = Lane(host=host, server=server, through=True)
                await lane.ready()
                return str(await host.settle("tools/call", ask_params(lane)))

            for host, server in ((modern, new), (earlier, new), (earlier, asking)):
                assert "'structuredContent': {'replies'" in await answer(host, server)
            for host, server, message in (
                (modern, quiet, "in which a server asks"),
                (earlier, quiet, "its entry in the configuration"),
                (unable, new, "does not offer"),
            ):
                refusal = await answer(host, server)
                assert all(part in refusal for part in documented(message)), refusal
            # A request state is valid for one request only.
            lane = Lane(host=modern, server=new, through=True)
            result = (await modern.ask("tools/call", ask_params(lane)))["result"]
            other = {"name": lane.name("ask"), "arguments": {"requests": {}}, "requestState": result["requestState"]}
            refused = await modern.ask("tools/call", {**other, "inputResponses": {}})
            assert documented("requestState")[0] in str(refused)
