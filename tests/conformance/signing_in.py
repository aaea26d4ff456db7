"""The whole gateway as the client of one scenario: `python signing_in.py URL`, as the conformance suite starts it.

It writes a configuration, starts `typegate serve`, follows the links to sign in that the admin API gives, and lists and
calls every tool through `/mcp`. Exit code 0 where that was possible.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

SERVER = "test"
DOCUMENT_URL = "https://conformance-test.local/client-metadata.json"
VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
_ROOT = Path(__file__).parents[2]
_WITHIN_S = 25.0
# A user who signs in again and again gives up.
_MAX_SIGN_INS = 4


def settings(scenario: str, context: dict[str, Any]) -> dict[str, Any]:
    """`auth` of the server, as an operator would write it with what the scenario hands out."""
    known = {"clientId": context.get("client_id"), "clientSecret": context.get("client_secret")}
    known = {key: value for key, value in known.items() if value}
    if "private_key_pem" in context:
        key = {"privateKey": context["private_key_pem"], "algorithm": context.get("signing_algorithm")}
        return {"type": "clientCredentials", **known, **key}
    if "idp_id_token" in context:
        return {
            "type": "enterprise",
            **known,
            "idToken": context["idp_id_token"],
            "idpClientId": context["idp_client_id"],
            "idpTokenEndpoint": context["idp_token_endpoint"],
        }
    if scenario.startswith("auth/client-credentials"):
        return {"type": "clientCredentials", **known}
    if "valid_jwt" in context:
        return {"type": "jwtBearer", **known, "assertion": context["valid_jwt"]}
    return {"type": "oauth", "clientMetadataUrl": DOCUMENT_URL, **known}


@contextmanager
def gateway(url: str, auth: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """A running gateway: its origin, and the headers of its administrator."""
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "typegate.json", Path(folder) / "log"
        config.write_text(json.dumps({"mcpServers": {SERVER: {"url": url, "auth": auth}}}))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--port", "0"]
        command += ["--state-dir", str(Path(folder) / "state")]
        env = {**os.environ, "TYPEGATE_ADMIN_TOKEN": token, "PYTHONPATH": str(_ROOT)}
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env)
        try:
            until_s = time.monotonic() + _WITHIN_S
            while not (found := re.search(r"(http://\S+)/mcp", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until_s, log.read_text()
                time.sleep(0.05)
            yield found[1], {"authorization": f"Bearer {token}"}
        finally:
            process.terminate()
            process.wait(15)
            print(log.read_text(), file=sys.stderr)


def sign_in(client: httpx2.Client, origin: str, admin: dict[str, str]) -> None:
    """Sign in once, as a browser."""
    answer = client.post(f"{origin}/admin/servers/{SERVER}/sign-in", headers=admin)
    assert answer.status_code == 200, answer.text
    page = client.get(answer.json()["url"], follow_redirects=True)
    assert page.status_code == 200, page.text


def until_ready(client: httpx2.Client, origin: str, admin: dict[str, str]) -> int:
    """Sign in until the server is connected; returns how often."""
    count, until_s, row = 0, time.monotonic() + _WITHIN_S, {}
    while time.monotonic() < until_s:
        row = client.get(f"{origin}/admin/servers/{SERVER}", headers=admin).json()
        if row["state"] == "ready":
            return count
        if row["state"] == "signInNeeded":
            assert count < _MAX_SIGN_INS, row["lastError"]
            sign_in(client, origin, admin)
            count += 1
        elif row["state"] == "waiting" and row["lastError"]:
            break
        time.sleep(0.05)
    raise AssertionError(f"not connected: {row.get('lastError')}")


def request(client: httpx2.Client, origin: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of one request to the gateway."""
    meta = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        **({"mcp-name": params["name"]} if "name" in params else {}),
    }
    response = client.post(f"{origin}/mcp", json=body, headers=headers)
    answer = response.json()
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


def main(url: str) -> None:
    """Go the whole way."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with gateway(url, settings(scenario, context)) as (origin, admin), httpx2.Client(timeout=_WITHIN_S) as client:
        until_ready(client, origin, admin)
        tools = [tool["name"] for tool in request(client, origin, "tools/list", {})["tools"]]
        for name in (name for name in tools if name.startswith(f"{SERVER}__")):
            for _ in range(_MAX_SIGN_INS):
                result = request(client, origin, "tools/call", {"name": name, "arguments": {}})
                if not result.get("isError"):
                    break
                row = client.get(f"{origin}/admin/servers/{SERVER}", headers=admin).json()
                if "sign in" not in json.dumps(result) and row["state"] != "signInNeeded":
                    raise AssertionError(json.dumps(result))
                sign_in(client, origin, admin)
                until_ready(client, origin, admin)
            else:
                raise AssertionError(f"{name} wants a sign-in again and again")


if __name__ == "__main__":
    main(sys.argv[-1])
