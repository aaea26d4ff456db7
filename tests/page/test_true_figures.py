"""The figures of the page equal those computed from the audit log, for 5,000 calls of every kind over two workers."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.browsers import expect, running_browser, visiting
from support.gateways import META, RunningGateway, envelope
from support.upstreams.running import builtin_tools, scripted_http_server
from support.worker_groups import running_workers, until

pytestmark = pytest.mark.heavy

CALLS = 5_000
CONNECTIONS = 16
KEYS = {name: "tg_" + name[0] * 40 for name in ("ann", "robot")}
SETTINGS: dict[str, Any] = {
    "auth": {"apiKeys": [{"name": name, "key": key} for name, key in KEYS.items()]},
    "policy": {"rules": [{"name": "no logs", "wrappers": ["up__log"], "deny": True}]},
}
STRICT = {
    "name": "strict",
    "inputSchema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
}
FAILED = {"content": [{"type": "text", "text": "no"}], "isError": True}


def some_call(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a call that succeeds, fails in one of four ways, is refused by a rule, or names no tool."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("up__echo", {"message": "x"}),
        ("up__sleep", {"seconds": chance.expovariate(100)}),
        ("up__error", {"code": -32000, "message": "no"}),
        ("up__result", {"result": FAILED}),
        ("up__strict", {}),
        ("up__log", {}),
        (f"up__nothing{chance.randrange(4)}", {}),
        ("list_servers", {}),
    ]
    return chance.choices(kinds, weights=[30, 30, 10, 10, 8, 5, 5, 2])[0]


async def call_all(gateway: RunningGateway) -> None:
    """Send the calls over several connections, which the kernel spreads over the workers."""
    chance = random.Random(37)
    calls = iter([(some_call(chance), chance.choice([*KEYS.values()])) for _ in range(CALLS)])
    host, port = urlsplit(gateway.origin).hostname, urlsplit(gateway.origin).port
    statuses: Counter[tuple[str, str]] = Counter()

    async def send() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        stack.callback(writer.close)
        for (name, arguments), key in calls:
            params = {"name": name, "arguments": arguments, "_meta": envelope()}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            head = {
                "host": f"{host}:{port}",
                "authorization": f"Bearer {key}",
                "content-type": "application/json",
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": params["_meta"][META + "protocolVersion"],
                "mcp-method": "tools/call",
                "mcp-name": name,
                "content-length": str(len(body)),
            }
            lines = "".join(f"{field}: {value}\r\n" for field, value in head.items())
            writer.write(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            # Errors of the protocol, such as unknown names, have the status 400.
            assert answer.startswith(("http/1.1 200", "http/1.1 400")), (name, answer)
            statuses[name.rstrip("0123456789"), answer[9:12]] += 1
            await reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))

    with ExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(send())
    assert len({name for name, _ in statuses}) == 8


class Counted:
    """The figures of one series according to the audit log."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.took_ms: list[float] = []

    def shown(self) -> tuple[int, int, int]:
        return self.counts["calls"], self.counts["errors"], self.counts["denied"]

    def quantile(self, share: float) -> float:
        return sorted(self.took_ms)[math.ceil(share * len(self.took_ms)) - 1]


def counted(state_dir: Path) -> dict[tuple[str, str], Counted]:
    """Count the calls in the audit log, without any code of the gateway."""
    found: defaultdict[tuple[str, str], Counted] = defaultdict(Counted)
    for line in (state_dir / "audit.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] == "call":
            name = row.get("wrapper") or row["name"]
            for key in (("all", ""), ("tool", name), ("caller", row["principal"]), ("server", row.get("server", ""))):
                found[key].counts["calls"] += 1
                found[key].counts["errors"] += row.get("outcome", {}).get("tool") != "ok"
                found[key].took_ms.append(row["ms"])
        elif row["event"] == "refused":
            more = 1 + row.get("more", 0)
            found["all", ""].counts["denied"] += more
            found["caller", row["principal"]].counts["denied"] += more
            if row["reason"] == "unknown_tool":
                found["unknown", row["name"]].counts["calls"] += 1
            else:
                found["tool", row["name"]].counts["denied"] += 1
                found["server", row["name"].partition("__")[0]].counts["denied"] += 1
    return dict(found)


def figures(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["calls"], row["errors"], row["denied"]


async def test_figures_of_the_page_equal_those_of_the_audit_log(tmp_path: Path) -> None:
    tools = [*builtin_tools("echo", "sleep", "error", "result", "log"), STRICT]
    async with (
        scripted_http_server(tmp_path, "up", tools=tools) as up,
        running_workers(tmp_path, {"up": up.config}, gateway=SETTINGS) as gateway,
        running_browser() as browser,
    ):
        await gateway.until_listed("up__strict", headers={"authorization": f"Bearer {KEYS['ann']}"})
        await call_all(gateway)

        async def complete() -> bool:
            total = (await gateway.admin("history?range=1h")).json()["total"]
            return total["calls"] >= counted(gateway.state_dir)["all", ""].counts["calls"] > CALLS * 0.8

        await until(complete, within_s=60)
        expected = counted(gateway.state_dir)
        everything = expected["all", ""]
        assert everything.counts["calls"] + everything.counts["denied"] <= CALLS
        for kind in ("tool", "caller", "server"):
            found = (await gateway.admin(f"history?range=1h&by={kind}")).json()
            assert figures(found["total"]) == everything.shown()
            series = {row["name"]: row for row in found["series"]}
            wanted = {name: one for (each, name), one in expected.items() if each == kind and name}
            assert {name: figures(row) for name, row in series.items()} == {
                name: one.shown() for name, one in wanted.items()
            }
            for name, one in wanted.items():
                for share, member in ((0.5, "p50Ms"), (0.95, "p95Ms")) if one.took_ms else ():
                    assert series[name][member] == pytest.approx(one.quantile(share), rel=0.1, abs=0.02), name
        activity = (await gateway.admin("activity")).json()
        unknown = {row["name"]: row["calls"] for row in activity["unknownTools"]}
        assert unknown == {name: one.counts["calls"] for (kind, name), one in expected.items() if kind == "unknown"}
        assert {row["name"]: figures(row) for row in activity["callers"]} == {
            name: one.shown() for (kind, name), one in expected.items() if kind == "caller"
        }
        async with visiting(browser, gateway) as visit:
            history = visit.page.get_by_role("region", name="Calls over time")
            for word, number in zip(("Calls", "Failed", "Refused"), everything.shown(), strict=True):
                tile = history.locator("dl > div").filter(has=visit.page.get_by_text(word, exact=True))
                await expect(tile.get_by_text(str(number), exact=True)).to_be_visible(timeout=60_000)
            await history.get_by_label("Figures of each").select_option(label="Tool")
            for (kind, name), one in expected.items():
                if kind == "tool":
                    row = history.get_by_role("row").filter(has=visit.page.get_by_role("link", name=name, exact=True))
                    calls, errors, denied = one.shown()
                    await expect(row.get_by_role("cell").nth(0)).to_have_text(str(calls), timeout=60_000)
                    await expect(row.get_by_role("cell").nth(2)).to_contain_text(str(errors))
                    await expect(row.get_by_role("cell").nth(3)).to_have_text(str(denied))
            visit.check_quiet()
