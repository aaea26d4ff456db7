"""Elicitation during a call: missing capabilities, endless requests, cancellation and cleanup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.features_of_input import QUESTIONS, REPLIES
from e2e.lanes import Lane, entries
from e2e.processes import still_running, typegate
from support.gateways import MODERN, running_gateway
from support.hosts import VERSIONS
from support.hosts_connected import http_host, stdio_host
from support.upstreams.full_running import FullServer, full_http, full_stdio
from support.upstreams.running import children_of


@pytest.mark.parametrize("version", VERSIONS)
async def test_host_without_elicitation_gets_an_error(version: str, tmp_path: Path) -> None:
    async with full_http(tmp_path, "new", modern=True) as server:
        await cannot_be_asked(tmp_path, server, version)


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_server_asking_without_client_capability_is_refused(version: str, tmp_path: Path) -> None:
    await cannot_be_asked(tmp_path, full_stdio(tmp_path, "asking", modern=False, elicitation=True), version)


async def cannot_be_asked(tmp_path: Path, server: FullServer, version: str) -> None:
    """Have a server ask a host that declared nothing."""
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, version, gateway.client, declared={}) as host,
    ):
        lane = Lane(host=host, server=server, through=True)
        await lane.ready()
        for question in QUESTIONS.values():
            params = {"name": lane.name("ask"), "arguments": {"requests": {"it": question}}}
            answer = await host.ask("tools/call", params)
            assert "error" in answer or answer["result"].get("isError"), answer
            assert answer.get("result", {}).get("resultType", "complete") == "complete"
        assert [one for one in host.received if "id" in one.message] == []


async def test_endless_input_requests_are_stopped(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "new", modern=True) as new,
        running_gateway(tmp_path, entries([new])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as host,
    ):
        lane = Lane(host=host, server=new, through=True)
        await lane.ready()
        arguments = {"requests": {"who": QUESTIONS["who"]}, "endless": True}
        answer = await host.ask("tools/call", {"name": lane.name("ask"), "arguments": arguments}, within_s=20)
        assert "error" in answer or answer["result"]["isError"] is True, answer
        assert 1 <= len(host.of("elicitation/create")) <= 100
        assert (await lane.call("echo", after=1))["structuredContent"] == {"after": 1}


async def test_cancelled_call_withdraws_its_elicitation(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "new", modern=True) as new,
        full_http(tmp_path, "asking", modern=False, elicitation=True) as asking,
        running_gateway(tmp_path, entries([new, asking])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as host,
    ):
        host.hold = True
        for server in (new, asking):
            lane, since = Lane(host=host, server=server, through=True), len(host.received)
            await lane.ready()
            number = await lane.begin("ask", requests={"who": QUESTIONS["who"]})
            question = (await host.until(lambda since=since: host.of("elicitation/create", since)))[0].message
            await host.cancel(number)
            # A reply that arrives too late has no effect.
            await host.send({"jsonrpc": "2.0", "id": question["id"], "result": REPLIES["who"]})
            assert (await lane.call("echo", after=1))["structuredContent"] == {"after": 1}
            assert "result" not in host.answers.get(number, {})
        # Only the call of the handshake era is still open and can be cancelled.
        await asking.recording.until(lambda r: r.cancelled())


async def test_private_connection_of_a_session_ends_with_it(tmp_path: Path) -> None:
    asking = full_stdio(tmp_path, "asking", modern=False, elicitation=True)
    async with running_gateway(tmp_path, entries([asking])) as gateway:
        await gateway.until_listed("asking__ask")
        alone = len(list(children_of(gateway.process.pid)))
        async with http_host(gateway.url, "2025-11-25", gateway.client) as host:
            lane = Lane(host=host, server=asking, through=True)
            result = await lane.call("ask", requests={"who": QUESTIONS["who"]})
            assert result["structuredContent"] == {"replies": {"who": REPLIES["who"]}}
            assert len(list(children_of(gateway.process.pid))) == alone + 1
            headers = {**host.headers, "mcp-protocol-version": "2025-11-25"}
            assert (await gateway.client.delete(gateway.url, headers=headers)).status_code in (200, 204)
        pid = gateway.process.pid
        await asking.recording.until(lambda _: len(list(children_of(pid))) == alone)


async def test_prompt_and_resource_of_a_modern_server_forward_input_requests(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "new", modern=True) as new,
        running_gateway(tmp_path, entries([new])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as host,
    ):
        lane = Lane(host=host, server=new, through=True)
        await lane.ready()
        result = (await host.ask("resources/read", {"uri": lane.uri("guarded")}))["result"]
        assert (result["resultType"], result["inputRequests"]) == ("input_required", {"roots": QUESTIONS["where"]})
        # Results that ask are never cached.
        assert "ttlMs" not in result
        other = {"uri": lane.uri("note"), "inputResponses": {}, "requestState": result["requestState"]}
        assert (await host.ask("resources/read", other))["error"]["code"] == -32602


_FORMS_ONLY = [("2025-06-18", {}), ("2025-11-25", {}), ("2025-11-25", {"form": {}})]


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize(("version", "forms"), _FORMS_ONLY)
async def test_host_without_url_elicitation_is_sent_to_no_address(
    version: str, forms: dict[str, Any], modern: bool, tmp_path: Path
) -> None:
    elicitation = {"mode": "url", "message": "Go", "url": "https://example.com/", "elicitationId": "e1"}
    requests = {"go": {"method": "elicitation/create", "params": elicitation}}
    entry: dict[str, Any] = {} if modern else {"elicitation": True}
    async with (
        full_http(tmp_path, "s", modern=modern, **entry) as server,
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, version, gateway.client, declared={"elicitation": forms}) as host,
    ):
        lane = Lane(host=host, server=server, through=True)
        await lane.ready()
        result = await lane.call("ask", requests={"who": QUESTIONS["who"]})
        assert result["structuredContent"] == {"replies": {"who": REPLIES["who"]}}
        since = len(host.received)
        answer = await host.ask("tools/call", {"name": lane.name("ask"), "arguments": {"requests": requests}})
        assert "error" in answer or answer["result"].get("isError"), answer
        assert host.of("elicitation/create", since) == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_server_requesting_only_a_retry_is_called_again(version: str, tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "new", modern=True) as new,
        running_gateway(tmp_path, entries([new])) as gateway,
        http_host(gateway.url, version, gateway.client) as host,
    ):
        lane = Lane(host=host, server=new, through=True)
        await lane.ready()
        assert (await lane.call("ask", requests={}))["structuredContent"] == {"replies": {}}
        assert len(new.recording.calls("ask")) == 2


@pytest.mark.heavy
async def test_state_of_a_session_ends_with_its_process(tmp_path: Path) -> None:
    asking = full_stdio(tmp_path, "asking", modern=False, elicitation=True)
    file = tmp_path / "typegate.json"
    file.write_text(json.dumps({"mcpServers": entries([asking])}))
    config = typegate("stdio", "--config", str(file), "--state-dir", str(tmp_path / "state"))
    async with stdio_host(config, "2025-11-25", tmp_path / "host.log") as host:
        lane = Lane(host=host, server=asking, through=True)
        await lane.ready()
        assert (await lane.call("ask", requests=QUESTIONS))["structuredContent"] == {"replies": REPLIES}
        await host.notify("notifications/roots/list_changed")
        changed = "notifications/roots/list_changed"
        await asking.recording.until(lambda r: [one for one in r.events("notification") if one["method"] == changed])
        # One that is still being asked when its host leaves.
        host.hold = True
        since = len(host.received)
        await lane.begin("ask", requests={"who": QUESTIONS["who"]})
        await host.until(lambda: host.of("elicitation/create", since))
    started = asking.recording.starts()
    assert len(started) == 2
    await asking.recording.until(lambda _: still_running(started) == [])
