"""The scorecard measures every part of a configuration and contains no secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.upstreams.running import builtin_tools, scripted_stdio_server

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-of-the-test-which-is-long"


def card_of(tmp_path: Path, gateway: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    well, record = scripted_stdio_server(tmp_path, "well", tools=builtin_tools("echo", "sleep"))
    well["env"] = {"KEY": SECRET}
    servers = {"well": well, "away": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": SECRET}}}
    config = tmp_path / "typegate.json"
    config.write_text(json.dumps({"mcpServers": servers, "gateway": gateway}))
    command = [sys.executable, "-m", "gateway", "scorecard", "--config", str(config), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert record.calls() == []
    return done


@pytest.mark.heavy
def test_scorecard_measures_calls_lists_and_servers_without_secrets(tmp_path: Path) -> None:
    done = card_of(tmp_path, {"profiles": {"sec": {"dialect": "openai"}}}, "--json")
    assert done.returncode == 1, done.stderr
    card = json.loads(done.stdout)
    assert {row["name"]: row["state"] == "ready" for row in card["servers"]} == {"well": True, "away": False}
    assert {row["profile"] for row in card["profiles"]} == {"default", "sec"}
    assert all(row["tools"] == 2 and row["tokens"] > 0 for row in card["profiles"])
    assert card["calls"]["perSecond"] > 0
    assert card["calls"]["addedMs"] >= 0
    assert card["lock"] == {"file": False, "held": 0}
    assert SECRET not in done.stdout + done.stderr
    assert "127.0.0.1" not in done.stdout


@pytest.mark.heavy
def test_policy_refusing_the_probe_is_not_a_failure(tmp_path: Path) -> None:
    done = card_of(tmp_path, {"policy": {"default": "deny"}})
    assert "not measured" in done.stdout, done.stderr
    assert "cold start" in done.stdout
