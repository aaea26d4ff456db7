"""The audit log over real connections: caller, call and outcome, for every route."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import call_of, handshake, running_host
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.hooked import sample
from support.upstreams.running import builtin_tools, scripted_stdio_server, tool
from support.worker_groups import each_worker, running_workers

ROOT = Path(__file__).parents[2]
ANN, BOB = "tg_" + "a" * 43, "tg_" + "b" * 43
KEYS = {"auth": {"apiKeys": [{"name": "ann", "key": ANN}, {"name": "bob", "key": BOB}]}}


def typegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "audit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)


def lines_of(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "audit.jsonl").read_bytes().splitlines()]


async def recorded(gateway: RunningGateway, **query: Any) -> list[dict[str, Any]]:
    """The record as the admin API has it, the earliest line first."""
    response = await gateway.client.get(
        f"{gateway.origin}/admin/audit",
        params=query,
        headers={"authorization": "Bearer admin-token-of-the-test"},
    )
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["audit"][::-1]
    return rows


@pytest.mark.heavy
async def test_audit_entry_has_caller_call_and_outcome_at_every_level(tmp_path: Path) -> None:
    tools = builtin_tools("echo", "error", "exit", "result")
    server, _ = scripted_stdio_server(tmp_path, "up", tools=tools, modern=False)
    secret = "a-value-that-is-nobodys-business"
    async with running_gateway(tmp_path, {"up": server}, gateway=KEYS) as gateway:
        head = {"authorization": f"Bearer {ANN}"}
        await until_ready(gateway)
        await gateway.call("up__echo", {"text": secret}, headers=head)
        await gateway.call("invoke_tool", {"server": "up", "tool": "echo", "arguments": {"a": secret}}, headers=head)
        failing = {"result": {"content": [], "isError": True}}
        assert (await gateway.call("up__result", failing, headers=head))["isError"] is True
        await gateway.call("up__error", {"code": -32000, "message": secret}, headers=head)
        await gateway.call("up__exit", {"code": 0}, headers=head)
        await gateway.call("up__error", {"code": "none"}, headers=head)
        unknown = await gateway.rpc("tools/call", {"name": "no_such_tool", "arguments": {}}, headers=head)
        assert unknown["error"]["code"] == -32602
        await gateway.call("get_server_details", {"server": "up"}, headers=head)
        session = await handshake(gateway, authorization=f"Bearer {BOB}")
        await session.call("up__echo", {"text": secret})
        missing = {"name": "no_such_prompt"}
        await gateway.rpc("prompts/get", missing, headers=head)
        rows = await recorded(gateway)
        assert typegate("verify", "--state-dir", str(gateway.state_dir)).returncode == 0
    calls = [row for row in rows if row["event"] == "call"]
    seen = [(row.get("tool", row.get("name")), row["via"], *row["outcome"].values()) for row in calls]
    assert seen == [
        ("echo", "wrapper", "ok", "ok", "ok"),
        ("echo", "invoke_tool", "ok", "ok", "ok"),
        ("result", "wrapper", "ok", "ok", "error"),
        ("error", "wrapper", "ok", -32000, None),
        ("exit", "wrapper", "lost", None, None),
        ("error", "wrapper", None, None, None),
        ("get_server_details", "wrapper", None, None, "ok"),
        ("echo", "wrapper", "ok", "ok", "ok"),
    ]
    first, last = calls[0], calls[-1]
    assert (first["principal"], first["era"], first["profile"], first["transport"], first["session"]) == (
        "ann", "2026-07-28", "default", "http", None,
    )  # fmt: skip
    assert (last["principal"], last["era"], last["wrapper"], last["server"]) == ("bob", "2025-11-25", "up__echo", "up")
    assert last["session"]
    assert last["session"] not in session.headers["mcp-session-id"]
    assert 0 < first["ms"] < 10_000
    assert calls[5]["reason"] == "arguments"
    [refused] = [row for row in rows if row["event"] == "refused"]
    assert (refused["name"], refused["reason"], refused["principal"]) == ("no_such_tool", "unknown_tool", "ann")
    [request] = [row for row in rows if row["event"] == "request"]
    assert (request["method"], request["name"], request["outcome"]["jsonrpc"]) == (
        "prompts/get",
        "no_such_prompt",
        -32602,
    )
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    everything = (gateway.state_dir / "audit.jsonl").read_text()
    assert secret not in everything
    assert ANN not in everything
    assert session.headers["mcp-session-id"] not in everything
    assert [row["event"] for row in lines_of(gateway.state_dir)][-1] == "stopped"


async def test_invalid_results_and_blocked_calls_are_audited_as_such(tmp_path: Path) -> None:
    hook = sample("Setter", config={"set": {"to": 5}}, conditions={"wrappers": ["send"]})
    odd = {"kind": "result", "with": {"result": "no object"}}
    tools = [*builtin_tools("echo"), tool("odd"), tool("send", to="string")]
    server, _ = scripted_stdio_server(tmp_path, "up", tools=tools, behaviours={"odd": odd})
    async with running_gateway(tmp_path, {"up": server}, gateway={"hooks": [hook]}) as gateway:
        await until_ready(gateway)
        await gateway.call("up__odd")
        await gateway.call("up__send", {"to": "a@example.test"})
        await gateway.call("up__echo", {"text": "t"})
        rows = [row for row in await recorded(gateway) if row["event"] == "call"]
    assert [(row["tool"], *row["outcome"].values(), row.get("hook")) for row in rows] == [
        ("odd", "malformed_answer", "ok", None, None),
        ("send", None, None, None, "setter"),
        ("echo", "ok", "ok", "ok", None),
    ]


async def until_ready(gateway: RunningGateway) -> None:
    with anyio.fail_after(25):
        while (await gateway.client.get(f"{gateway.origin}/readyz")).status_code != 200:
            await brief_pause()


@pytest.mark.heavy
async def test_refused_credentials_and_admin_actions_are_audited_without_secrets(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}, gateway=KEYS) as gateway:
        await until_ready(gateway)
        wrong = "tg_wrong" + "x" * 40
        for _ in range(30):
            response = await gateway.post(call_of("up__echo"), {"authorization": f"Bearer {wrong}"})
            assert response.status_code == 401
        assert (await gateway.post(call_of("up__echo"))).status_code == 401
        assert (await gateway.admin("servers", token="wrong-admin-token")).status_code == 401
        note = {"wrapper": "up__echo", "text": "be careful"}
        assert (await gateway.admin("notes", "POST", note)).status_code == 201
        assert (await gateway.admin("servers", "POST", {"name": "more", "config": server})).status_code == 403
        assert (await gateway.admin("servers/up/refresh", "POST")).status_code == 202
        rows = await recorded(gateway)
    refused = [row for row in rows if row["event"] == "credentials_refused"]
    # The first ones of an address are lines; the others only cost room.
    assert [row["where"] for row in refused] == ["/mcp"] * 10
    assert {row["reason"] for row in refused} == {"not valid"}
    changes = [(row["action"], row["target"], row["status"]) for row in rows if row["event"] == "changed"]
    assert changes == [
        ("POST /admin/notes", "up__echo", 201),
        ("POST /admin/servers", "more", 403),
        ("POST /admin/servers/up/refresh", None, 202),
    ]
    text = (gateway.state_dir / "audit.jsonl").read_text()
    assert wrong not in text
    assert "admin-token" not in text


@pytest.mark.heavy
async def test_stdio_host_and_two_workers_write_one_chain(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_workers(tmp_path, {"up": {**server, "copies": True}}) as team:
        state = team.state_dir
        async with (
            each_worker(team) as workers,
            running_host(tmp_path, "--config", str(team.config), "--state-dir", str(state)) as host,
        ):
            await team.until_listed("up__echo")

            async def call(worker: RunningGateway) -> None:
                for number in range(40):
                    await worker.call("up__echo", {"number": number})

            async def call_over_stdio() -> None:
                for number in range(40):
                    await host.answer(call_of("up__echo", {"number": number}, request_id=number))

            async with anyio.create_task_group() as group:
                for worker in workers:
                    group.start_soon(call, worker)
                group.start_soon(call_over_stdio)
            for worker in workers:
                assert (await worker.admin("servers/up/refresh", "POST")).status_code == 202
                rows = await recorded(worker, limit=1000)
                assert len([row for row in rows if row["event"] == "call"]) >= 80
            assert await host.leave() == 0
        verified = typegate("verify", "--state-dir", str(state))
        assert (verified.returncode, verified.stderr) == (0, "")
    rows = lines_of(state)
    calls = [row for row in rows if row["event"] == "call"]
    assert len(calls) == 120
    assert [row["transport"] for row in calls].count("stdio") == 40
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    changes = [row["action"] for row in rows if row["event"] == "changed"]
    assert changes == ["POST /admin/servers/up/refresh"] * 2, "once for each request, and not for each worker"
    assert "NOT" not in typegate("verify", "--state-dir", str(state)).stdout


@pytest.mark.heavy
async def test_audit_command_reads_filters_and_verifies(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "result"))
    options = {**KEYS, "audit": {"file": "calls/record.jsonl", "keepDays": 7}}
    async with running_gateway(tmp_path, {"up": server}, gateway=options) as gateway:
        await until_ready(gateway)
        for key, name in ((ANN, "up__echo"), (BOB, "up__echo"), (ANN, "up__result")):
            await gateway.call(name, {"result": {"content": []}}, headers={"authorization": f"Bearer {key}"})
        await recorded(gateway)
        place = ("--config", str(gateway.config), "--state-dir", str(gateway.state_dir))
        for where in (place, ("--url", gateway.origin, "--state-dir", str(gateway.state_dir))):
            env_token = typegate(*where, "--json")
            if "--url" in where and env_token.returncode == 2:
                continue  # the token of the test is in the gateway's environment alone
            assert env_token.returncode == 0, env_token.stderr
            rows = json.loads(env_token.stdout)
            assert [row["event"] for row in rows] == ["started", "call", "call", "call"]
        mine = json.loads(typegate(*place, "--principal", "ann", "--tool", "up__*", "--since", "2h", "--json").stdout)
        assert [row["wrapper"] for row in mine] == ["up__echo", "up__result"]
        assert (
            json.loads(typegate(*place, "--tool", "result", "--event", "call", "--json").stdout)[0]["tool"] == "result"
        )
        lines = typegate(*place, "--principal", "bob").stdout.splitlines()
        assert [line.split("\t")[1:5] for line in lines] == [["call", "bob", "up__echo", "ok"]]
        assert typegate(*place, "--since", "tomorrow").returncode == 2
        assert "no audit log at" in typegate("--state-dir", str(tmp_path)).stderr
        pages, before = [], None
        while True:
            page = await recorded_page(gateway, limit="2", **({} if before is None else {"before": str(before)}))
            pages += page["audit"]
            if (before := page["next"]) is None:
                break
        assert [row["seq"] for row in pages] == [4, 3, 2, 1]
        for wrong in ({"limit": "0"}, {"limit": "x"}, {"before": "-1"}, {"since": "never"}, {"limit": "٣"}):
            assert (await gateway.admin("audit?" + "&".join(f"{k}={v}" for k, v in wrong.items()))).status_code == 400
    path = gateway.state_dir / "calls" / "record.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"bob"', b'"eve"'))
    verified = typegate("verify", *place)
    assert verified.returncode == 1
    assert "has been altered" in verified.stderr
    assert "NOT intact" in verified.stdout


async def recorded_page(gateway: RunningGateway, **query: str) -> dict[str, Any]:
    page: dict[str, Any] = (await gateway.admin("audit?" + "&".join(f"{k}={v}" for k, v in query.items()))).json()
    return page


@pytest.mark.parametrize("off", [False, "off", {"enabled": False}])
@pytest.mark.heavy
async def test_disabled_audit_log_writes_nothing(off: Any, tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}, gateway={"audit": off}) as gateway:
        await gateway.until_listed("up__echo")
        await gateway.call("up__echo", {})
        assert await recorded(gateway) == []
    assert not (gateway.state_dir / "audit.jsonl").exists()


@pytest.mark.heavy
async def test_arguments_and_results_are_audited_only_on_request_without_secrets(
    tmp_path: Path,
) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    options = {**KEYS, "audit": {"arguments": True, "results": True}}
    async with running_gateway(tmp_path, {"up": server}, gateway=options) as gateway:
        await until_ready(gateway)
        head = {"authorization": f"Bearer {ANN}"}
        await gateway.call("up__echo", {"who": "carol", "key": BOB}, headers=head)
        await gateway.call("up__echo", {"long": "x" * 100_000}, headers=head)
        first, second = [row for row in await recorded(gateway) if row["event"] == "call"]
    assert first["arguments"]["who"] == "carol"
    assert "carol" in json.dumps(first["result"])
    assert BOB not in json.dumps(first)
    assert second["arguments"].startswith("not shown: it has 100")


@pytest.mark.heavy
async def test_required_audit_log_refuses_calls_it_cannot_record(tmp_path: Path) -> None:
    server, recording = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    # A folder of this name: nothing can be written there.
    (tmp_path / "state" / "audit.jsonl").mkdir(parents=True)
    async with running_gateway(tmp_path, {"up": server}, gateway={"audit": {"required": True}}) as gateway:
        await gateway.until_listed("up__echo")
        with anyio.fail_after(20):
            while not (result := await gateway.call("up__echo", {})).get("isError"):
                await brief_pause()
        assert "the audit log cannot be written" in text_of(result)
        before = len(recording.calls())
        await gateway.call("up__echo", {})
        assert len(recording.calls()) == before
        metrics = (await gateway.client.get(f"{gateway.origin}/metrics")).text
        assert "typegate_audit_failing 1.0" in metrics
        assert "cannot be written" in gateway.logged()
        (gateway.state_dir / "audit.jsonl").rmdir()
        with anyio.fail_after(25):
            while (await gateway.call("up__echo", {})).get("isError"):
                await brief_pause()
        rows = await recorded(gateway)
    # What had happened before is in it, too.
    assert [row["event"] for row in rows][:2] == ["started", "call"]


@pytest.mark.heavy
async def test_required_audit_log_refuses_the_first_call_after_a_failure(tmp_path: Path) -> None:
    server, recording = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}, gateway={"audit": {"required": True}}) as gateway:
        await gateway.until_listed("up__echo")
        assert not (await gateway.call("up__echo", {"n": 1})).get("isError")
        file = gateway.state_dir / "audit.jsonl"
        for count in (1, 2):
            await recorded(gateway)
            kept = file.read_bytes()
            file.unlink()
            file.mkdir()
            for _ in range(2):
                assert "the audit log cannot be written" in text_of(await gateway.call("up__echo", {"n": 2}))
            assert len(recording.calls()) == count
            file.rmdir()
            file.write_bytes(kept)
            file.chmod(0o600)
            with anyio.fail_after(25):
                while (await gateway.call("up__echo", {"n": 3})).get("isError"):
                    await brief_pause()
        assert len([row for row in await recorded(gateway) if row["event"] == "call"]) == len(recording.calls()) == 3
        assert not list(gateway.state_dir.glob("*.room"))


@pytest.mark.heavy
def test_invalid_audit_settings_are_one_message_at_start(tmp_path: Path) -> None:
    file = tmp_path / "typegate.json"
    for wrong, words in (
        ({"keepDay": 3}, "did you mean it?"),
        ({"keepDays": 0}, "keepDays"),
        ("yes", "is not a setting of the audit log"),
        ({"file": ""}, "file"),
    ):
        file.write_text(json.dumps({"mcpServers": {}, "gateway": {"audit": wrong}}))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


async def test_modern_resource_read_is_audited_with_its_uri(tmp_path: Path) -> None:
    resource = {"uri": "file:///one", "name": "one"}
    read = {"contents": [{"uri": "file:///one", "text": "hello"}]}
    server, _ = scripted_stdio_server(
        tmp_path, "up", tools=[], capabilities={"tools": {}, "resources": {}},
        answers={"resources/list": {"resources": [resource]}, "resources/read": read},
    )  # fmt: skip
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await until_ready(gateway)
        answer = await gateway.rpc("resources/read", {"uri": "file:///one"}, headers={"mcp-name": "file:///one"})
        rows = [row for row in await recorded(gateway) if row["event"] == "request"]
    assert (rows[0]["method"], rows[0]["name"]) == ("resources/read", "file:///one")
    assert rows[0]["outcome"]["jsonrpc"] == ("ok" if "result" in answer else answer["error"]["code"])


@pytest.mark.heavy
async def test_figures_of_the_last_hour_match_the_audit_log(tmp_path: Path) -> None:
    upstream, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "sleep", "error"))
    rule = {"name": "no errors for bob", "principals": ["bob"], "deny": ["up__error"]}
    settings = {**KEYS, "policy": {"rules": [rule]}}
    async with running_gateway(tmp_path, {"up": upstream}, gateway=settings) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {ANN}"
        await gateway.until_listed("up__echo")
        for at in range(60):
            await gateway.post(call_of("up__echo", {"text": "x"}))
            await gateway.post(call_of("up__sleep", {"seconds": 0.001 * (at % 20)}))
            if at % 4 == 0:
                await gateway.post(call_of("up__error"))
                await gateway.post(call_of("up__ecko"), {"authorization": f"Bearer {BOB}"})
            if at % 6 == 0:
                await gateway.post(call_of("up__error"), {"authorization": f"Bearer {BOB}"})
        lines = await recorded(gateway, limit=1000)
        activity = (await gateway.admin("activity")).json()
        history = (await gateway.admin("history?by=server")).json()
        of_server = await recorded(gateway, server="up", limit=1000)
    calls = [line for line in lines if line["event"] == "call"]
    refused = [line for line in lines if line["event"] == "refused"]
    assert (len(calls), len(refused)) == (135, 25)
    # A refused call belongs to the server of its tool, here and in the history; the other 15 reached no tool.
    [row] = history["series"]
    assert (row["name"], row["calls"], row["denied"], len(of_server)) == ("up", 135, 10, 145)
    whole = {name: sum(bucket[name] for bucket in activity["buckets"]) for name in ("calls", "errors", "denied")}
    assert whole == {"calls": 135, "errors": 15, "denied": 25}
    callers = {row["name"]: (row["calls"], row["errors"], row["denied"]) for row in activity["callers"]}
    assert callers == {"ann": (135, 15, 0), "bob": (0, 0, 25)}
    assert {row["name"]: row["denied"] for row in activity["tools"] if row["denied"]} == {"up__error": 10}
    [unknown] = activity["unknownTools"]
    assert (unknown["name"], unknown["calls"], unknown["suggestion"]) == ("up__ecko", 15, "up__echo")
    for row in activity["tools"]:
        took = sorted(line["ms"] for line in calls if line["wrapper"] == row["name"])
        for share, name in ((0.5, "p50Ms"), (0.95, "p95Ms")):
            exact = took[math.ceil(share * len(took)) - 1]
            assert row[name] == pytest.approx(exact, rel=0.1, abs=0.01), (row["name"], name)
