"""Manual pages about operating a gateway: examples are run, and tables compared with a running gateway."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.callers import handshake
from support.gateways import RunningGateway, brief_pause, running_gateway, serving, text_of
from support.upstreams.running import unused_port

from gateway.cli import main
from gateway.hooks.runner import COUNTED
from gateway.telemetry.logs import FIELDS

ROOT = Path(__file__).parents[1]
PAGES = CLUSTER, OBSERVABILITY, ADMIN, TROUBLE = "cluster-and-kubernetes", "observability", "admin", "troubleshooting"
BALANCE = "bank__get_bank_balance"
KEY = "a-key-of-these-tests-that-cannot-be-guessed"
ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def page(name: str) -> str:
    return (ROOT / f"deploy/guide/{name}.md").read_text(encoding="utf-8")


def rows(name: str) -> list[list[str]]:
    """Return the cells of every table row of a page."""
    return [re.split(r" \| | \|(?= )", row) for row in ROW.findall(page(name))]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


def messages(name: str) -> list[str]:
    """Return the messages that a page explains, in which … stands for any text."""
    bold = re.findall(r"^\*\*(.*)\*\*$", page(name), re.MULTILINE)
    tables = [row[0] for row in rows(name) if "…" in row[0]]
    return [message for line in (*bold, *tables) for message in CODE.findall(line)]


def explains(name: str, text: str) -> bool:
    """Return whether a page explains a message that the program has printed."""
    return any(re.search(re.escape(message).replace("…", ".*"), text, re.DOTALL) for message in messages(name))


def written(text: str, tmp_path: Path) -> Path:
    """Write a configuration of a page, with the interpreter of the tests instead of the reader's."""
    path = tmp_path / "mcp.yaml"
    path.write_text(text.replace(".venv/bin/python", sys.executable))
    return path


async def run(*arguments: str) -> int:
    return await anyio.to_thread.run_sync(main, arguments)


async def until_ready(gateway: RunningGateway) -> None:
    with anyio.fail_after(25):
        while (await gateway.client.get(f"{gateway.origin}/readyz")).status_code != 200:
            await brief_pause()


def texts_of_the_program() -> str:
    """Return every string in the source, with … for each value that is inserted."""
    found: list[str] = []
    for path in [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "registry").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                value = node.value
                found.append(value if isinstance(value, str) else value.decode("utf-8", "replace"))
    return "\n".join(found)


def test_messages_explained_on_pages_exist_in_the_program() -> None:
    source = texts_of_the_program()
    explained = [message for name in PAGES for message in messages(name)]
    assert len(explained) > 30
    # Short parts are names and punctuation.
    parts = [part.strip() for message in explained for part in message.split("…") if len(part.strip()) > 10]
    assert [part for part in parts if part not in source] == []


# cluster-and-kubernetes


async def test_workers_do_not_start_for_a_program_without_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(blocks(CLUSTER, "yaml")[0].replace(", copies: true", ""), tmp_path)
    arguments = ("serve", "--config", str(config), "--port", "0", "--state-dir", str(tmp_path), "--workers", "2")
    assert await run(*arguments) == 2
    assert explains(CLUSTER, capsys.readouterr().err)


async def test_workers_start_as_the_page_says(tmp_path: Path) -> None:
    config = written(blocks(CLUSTER, "yaml")[0], tmp_path)
    async with serving(config, tmp_path, arguments=("--workers", "2")) as gateway:
        assert '"account_id": "1"' in text_of(await gateway.call(BALANCE, {"account_id": "1"}))
        expected = blocks(CLUSTER, "text")[0].replace("http://127.0.0.1:8765", gateway.origin)
        assert expected in gateway.logged()


async def test_session_of_one_example_replica_works_at_the_other(tmp_path: Path) -> None:
    [text] = [block for block in blocks(CLUSTER, "yaml") if "REPLICA" in block]
    ports = {"8767": str(unused_port()), "8768": str(unused_port()), "6379": str(unused_port())}
    for before, after in ports.items():
        text = text.replace(f":{before}", f":{after}").replace(f"-{before}", f"-{after}")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    first, second = (written(text, folder) for folder in folders)
    names = {"REPLICA": "two", "PEER_PORT": ports["8768"]}
    async with (
        serving(first, folders[0]) as one,
        serving(second, folders[1], environment=names) as two,
    ):
        session = await handshake(one)
        session.gateway = two
        assert "1" in text_of((await session.call(BALANCE, {"account_id": "1"}))["result"])
        row = (await two.admin("cluster")).json()
        assert row["peers"]["answered"] >= 1
        # Without a store, as the page says.
        assert row["store"]["state"] == "down"
        assert "the shared store cannot be reached" in two.logged()


# observability


