"""Rules, patterns and conditions that can never apply are reported by `check`, the log and the admin page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from anyio import move_on_after, to_thread
from support.gateways import brief_pause, running_gateway
from support.upstreams.running import rescript, scripted_stdio_server, tool

WIRE = tool(
    "wire_money",
    amount="number",
    currency={"type": "string", "enum": ["EUR", "USD"]},
    urgent="boolean",
    to={"type": "object", "properties": {"iban": {"type": "string"}}},
    count={"type": "integer", "maximum": 10},
)
READ = {**tool("read_ledger"), "annotations": {"readOnlyHint": True}}
SURFACE: dict[str, Any] = {
    "capabilities": {"tools": {"listChanged": True}, "prompts": {}, "resources": {}},
    "answers": {
        "prompts/list": {"prompts": [{"name": "greet"}]},
        "resources/list": {"resources": [{"uri": "mem://a", "name": "a"}]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "file:///{path}", "name": "f"}]},
    },
}


def when(**arguments: Any) -> dict[str, Any]:
    return {"wrappers": ["bank__wire_*"], "deny": True, "when": {"arguments": arguments}}


ABSENT = "no tool that the rule covers has this argument"
UNFIT = "no value that the argument may have fits"
NOTHING = "matches nothing that exists"
NONE = "covers no existing completions, prompts, resources, tools"
VAIN: list[tuple[dict[str, Any], str]] = [
    (when(amuont={"above": 1}), f"when.arguments.amuont: {ABSENT}; did you mean amount?"),
    (when(**{"to.ibann": "x"}), f"when.arguments.to.ibann: {ABSENT}; did you mean to.iban?"),
    (when(currency="EURO"), f'when.arguments.currency: {UNFIT} (one of "EUR", "USD"; did you mean EUR?)'),
    (when(amount="lots"), f"when.arguments.amount: {UNFIT} (number)"),
    (when(urgent={"above": 3}), f"when.arguments.urgent: {UNFIT} (boolean)"),
    (when(amount={"pattern": "^9"}), f"when.arguments.amount: {UNFIT} (number)"),
    (when(count={"above": 10}), f"when.arguments.count: {UNFIT} (integer)"),
    (when(amount={"above": 10, "below": 5}), f"when.arguments.amount: {UNFIT} (number)"),
    (
        {"wrappers": ["bank__wire_*"], "ask": {"when": {"arguments": {"amuont": 1}}}},
        f"ask.when.arguments.amuont: {ABSENT}",
    ),
    ({"deny": ["bank__wrie_money"]}, f"{NONE}; did you mean bank__wire_money?"),
    (
        {"wrappers": ["bank__wire_*", "bank__red_ledger"], "deny": True},
        f"wrappers: bank__red_ledger {NOTHING}; did you mean bank__read_ledger?",
    ),
    ({"deny": ["bank__mem://a", "bank__mem://aa"]}, f"deny: bank__mem://aa {NOTHING}; did you mean mem://a?"),
    ({"deny": ["bank__mem://b"]}, NONE),
    (
        {"deny": True, "servers": ["bank"], "kinds": ["prompts", "completions"]},
        "kinds: completions: the rule covers none",
    ),
    ({"deny": ["bank__wire_money"], "when": {"readOnly": True}}, "when: readOnly true: nothing that the rule covers"),
    ({"wrappers": ["bank__read_*"], "ask": {"when": {"destructive": True}}}, "ask.when: destructive true: no tool"),
    ({"allow": ["bank__wire_money"], "when": {"arguments": {"currency": 5}}}, f"when.arguments.currency: {UNFIT}"),
]
SOUND: list[dict[str, Any]] = [
    when(amount={"above": 1000}),
    when(amount="5000"),
    when(currency=["EUR", "GBP"]),
    when(currency={"noneOf": ["EUR"]}),
    when(urgent="true"),
    when(count={"above": 9}),
    when(**{"to.iban": {"pattern": "^DE"}}),
    when(amount={"present": False}),
    {"deny": ["file:///etc/*"]},
    {"deny": ["file:///etc/passwd", "mem://*"]},
    {"deny": ["*__wire_*", "greet"]},
    {"deny": True, "servers": ["bank"], "kinds": ["prompts"], "when": {"readOnly": True}},
    # The tools of a server that has not listed any are unknown.
    {"deny": ["away__delete_everything"]},
    {"wrappers": ["away__*"], "deny": True, "when": {"arguments": {"nonsense": 1}}},
    {"wrappers": ["*__nothing_like_it"], "deny": True},
]


def settings() -> dict[str, Any]:
    rules = [{"name": f"vain {at}", **rule} for at, (rule, _) in enumerate(VAIN)]
    return {"policy": {"rules": [*rules, *({"name": f"sound {at}", **rule} for at, rule in enumerate(SOUND))]}}


def told_of(texts: list[str]) -> list[str]:
    return [text for text in texts if "the rule '" in text]


@pytest.mark.heavy
async def test_log_and_page_name_inapplicable_rules_once_per_change(tmp_path: Path) -> None:
    bank, record = scripted_stdio_server(tmp_path, "bank", tools=[WIRE, READ], **SURFACE)
    away = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    async with running_gateway(tmp_path, {"bank": bank, "away": away}, gateway=settings()) as gateway:
        await gateway.until_listed("bank__read_ledger")

        async def until_logged(text: str, times: int = 1) -> None:
            while gateway.logged().count(text) < times:
                await brief_pause()

        for at, (_, text) in enumerate(VAIN):
            await until_logged(f"the rule 'vain {at}': {text}")
        warnings = told_of((await gateway.admin("policy")).json()["warnings"])
        assert len(warnings) == len(VAIN), warnings
        assert not [text for text in warnings if "'sound" in text]
        for at, (_, text) in enumerate(VAIN):
            assert any(one.startswith(f"policy: the rule 'vain {at}': {text}") for one in warnings), (at, warnings)
        assert "'sound" not in gateway.logged()
        # The server now lists the misspelt argument, and no longer lists another one.
        other = tool("wire_money", amuont="number", amount="number", urgent="boolean")
        rescript(bank, record, announce=True, tools=[other, READ], **SURFACE)
        gone = "the rule 'vain 2': when.arguments.currency: no tool that the rule covers has this argument"
        await until_logged(gone)
        logged = gateway.logged()
        assert logged.count("the rule 'vain 0'") == 1
        assert logged.count("the rule 'vain 3'") == 1
        warnings = told_of((await gateway.admin("policy")).json()["warnings"])
        assert not [text for text in warnings if "'vain 0'" in text]
        # Back again: it is reported again.
        rescript(bank, record, announce=True, tools=[WIRE, READ], **SURFACE)
        await until_logged("the rule 'vain 0'", 2)
        assert gateway.logged().count("the rule 'vain 3'") == 1


@pytest.mark.heavy
async def test_check_names_inapplicable_rules(tmp_path: Path) -> None:
    bank, _ = scripted_stdio_server(tmp_path, "bank", tools=[WIRE, READ], **SURFACE)
    away = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    path = tmp_path / "gw.json"
    path.write_text(json.dumps({"mcpServers": {"bank": bank, "away": away}, "gateway": settings()}))
    line = [sys.executable, "-m", "gateway", "check", "--config", str(path), "--state-dir", str(tmp_path / "st")]
    done = await to_thread.run_sync(lambda: subprocess.run(line, capture_output=True, text=True, check=False))
    for at, (_, text) in enumerate(VAIN):
        assert f"policy: the rule 'vain {at}': {text}" in done.stderr
    assert "'sound" not in done.stderr


@pytest.mark.parametrize(
    "schema", [{"type": "object"}, {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}}]
)
async def test_argument_rule_may_apply_to_a_tool_with_an_open_schema(schema: Any, tmp_path: Path) -> None:
    open_tool = {"name": "wire_money", "description": "Wires.", "inputSchema": schema}
    bank, _ = scripted_stdio_server(tmp_path, "bank", tools=[open_tool])
    rules = [{"name": "r", **when(amount={"above": 1})}]
    async with running_gateway(tmp_path, {"bank": bank}, gateway={"policy": {"rules": rules}}) as gateway:
        await gateway.until_listed("bank__wire_money")
        assert not (await gateway.admin("policy")).json()["warnings"]


@pytest.mark.heavy
async def test_only_one_of_several_workers_logs(tmp_path: Path) -> None:
    bank, _ = scripted_stdio_server(tmp_path, "bank", tools=[WIRE])
    rules = [{"name": "r", **when(amuont={"above": 1})}]
    servers = {"bank": {**bank, "copies": True}}
    settings = {"policy": {"rules": rules}}
    async with running_gateway(tmp_path, servers, gateway=settings, arguments=("--workers", "2")) as gateway:
        await gateway.until_listed("bank__wire_money")
        while "the rule 'r'" not in gateway.logged():
            await brief_pause()
        # The other worker has listed by now, and would have logged it a second later.
        with move_on_after(3):
            while gateway.logged().count("the rule 'r'") < 2:
                await brief_pause()
        assert gateway.logged().count("the rule 'r'") == 1
