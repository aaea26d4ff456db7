"""Rules and scopes over real connections, in both eras, over HTTP and stdio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from support.callers import hello, running_host
from support.gateways import TOKEN, RunningGateway, running_gateway
from support.upstreams.running import Recording, scripted_stdio_server, tool
from support.visitors import ALWAYS, CHANGED, Visitor, in_both_eras

ROOT = Path(__file__).parents[2]
READ = {**tool("read_ledger"), "annotations": {"readOnlyHint": True}}
WIRE = tool("wire_money", amount="number")
DROP = tool("delete_ledger")
KEYS = [
    {"name": "ann", "key": "key-of-ann", "groups": ["interns"]},
    {"name": "ben", "key": "key-of-ben"},
    {"name": "kim", "key": "key-of-kim", "scopes": ["tools:read"]},
    {"name": "lee", "key": "key-of-lee", "scopes": ["prompts"]},
]
RULES: list[dict[str, Any]] = [
    {"name": "interns read", "groups": ["interns"], "allow": ["*"], "when": {"readOnly": True}},
    {"name": "no deletes", "principals": ["*"], "deny": ["*__delete_*"]},
    {
        "name": "small payments", "wrappers": ["bank__wire_*"], "deny": True,
        "when": {"arguments": {"amount": {"above": 1000}}},
    },
]  # fmt: skip


def bank(tmp_path: Path) -> tuple[dict[str, Any], Recording]:
    return scripted_stdio_server(
        tmp_path, "bank", tools=[READ, WIRE, DROP],
        behaviours={name["name"]: "echo" for name in (READ, WIRE, DROP)},
        capabilities={"tools": {}, "prompts": {}, "resources": {}},
        answers={
            "prompts/list": {"prompts": [{"name": "greet"}]},
            "prompts/get": {"messages": []},
            "resources/list": {"resources": [{"uri": "mem://a", "name": "a"}]},
            "resources/read": {"contents": [{"uri": "mem://a", "text": "a"}]},
        },
    )  # fmt: skip


def settings(rules: list[dict[str, Any]] = RULES) -> dict[str, Any]:
    return {"auth": {"apiKeys": KEYS}, "policy": {"rules": rules}}


def as_caller(gateway: RunningGateway, name: str, era: str) -> Visitor:
    gateway.client.headers["authorization"] = f"Bearer key-of-{name}"
    return Visitor(gateway=gateway, era=era)


async def ready(gateway: RunningGateway) -> None:
    gateway.client.headers["authorization"] = "Bearer key-of-ben"
    await gateway.until_listed("bank__wire_money")


@in_both_eras
async def test_each_caller_sees_and_calls_what_rules_and_scopes_allow(tmp_path: Path, era: str) -> None:
    server, record = bank(tmp_path)
    shown = {
        "ann": {"bank__read_ledger"},
        "ben": {"bank__read_ledger", "bank__wire_money"},
        "kim": {"bank__read_ledger"},
        "lee": set[str](),
    }
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings()) as gateway:
        await ready(gateway)
        for name, wrappers in shown.items():
            visitor = as_caller(gateway, name, era)
            own = ALWAYS if wrappers else set()
            assert set(await visitor.listed()) == wrappers | own
            for wrapper in ("bank__read_ledger", "bank__wire_money", "bank__delete_ledger"):
                address = {"server": "bank", "tool": wrapper.partition("__")[2], "arguments": {}}
                by_name = (await visitor.sent("tools/call", {"name": wrapper, "arguments": {}})).text
                by_address = (await visitor.sent("tools/call", {"name": "invoke_tool", "arguments": address})).text
                # One that is denied is answered like one that does not exist.
                missing = [text for text in (by_name, by_address) if "has no tool" in text or "Unknown tool" in text]
                assert missing == ([] if wrapper in wrappers else [by_name, by_address])
            prompts = (await visitor.request("prompts/list"))["prompts"]
            assert bool(prompts) == (name in {"ann", "ben", "lee"})
            read = await visitor.sent("resources/read", {"uri": "mem://a"})
            assert ('"contents"' in read.text) == (name in {"ann", "ben"})
            assert "delete_ledger" not in json.dumps([await visitor.greeted(), prompts])
        assert {one["name"] for one in record.calls()} == {"read_ledger", "wire_money"}


@in_both_eras
async def test_argument_rule_refuses_the_call_naming_itself(tmp_path: Path, era: str) -> None:
    server, record = bank(tmp_path)
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings()) as gateway:
        await ready(gateway)
        visitor = as_caller(gateway, "ben", era)
        assert not (await visitor.called("bank__wire_money", {"amount": 1000})).get("isError")
        for name, arguments in (
            ("bank__wire_money", {"amount": 1001}),
            # Text for a number is repaired before the rules are applied.
            ("bank__wire_money", {"amount": "1001"}),
            ("invoke_tool", {"server": "bank", "tool": "wire_money", "arguments": {"amount": 1001}}),
        ):
            refused = await visitor.called(name, arguments)
            assert refused["isError"] is True
            assert "small payments" in refused["content"][0]["text"]
        assert [one["arguments"] for one in record.calls("wire_money")] == [{"amount": 1000}]
        counted = (await gateway.admin("../metrics")).text
        assert 'typegate_policy_decisions_total{effect="deny",rule="small payments"} 3.0' in counted


@in_both_eras
async def test_changed_rule_applies_to_open_streams_and_sessions_at_once(tmp_path: Path, era: str) -> None:
    server, _ = bank(tmp_path)
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings()) as gateway:
        await ready(gateway)
        ben = as_caller(gateway, "ben", era)
        await ben.listed()
        async with ben.changes() as changes:
            written = json.loads(gateway.config.read_text())
            written["gateway"]["policy"]["rules"].append({"name": "no wires", "deny": ["bank__wire_*"]})
            gateway.config.write_text(json.dumps(written))
            assert (await changes.next())["method"] == CHANGED
        assert set(await ben.listed()) == {"bank__read_ledger", *ALWAYS}
        assert "has no tool" in (await ben.sent("tools/call", {"name": "bank__wire_money", "arguments": {}})).text


async def test_local_callers_need_an_allow_rule_with_default_deny(tmp_path: Path) -> None:
    server, _ = bank(tmp_path)
    policy = {"default": "deny", "rules": [{"name": "reading", "principals": ["local"], "allow": ["bank__read_*"]}]}
    async with running_gateway(tmp_path, {"bank": server}, gateway={"policy": policy}) as gateway:
        await gateway.until_listed("bank__read_ledger")
        assert set(await gateway.tools()) == {"bank__read_ledger"}


def typegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    environment = {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment)


EXPECTED = """\
principal wrapper expected
ann bank__read_ledger allow
ann bank__wire_money deny
ben bank__wire_money allow
# A comment.
ben bank__delete_ledger deny
kim bank__wire_money deny
lee mem://a deny
"""


@pytest.mark.heavy
async def test_rules_are_explained_and_tested_from_file_and_running_gateway(tmp_path: Path) -> None:
    server, _ = bank(tmp_path)
    (tmp_path / "expected.txt").write_text(EXPECTED)
    rows = [
        {"principal": "ben", "wrapper": "bank__wire_money", "arguments": {"amount": 2000}, "expected": "deny"},
        {"principal": "x@id.example.test", "groups": ["interns"], "name": "bank__wire_money", "expected": "allow"},
    ]
    (tmp_path / "wrong.yaml").write_text(json.dumps(rows))
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings()) as gateway:
        await ready(gateway)
        running = ("--url", gateway.origin, "--state-dir", str(gateway.state_dir))
        for where in (running, ("--config", str(gateway.config))):
            right = await to_thread.run_sync(
                partial(typegate, "policy", "test", str(tmp_path / "expected.txt"), *where)
            )
            assert right.returncode == 0, right.stderr
            assert "6 of 6 as expected" in right.stderr
            wrong = await to_thread.run_sync(partial(typegate, "policy", "test", str(tmp_path / "wrong.yaml"), *where))
            assert wrong.returncode == 1
            assert "1 of 2 as expected" in wrong.stderr
            question = ("--principal", "ben", "--name", "bank__delete_ledger", "--json")
            explained = await to_thread.run_sync(partial(typegate, "policy", "explain", *question, *where))
            assert explained.returncode == 1
            answer = json.loads(explained.stdout)
            assert (answer["decision"], answer["rule"], answer["visible"]) == ("deny", "no deletes", False)


@pytest.mark.heavy
def test_rules_are_explained_from_the_lock_file_without_servers(tmp_path: Path) -> None:
    server, _ = bank(tmp_path)
    config, state = tmp_path / "mcp.json", tmp_path / "state"
    unreachable = {"url": "http://127.0.0.1:9/mcp"}
    config.write_text(json.dumps({"mcpServers": {"bank": server, "gone": unreachable}, "gateway": settings()}))
    where = ("--config", str(config), "--state-dir", str(state))
    assert typegate("lock", *where).returncode == 1  # one server is not reached
    # Only the lock file knows its tools from here on.
    Path(server["args"][-1]).unlink()
    explained = typegate("policy", "explain", "--principal", "ben", "--name", "bank__delete_ledger", "--json", *where)
    assert json.loads(explained.stdout)["rule"] == "no deletes"
    explained = typegate("policy", "explain", "--principal", "ben", "--name", "bank__wire_money", *where)
    assert (explained.returncode, explained.stdout.partition(":")[0]) == (0, "allow"), explained.stderr
    explained = typegate("policy", "explain", "--principal", "ben", "--name", "gone__pay", *where)
    assert (explained.returncode, explained.stdout.partition(":")[0]) == (1, "unknown")
    assert "gone: not reached, and in neither snapshot nor lock file" in explained.stderr
    assert "Future" not in explained.stderr
    assert "Task" not in explained.stderr


@pytest.mark.heavy
async def test_rules_apply_over_stdio_and_with_two_workers(tmp_path: Path) -> None:
    server, _ = bank(tmp_path)
    config = tmp_path / "stdio.json"
    config.write_text(json.dumps({"mcpServers": {"bank": server}, "gateway": {"policy": {"rules": RULES[1:]}}}))
    async with running_host(tmp_path, "--config", str(config)) as host:
        await host.answer(hello())
        await host.until_listed("bank__read_ledger")
        answer = await host.answer({"jsonrpc": "2.0", "id": "list", "method": "tools/list"})
        listed = {one["name"] for one in answer["result"]["tools"]}
        assert listed - ALWAYS == {"bank__read_ledger", "bank__wire_money"}
    server["copies"] = True
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings(), arguments=("--workers", "2")) as gateway:
        await ready(gateway)
        gateway.client.headers["authorization"] = "Bearer key-of-ann"
        for _ in range(6):
            assert set(await gateway.tools()) == {"bank__read_ledger"}