def documented_metrics() -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of every metric in the tables of the page."""
    [shared] = re.findall(r"^Durations have the labels (.*) and buckets", page(OBSERVABILITY), re.MULTILINE)
    found = {}
    for name, kind, *others in rows(OBSERVABILITY):
        if kind in ("counter", "gauge", "histogram"):
            labels = shared if kind == "histogram" else others[0]
            found[name.strip("`")] = kind, set(CODE.findall(labels))
    return found


async def test_page_has_every_metric_with_type_and_labels(tmp_path: Path) -> None:
    peers = {
        "listen": unused_port(),
        "secret": "s" * 32,
        "name": "one",
        "discovery": {"addresses": {"two": "127.0.0.1:9"}},
    }
    options = {
        "cluster": {"peers": peers, "store": {"url": f"redis://127.0.0.1:{unused_port()}"}},
        "hooks": [{"name": "small", "use": "size_guard"}],
        "policy": {"rules": [{"name": "no lists", "deny": ["*__list_sent"]}]},
    }
    servers = {"calendar": {"command": sys.executable, "args": ["-m", "gateway.demo.calendar"]}}
    async with running_gateway(tmp_path, servers, gateway=options) as gateway:
        await gateway.until_listed("calendar__send_email")
        # A repaired call, and one that a rule denies.
        await gateway.call("calendar__send_email", {"to": "a@example.test", "subject": "s", "body": "b"})
        await gateway.call("calendar__list_sent")
        text = (await gateway.client.get(f"{gateway.origin}/metrics")).text
    shown = {"typegate_repairs_total", "typegate_policy_decisions_total", "typegate_hook_events_total"}
    assert shown <= set(re.findall(r"^(\w+)\{", text, re.MULTILINE))
    documented = documented_metrics()
    assert {name: kind for name, (kind, _) in documented.items()} == dict(
        re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M)
    )
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        family = name if name in documented else re.sub(r"_(bucket|sum|count)$", "", name)
        assert set(re.findall(r'(\w+)="', labels)) - {"le"} == documented[family][1], name


async def test_example_logs_and_audits_the_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(blocks(OBSERVABILITY, "yaml")[0], tmp_path)
    async with serving(config, tmp_path, arguments=("--verbose",)) as gateway:
        await gateway.until_listed(BALANCE)
        await gateway.call(BALANCE, {"account_id": "1"})
        shown = blocks(OBSERVABILITY, "text")[0]
        for field in re.findall(r"\w+='[^']*'", shown):
            assert field in gateway.logged()
        metrics = (await gateway.client.get(f"{gateway.origin}/metrics")).text.splitlines()
        assert all(line in metrics for line in shown.splitlines() if line.startswith("typegate_"))
    state = ("--state-dir", str(gateway.state_dir))
    assert await run("audit", "--since", "1h", "--event", "call", "--json", *state) == 0
    [entry] = json.loads(capsys.readouterr().out)
    members = re.findall(r'"(\w+)":', blocks(OBSERVABILITY, "text")[1])
    assert members == re.findall(r'"(\w+)":', json.dumps(entry, separators=(",", ":")))
    anchor = gateway.logged().rpartition("audit log anchored: ")[2].strip()
    assert await run("audit", "verify", "--anchor", anchor, *state) == 0
    assert "intact" in capsys.readouterr().out


def test_page_has_every_log_field_and_event() -> None:
    first = [CODE.findall(row[0]) for row in rows(OBSERVABILITY)]
    assert all(any(field in names for names in first) for field in FIELDS)
    assert all(any(event in names for names in first) for event in ("runs", *COUNTED))
    sources = [*(ROOT / "gateway/audit").glob("*.py"), ROOT / "gateway/serving/app.py"]
    pattern = r'(?:"event":\s?|_caller_members\(|audit\.process\()"(\w+)"'
    events = {event for path in sources for event in re.findall(pattern, path.read_text(encoding="utf-8"))}
    assert len(events) > 8
    assert all(any(event in names for names in first) for event in events)


# admin


async def test_page_has_every_admin_route_with_its_role(tmp_path: Path) -> None:
    cluster = {
        "peers": {"listen": unused_port(), "secret": "s" * 32, "discovery": {"addresses": {"two": "127.0.0.1:9"}}}
    }
    async with running_gateway(tmp_path, {}, gateway={"cluster": cluster}) as gateway:
        paths = (await gateway.admin("openapi.json")).json()["paths"]
    served = {
        (method.upper(), path, "public" if operation.get("security") == [] else operation["x-role"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    documented = [(row[0], row[1].strip("`"), row[2]) for row in rows(ADMIN) if row[0] in ("GET", "POST", "DELETE")]
    assert sorted(documented) == sorted(served)


def test_page_has_every_room() -> None:
    source = (ROOT / "gateway/admin/page/app.js").read_text(encoding="utf-8")
    rooms = re.findall(r'^  \["\w+", "([^"]+)"\],$', source, re.MULTILINE)
    assert len(rooms) == 9
    titles = [row[0] for row in rows(ADMIN)]
    assert [title for title in titles if title in rooms] == rooms


async def test_configured_token_has_the_rights_of_its_role(tmp_path: Path) -> None:
    config = written(blocks(ADMIN, "yaml")[0], tmp_path)
    async with serving(config, tmp_path) as gateway:
        await until_ready(gateway)
        call = {"wrapper": BALANCE, "arguments": {"account_id": "1"}}
        assert (await gateway.admin("try", "POST", call, token="test")).status_code == 200
        refused = await gateway.admin("overlay", "DELETE", token="test")
        assert refused.status_code == 403
        assert explains(ADMIN, refused.json()["error"])
        added = {"name": "new", "config": {"command": "ls"}}
        assert explains(ADMIN, (await gateway.admin("servers", "POST", added)).json()["error"])
        assert (await gateway.admin("servers", token="wrong")).status_code == 401


# troubleshooting


async def test_check_prints_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(blocks(TROUBLE, "yaml")[0], tmp_path)
    assert await run("check", "--config", str(config), "--state-dir", str(tmp_path)) == 1
    printed = capsys.readouterr().out.splitlines()
    shown = [re.split(r" {2,}", line) for line in blocks(TROUBLE, "text")[0].splitlines()]
    assert [line.split("\t") for line in printed[: len(shown)]] == shown


@pytest.mark.parametrize(
    "text",
    [
        "mcpServers: {}\ngateway: {quota: {}}\n",
        'mcpServers: {a: {command: x, env: {K: "${NO_SUCH_VARIABLE}"}}}\n',
    ],
)
async def test_configuration_errors_are_explained(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mcp.yaml").write_text(text)
    await run("check", "--config", str(tmp_path / "mcp.yaml"), "--state-dir", str(tmp_path))
    assert explains(TROUBLE, capsys.readouterr().err)


async def test_calls_are_refused_with_the_messages_on_the_page(tmp_path: Path) -> None:
    python = {"command": sys.executable}
    servers = {
        "bank": {**python, "args": ["-m", "gateway.demo.bank"]},
        "calendar": {**python, "args": ["-m", "gateway.demo.calendar"]},
        "gone": {**python, "args": ["-c", "raise SystemExit('no key given')"]},
    }
    rules = [
        {"name": "no zero", "wrappers": [BALANCE], "deny": True, "when": {"arguments": {"account_id": "0"}}},
        {"name": "ask first", "wrappers": ["calendar__send_email"], "ask": {"by": "administrator"}},
    ]
    options = {
        "policy": {"rules": rules},
        "approvals": {"timeout": 0.1},
        "quotas": {"default": {"callsPerMinute": 10}},
    }
    mail = {"to": ["a@example.test"], "subject": "s", "body": "b"}
    calls = [
        (BALANCE, {"account_id": "0"}),
        ("calendar__send_email", {}),
        ("calendar__send_email", mail),
        ("gone__x", {}),
    ]
    async with running_gateway(tmp_path, servers, gateway=options) as gateway:
        await gateway.until_listed(BALANCE, "calendar__send_email")
        for name, arguments in calls:
            refusal = text_of(await gateway.call(name, arguments))
            assert refusal.startswith("Not called: ")
            assert explains(TROUBLE, refusal), refusal
        assert explains(TROUBLE, (await gateway.server("gone"))["lastError"])
        answers = [await gateway.rpc("tools/call", {"name": BALANCE, "arguments": {}}) for _ in range(10)]
        assert answers[-1]["error"]["code"] == -32029
        assert explains(TROUBLE, answers[-1]["error"]["message"])


async def test_status_codes_match_the_page(tmp_path: Path) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    requests = [
        ("mcp", {}),
        ("mcp/none", key),
        ("mcp", {"host": "other.example.test"}),
        ("mcp", {"origin": "https://other.example.test"}),
        ("mcp", {**key, "mcp-session-id": "none"}),
        ("mcp", {**key, "accept": "text/html"}),
        ("mcp", {**key, "content-type": "text/html"}),
    ]
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    usual = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    async with running_gateway(tmp_path, {}, gateway={"auth": {"apiKeys": [{"name": "test", "key": KEY}]}}) as gateway:
        for path, headers in requests:
            answer = await gateway.client.post(f"{gateway.origin}/{path}", json=body, headers={**usual, **headers})
            statuses = [row for row in rows(TROUBLE) if str(answer.status_code) in row[0].split(", ")]
            documented = [message for row in statuses for message in CODE.findall(row[1])]
            assert any(re.search(re.escape(message).replace("…", ".*"), answer.text) for message in documented), path
