"""`typegate stdio --url`: a stdio host connected to a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import call_of, hello, listen_to, running_host
from support.gateways import COMMANDS, META, envelope, running_gateway
from support.upstreams.running import builtin_tools, rescript, scripted_stdio_server, tool, unused_port

CHANGED = "notifications/tools/list_changed"
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def old_call(name: str, arguments: Any = None, request_id: Any = 1, **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments or {}, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def modern(method: str, request_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"_meta": envelope()}}


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.heavy
async def test_lists_calls_errors_and_progress_pass_through_in_each_era(tmp_path: Path, era: str) -> None:
    server, record = scripted_stdio_server(
        tmp_path, "up", tools=[*builtin_tools("echo", "progress"), tool("naïve tool")]
    )
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        names = set(await gateway.until_listed("up__echo"))
        async with running_host(tmp_path, "--url", gateway.url) as host:
            if era == "handshake":
                opened = await host.answer(hello("2025-06-18"))
                assert opened["result"]["protocolVersion"] == "2025-06-18"
                await host.send(INITIALIZED)
                listed = await host.answer({"jsonrpc": "2.0", "id": "l", "method": "tools/list"})
                make = old_call
            else:
                assert (await host.answer(modern("server/discover", "d")))["result"]["supportedVersions"]
                listed = await host.answer(modern("tools/list", "l"))
                make = call_of
            assert {one["name"] for one in listed["result"]["tools"]} == {*names, "invoke_tool", "get_server_details"}
            value = {"a": [2**70, None, "é", {"deep": [[]]}]}
            answer = await host.answer(make("up__echo", value, request_id="été"))
            assert answer["result"]["structuredContent"] == value
            unknown = await host.answer(make("nothing-of-ours", request_id=5))
            assert unknown["error"]["code"] == -32602
            odd = await host.answer(make("ünknown → name", request_id=6))
            assert odd["error"]["code"] == -32602, odd
            before = len(host.received)
            await host.answer(make("up__progress", {"count": 1000}, request_id="p", progressToken="t"), within_s=20)
            steps = [one for one in host.received[before:-1] if one.get("method") == "notifications/progress"]
            assert [one["params"]["progress"] for one in steps] == list(range(1, 1001))
            assert {one["params"]["progressToken"] for one in steps} == {"t"}
            await host.send(b"{", b"", b"[]")
            assert (await host.until(lambda one: one.get("error", {}).get("code") == -32700))["id"] is None
            assert (await host.answer(make("up__echo", {"a": 1}, request_id="after")))["result"]
            assert len(record.calls("echo")) == 2
            assert await host.leave() == 0
            assert "Traceback" not in host.log.read_text()


@pytest.mark.heavy
async def test_changes_reach_the_host_in_both_eras(tmp_path: Path) -> None:
    script = {"tools": [tool("first")], "list_changed": True}
    server, record = scripted_stdio_server(tmp_path, "up", **script)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__first")
        async with running_host(tmp_path, "--url", gateway.url) as host:
            await host.answer(hello())
            await host.send(INITIALIZED)
            await host.send(listen_to("mine"))
            acknowledged = await host.until(lambda one: "acknowledged" in one.get("method", ""))
            assert acknowledged["params"]["_meta"] == {META + "subscriptionId": "mine"}
            rescript(server, record, announce=True, **{**script, "tools": [tool("second")]})
            await host.until(lambda one: one.get("method") == CHANGED and "params" not in one)
            notification = await host.until(lambda one: one.get("method") == CHANGED and "params" in one)
            assert notification["params"] == {"_meta": {META + "subscriptionId": "mine"}}
            await host.until_listed("up__second")
            assert await gateway.stop() == 0
            ended = await host.until(lambda one: one.get("id") == "mine")
            assert ended["result"]["_meta"][META + "subscriptionId"] == "mine"


@pytest.mark.heavy
async def test_session_is_renewed_after_the_gateway_restarts(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    port = ("--port", str(unused_port()))
    async with running_gateway(tmp_path, {"up": server}, arguments=port) as gateway:
        await gateway.until_listed("up__echo")
        async with running_host(tmp_path, "--url", gateway.url) as host:
            await host.answer(hello())
            await host.send(INITIALIZED)
            assert (await host.answer(old_call("up__echo", {"a": 1}, "before")))["result"]
            assert await gateway.stop() == 0
            down = await host.answer(old_call("up__echo", {"a": 2}, "down"))
            assert gateway.url in down["error"]["message"]
            assert (await host.answer(call_of("up__echo", {"a": 2}, request_id="down-2")))["error"]
            (tmp_path / "again").mkdir()
            async with running_gateway(tmp_path / "again", {"up": server}, arguments=port, gateway=COMMANDS) as other:
                await other.until_listed("up__echo")
                with anyio.fail_after(25):
                    # Several requests find the session gone at once; it is renewed for all of them.
                    await host.send(*(old_call("up__echo", {"n": number}, f"after-{number}") for number in range(5)))
                    for number in range(5):
                        answer = await host.until(lambda one, key=f"after-{number}": one.get("id") == key)
                        assert answer["result"]["structuredContent"] == {"n": number}
                assert (await host.answer(call_of("up__echo", request_id="new-era")))["result"]
                assert len(record.calls()) == 1 + 5 + 1
                # The notifications of the new session are followed as well.
                added = {"name": "more", "config": server}
                count_before = len(host.received)
                assert (await other.admin("servers", "POST", added)).status_code == 201
                await host.until(lambda one: one.get("method") == CHANGED and len(host.received) > count_before)
                assert not [one for one in host.received if one.get("id") == "typegate-renew"]
                assert await host.leave() == 0


@pytest.mark.heavy
async def test_key_in_a_header_works_and_appears_in_no_message_or_log(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    keys = {"auth": {"apiKeys": [{"name": "ann", "key": "key-of-ann"}]}}
    async with running_gateway(tmp_path, {"up": server}, gateway=keys) as gateway:
        async with running_host(tmp_path, "--url", gateway.url, "--header", "Authorization: Bearer key-of-ann") as host:
            await host.answer(hello())
            await host.until_listed("up__echo")
            assert (await host.answer(call_of("up__echo", {"a": 1}, request_id="x")))["result"]
            assert await host.leave() == 0
        async with running_host(tmp_path, "--url", gateway.url, "--header", "Authorization: Bearer other-key") as host:
            for request in (hello(), modern("tools/list", "l"), old_call("up__echo", {}, "c")):
                refused = await host.answer(request)
                assert "401" in refused["error"]["message"] or "API key" in refused["error"]["message"], refused
                assert "other-key" not in str(refused)
            assert await host.leave() == 0
        assert "key" not in host.log.read_text()
        assert "key-of-ann" not in gateway.logged()


@pytest.mark.heavy
async def test_unreachable_gateway_is_an_error_answer_and_works_later(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    number = unused_port()
    async with running_host(tmp_path, "--url", f"http://127.0.0.1:{number}/mcp") as host:
        answer = await host.answer(hello())
        assert f"127.0.0.1:{number}" in answer["error"]["message"]
        assert (await host.answer(modern("tools/list", "l")))["error"]
        async with running_gateway(tmp_path, {"up": server}, arguments=("--port", str(number))) as gateway:
            await gateway.until_listed("up__echo")
            assert (await host.answer(hello(request_id="again")))["result"]
            assert (await host.answer(old_call("up__echo", {"a": 1}, "c")))["result"]["structuredContent"] == {"a": 1}
            assert await host.leave() == 0
