"""`typegate check` reports every error of a file in one run, with the server it belongs to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.gateways import running_gateway
from support.upstreams.running import scripted_stdio_server, tool

_ROOT = Path(__file__).parents[2]


def typegate(*line: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "gateway", *line]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


def check(tmp_path: Path, servers: dict[str, Any], *line: str, **gateway: Any) -> subprocess.CompletedProcess[str]:
    (tmp_path / "gw.json").write_text(json.dumps({"mcpServers": servers, "gateway": gateway}))
    return typegate("check", "--config", str(tmp_path / "gw.json"), *line)


DIES = "import sys; print('Traceback', file=sys.stderr); sys.stderr.write('ValueError: no key'); sys.exit(3)"


@pytest.mark.heavy
def test_valid_servers_are_checked_beside_invalid_ones_by_name(tmp_path: Path) -> None:
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    servers = {
        "sound": sound,
        "dead": {"command": sys.executable, "args": ["-c", DIES]},
        "gone": {"command": "no-such-program"},
        "joined": {"command": f"{sys.executable} -m server"},
        "unset": {"command": "x", "env": {"KEY": "${TYPEGATE_TEST_NOT_SET}"}},
        "off": {"command": "x", "disabled": True},
    }
    done = check(tmp_path, servers, profiles={"none": {"tools": ["zzz"]}})
    assert done.returncode == 2
    assert "sound__t" in done.stdout
    lines = done.stderr.splitlines()
    assert "typegate: dead: the process exited with code 3: ValueError: no key" in lines
    assert "typegate: gone: command not found: no-such-program" in lines
    assert any(line.endswith("-m server (expected the program alone; its arguments belong in args)") for line in lines)
    assert any(line.startswith("typegate: unset: left out: mcpServers.unset.env.KEY: ") for line in lines)
    assert any(line.startswith("typegate: sound: 1 tool after ") for line in lines)
    assert "typegate: warning: profile none: it selects no tool at all" in lines
    assert all(any(name in line for name in (*servers, "profile none")) for line in lines)
    strict = check(tmp_path, servers, "--strict")
    assert (strict.returncode, strict.stdout) == (2, "")
    assert "TYPEGATE_TEST_NOT_SET" in strict.stderr


def check_examples(tmp_path: Path, *examples: Any, **properties: Any) -> list[str]:
    """The warnings about examples of one tool, without what they begin with."""
    up, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("read", **properties), tool("other")])
    done = check(tmp_path, {"up": {**up, "tools": {"read": {"examples": examples}}}})
    begins = "typegate: warning: mcpServers.up.tools.read.examples"
    return [line.removeprefix(begins) for line in done.stderr.splitlines() if line.startswith(begins)]


@pytest.mark.heavy
def test_example_that_does_not_fit_its_tool_is_explained(tmp_path: Path) -> None:
    examples = ({"year": 2024}, {"year": "soon"}, {"year": 1, "unit": "mile"}, 7)
    assert check_examples(tmp_path, *examples, year={"type": "integer"}, unit={"enum": ["m", "km"]}) == [
        "[1]: year: 'soon' is not of type 'integer'",
        "[2]: unit: 'mile' is not one of ['m', 'km']",
        "[3]: 7 is not of type 'object'",
    ]


@pytest.mark.heavy
def test_uncheckable_example_schema_does_not_stop_the_check(tmp_path: Path) -> None:
    examples = ({"text": "a" * 40 + "!"}, {"text": 5})
    slow = {"type": "string", "pattern": "^(a+)+$"}
    assert check_examples(tmp_path, *examples, text=slow) == [
        "[0]: could not be checked in 10 s",
        "[1]: text: 5 is not of type 'string'",
    ]


@pytest.mark.heavy
def test_misspelled_deny_or_hidden_fails_the_check_with_a_suggestion(tmp_path: Path) -> None:
    one, _ = scripted_stdio_server(tmp_path, "one", tools=[tool("delete_all"), tool("drop")])
    servers = {"one": {**one, "deny": ["delete_al", "purge_*"], "tools": {"drp": {"hidden": True}}}}
    done = check(tmp_path, servers)
    assert done.returncode == 1
    assert (
        "one: delete_al: warning: deny: delete_al matches nothing of this server; did you mean delete_all?"
        in done.stderr
    )
    assert "did you mean drop?" in done.stderr
    assert "purge_*" in done.stdout
    assert done.stderr.count("matches nothing of this server; did you mean") == 1


async def test_excluded_entries_are_logged_and_shown_in_the_admin_api(tmp_path: Path) -> None:
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    servers = {"sound": {**sound, "deny": ["tt"]}, "bad": {"url": "nowhere"}, "My Server": sound}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("sound__t", "My-Server__t")
        rows = {row["name"]: row for row in (await gateway.admin("servers")).json()["servers"]}
        assert rows["bad"]["state"] == "faulty"
        assert "mcpServers.bad.url" in rows["bad"]["lastError"]
        assert (await gateway.server("bad")) == rows["bad"]
        assert "typegate: bad: left out: mcpServers.bad.url: " in gateway.logged()
        assert "serving 2 servers (1 left out)" in gateway.logged()
        assert "ERROR deny: tt matches nothing of this server; did you mean t?" in gateway.logged()
        codes = {row["code"] for row in (await gateway.admin("quarantine")).json()["quarantine"]}
        assert "hides_nothing" in codes
        assert (await gateway.client.get(f"{gateway.origin}/readyz")).status_code == 200


@pytest.mark.heavy
async def test_hook_conditions_matching_nothing_are_reported_with_a_suggestion(tmp_path: Path) -> None:
    sound, _ = scripted_stdio_server(tmp_path, "mail", tools=[tool("send_mail")])
    hooks = [
        {"name": "slip", "use": "size_guard", "conditions": {"wrappers": ["mail__send_mial"]}},
        {"name": "server", "use": "size_guard", "conditions": {"servers": ["male"]}},
        {"name": "sound", "use": "size_guard", "conditions": {"wrappers": ["send_*"], "servers": ["mail"]}},
        {"name": "both", "use": "size_guard", "conditions": {"wrappers": ["send_*"], "servers": []}},
    ]
    expected = [
        "hook slip: conditions.wrappers: mail__send_mial matches nothing; did you mean mail__send_mail?",
        "hook both: its conditions and phases together match no tool, prompt or resource",
    ]
    done = check(tmp_path, {"mail": sound}, hooks=hooks)
    for text in expected:
        assert f"typegate: warning: {text}" in done.stderr.splitlines()
    assert "gateway.hooks[1].conditions.servers: male matches no server; did you mean mail?" in done.stderr
    assert "hook sound" not in done.stderr
    async with running_gateway(tmp_path, {"mail": sound}, gateway={"hooks": hooks}) as gateway:
        await gateway.until_listed("mail__send_mail")
        assert set(expected) <= set((await gateway.admin("hooks")).json()["warnings"])
