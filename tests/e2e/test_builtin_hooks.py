"""Builtin hooks in a running gateway, and valid and invalid hook configurations."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator
from support.callers import handshake, hello, running_host
from support.gateways import TOKEN, brief_pause
from support.hooked import SAMPLES, Hooked, every_way, hooked, sample, text_of_answer
from support.upstreams.running import scripted_stdio_server, tool

from gateway.cli import main

# Each test starts a separate gateway; `test_hooks` has the quick ones.
pytestmark = pytest.mark.heavy

KEY = "AKIAIOSFODNN7EXAMPLE"
READ_ONLY = {**tool("look", what="string"), "annotations": {"readOnlyHint": True}}
KEYS = {"auth": {"apiKeys": [{"name": name, "key": f"key-of-{name}"} for name in ("ann", "bob")]}}


def own(name: str, **entry: Any) -> dict[str, Any]:
    return {"name": name, "use": name, **entry}


async def test_secrets_are_redacted_in_results(tmp_path: Path) -> None:
    async with hooked(tmp_path, own("redact")) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"key": KEY, "to": "ann@example.com"})
            assert KEY not in json.dumps(answer)
            assert json.loads(text_of_answer(answer)) == {"key": "[redacted secret]", "to": "[redacted email]"}
            assert answer["result"]["_meta"]["typegate/redacted"] == {"email": 2, "secret": 2}
            assert up.recording.calls()[0]["arguments"] == {"key": KEY, "to": "ann@example.com"}


async def test_secrets_are_redacted_in_upstream_errors(tmp_path: Path) -> None:
    fault = {"faults": {"error": {"code": -32050, "message": f"the key {KEY} is refused"}}}
    async with hooked(tmp_path, own("redact"), **fault) as up:
        answer = await up.ask("modern", "wrapper", "echo", {})
        assert KEY not in json.dumps(answer)
        assert "the key [redacted secret] is refused" in text_of_answer(answer)


async def test_large_result_is_shortened_with_a_note(tmp_path: Path) -> None:
    async with hooked(tmp_path, own("size_guard", config={"maxBytes": 5_000})) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"rows": [{"id": number} for number in range(5_000)]})
            assert len(json.dumps(answer)) < 7_000
            assert json.loads(answer["result"]["content"][0]["text"])["rows"][0] == {"id": 0}
            assert answer["result"]["structuredContent"]["rows"][0] == {"id": 0}
            assert "of 5000 items" in text_of_answer(answer)


@every_way
async def test_read_only_tool_is_called_once(era: str, route: str, tmp_path: Path) -> None:
    async with hooked(tmp_path, own("cache"), tools=[READ_ONLY, tool("send", "to")]) as up:
        first = await up.ask(era, route, "look", {"what": "x"})
        again = await up.ask(era, route, "look", {"what": "x"})
        assert text_of_answer(first) == text_of_answer(again)
        assert "typegate/cachedSeconds" in again["result"]["_meta"]
        await up.ask(era, route, "look", {"what": "y"})
        for _ in range(2):
            await up.ask(era, route, "send", {"to": "a"})
        assert [call["name"] for call in up.recording.calls()] == ["look", "look", "send", "send"]


async def test_cached_result_is_not_shared_between_principals(tmp_path: Path) -> None:
    async with hooked(tmp_path, own("cache"), gateway=KEYS, tools=[READ_ONLY]) as up:
        for name in ("ann", "bob", "ann"):
            await up.ask("modern", "wrapper", "look", {"what": "x"}, authorization=f"Bearer key-of-{name}")
        assert len(up.recording.calls()) == 2


async def test_result_cached_for_a_session_connection_is_not_shared(
    tmp_path: Path,
) -> None:
    async with hooked(tmp_path, own("cache"), tools=[READ_ONLY], server={"elicitation": True}) as up:
        for _ in range(2):
            session = await handshake(up.gateway)
            for _ in range(2):
                answer = await session.call("up__look", {"what": "x"})
            assert "typegate/cachedSeconds" in answer["result"]["_meta"]
        assert len(up.recording.calls()) == 2


async def test_result_declared_private_is_cached_for_one_session(tmp_path: Path) -> None:
    async with hooked(tmp_path, own("cache"), tools=[READ_ONLY], modern=True, scope="private") as up:
        for _ in range(2):
            session = await handshake(up.gateway)
            for _ in range(2):
                await session.call("up__look", {"what": "x"})
        assert len(up.recording.calls()) == 2
        # Without a session there is nothing to tell callers apart by.
        for _ in range(2):
            await up.ask("modern", "wrapper", "look", {"what": "x"})
        assert len(up.recording.calls()) == 4


async def test_result_of_an_elicitation_is_not_cached(tmp_path: Path) -> None:
    async with hooked(tmp_path, own("cache"), tools=[READ_ONLY]) as up:
        await up.ask("modern", "wrapper", "look", {"what": "x"})
        for _ in range(2):
            params = {"name": "up__look", "arguments": {"what": "x"}, "inputResponses": {"who": {"action": "accept"}}}
            answer = await up.rpc("modern", "tools/call", params)
            assert "typegate/cachedSeconds" not in answer["result"].get("_meta", {})
        assert len(up.recording.calls()) == 3


@every_way
async def test_rate_limit_refusal_gives_a_retry_time(era: str, route: str, tmp_path: Path) -> None:
    async with hooked(tmp_path, own("rate_limit", config={"perMinute": 1, "burst": 2})) as up:
        for _ in range(2):
            assert "isError" not in (await up.ask(era, route, "echo", {}))["result"]
        answer = await up.ask(era, route, "echo", {})
        assert "the limit of 1 calls per minute for up__echo is used up\nTry again in " in text_of_answer(answer)
        assert len(up.recording.calls()) == 2
        assert "isError" not in (await up.ask(era, route, "send", {"to": "a"}))["result"]


async def test_completions_are_limited_redacted_blocked_and_logged(tmp_path: Path) -> None:
    script: dict[str, Any] = {
        "capabilities": {"prompts": {}, "resources": {}, "completions": {}},
        "answers": {
            "prompts/list": {"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "x://{id}", "name": "x"}]},
            "completion/complete": {"completion": {"values": [KEY, "ann"]}},
        },
    }
    limit = own("rate_limit", config={"perMinute": 1, "burst": 2})
    log = own("audit_log", config={"file": "audit.jsonl", "arguments": True})
    async with hooked(tmp_path, limit, own("redact"), log, **script) as up:
        ref = {"type": "ref/prompt", "name": "up__greet"}
        params = {"ref": ref, "argument": {"name": "who", "value": "a"}}
        for era in ("modern", "handshake"):
            answer = await up.rpc(era, "completion/complete", params)
            assert answer["result"]["completion"]["values"] == ["[redacted secret]", "ann"]
        for other in (params, {**params, "ref": {"type": "ref/resource", "uri": "x://{id}"}}):
            answer = await up.rpc("modern", "completion/complete", other)
            assert "for completions of up is used up" in answer["error"]["message"]
        assert len(up.recording.requests("completion/complete")) == 2
        assert await up.gateway.stop() == 0
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [(one["kind"], one["wrapper"], one["outcome"]) for one in lines] == [
            ("completion", "up__greet", "ok"), ("completion", "up__greet", "ok"),
            ("completion", "up__greet", "blocked"), ("completion", "x://{id}", "blocked"),
        ]  # fmt: skip
        assert lines[0]["arguments"] == {"argument": {"name": "who", "value": "a"}}


async def test_audit_hook_logs_every_call_on_both_routes_including_blocked_ones(tmp_path: Path) -> None:
    log = own("audit_log", config={"file": "audit.jsonl"})
    blocker = sample("Blocker", conditions={"wrappers": ["send"]})
    async with hooked(tmp_path, log, blocker) as up:
        await up.ask("modern", "wrapper", "echo", {"x": "s3cr3t"})
        await up.ask("handshake", "invoke_tool", "echo", {"x": "s3cr3t"})
        await up.ask("modern", "wrapper", "send", {"to": "a"})
        assert await up.gateway.stop() == 0
        text = (tmp_path / "audit.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert [(line["wrapper"], line["via"], line["outcome"]) for line in lines] == [
            ("up__echo", "wrapper", "ok"), ("up__echo", "invoke_tool", "ok"), ("up__send", "wrapper", "blocked"),
        ]  # fmt: skip
        assert "s3cr3t" not in text
        assert stat.S_IMODE(os.stat(tmp_path / "audit.jsonl").st_mode) == 0o600


# configurations


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"use": "redact"}, "gateway.hooks[0].name: is missing"),
        ({"name": "x"}, "gateway.hooks[0]: does not say what to run; expected one of use, path, webhook, cpex"),
        ({"name": "x", "use": "redact", "path": "a:B"}, "has both use and path; expected one of"),
        ({"name": "x", "use": "redakt"}, "names an unknown hook (redakt); expected redact (did you mean it?)"),
        ({"name": "x", "usse": "redact"}, "gateway.hooks[0].usse: unknown key; expected use (did you mean it?)"),
        ({"name": "x", "path": "nowhere.at.all:Hook"}, "gateway.hooks[0].path: cannot be imported (No module named"),
        ({"name": "x", "path": "./absent.py:Hook"}, "gateway.hooks[0].path: names a file that does not exist"),
        ({"name": "x", "path": "hooks"}, "gateway.hooks[0].path: does not name a class"),
        ({"name": "x", "path": f"{SAMPLES}:Nobody"}, "gateway.hooks[0].path: has no class Nobody"),
        ({"name": "x", "path": f"{SAMPLES}:NoHook"}, "is not a hook; expected a class that derives from"),
        ({"name": "x", "path": f"{SAMPLES}:Particular"}, "gateway.hooks[0].config: number is missing"),
        (
            {"name": "x", "path": "./leaving.py:Hook"},
            "gateway.hooks[0].path: cannot be imported: SystemExit at leaving.py:2",
        ),
        ({"name": "x", "path": "./broken.py:Hook"}, "hooks[0].path: cannot be imported: SyntaxError at broken.py:1"),
        ({"name": "x", "path": f"{SAMPLES}:Late"}, "gateway.hooks[0]: did not start: there is no database"),
        (
            {"name": "x", "path": f"{SAMPLES}:Slow", "phases": ["afterCall"]},
            "gateway.hooks[0].phases: has no afterCall",
        ),
        ({"name": "x", "use": "redact", "phases": ["before"]}, "gateway.hooks[0].phases[0]: has a wrong value"),
        (
            {"name": "x", "use": "redact", "onError": "skip"},
            "gateway.hooks[0].onError: has a wrong value; expected 'fail'",
        ),
        ({"name": "x", "use": "redact", "timeout": True}, "gateway.hooks[0].timeout: is a boolean"),
        ({"name": "x y", "use": "redact"}, "gateway.hooks[0].name: is not a valid hook name"),
        ({"name": "x", "use": "rate_limit", "config": {"perMinut": 1}}, "perMinut: unknown key"),
        ({"name": "x", "use": "rate_limit", "conditions": {"wrapper": []}}, "expected wrappers (did you mean it?)"),
        ({"name": "x", "webhook": "ftp://a"}, "gateway.hooks[0].webhook: is not an absolute http or https URL"),
        ({"name": "x", "webhook": "http://a/"}, "gateway.hooks[0].config: has no secret"),
        ({"name": "x", "cpex": "./absent.yaml"}, "cpex names a file that does not exist"),
    ],
)
def test_invalid_hook_entry_is_one_message_with_file_key_and_expected_form(
    entry: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "broken.py").write_text("class Hook(:\n")
    file.write_text(json.dumps({"mcpServers": {}, "gateway": {"hooks": [entry]}}))
    assert main(["check", "--config", str(file)]) == 2
    printed = capsys.readouterr().err
    assert str(file) in printed
    assert words in printed
    assert "Traceback" not in printed


def test_duplicate_hook_names_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {}, "gateway": {"hooks": [own("redact"), own("redact")]}}))
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "check", "--config", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "gives one name to two hooks (redact)" in done.stderr


def entries(up: Hooked, *hooks: dict[str, Any]) -> str:
    """Return the text of the configuration with other hooks."""
    whole = json.loads(up.gateway.config.read_text())
    whole["gateway"]["hooks"] = [
        {**one, "config": {"record": str(up.path), "as": one["name"], **one.get("config", {})}} for one in hooks
    ]
    return json.dumps(whole)


async def reloads(up: Hooked) -> dict[str, Any]:
    return (await up.gateway.admin("config")).json()  # type: ignore[no-any-return] # JSON


async def until_reloaded(up: Hooked, count: int) -> None:
    with anyio.fail_after(25):
        while (await reloads(up))["reloads"] < count:
            await brief_pause()


async def test_reload_replaces_changed_hooks_and_running_calls_keep_theirs(tmp_path: Path) -> None:
    slow = sample("Slow", config={"seconds": 1.0})
    kept = sample("Recorder", name="kept", config={"tells": True})
    gone = sample("Recorder", name="gone", config={"tells": True})
    async with hooked(tmp_path, slow, kept, gone) as up:
        epoch = (await up.gateway.server("up"))["epoch"]
        answers: list[dict[str, Any]] = []

        async def begun() -> None:
            answers.append(await up.ask("modern", "wrapper", "echo", {"which": "begun before"}))

        async with anyio.create_task_group() as group:
            group.start_soon(begun)
            with anyio.fail_after(20):
                while (await up.hook("slow"))["counts"]["runs"] < 1:
                    await brief_pause()
            up.gateway.config.write_text(entries(up, kept, sample("Recorder", name="new", config={"tells": True})))
            await until_reloaded(up, 1)
            await up.ask("modern", "wrapper", "echo", {"which": "begun after"})
        assert "isError" not in answers[0]["result"]
        hooks_of = {
            which: {one["hook"] for one in up.seen() if one.get("args", {}).get("which") == which}
            for which in ("begun before", "begun after")
        }
        assert hooks_of == {"begun before": {"kept", "gone"}, "begun after": {"kept", "new"}}
        await up.until_seen(1, "close", "gone")
        assert up.seen("close", "kept") == []
        assert len(up.seen("start", "kept")) == 1
        assert (await up.hook("kept"))["counts"]["runs"] == 4, "what is counted is kept"
        assert (await up.gateway.server("up"))["epoch"] == epoch
        up.gateway.config.write_text(entries(up))
        await until_reloaded(up, 2)
        assert (await up.gateway.admin("hooks")).json() == {"wrappers": [], "hooks": []}
        before = len(up.seen("before_call"))
        await up.ask("modern", "wrapper", "echo", {})
        assert len(up.seen("before_call")) == before


async def test_reload_with_an_invalid_hook_keeps_the_running_ones(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Recorder")) as up:
        up.gateway.config.write_text(entries(up, sample("Recorder"), sample("Late")))
        with anyio.fail_after(25):
            while (await reloads(up))["error"] is None:
                await brief_pause()
        assert "gateway.hooks[1]: did not start: there is no database" in (await reloads(up))["error"]
        await up.ask("modern", "wrapper", "echo", {})
        assert len(up.seen("before_call")) == 1


async def test_any_change_of_a_hook_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    code = (
        "from gateway.hooks import Hook\n\nclass Mine(Hook):\n    async def before_call(self, call):\n"
        "        return call.with_args({**call.args, 'by': 'NAME'})\n"
    )
    file.write_text(code.replace("NAME", "first"))
    async with hooked(tmp_path, {"name": "mine", "path": "./mine.py:Mine"}) as up:
        assert (await up.ask("modern", "wrapper", "echo"))["result"]["structuredContent"] == {"by": "first"}
        # The size and perhaps the second of the file stay equal, so the bytecode cache would not notice the edit.
        file.write_text(code.replace("NAME", "other"))
        await until_reloaded(up, 1)
        assert (await up.ask("modern", "wrapper", "echo"))["result"]["structuredContent"] == {"by": "other"}
        file.write_text("class Mine: no hook")
        with anyio.fail_after(25):
            while not (await reloads(up))["error"]:
                await brief_pause()
        assert "SyntaxError" in (await reloads(up))["error"]
        assert (await up.ask("modern", "wrapper", "echo"))["result"]["structuredContent"] == {"by": "other"}


@pytest.mark.heavy
async def test_hooks_are_listed_in_running_order(tmp_path: Path) -> None:
    hooks = [
        sample("Recorder", mode="audit", name="auditor"),
        sample("Setter", priority=300, config={"set": {}}, conditions={"wrappers": ["up__echo"]}),
        sample("Silent", priority=1, onError="ignore"),
    ]
    async with hooked(tmp_path, *hooks) as up:
        await up.ask("modern", "wrapper", "echo", {})
        found = (await up.gateway.admin("hooks")).json()
        assert found["wrappers"] == [
            {"kind": "tool", "name": "up__echo", "server": "up", "before": ["silent", "setter", "auditor"],
             "after": ["silent", "auditor"]},
            {"kind": "tool", "name": "up__send", "server": "up", "before": ["silent", "auditor"],
             "after": ["silent", "auditor"]},
        ]  # fmt: skip
        assert [row["name"] for row in found["hooks"]] == ["silent", "auditor", "setter"]
        silent = found["hooks"][0]
        assert (silent["mode"], silent["onError"], silent["breaker"]) == ("transform", "ignore", "closed")
        assert silent["counts"]["runs"] == 2
        assert (await up.gateway.admin("hooks", token=None)).status_code == 401
        where = ["--url", up.gateway.origin]
        configured = ["--config", str(up.gateway.config)]
        for arguments in (where, configured):
            command = [sys.executable, "-m", "gateway", "hooks", *arguments]
            done = await anyio.run_process(command, env={**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN})
            lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
            assert lines[0][:4] == ["up__echo", "tool", "silent, setter, auditor", "silent, auditor"]
            assert [line[0] for line in lines[2:]] == ["silent", "auditor", "setter"]
            done = await anyio.run_process([*command, "--json"], env={**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN})
            assert json.loads(done.stdout)["wrappers"] == found["wrappers"]


async def test_hook_of_an_installed_package_is_found_by_entry_point(tmp_path: Path) -> None:
    package = tmp_path / "site"
    about = package / "hooks_of_ours-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hooks-of-ours\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[typegate.hooks]\ngreet = hooks_of_ours:Greet\n")
    (package / "hooks_of_ours.py").write_text(
        "from gateway.hooks import Hook\n\nclass Greet(Hook):\n    def before_call(self, call):\n"
        "        return call.with_args({**call.args, 'greeting': self.config['word']})\n"
    )
    path = f"{package}{os.pathsep}{SAMPLES.parents[1]}"
    up, record = scripted_stdio_server(tmp_path, "up", tools=[tool("echo")])
    hooks = [
        {"name": "entry", "use": "greet", "config": {"word": "hello"}, "conditions": {"wrappers": ["echo"]}},
        {"name": "dotted", "path": "hooks_of_ours:Greet", "config": {"word": "again"}, "priority": 200},
    ]
    whole = {"mcpServers": {"up": up}, "gateway": {"hooks": hooks, "profiles": {"p": {}}}}
    (tmp_path / "mcp.json").write_text(json.dumps(whole))
    async with running_host(
        tmp_path, "--config", str(tmp_path / "mcp.json"), "--profile", "p", environment={"PYTHONPATH": path}
    ) as host:
        await host.answer(hello())
        await host.until_listed("up__echo")
        params = {"name": "up__echo", "arguments": {"x": 1}}
        answer = await host.answer({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params})
        assert answer["result"]["structuredContent"] == {"x": 1, "greeting": "again"}
        assert len(record.calls()) == 1
        assert await host.leave() == 0


def test_json_schema_covers_hooks() -> None:
    done = subprocess.run([sys.executable, "-m", "gateway", "check", "--schema"], capture_output=True, timeout=60)
    schema = json.loads(done.stdout)
    wrong = {"mcpServers": {}, "gateway": {"hooks": [{"name": "x", "use": "cache", "mode": "watch"}]}}
    right = {"mcpServers": {}, "gateway": {"hooks": [{"name": "x", "use": "cache", "mode": "audit"}]}}
    assert Draft202012Validator(schema).is_valid(right)
    assert not Draft202012Validator(schema).is_valid(wrong)
