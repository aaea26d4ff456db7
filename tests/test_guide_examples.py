"""Examples of the manual, run over real connections."""

from __future__ import annotations

import json
import re
import shlex
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from e2e.processes import raw_stdio, typegate
from support.gateways import RunningGateway, brief_pause, running_gateway, serving
from support.guide_pages import (
    ORIGIN,
    check_calls,
    code_blocks,
    local_config,
    page,
    run,
    section,
    shown_outputs,
    shown_rows,
    table,
)

from gateway.cli import parser
from gateway.config.load import parse
from gateway.onboarding.host_files import HOSTS, Machine
from gateway.upstream.link_states import LinkState
from registry.dialects.client_profiles import DIALECTS, name_fits

URL = f"{ORIGIN}/mcp"


async def until_state(gateway: RunningGateway, name: str, state: str) -> dict[str, Any]:
    with anyio.fail_after(25):
        while (row := await gateway.server(name))["state"] != state:
            await brief_pause()
    return row


async def test_first_configuration_works_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = local_config(code_blocks("getting-started", "yaml")[0], tmp_path)
    assert await run("check", "--config", str(config)) == 0
    printed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    for cells in shown_rows("getting-started"):
        assert any(line[0] == cells[0] and {*cells} <= {*line} for line in printed), (cells, printed)
    async with serving(config, tmp_path) as gateway:
        await check_calls(gateway, "getting-started", capsys)


def test_included_file_of_the_page_is_merged(tmp_path: Path) -> None:
    main, included = re.findall(r"^```text\n(.*?)^```", section("getting-started", "Several files"), re.M | re.S)
    (tmp_path / "descriptions").mkdir()
    (tmp_path / "descriptions/bank.yaml").write_text(included)
    config = parse(main, path=tmp_path / "mcp.yaml")
    assert config.warnings == []
    assert config.servers["bank"].supplement == "Amounts are in the currency of the account."


async def test_demo_prints_the_wrappers_shown_on_the_page(tmp_path: Path) -> None:
    [shown] = [output for arguments, output in shown_outputs("getting-started") if arguments == ["demo"]]
    program = typegate("demo", "--port", "0", "--state-dir", str(tmp_path))
    async with await anyio.open_process([program["command"], *program["args"]], stderr=None) as process:
        assert process.stdout is not None
        printed = ""
        with anyio.fail_after(20):
            while "Ctrl-C stops" not in printed:
                printed += (await process.stdout.receive()).decode()
        process.terminate()
    assert re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8765", printed).startswith(shown)


async def test_host_lists_the_tools_after_the_installation_on_the_page(tmp_path: Path) -> None:
    config, file = local_config(code_blocks("hosts", "yaml")[0], tmp_path), tmp_path / "cursor.json"
    file.write_text("{\n}\n")
    options = ["--file", str(file), "--state-dir", str(tmp_path / "state")]
    assert await run("install", "cursor", "--config", str(config), "--yes", "--no-check", *options) == 0
    entry = json.loads(file.read_text())["mcpServers"]["typegate"]
    arguments = entry["args"][entry["args"].index("stdio") :]
    async with raw_stdio(typegate(*arguments, "--profile", "desk")) as host:
        await host.initialize()
        names: set[str] = set()
        with anyio.fail_after(25):
            while "calendar-mcp__send_email" not in names:
                names = {tool["name"] for tool in await host.tools()}
    assert "bank__get_bank_balance" not in names
    assert await run("uninstall", "cursor", *options) == 0
    assert file.read_text() == "{\n}\n"


