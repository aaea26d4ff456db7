"""Alerts checked by `promtool`, and dashboard queries against a real Prometheus and gateway."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from ruamel.yaml import YAML
from support.callers import call_of
from support.gateways import RunningGateway, brief_pause, running_gateway, terminate
from support.manifests import FOLDER, program
from support.upstreams.running import builtin_tools, scripted_stdio_server, unused_port

MONITORING = FOLDER / "components/monitoring"
KEY = "a-key-for-metrics-of-this-test"


def rules(tmp_path: Path) -> Path:
    """The alerts as Prometheus itself reads them."""
    yaml = YAML(typ="safe", pure=True)
    path = tmp_path / "alerts.yaml"
    with path.open("w") as file:
        yaml.dump(yaml.load(MONITORING / "alerts.yaml")["spec"], file)
    return path


def dashboard() -> dict[str, Any]:
    made: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return made


def queries() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"]]


def test_alerts_are_valid_and_fire_only_when_they_should(tmp_path: Path) -> None:
    promtool = program("promtool", "prometheus")
    rules(tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    for arguments in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_panels_are_unique_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in rows}
        assert not cells & taken
        taken |= cells
        assert place["x"] + place["w"] <= 24


@asynccontextmanager
async def prometheus(tmp_path: Path, target: str) -> AsyncIterator[str]:
    """A Prometheus that scrapes this address twice a second; yields its own."""
    port = unused_port()
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules(tmp_path))],
        "scrape_configs": [
            {"job_name": "typegate", "authorization": {"credentials": KEY}, "static_configs": [{"targets": [target]}]}
        ],
    }
    (tmp_path / "prometheus.yaml").write_text(json.dumps(config))
    command = [
        program("prometheus", "prometheus"), f"--config.file={tmp_path}/prometheus.yaml",
        f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = await anyio.open_process(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx2.AsyncClient(timeout=30) as client:
            with anyio.fail_after(20):
                while not await _is_ready(client, url):
                    await brief_pause()
        yield url
    finally:
        await terminate(process)


async def _is_ready(client: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/-/ready")).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.heavy
async def test_every_dashboard_query_returns_data_from_a_real_gateway(tmp_path: Path) -> None:
    program("prometheus", "prometheus")
    hooked = {"name": "limit", "use": "rate_limit", "config": {"perMinute": 100_000}}
    settings = {
        "auth": {
            "apiKeys": [{"name": "agent", "key": "key-of-agent"}, {"name": "p", "key": KEY, "scopes": ["metrics"]}]
        },
        "policy": {"rules": [{"name": "no sleep", "deny": ["up__sleep"]}]},
        "hooks": [hooked],
    }  # fmt: skip
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "sleep", "result"))
    async with (
        running_gateway(tmp_path, {"up": server}, gateway=settings) as gateway,
        prometheus(tmp_path, gateway.origin.removeprefix("http://")) as url,
        httpx2.AsyncClient(timeout=10) as client,
    ):
        gateway.client.headers["authorization"] = "Bearer key-of-agent"
        await gateway.until_listed("up__echo")
        wanted = dict.fromkeys(query for _, query in queries())
        with anyio.move_on_after(60):
            while wanted:
                for _ in range(5):
                    await gateway.call("up__echo", {"n": 1})
                    await gateway.call("up__result", {"result": {"content": [], "isError": True}})
                    # Repaired, and refused by a rule.
                    await gateway.call("invoke_tool", {"server": "up", "tool": "echo", "args": {"n": 1}})
                    await gateway.post(call_of("up__sleep", {}))
                    await gateway.rpc("prompts/list")
                for query in list(wanted):
                    # A range shorter than a minute has two scrapes in it already.
                    short = re.sub(r"\[5m\]", "[10s]", query)
                    answer = (await client.get(f"{url}/api/v1/query", params={"query": short})).json()
                    assert answer["status"] == "success", (query, answer)
                    values = [float(row["value"][1]) for row in answer["data"]["result"]]
                    if any(not math.isnan(value) for value in values):
                        del wanted[query]
                    elif 'outcome="error"' in query:
                        # No call ends so here; that it can be asked is all.
                        del wanted[query]
        assert not wanted, "these return nothing"
        alerts = (await client.get(f"{url}/api/v1/alerts")).json()["data"]["alerts"]
        assert [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"] == []


@asynccontextmanager
async def pod_address(gateway: RunningGateway) -> AsyncIterator[str]:
    """Yield another address of this machine for the gateway, as a pod has one in the network of a cluster."""
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")

    async def forward(outer: anyio.abc.ByteStream) -> None:
        async def copy(source: anyio.abc.ByteStream, target: anyio.abc.ByteStream) -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await target.send(await source.receive())
            await target.aclose()

        async with outer, await anyio.connect_tcp(host, int(port)) as inner, anyio.create_task_group() as group:
            group.start_soon(copy, outer, inner)
            group.start_soon(copy, inner, outer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.7")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, forward)
        yield f"127.0.0.7:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


@pytest.mark.heavy
async def test_prometheus_scrapes_a_pod_by_its_address(tmp_path: Path) -> None:
    program("prometheus", "prometheus")
    settings = {
        "listen": {"allowedHosts": ["typegate"]},
        "auth": {"apiKeys": [{"name": "p", "key": KEY, "scopes": ["metrics"]}]},
    }
    async with (
        running_gateway(tmp_path, {}, gateway=settings) as gateway,
        pod_address(gateway) as address,
        prometheus(tmp_path, address) as url,
        httpx2.AsyncClient(timeout=10) as client,
    ):
        target: dict[str, Any] = {}
        with anyio.fail_after(20):
            while target.get("health", "unknown") == "unknown":
                await brief_pause()
                targets = (await client.get(f"{url}/api/v1/targets")).json()["data"]["activeTargets"]
                target = targets[0] if targets else {}
        assert (target["health"], target["lastError"]) == ("up", "")
        assert target["scrapeUrl"] == f"http://{address}/metrics"
