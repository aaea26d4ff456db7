"""Manual pages about tools: examples are run, and messages compared with a running gateway."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from support.gateways import TOKEN, brief_pause, running_gateway, serving, text_of
from support.guide_pages import (
    ORIGIN,
    ROOT,
    check_calls,
    code_blocks,
    local_config,
    run,
    section,
    shown_outputs,
    shown_rows,
    symptoms,
    table,
)
from support.upstreams.graphql_running import graphql_server
from support.upstreams.running import kill_and_wait, scripted_stdio_server, tool, unused_port

from gateway.calls.call_targets import REPAIRS_KEY, UNCHECKED_KEY
from gateway.calls.results import REPAIRED_KEY
from gateway.hooks.builtin.cache import CACHED_KEY
from gateway.hooks.builtin.instruction_guard import INSTRUCTIONS_KEY
from gateway.hooks.builtin.redact import REDACTED_KEY
from gateway.hooks.builtin.size_guard import CUT_KEY
from gateway.hooks.hook import PHASES
from gateway.hooks.hook_loading import BUILTIN_HOOKS
from gateway.hooks.invocation import BLOCKED_KEY
from gateway.protocol.gateway_errors import UPSTREAM_ERROR_KEY
from gateway.protocol.versions import LEFT_OUT_KEY
from gateway.upstream.graphql.responses import ERRORS_KEY, EXTENSIONS_KEY
from gateway.upstream.openapi.openapi_results import META_KEY as HTTP_KEY
from registry.catalog.names import ServerName, ToolName, compile_names
from registry.views.disclosure import Reason

# names-and-views


async def test_deferred_tools_are_searched_and_names_refused_as_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
    (explain, _), (find, found) = shown_outputs("names-and-views")
    calls = [
        shlex.split(line)[1:] for block in code_blocks("names-and-views", "console") for line in block.splitlines()
    ]
    unlisted, generic = (
        call for call in calls if call[:2] in (["call", "calendar-mcp__list_accounts"], ["call", "invoke_tool"])
    )
    async with serving(local_config(code_blocks("names-and-views", "yaml")[0], tmp_path), tmp_path) as gateway:
        await gateway.until_listed("bank__balance", "calendar-mcp__list_accounts")

        async def printed(arguments: list[str], expected: int = 0) -> str:
            given = [part.replace(ORIGIN, gateway.origin) for part in arguments]
            given += [] if "--url" in given else ["--url", gateway.url]
            assert await run(*given) == expected
            output = capsys.readouterr()
            return output.out + output.err

        # Without a terminal, the rows have tabs and no header.
        rows = [line.split("\t") for line in (await printed(explain)).splitlines()]
        assert rows == shown_rows("names-and-views")
        assert (await printed(find)).startswith(found.removesuffix("…\n"))
        assert "robin@example.com" in await printed(unlisted)
        generic[-1] = generic[-1].replace("get_bank_balance", "balance")
        assert '"balance": "2715.65"' in await printed(generic)
        documented = symptoms("names-and-views")
        for name in ("balance", "bank__get_bank_balance", "find_tools"):
            output = (await printed(["call", name], 1)).strip().removeprefix("typegate: error -32602: ")
            assert output in documented
        output = await printed(["call", "bank__balance", "--url", f"{ORIGIN}/mcp/erands"], 1)
        assert output.strip().removeprefix("typegate: error -32600: ") in documented


def test_wrapper_names_are_formed_as_the_page_says() -> None:
    for pair, name, _ in table(section("names-and-views", "Wrapper names")):
        server, *tools = re.findall(r"`([^`]+)`", pair)
        compiled = compile_names(ServerName(server), map(ToolName, tools))
        assert compiled[ToolName(tools[0])].name == name.strip("`")


def test_table_of_listing_reasons_is_complete() -> None:
    text = section("names-and-views", "Which wrappers are listed")
    assert all(f"`{reason}`" in text for reason in get_args(Reason))


async def test_names_matching_nothing_are_reported_as_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, _ = scripted_stdio_server(tmp_path, "bank", tools=[tool("get_bank_balance"), tool("find_tools")])
    entry = {**bank, "prefix": "none", "tools": {"get_balance": {"hidden": True}}}
    servers = {"bank": entry, "Bank": bank}
    profiles = {"errands": {"servers": ["bnk"]}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers, "gateway": {"profiles": profiles}}))
    assert await run("check", "--config", str(tmp_path / "mcp.json"), "--state-dir", str(tmp_path)) == 2
    captured = capsys.readouterr()
    reported = " ".join(f"{captured.out}{captured.err}".split()).replace("'bank', 'Bank'", "'Bank', 'bank'")
    documented = symptoms("names-and-views")
    wanted = r"profile errands|the configuration|without a|server aliases"
    expected = [text for text in documented if re.match(wanted, text)]
    assert len(expected) == 4
    assert all(text in reported for text in expected), reported


# arguments


async def test_argument_examples_print_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(local_config(code_blocks("arguments", "yaml")[0], tmp_path), tmp_path) as gateway:
        await check_calls(gateway, "arguments", capsys)


async def test_ineffective_documentation_and_defaults_are_reported_as_on_the_page(tmp_path: Path) -> None:
    date = {"startDate": {"type": "string"}, "timeZone": {"type": "string"}}
    tools = [tool("look", **date), tool("list", **date), tool("count", n={"type": "integer"})]
    server, _ = scripted_stdio_server(tmp_path, "calendar", tools=tools)
    wrong_type = {"arguments": [{"name": "date", "type": "text"}]}
    server["tools"] = {
        "look": {"arguments": [{"name": "startDate", "type": "integer"}, {"name": "place", "type": "string"}]},
        "count": wrong_type,
    }
    server["defaults"] = {"timezone": "UTC"}
    profiles = {"default": {"supplements": {"bank__balance": "Never."}}}
    async with running_gateway(tmp_path, {"calendar": server}, gateway={"profiles": profiles}) as gateway:
        await gateway.until_listed("calendar__look")
        reported = [row["detail"] for row in (await gateway.admin("quarantine")).json()["quarantine"]]
        reported += (await gateway.admin("profiles")).json()["profiles"][0]["warnings"]
        beginnings = ("'startDate", "'place", "its arguments", "defaults", "supplements")
        documented = [text for text in symptoms("arguments") if text.startswith(beginnings)]
        assert len(documented) == len(beginnings)
        for text in documented:
            assert any(line.startswith(text.partition("; did you mean …?")[0]) for line in reported), (text, reported)


async def test_arguments_are_refused_repaired_or_hinted_at_as_on_the_page(tmp_path: Path) -> None:
    schema = {"account_id": {"type": "string"}, "memo": {"type": "string"}}
    fault = {"error": {"code": -32602, "message": "'account_id' was not provided"}}
    servers = {
        name: scripted_stdio_server(tmp_path, name, tools=[tool("pay", "account_id", **schema)], faults=faults)[0]
        for name, faults in (("bank", {}), ("lax", fault))
    }
    servers["lax"] |= {"repair": "full", "defaults": {"memo": "x"}}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("bank__pay", "lax__pay")
        [wrong] = [text for text in symptoms("arguments") if text.startswith("Wrong: account_id")]
        assert wrong in text_of(await gateway.call("bank__pay", {"account_id": 5}))
        full = await gateway.call("lax__pay", {"account_id": 5})
        assert full["_meta"]["typegate/repairs"]["repairs"] == [{"repair": "converted", "path": "account_id"}]
        assert "Added by the gateway:" in text_of(full)
        assert "added from defaults: memo" in text_of(await gateway.call("lax__pay", {}))


def test_table_of_repairs_is_complete() -> None:
    made = re.compile(r'Repair\(name="(\w+)"|_apply_repair\(.*"(\w+)"|return \w+, "(\w+)"')
    sources = [file.read_text(encoding="utf-8") for file in ROOT.glob("registry/arguments/*.py")]
    found = {name for source in sources for groups in made.findall(source) for name in groups}
    documented = {name for row in table(section("arguments", "Repairs")) for name in re.findall(r"`(\w+)`", row[0])}
    assert documented == found - {""}


# graphql


@asynccontextmanager
async def running_endpoint(tmp_path: Path, page: str = "graphql", shown_port: str = "4000") -> AsyncIterator[int]:
    """Run the endpoint of a page on a free port."""
    port, file = unused_port(), tmp_path / "endpoint.py"
    file.write_text(code_blocks(page, "python")[0].replace(shown_port, str(port)))
    with (tmp_path / "endpoint.log").open("wb") as log:
        process = await anyio.open_process(
            [sys.executable, str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        with anyio.fail_after(25), socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", port)):
                await brief_pause()
        yield port
    finally:
        await kill_and_wait(process)


async def test_operation_on_the_graphql_page_is_a_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "operations").mkdir()
    (tmp_path / "operations/get_employee.graphql").write_text(code_blocks("graphql", "graphql")[0])
    async with running_endpoint(tmp_path) as port:
        config = local_config(code_blocks("graphql", "yaml")[0].replace("4000", str(port)), tmp_path)
        async with serving(config, tmp_path) as gateway:
            await check_calls(gateway, "graphql", capsys)
            # A changed file takes effect at once.
            (tmp_path / "operations/ada.graphql").write_text("{ employee(id: 1) { name } }")
            await gateway.until_listed("hr__ada")
            assert json.loads(text_of(await gateway.call("hr__ada"))) == {"employee": {"name": "Ada"}}


async def test_files_are_rejected_with_the_messages_on_the_page(tmp_path: Path) -> None:
    sdl = "type Employee { id: Int! name: String! } type Query { employee(id: Int!): Employee }"
    files = {
        "field": "query A { employee(id: 1) { id nme } }",
        "get_employee": "query GetEmployee { employee(id: 1) { id } }",
        "second": "query C { employee(id: 1) { id } }\nquery D { employee(id: 1) { id } }",
        "taken": "query GetEmployee { employee(id: 2) { id } }",
        "title": 'query G @mcpTool(title: "x") { employee(id: 1) { id } }',
        "warned": "query H($c: Boolean) { employee(id: 1) { id name @include(if: $c) } }",
    }
    written = {f"{name}.graphql": text for name, text in files.items()}
    async with graphql_server(tmp_path, written, sdl=sdl, started=False) as server:
        tools = {"introspectionTools": True, "excludeMutations": True}
        entry = server.config(**server.schema_file, **tools) | {"endpoint": "http://127.0.0.1:9/graphql"}
        lost = {**entry, "operations": str(tmp_path / "none")}
        async with running_gateway(tmp_path, {"hr": entry, "lost": lost}) as gateway:
            await gateway.until_listed("hr__h", "hr__execute_graphql")
            reported = [row["detail"] for row in (await gateway.admin("quarantine")).json()["quarantine"]]
            reported.append(text_of(await gateway.call("hr__execute_graphql", {"query": "mutation { x }"})))
            with anyio.fail_after(25):
                while (error := (await gateway.server("lost"))["lastError"]) is None:
                    await brief_pause()
            reported.append(error)
    beginnings = ("Cannot query", "a second", "@mcpTool", "the name", "Variable", "Not sent", "operations:")
    documented = [text for text in symptoms("graphql") if text.startswith(beginnings)]
    assert len(documented) == len(beginnings)
    for text in documented:
        pattern = re.escape(text).replace("…", ".*")
        assert any(re.search(pattern, line) for line in reported), (text, reported)


# openapi


async def test_operation_on_the_openapi_page_is_a_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_endpoint(tmp_path, "openapi", "4001") as port:
        config = local_config(code_blocks("openapi", "yaml")[0].replace("4001", str(port)), tmp_path)
        async with serving(config, tmp_path) as gateway:
            await check_calls(gateway, "openapi", capsys)
            missing = text_of(await gateway.call("shop__getPet", {"id": 3}))
            assert missing.startswith("HTTP 404: no such pet")
        [line] = [line for block in code_blocks("openapi", "console") for line in block.splitlines() if " add " in line]
        arguments = shlex.split(line.replace("4001", str(port)).replace("mcp.yaml", str(config)))[1:]
        assert await run(*arguments) == 0
        shown = capsys.readouterr()
        assert "GET /pets/{id}: getPet" in shown.err
        assert "+  other:" in shown.out
    assert {*re.findall(r"`(typegate/\w+)`", section("openapi", "Results"))} == {HTTP_KEY}


async def test_documents_are_rejected_with_the_messages_on_the_openapi_page(tmp_path: Path) -> None:
    base: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}}
    get = {"operationId": "getPet", "parameters": [{"name": "name", "in": "path", "required": True}]}
    members = {f"m{number}": {"description": "x" * 400} for number in range(30)}
    large = {"200": {"description": "", "content": {"application/json": {"schema": {"properties": members}}}}}
    paths = {
        "/pets/{name}": {"get": get, "put": get},
        "/lost": {"get": {"parameters": [{"$ref": "#/nowhere"}]}},
        "/large": {"get": {"responses": large}},
    }
    documents = {
        "shop": {**base, "paths": paths, "servers": [{"url": "https://127.0.0.1:1"}]},
        "none": {**base, "paths": paths},
        "old": {"openapi": "1.2"},
    }
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "cut.json").write_text('{"openapi":')
    servers: dict[str, Any] = {name: {"spec": str(tmp_path / f"{name}.json")} for name in (*documents, "cut")}
    servers["private"], servers["shop"] = servers["shop"], {**servers["shop"], "baseUrl": "http://127.0.0.1:1"}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("shop__getPet")
        reported = [row["detail"] for row in (await gateway.admin("quarantine")).json()["quarantine"]]
        reported.append(text_of(await gateway.call("shop__getPet", {"name": ".."})))
        for name in ("none", "old", "cut", "private"):
            with anyio.fail_after(25):
                while (error := (await gateway.server(name))["lastError"]) is None:
                    await brief_pause()
            reported.append(error)
    documented = [text for text in symptoms("openapi") if not text.startswith("HTTP")]
    assert len(documented) == 8
    for text in documented:
        pattern = re.escape(text).replace("…", ".*")
        assert any(re.search(pattern, line) for line in reported), (text, reported)


# hooks


async def test_hook_on_the_page_checks_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hooks.py").write_text(code_blocks("hooks", "python")[0])
    async with serving(local_config(code_blocks("hooks", "yaml")[0], tmp_path), tmp_path) as gateway:
        await check_calls(gateway, "hooks", capsys)


FAILING = """
import asyncio
import time

