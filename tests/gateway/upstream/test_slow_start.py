"""A modern server that starts more slowly than the era probe waits."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.http.http_client import HttpClient
from gateway.upstream import mcp_connectors
from gateway.upstream.session import SessionPorts

# As the SDK serves: the first message that it reads decides the era of the connection.
SERVER = """
import json, sys, time
time.sleep(0.6)
modern = False
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "server/discover":
        modern = True
        answer["result"] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    elif message["method"] == "initialize":
        assert modern
        answer["error"] = {"code": -32600, "message": "the initialize handshake is not accepted"}
    else:
        continue
    print(json.dumps(answer), flush=True)
"""


async def test_slow_server_is_probed_again_after_refusing_the_handshake(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    client = HttpClient()
    config = StdioConfig(command=sys.executable, args=[str(program)])
    ports = SessionPorts(on_list_changed=lambda kinds: None, on_update=lambda kind, key, params: None)
    with anyio.fail_after(25):
        async with mcp_connectors.StdioConnector("s", config, client, probe_s=0.2).open(ports) as session:
            assert session.protocol_version == "2026-07-28"
    client.close()
