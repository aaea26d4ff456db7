"""`typegate check` on a file in which some entries are wrong: every fault in one run, each with its server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_sound_servers_are_checked_beside_faulty_ones_and_every_line_names_its_server(tmp_path: Path) -> None:
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
    said = done.stderr.splitlines()
    assert "typegate: dead: the process exited with code 3: ValueError: no key" in said
    assert "typegate: gone: command not found: no-such-program" in said
    assert any(line.endswith("-m server (expected the program alone; its arguments belong in args)") for line in said)
    assert any(line.startswith("typegate: unset: left out: mcpServers.unset.env.KEY: ") for line in said)
    assert any(line.startswith("typegate: sound: 1 tool after ") for line in said)
    assert "typegate: warning: profile none: it selects no tool at all" in said
    assert all(any(name in line for name in (*servers, "profile none")) for line in said)
    strict = check(tmp_path, servers, "--strict")
    assert (strict.returncode, strict.stdout) == (2, "")
    assert "TYPEGATE_TEST_NOT_SET" in strict.stderr


def test_a_mistyped_deny_or_hidden_fails_the_check_with_the_near_miss(tmp_path: Path) -> None:
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


async def test_what_is_left_out_is_in_the_log_and_in_the_admin_api(tmp_path: Path) -> None:
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


async def test_conditions_of_hooks_that_match_nothing_are_told_with_the_near_miss(tmp_path: Path) -> None:
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
