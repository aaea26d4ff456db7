"""The gateway is put into files of hosts on its own machine: looked at first, written once, and taken back."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.gateways import TOKEN, RunningGateway, running_gateway

SECRET = "sk-live-9f8e7d6c5b4a3928170f6e5d"
CURSOR = {
    "mcpServers": {
        "shared": {"url": "http://127.0.0.1:9/mcp"},
        "other": {"url": "https://other.example.test/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}},
    }
}


@asynccontextmanager
async def at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[RunningGateway, Path]]:
    """A gateway of a user with an empty folder, and the file of one host there."""
    home = tmp_path / "home"
    (home / ".cursor").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    async with running_gateway(tmp_path, servers or {}, **options) as gateway:
        yield gateway, home / ".cursor" / "mcp.json"


async def ask(
    gateway: RunningGateway, path: str, method: str = "POST", body: Any = None, **headers: str
) -> httpx2.Response:
    sent = {"authorization": f"Bearer {TOKEN}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.client.request(method, f"{gateway.origin}/admin/{path}", json=body, headers=sent)


def kept(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_what_was_looked_at_is_written_and_taken_back_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_home(tmp_path, monkeypatch, {"shared": CURSOR["mcpServers"]["shared"]}) as (gateway, file):
        file.write_text(json.dumps(CURSOR, indent=2))
        before = file.read_bytes()
        plan = (await ask(gateway, "hosts/cursor/preview", body={})).json()
        assert (plan["file"], plan["replaces"], plan["stays"]) == (str(file), ["shared"], ["other"])
        assert f'+      "url": "{gateway.url}"' in plan["difference"]
        assert SECRET not in plan["difference"]
        assert file.read_bytes() == before
        assert (await ask(gateway, "hosts/cursor", body={})).status_code == 428
        assert (await ask(gateway, "hosts/cursor", body={}, if_match="*")).status_code == 428
        written = await ask(gateway, "hosts/cursor", body={}, if_match=plan["tag"])
        assert written.status_code == 200, written.text
        assert kept(written.json()["backup"]) == before
        servers = json.loads(file.read_text())["mcpServers"]
        assert servers == {"typegate": {"url": gateway.url}, "other": CURSOR["mcpServers"]["other"]}
        row = (await gateway.admin("hosts?q=cursor")).json()["hosts"][0]
        assert (row["written"], row["changedSince"]) == (True, False)
        audit = (await gateway.admin("audit?event=changed")).json()["audit"]
        assert [line["action"] for line in audit][:1] == ["POST /admin/hosts/cursor"]
        assert (await ask(gateway, "hosts/cursor", "DELETE")).json()["done"] == "as it was"
        assert file.read_bytes() == before
        assert (await ask(gateway, "hosts/cursor", "DELETE")).status_code == 409


async def test_a_file_that_changes_in_between_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_home(tmp_path, monkeypatch) as (gateway, file):
        file.write_text(json.dumps(CURSOR))
        plan = (await ask(gateway, "hosts/cursor/preview", body={})).json()
        # Nor what was not looked at.
        assert (await ask(gateway, "hosts/cursor", body={"key": "another"}, if_match=plan["tag"])).status_code == 412
        file.write_text("{}")
        assert (await ask(gateway, "hosts/cursor", body={}, if_match=plan["tag"])).status_code == 412
        assert file.read_text() == "{}"
        plan = (await ask(gateway, "hosts/cursor/preview", body={})).json()
        assert (await ask(gateway, "hosts/cursor", body={}, if_match=plan["tag"])).status_code == 200
        # Somebody adds a server: ours alone is taken out then, and only where that is wanted.
        changed = json.loads(file.read_text())
        changed["mcpServers"]["new"] = {"url": "http://127.0.0.1:8/mcp"}
        file.write_text(json.dumps(changed))
        assert (await gateway.admin("hosts?q=cursor")).json()["hosts"][0]["changedSince"] is True
        refused = await ask(gateway, "hosts/cursor", "DELETE")
        assert (refused.status_code, json.loads(file.read_text())) == (409, changed)
        assert (await ask(gateway, "hosts/cursor?force=true", "DELETE")).json()["done"] == "our entry taken out"
        assert json.loads(file.read_text()) == {"mcpServers": {"new": {"url": "http://127.0.0.1:8/mcp"}}}


@pytest.mark.heavy
async def test_a_key_is_written_for_the_host_and_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "tg_" + "c" * 40
    keys = {"auth": {"apiKeys": [{"name": "ci", "key": key}]}}
    written: dict[str, str] = {}
    async with at_home(tmp_path, monkeypatch, gateway=keys) as (gateway, _):
        for host in ("claude-desktop", "codex", "vscode"):
            plan = await ask(gateway, f"hosts/{host}/preview", body={"key": key})
            assert key not in plan.text
            answer = await ask(gateway, f"hosts/{host}", body={"key": key}, if_match=plan.json()["tag"])
            assert answer.status_code == 200, answer.text
            assert key not in answer.text + gateway.logged() + (await gateway.admin("audit")).text
            written[host] = kept(answer.json()["file"]).decode()
            assert os.stat(answer.json()["file"]).st_mode & 0o777 == 0o600
    process = json.loads(written["claude-desktop"])["mcpServers"]["typegate"]
    assert process["args"][-2:] == ["--url", gateway.url]
    # Not among its arguments, which every user of the machine can read.
    assert process["env"] == {"TYPEGATE_API_KEY": key}
    assert f'Authorization = "Bearer {key}"' in written["codex"]
    assert json.loads(written["vscode"])["servers"]["typegate"]["headers"] == {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [{"x_forwarded_for": "192.0.2.1"}, {"forwarded": "for=192.0.2.1"}, {"via": "1.1 proxy"}],
    ids=lambda headers: next(iter(headers)),
)
async def test_whoever_asks_through_a_proxy_is_offered_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    async with at_home(tmp_path, monkeypatch) as (gateway, file):
        found = (await ask(gateway, "hosts", "GET", **headers)).json()
        assert (found["offered"], found["hosts"], found["machine"]) == (False, [], None)
        plan = (await ask(gateway, "hosts/cursor/preview", body={})).json()
        for path, method in (("hosts/cursor/preview", "POST"), ("hosts/cursor", "POST"), ("hosts/cursor", "DELETE")):
            body = None if method == "DELETE" else {}
            refused = await ask(gateway, path, method, body, if_match=plan["tag"], **headers)
            assert refused.status_code == 403, path
        assert not file.exists()


async def test_a_gateway_with_an_address_for_others_offers_nothing_and_tells_that_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"publicUrl": "https://tools.example.test/gate", "profiles": {"small": {}}}
    async with at_home(tmp_path, monkeypatch, gateway=settings) as (gateway, _):
        assert (await gateway.admin("hosts")).json()["offered"] is False
        rows = (await gateway.admin("profiles")).json()["profiles"]
        assert {row["name"]: row["url"] for row in rows} == {
            "default": "https://tools.example.test/gate/mcp", "small": "https://tools.example.test/gate/mcp/small",
        }  # fmt: skip


async def test_what_cannot_be_written_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_home(tmp_path, monkeypatch) as (gateway, file):
        file.write_text("{ broken")
        refused = await ask(gateway, "hosts/cursor/preview", body={})
        assert (refused.status_code, str(file) in refused.json()["error"]) == (409, True)
        file.unlink()
        file.mkdir()
        assert (await ask(gateway, "hosts/cursor/preview", body={})).status_code == 409
        assert (await ask(gateway, "hosts/nobody/preview", body={})).status_code == 404
        assert (await ask(gateway, "hosts/cursor/preview", body={"profile": "none"})).status_code == 404
        odd = await ask(gateway, "hosts/cursor/preview", body={"profle": "default"})
        assert "did you mean it" in odd.json()["error"]
        assert (await ask(gateway, "hosts/cursor/preview", body={"key": "a b"})).status_code == 400