from gateway.hooks import Hook, Result


class Raises(Hook):
    async def before_call(self, call):
        raise ValueError("no")


class Slow(Hook):
    async def before_call(self, call):
        await asyncio.sleep(5)


class Blocking(Hook):
    async def before_call(self, call):
        time.sleep(0.7)


class Spoils(Hook):
    async def before_call(self, call):
        return call.with_args({})


class Wrong(Hook):
    async def before_call(self, call):
        return Result({})
"""


async def test_hooks_fail_with_the_messages_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    kinds = ("Raises", "Slow", "Blocking", "Spoils", "Wrong")
    bank, _ = scripted_stdio_server(tmp_path, "bank", tools=[tool(kind.lower(), "account_id") for kind in kinds])
    hooks = [
        {"name": f"own-{kind}", "path": f"./failing.py:{kind}", "conditions": {"wrappers": [kind.lower()]}}
        for kind in kinds
    ]
    limits = [{**hook, "timeout": 0.5} for hook in hooks]
    async with running_gateway(tmp_path, {"bank": bank}, gateway={"hooks": limits}) as gateway:
        await gateway.until_listed("bank__raises")
        texts = [text_of(await gateway.call(f"bank__{kind.lower()}", {"account_id": "1"})) for kind in kinds]
        for _ in range(5):
            texts.append(text_of(await gateway.call("bank__raises", {"account_id": "1"})))
        texts.append(gateway.logged())
        # A version that cannot be loaded leaves the former one in use.
        (tmp_path / "failing.py").write_text("import no_such_module\n")
        with anyio.fail_after(25):
            while "no_such_module" not in (await gateway.admin("config")).text:
                await brief_pause()
        assert "own-Spoils" in text_of(await gateway.call("bank__spoils", {"account_id": "1"}))
    reported = re.sub(r"own-\w+", "own-accounts", "\n".join(texts)).replace("failing.py", "hooks.py")
    beginnings = ("Hook 'own", "…, it blocked", "Not called")
    documented = [text for text in symptoms("hooks") if text.startswith(beginnings)]
    assert len(documented) == 6
    for text in documented:
        message = text.removeprefix("…, ").removesuffix("` (log)").rstrip(".")
        pattern = re.sub(r":9|1\\.0", r"[:\\d.]+", re.escape(message))
        assert re.search(pattern, reported), (text, reported)


@pytest.mark.parametrize(
    ("entry", "beginning"),
    [
        ({"path": "./other.py:Raises"}, "names a file"),
        ({"path": "./hooks.py:Own"}, "has no class"),
        ({"path": "./hooks.py:OwnAccounts", "phases": ["beforePrompt"]}, "has no before"),
        ({"use": "redct"}, "names an unknown"),
    ],
)
async def test_unloadable_hooks_are_reported_as_on_the_page(
    entry: dict[str, object], beginning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hooks.py").write_text(code_blocks("hooks", "python")[0])
    bank, _ = scripted_stdio_server(tmp_path, "bank")
    config = {"mcpServers": {"bank": bank}, "gateway": {"hooks": [{"name": "own-accounts", **entry}]}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    assert await run("check", "--config", str(tmp_path / "mcp.json"), "--state-dir", str(tmp_path)) == 2
    [documented] = [text for text in symptoms("hooks") if text.startswith(beginning)]
    assert documented in capsys.readouterr().err


async def test_hook_condition_matching_nothing_is_reported_as_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, _ = scripted_stdio_server(tmp_path, "bank", tools=[tool("get_bank_balance")])
    hook = {"name": "own-accounts", "use": "rate_limit", "conditions": {"wrappers": ["bank__get_balance"]}}
    config = {"mcpServers": {"bank": bank}, "gateway": {"hooks": [hook]}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    assert await run("check", "--config", str(tmp_path / "mcp.json"), "--state-dir", str(tmp_path)) == 0
    [documented] = [text for text in symptoms("hooks") if text.startswith("hook own-accounts")]
    assert documented in capsys.readouterr().err


# results


async def test_selection_returns_the_part_as_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
    async with serving(local_config(code_blocks("results", "yaml")[0], tmp_path), tmp_path) as gateway:
        await check_calls(gateway, "results", capsys)
        listed = await gateway.tools()
    [expression] = re.findall(r"_select\W+([^\"]+)\"", code_blocks("results", "console")[0])
    assert expression == "accounts[].address"
    properties = listed["read_result"]["inputSchema"]["properties"]
    documented = table(section("results", "Reference").partition("`read_result` reads")[2])
    assert {name for row in documented for name in re.findall(r"`(\w+)`", row[0])} == {*properties}


def test_tables_of_hooks_and_meta_are_complete() -> None:
    phases = " ".join(row[0] + row[1] for row in table(section("hooks", "Phases")))
    assert {*re.findall(r"`(\w+)`", phases)} == {*PHASES, *PHASES.values()}
    bundled = table(section("hooks", "Bundled hooks"))
    assert {row[0].strip("`") for row in bundled} == {*BUILTIN_HOOKS}
    by_hooks = {key for row in bundled for key in re.findall(r"`(typegate/\w+)`", row[-1])}
    assert by_hooks == {CACHED_KEY, CUT_KEY, INSTRUCTIONS_KEY, REDACTED_KEY}
    by_gateway = {row[0].strip("`") for row in table(section("arguments", "Members of `_meta`"))}
    known = {REPAIRS_KEY, UNCHECKED_KEY, UPSTREAM_ERROR_KEY, REPAIRED_KEY, LEFT_OUT_KEY, BLOCKED_KEY}
    assert by_gateway == known
    assert {*re.findall(r"`(typegate/\w+)`", section("graphql", "Results"))} == {ERRORS_KEY, EXTENSIONS_KEY}
