"""The cluster manifests, run as processes: same configuration, command line and probes."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.callers import handshake
from support.clusters import lasting_port, running_store
from support.gateways import RunningGateway, answer_of, serving
from support.manifests import FOLDER, only, rendered
from support.worker_groups import until

pytestmark = pytest.mark.heavy

SECRETS = {
    "AGENT_KEY": "a" * 64, "METRICS_KEY": "b" * 64, "ADMIN_TOKEN": "c" * 64, "PEER_SECRET": "d" * 64,
    "STORE_PASSWORD": "e" * 64,
}  # fmt: skip
NAMES = ("typegate-0", "typegate-1", "typegate-2")


async def probe(gateway: RunningGateway, container: dict[str, Any], name: str) -> int:
    """Ask as the kubelet does; returns the status."""
    http_get = container[name]["httpGet"]
    head = {one["name"]: one["value"] for one in http_get["httpHeaders"]}
    return (await gateway.client.get(gateway.origin + http_get["path"], headers=head)).status_code


async def test_three_replicas_of_the_overlay_serve_as_one(tmp_path: Path) -> None:
    manifests = rendered(FOLDER / "overlays/gateway")
    [text] = [
        one["data"]["config.yaml"] for one in manifests if one["kind"] == "ConfigMap" and "config.yaml" in one["data"]
    ]
    [container] = only(manifests, "StatefulSet", "typegate")["spec"]["template"]["spec"]["containers"]
    # The manifests run `python`, so put the interpreter with typegate first in the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # Separate ports take the place of the separate addresses that only pods have.
    ports = {name: lasting_port() for name in NAMES}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with running_store(tmp_path, password=SECRETS["STORE_PASSWORD"]) as store, AsyncExitStack() as stack:
        gateways: list[RunningGateway] = []
        for name in NAMES:
            config = YAML(typ="safe", pure=True).load(text)
            settings = config["gateway"]
            settings["admin"]["listen"] = f"127.0.0.1:{lasting_port()}"
            settings["cluster"]["peers"] |= {
                "name": name,
                "listen": f"127.0.0.1:{ports[name]}",
                "discovery": {"addresses": {each: f"127.0.0.1:{port}" for each, port in ports.items()}},
            }
            settings["cluster"]["store"]["url"] = store.url
            # No load balancer has to notice the shutdown in this test.
            settings["drainDelay"] = 1
            own = tmp_path / name
            own.mkdir()
            (own / "config.yaml").write_text(json.dumps(config))
            given = container["args"][1:]
            here = {"--config": own / "config.yaml", "--state-dir": own, "--host": "127.0.0.1", "--port": 0}
            for option, value in here.items():
                given[given.index(option) + 1] = str(value)
            gateways.append(
                await stack.enter_async_context(
                    serving(own / "config.yaml", own, arguments=tuple(given), environment={**SECRETS, "PATH": path})
                )
            )
        for one in gateways:
            one.client.headers |= {"authorization": f"Bearer {SECRETS['AGENT_KEY']}", "host": "typegate"}
            for name in ("startupProbe", "livenessProbe"):
                assert await probe(one, container, name) == 200

            async def is_ready(one: RunningGateway = one) -> bool:
                return await probe(one, container, "readinessProbe") == 200

            await until(is_ready, within_s=30)
        for one in gateways:
            session = await handshake(one)
            for other in gateways:
                answer = answer_of(await other.post(ping, session.headers))
                assert answer.get("result") == {}, answer
