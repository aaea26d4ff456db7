"""Identity over real connections: keys of stdio hosts, revoked keys, and rights of groups."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.callers import call_of, get_stream, handshake, hello, listen_to, post_stream, running_host
from support.fake_issuer import fake_issuer
from support.gateways import running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

ROOT = Path(__file__).parents[2]
KEY, OTHER = "k" * 40, "o" * 40


def entry(name: str, key: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "keyHash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", **members}


def typegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)


def written(tmp_path: Path, keys: list[dict[str, Any]]) -> str:
    """A configuration with one server and these keys."""
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    config = tmp_path / "typegate.json"
    gateway = {"auth": {"apiKeys": keys}, "profiles": {"sec": {}}}
    config.write_text(json.dumps({"mcpServers": {"up": server}, "gateway": gateway}))
    return str(config)


@pytest.mark.heavy
async def test_stdio_host_is_identified_by_its_key(tmp_path: Path) -> None:
    config = written(tmp_path, [entry("ann", KEY, profiles=["sec"])])
    environment = {"TYPEGATE_API_KEY": KEY}
    async with running_host(
        tmp_path, "--config", config, "--profile", "sec", "--verbose", environment=environment
    ) as host:
        await host.answer(hello())
        await host.until_listed("up__echo")
        answer = await host.answer(call_of("up__echo", {"text": "x"}))
        assert answer["result"]["content"]
        assert "principal='ann'" in host.log.read_text()
        assert KEY not in host.log.read_text()
        # A caller whose key is removed loses access.
        written(tmp_path, [entry("bob", OTHER)])
        await host.process.wait()
        assert host.process.returncode == 2
        assert "TYPEGATE_API_KEY is not a key of this configuration" in host.log.read_text()


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    ("keys", "arguments", "key", "message"),
    [
        ([entry("ann", KEY)], (), OTHER, "TYPEGATE_API_KEY is not a key of this configuration"),
        ([entry("ann", KEY, expires="2020-01-01")], (), KEY, "or has expired"),
        ([entry("ann", KEY, profiles=["sec"])], (), KEY, "the key of ann does not open the profile default"),
        ([entry("ann", KEY)], (), "two words", "TYPEGATE_API_KEY is malformed"),
    ],
)
async def test_invalid_key_stops_the_start_with_an_explanation(
    tmp_path: Path, keys: list[dict[str, Any]], arguments: tuple[str, ...], key: str, message: str
) -> None:
    config = written(tmp_path, keys)
    async with running_host(tmp_path, "--config", config, *arguments, environment={"TYPEGATE_API_KEY": key}) as host:
        assert await host.process.wait() == 2
        assert message in host.log.read_text()
        assert "Traceback" not in host.log.read_text()


async def test_environment_key_is_ignored_with_a_warning_if_no_keys_exist(tmp_path: Path) -> None:
    config = written(tmp_path, [])
    async with running_host(tmp_path, "--config", config, environment={"TYPEGATE_API_KEY": KEY}) as host:
        await host.answer(hello())
        await host.until_listed("up__echo")
        assert "TYPEGATE_API_KEY is ignored" in host.log.read_text()


@pytest.mark.heavy
async def test_bridge_sends_the_environment_key_unless_a_header_is_given(tmp_path: Path) -> None:
    settings = {"auth": {"apiKeys": [entry("ann", KEY), entry("bob", OTHER)]}}
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}, gateway=settings, arguments=("--verbose",)) as gateway:
        environment = {"TYPEGATE_API_KEY": KEY}
        async with running_host(tmp_path, "--url", gateway.url, environment=environment) as host:
            await host.answer(hello())
            await host.until_listed("up__echo")
            assert (await host.answer(call_of("up__echo", {"text": "x"})))["result"]
        header = ("--header", f"Authorization: Bearer {OTHER}")
        async with running_host(tmp_path, "--url", gateway.url, *header, environment=environment) as host:
            assert (await host.answer(call_of("up__echo", {"text": "x"})))["result"]
        log = gateway.logged()
        assert "principal='ann'" in log
        assert "principal='bob'" in log


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["file", "admin"])
@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
async def test_revoked_key_ends_its_streams_within_five_seconds(
    tmp_path: Path, way: str, workers: tuple[str, ...]
) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    server["copies"] = True
    settings = {"auth": {"apiKeys": [entry("ann", KEY), entry("bob", OTHER)]}}
    async with running_gateway(tmp_path, {"up": server}, gateway=settings, arguments=workers) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        await gateway.until_listed("up__echo")
        session = await handshake(gateway)
        async with post_stream(gateway, listen_to()) as listening, get_stream(session) as stream:
            await listening.next()
            revoked_s = time.monotonic()
            if way == "file":
                done = typegate("key", "revoke", "ann", "--config", str(gateway.config))
                assert done.returncode == 0, done.stderr
                assert done.stdout == "revoked: ann\n"
            else:
                response = await gateway.admin(f"keys/{hashed(KEY)[:8]}", "DELETE")
                assert response.json() == {"revoked": ["ann"], "file": str(gateway.config), "kept": False}
            await listening.rest(within_s=5)
            await stream.rest(within_s=5)
            assert time.monotonic() - revoked_s < 5
        assert (await gateway.post(call_of("up__echo"))).status_code == 401
        gateway.client.headers["authorization"] = f"Bearer {OTHER}"
        assert (await gateway.post(call_of("up__echo"))).status_code == 200
        rows = (await gateway.admin("keys")).json()["keys"]
        assert [(row["name"], row["hash"]) for row in rows] == [("bob", hashed(OTHER)[:12])]
        assert (await gateway.admin("keys/nobody", "DELETE")).status_code == 404


async def test_revoking_the_last_key_leaves_the_gateway_closed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, gateway={"auth": {"apiKeys": [entry("ann", KEY)]}}) as gateway:
        response = await gateway.admin("keys/ann", "DELETE")
        assert response.json()["kept"] is True
        for headers in ({}, {"authorization": f"Bearer {KEY}"}):
            assert (await gateway.post(hello(), headers)).status_code == 401
        assert [row["state"] for row in (await gateway.admin("keys")).json()["keys"]] == ["expired"]


@pytest.mark.heavy
async def test_largest_limit_of_a_callers_groups_applies(tmp_path: Path) -> None:
    keys = [
        {"name": "plain", "key": "p" * 40},
        {"name": "robot", "key": "r" * 40, "groups": ["robots"]},
        {"name": "both", "key": "b" * 40, "groups": ["robots", "fleet"]},
    ]
    limits = {"robots": {"callsPerMinute": 4}, "fleet": {"callsPerMinute": 6, "sessions": 1}, "robts": {}}
    quotas = {"default": {"callsPerMinute": 2, "sessions": 3}, "groups": limits}
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    settings = {"auth": {"apiKeys": keys}, "quotas": quotas}
    async with running_gateway(tmp_path, {"up": server}, gateway=settings) as gateway:
        assert "gateway.quotas.groups: robts matches no group of a key; did you mean robots?" in gateway.logged()
        gateway.client.headers["authorization"] = f"Bearer {'p' * 40}"
        await gateway.until_listed("up__echo")
        for key, most in (("p", 2), ("r", 4), ("b", 6)):
            gateway.client.headers["authorization"] = f"Bearer {key * 40}"
            statuses = [(await gateway.post(call_of("up__echo", {"text": "x"}))).status_code for _ in range(8)]
            assert statuses == [200] * most + [429] * (8 - most), key


async def test_caller_added_to_a_group_gets_its_limits_with_the_next_token(tmp_path: Path) -> None:
    quotas = {"default": {"callsPerMinute": 1}, "groups": {"robots": {"callsPerMinute": 5}}}
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with fake_issuer() as issuer:
        settings = {"auth": {"oauth": {"issuers": [issuer.config()]}}, "quotas": quotas}
        async with running_gateway(tmp_path, {"up": server}, gateway=settings) as gateway:
            gateway.client.headers["authorization"] = f"Bearer {issuer.token()}"
            await gateway.until_listed("up__echo")
            for groups, wanted in ((None, [200, 429]), (["robots"], [200] * 2)):
                gateway.client.headers["authorization"] = f"Bearer {issuer.token(groups=groups)}"
                statuses = [(await gateway.post(call_of("up__echo", {"text": "x"}))).status_code for _ in wanted]
                assert statuses == wanted
