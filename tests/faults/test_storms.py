"""Storms of notifications: lists settle, announcements are bounded, and the last change is not lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import announcements, cpu_of, eventually, rss_of
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.pace import slowness
from support.upstreams.running import builtin_tools, scripted_stdio_server

# Sends its kind of storm for a few seconds, then lists `last` and announces the list once.
PROGRAM = """
import json, random, sys, threading, time
KIND, MODERN = sys.argv[1], sys.argv[2] == "modern"
requested, over, lock, listens = {}, threading.Event(), threading.Lock(), {}
def send(message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def announce(*kinds, **more):
    for kind in kinds or ("tools", "resources", "prompts"):
        message = {"method": f"notifications/{kind}/list_changed", **more}
        for listen in [one for one, wanted in listens.items() if kind in wanted] if MODERN else [None]:
            meta = {"params": {"_meta": {"io.modelcontextprotocol/subscriptionId": listen}}} if MODERN else {}
            send(message | meta)
def storm():
    end, n = time.monotonic() + 4, 0
    while time.monotonic() < end:
        n += 1
        if KIND == "announcements with odd parameters":
            for params in (None, [], "x", {"_meta": 5}, {"a": [1]}):
                send({"method": "notifications/tools/list_changed", "params": params})
        elif KIND == "updates":
            send({"method": "notifications/resources/updated", "params": {"uri": f"doc://{n}"}})
            send({"method": "notifications/resources/updated", "params": {"uri": "doc://a"}})
        elif KIND == "pings":
            send({"id": f"p{n}", "method": "ping"})
        elif KIND == "questions":
            send({"id": f"q{n}", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
            send({"id": f"r{n}", "method": "roots/list"})
        elif KIND == "logs":
            send({"method": "notifications/message", "params": {"level": "error", "data": "x" * 200}})
        elif KIND == "progress of nobody":
            send({"method": "notifications/progress", "params": {"progressToken": n, "progress": n}})
        elif KIND == "cancellations":
            send({"method": "notifications/cancelled", "params": {"requestId": n}})
        elif KIND == "unknown notifications":
            send({"method": "notifications/vendor/tick", "params": {"n": n}})
        elif KIND == "answers to nobody":
            send({"id": 10**6 + n, "result": {}})
        elif KIND in ("announcements", "an order that changes", "a clock in a description", "a tool that flaps"):
            announce()
        if n % 20 == 0:
            time.sleep(0.01)
    over.set()
    announce()
def tools():
    if over.is_set():
        names = ["last", "count"]
    elif KIND == "a tool that flaps":
        names = ["count", f"flap{requested['tools/list'] % 2}"]
    else:
        names = ["count", "x", "y", "z"]
    if KIND == "an order that changes":
        random.shuffle(names)
    clock = f" It is {time.time()}." if KIND == "a clock in a description" and not over.is_set() else ""
    return [{"name": name, "description": f"Does {name}.{clock}", "inputSchema": {"type": "object"}} for name in names]
if KIND == "announcements before the handshake":
    announce()
about = {"serverInfo": {"name": "s", "version": "1"},
    "capabilities": {kind: {"listChanged": True} for kind in ("tools", "prompts", "resources")}}
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if "id" not in message or method is None:
        if method == "notifications/initialized":
            threading.Thread(target=storm, daemon=True).start()
        continue
    requested[method] = requested.get(method, 0) + 1
    if method == "initialize" and KIND == "announcements before the handshake":
        for _ in range(1000):
            announce()
    results = {
        "prompts/list": lambda: {"prompts": [{"name": "last" if over.is_set() else "p"}]},
        "resources/list": lambda: {"resources": [{"name": "a", "uri": "doc://a"}]},
        "resources/templates/list": lambda: {"resourceTemplates": []},
        "tools/list": lambda: {"tools": tools()},
        "tools/call": lambda: {"content": [{"type": "text", "text": json.dumps(requested)}]},
        "initialize": lambda: {"protocolVersion": "2025-11-25", **about},
        "server/discover": lambda: {"supportedVersions": ["2026-07-28"], **about} if MODERN else None,
    }
    result = results.get(method, lambda: None)()
    if method == "subscriptions/listen" and MODERN:
        wanted = message["params"]["notifications"]
        kinds = ("tools", "prompts", "resources")
        listens[message["id"]] = [kind for kind in kinds if wanted.get(kind + "ListChanged")]
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        send({"method": "notifications/subscriptions/acknowledged", "params": {"notifications": wanted, "_meta": meta}})
        if len(listens) == 1:
            threading.Thread(target=storm, daemon=True).start()
        continue
    answer = {"error": {"code": -32601, "message": "?"}} if result is None else {"result": result}
    if MODERN and result is not None:
        result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    send({"id": message["id"], **answer})
    if over.is_set():
        continue
    if KIND == "lists that cause each other" and method.endswith("/list"):
        announce("prompts" if method == "tools/list" else "tools")
    if KIND == "calls that announce" and method == "tools/call":
        announce()
"""
KINDS = [
    "announcements", "announcements before the handshake", "announcements with odd parameters", "a tool that flaps",
    "an order that changes", "a clock in a description", "lists that cause each other", "calls that announce",
    "updates", "pings", "questions", "logs", "progress of nobody", "cancellations", "unknown notifications",
    "answers to nobody",
]  # fmt: skip
MODERN_KINDS = ["announcements", "a tool that flaps", "an order that changes", "lists that cause each other", "updates"]
# As many listings as a burst allows, those at the start and at the end, and one a second.
BURST = 16


async def names_of(gateway: RunningGateway, kind: str) -> set[str]:
    return {one["name"] for one in (await gateway.rpc(f"{kind}/list"))["result"][kind]}


async def check(tmp_path: Path, kind: str, era: str) -> None:
    program = tmp_path / "storm.py"
    program.write_text(PROGRAM)
    storm = {"command": sys.executable, "args": ["-S", "-E", str(program), kind, era]}
    calm, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"storm": storm, "calm": calm}) as gateway:
        await gateway.until_listed("calm__echo", "storm__count")
        memory, began_s = rss_of(gateway.process.pid), anyio.current_time()
        async with announcements(gateway) as announced:
            seen: dict[str, Any] = {}
            for number in range(30):
                assert (await gateway.call("calm__echo", {"n": number}))["structuredContent"] == {"n": number}
                await gateway.call("storm__count")
                await anyio.sleep(0.05)
            seen = await gateway.until_listed("storm__last", within_s=20)
            took_s = anyio.current_time() - began_s
            assert set(seen) == {"storm__last", "storm__count", "calm__echo"}
            await eventually(lambda: announced.changes > 0)
            assert announced.changes <= 22 + took_s
        counts = json.loads(text_of(await gateway.call("storm__count")))
        assert counts["tools/list"] <= BURST + took_s, counts
        assert counts.get("prompts/list", 0) <= BURST + took_s, counts
        with anyio.fail_after(25):
            while "storm__last" not in (prompts := await names_of(gateway, "prompts")):
                await brief_pause()
        assert "storm__p" not in prompts
        # Nothing piles up, and all is quiet once the storm is over.
        assert rss_of(gateway.process.pid) - memory < 40 * 2**20
        await anyio.sleep(0.5)
        before_s = cpu_of(gateway.process.pid)
        await anyio.sleep(1)
        assert cpu_of(gateway.process.pid) - before_s < 0.5 * slowness()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
async def test_notification_storm_settles_and_others_are_answered(tmp_path: Path, kind: str) -> None:
    await check(tmp_path, kind, "handshake")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", MODERN_KINDS)
async def test_notification_storm_of_a_modern_server_settles_and_others_are_answered(tmp_path: Path, kind: str) -> None:
    await check(tmp_path, kind, "modern")