async def test_first_installation_writes_the_file_shown_on_the_page(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    options = ["--file", str(file), "--state-dir", str(tmp_path / "state")]
    [line] = [line for line in code_blocks("hosts", "console")[0].splitlines() if line]
    assert await run(*shlex.split(line)[1:], "--yes", *options) == 0
    assert file.read_text() == code_blocks("hosts", "json")[0]


def test_host_tables_match_the_program() -> None:
    machine = Machine(home=Path("~"), platform="linux", environ={})
    assert table(section("hosts", "Supported hosts")) == [
        [f"`{host.name}`", host.title, f"`{host.user(machine)[0]}`", f"`{host.project}`" if host.project else "–"]
        for host in HOSTS
    ]
    rows = {row[0]: row[1:] for row in table(section("hosts", "Entries written by hand"))}
    assert list(rows) == [f"`{host.name}`" for host in HOSTS]
    for host in HOSTS:
        entry = host.url_entry(URL) or host.process_entry(["typegate", "stdio", "--url", URL])
        written = json.dumps(entry).replace(json.dumps(URL), "URL")
        assert rows[f"`{host.name}`"][0] == f"`{host.block}`"
        assert rows[f"`{host.name}`"][1].startswith(f"`{written}`")


def test_dialect_table_is_complete_and_default_names_fit_every_host() -> None:
    rows = table(section("hosts", "Profiles and dialects"))
    assert sorted(re.findall(r"`([^`]+)`", " ".join(row[0] for row in rows))) == sorted(DIALECTS)
    # The two labels that the page recommends, with the longest wrapper name.
    assert all(
        name_fits("x" * 48, dialect, label) for dialect in DIALECTS.values() for label in ("gateway", "typegate")
    )


async def test_servers_of_the_example_are_ready_and_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(local_config(code_blocks("servers", "yaml")[0], tmp_path), tmp_path) as gateway:
        await gateway.until_listed("bank__get_bank_balance", "calendar-mcp__send_email")
        assert "calendar-mcp__list_sent" not in await gateway.tools()
        rows = (await gateway.admin("servers")).json()["servers"]
        shown = [[row["name"], row["type"], row["state"], str(row["tools"]), row["lastError"] or "-"] for row in rows]
        assert shown == shown_rows("servers")
        await check_calls(gateway, "index", capsys)
        # The exit codes on the page of commands.
        call = ["call", "--url", gateway.url, "bank__get_bank_balance"]
        assert [await run(*call, text) for text in ('{"account_id": "1"}', '{"account_id": "9"}', "{")] == [0, 1, 2]
        note = {"wrapper": "bank__get_bank_balance", "text": "Closed until noon.", "seconds": 60}
        assert (await gateway.admin("notes", "POST", note)).status_code == 201
        assert "Closed until noon." in (await gateway.tools())["bank__get_bank_balance"]["description"]
        for action, state in (("disable", "disabled"), ("enable", "ready")):
            assert (await gateway.admin(f"servers/bank/{action}", "POST", {})).status_code == 200
            await until_state(gateway, "bank", state)
        assert (await gateway.admin("servers/bank/refresh", "POST")).status_code == 202
    assert await run(*call) == 1


def test_table_of_states_is_complete() -> None:
    states = {state.name for state in LinkState.__args__} | {"disabled", "faulty"}
    assert {row[0].strip("`") for row in table(section("servers", "States"))} == states


async def test_servers_fail_with_the_messages_on_the_page(tmp_path: Path) -> None:
    python = {"command": sys.executable}
    servers = {
        "missing": {"command": "no-such-program"},
        "line": {"command": f"{sys.executable} -m gateway.demo.bank"},
        "folder": {**python, "cwd": "no-such-folder"},
        "ended": {**python, "args": ["-c", "raise SystemExit('no key given')"]},
        "usage": {**python, "args": ["-c", "print('usage: server FILE'); raise SystemExit(2)"]},
        "both": {**python, "url": "https://example.test/mcp"},
        "unset": {**python, "env": {"KEY": "${NO_SUCH_VARIABLE}"}},
        "silent": {**python, "args": ["-c", "import time; time.sleep(60)"], "startTimeout": 1},
    }
    documented = [re.escape(row[0].strip("`")) for row in table(section("servers", "Troubleshooting"))]
    # Parts that differ from case to case.
    patterns = [re.sub(r"…|300|NAME|KEY|(?<=code\\ )1", ".*", one) for one in documented]
    async with running_gateway(tmp_path, servers) as gateway:
        for name in servers:
            row = await until_state(gateway, name, "faulty" if name in ("both", "unset") else "waiting")
            assert any(re.search(pattern, row["lastError"]) for pattern in patterns), row["lastError"]


def commands(root: ArgumentParser, name: str = "") -> Iterator[tuple[str, ArgumentParser]]:
    """Yield every command that runs, with its parser."""
    actions = [action for action in root._actions if isinstance(action, _SubParsersAction)]
    if not actions:
        yield name, root
    for action in actions:
        for word, command in action.choices.items():
            yield from commands(command, f"{name} {word}".strip())


def options_in(text: str) -> set[str]:
    """Return the options in the code of a text."""
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(re.findall(r"`([^`\n]+)`", text))))


@pytest.mark.parametrize("title", re.findall(r"^### ([a-z, ]+)$", page("command-line"), re.MULTILINE))
def test_command_section_lists_exactly_its_options(title: str) -> None:
    text = section("command-line", title)
    described = {name: each for name, each in commands(parser()) if name.partition(" ")[0] in title.split(", ")}
    known: set[str] = set()
    for name, command in described.items():
        assert name in title.split(", ") or f"`{name}" in text, name
        for action in command._actions:
            known |= {*action.option_strings}
            missing = {*action.option_strings} - options_in(text) - {"-h", "--help"}
            assert not missing, f"{name}: {missing}"
            choices = [str(choice) for choice in action.choices or ()]
            words = choices if not action.option_strings or len(choices) < 8 else []
            assert all(f"{word}`" in text for word in words), f"{name}: {action.dest}"
            if not action.option_strings and not choices:
                assert f"{action.metavar}" in text, f"{name}: {action.metavar}"
    assert options_in(text) <= known, options_in(text) - known


def test_every_command_has_a_section() -> None:
    titles = re.findall(r"^### ([a-z, ]+)$", page("command-line"), re.MULTILINE)
    words = [word for title in titles for word in title.split(", ")]
    assert sorted(words) == sorted({name.partition(" ")[0] for name, _ in commands(parser())})


def test_command_page_shows_every_command() -> None:
    root = parser()
    lines = [shlex.split(line)[1:] for block in code_blocks("command-line", "console") for line in block.splitlines()]
    shown = {root.parse_args(arguments).handler for arguments in lines}
    assert shown == {command.get_default("handler") for _, command in commands(root)}


async def test_usage_errors_match_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    documented = [row[0].strip("`").partition("…")[0] for row in table(section("command-line", "Troubleshooting"))]
    (tmp_path / "mcp.yaml").write_text("mcpServers: {}\n")
    state = ["--state-dir", str(tmp_path)]
    for arguments in (["check", "--confg", "mcp.yaml"], ["serve", "mcp.yaml"], ["servers", *state], ["call", "a", "{"]):
        assert await run(*arguments) in (1, 2)
        printed = capsys.readouterr().err
        assert any(text in printed for text in documented), printed
    (tmp_path / "mcp.yaml").unlink()
    assert await run("check") == 2
    printed = capsys.readouterr().err
    assert any(text in printed for text in documented), printed
