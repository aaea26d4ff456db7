"""Changes by administrators persist over edits and restarts, are shown as a difference, and can be reverted."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from support.callers import Host, running_host
from support.gateways import TOKEN, RunningGateway, brief_pause, running_gateway, serving
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, ready, running_workers

KEYS = {"auth": {"apiKeys": [{"name": "owner", "key": "tg_" + "o" * 40}]}}
OWNER = {"authorization": "Bearer tg_" + "o" * 40}


async def states(gateway: RunningGateway) -> dict[str, str]:
    return {row["name"]: row["state"] for row in (await gateway.admin("servers")).json()["servers"]}


async def changes(gateway: RunningGateway) -> list[tuple[str, str]]:
    rows = (await gateway.admin("overlay")).json()["changes"]
    return [(row["kind"], row["target"]) for row in rows]


async def names_at(host: Host) -> set[str]:
    # Each question has a distinct id, because answers to earlier ones are stored.
    question = {"jsonrpc": "2.0", "id": f"names-{len(host.received)}", "method": "tools/list"}
    answer = await host.answer(question)
    return {one["name"] for one in answer["result"]["tools"] if "__" in one["name"]}


@pytest.mark.heavy
async def test_added_removed_and_disabled_servers_persist_with_a_read_only_file(
    tmp_path: Path,
) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        entry = {**up.config, "headers": {"X-Key": "secret-of-the-server"}}
        async with running_gateway(tmp_path, {"kept": up.config, "gone": up.config, "off": up.config}) as gateway:
            gateway.config.chmod(0o400)
            before = gateway.config.read_bytes()
            assert (await gateway.admin("servers", "POST", {"name": "added", "config": entry})).status_code == 201
            assert (await gateway.admin("servers/gone", "DELETE")).status_code == 204
            assert (await gateway.admin("servers/off/disable", "POST", {})).json()["state"] == "disabled"
            await gateway.until_listed("kept__sleep", "added__echo")
            assert (await gateway.admin("wrappers/kept__sleep/disable", "POST", {})).status_code == 200
            assert set(await gateway.tools()) == {"kept__echo", "added__echo", "added__sleep"}
            assert gateway.config.read_bytes() == before
        async with serving(gateway.config, tmp_path) as again:
            assert set(await again.until_listed("kept__echo", "added__echo")) == {
                "kept__echo", "added__echo", "added__sleep",
            }  # fmt: skip
            assert (await states(again)).keys() == {"kept", "off", "added"}
            assert (await states(again))["off"] == "disabled"
            assert await changes(again) == [
                ("server_added", "added"), ("server_removed", "gone"), ("server_disabled", "off"),
                ("tool_disabled", "kept__sleep"),
            ]  # fmt: skip
            shown = await again.admin("overlay")
            assert "secret-of-the-server" not in shown.text
            [kept] = (again.state_dir / "overlays").iterdir()
            assert kept.stat().st_mode & 0o777 == 0o600
            # Revert one change, and then all of them.
            tag = shown.headers["etag"]
            [row] = [one for one in shown.json()["changes"] if one["target"] == "gone"]
            outdated = {"authorization": "Bearer admin-token-of-the-test", "if-match": '"other"'}
            url = f"{again.origin}/admin/overlay/{row['id']}"
            assert (await again.client.delete(url, headers=outdated)).status_code == 412
            assert (await again.client.delete(url, headers=outdated | {"if-match": tag})).status_code == 200
            await again.until_listed("gone__echo")
            assert (await again.admin("overlay", "DELETE")).status_code == 200
            await again.until_listed("kept__sleep", "off__echo", "gone__echo")
            assert (await states(again)).keys() == {"kept", "gone", "off"}


async def test_editing_the_file_keeps_administrators_changes(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"first": up.config}) as gateway,
    ):
        await gateway.admin("servers", "POST", {"name": "added", "config": up.config})
        await gateway.admin("servers/first/disable", "POST", {})
        gateway.config.write_text(json.dumps({"mcpServers": {"first": up.config, "second": up.config}}))
        await gateway.until_listed("second__echo", "added__echo")
        assert (await states(gateway))["first"] == "disabled"
        row = (await gateway.admin("servers/first/enable", "POST", {})).json()
        assert row["name"] == "first"
        await gateway.until_listed("first__echo")
        assert await changes(gateway) == [("server_added", "added")]


@pytest.mark.heavy
async def test_issued_key_persists_and_one_of_a_read_only_file_is_revoked(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, gateway=KEYS) as gateway:
        made = (await gateway.admin("keys", "POST", {"name": "robot", "scopes": ["tools:read"]})).json()
        robot = {"authorization": f"Bearer {made['key']}"}
        assert (await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, robot)).status_code != 401
        refused = await gateway.admin("keys", "POST", {"name": "robot", "scopes": ["tool:read"]})
        assert refused.status_code == 400
        assert "tools:read" in refused.json()["error"]
    async with serving(gateway.config, tmp_path) as again:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await again.post(ping, robot)).status_code != 401
        assert {row["name"]: row["origin"] for row in (await again.admin("keys")).json()["keys"]} == {
            "owner": "file", "robot": "overlay",
        }  # fmt: skip
        assert (await again.admin("keys/robot", "DELETE")).json()["revoked"] == ["robot"]
        assert (await again.post(ping, robot)).status_code == 401
        assert await changes(again) == []


@pytest.mark.heavy
async def test_stdio_gateway_honors_disabled_items_at_runtime_and_restart(
    tmp_path: Path,
) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up,
        running_gateway(tmp_path, {"first": up.config, "second": up.config}) as gateway,
    ):
        await gateway.until_listed("first__sleep", "second__sleep")
        line = ("--config", str(gateway.config), "--state-dir", str(gateway.state_dir))
        async with running_host(tmp_path, *line) as host:
            await host.until_listed("first__sleep", "second__sleep")
            assert (await gateway.admin("servers/first/disable", "POST", {})).status_code == 200
            assert (await gateway.admin("wrappers/second__sleep/disable", "POST", {})).status_code == 200
            with anyio.fail_after(25):
                while await names_at(host) != {"second__echo"}:
                    await brief_pause()
            assert await host.leave() == 0
        async with running_host(tmp_path, *line) as host:
            await host.until_listed("second__echo")
            assert await names_at(host) == {"second__echo"}
            # After the change is reverted on the page, the tool is listed again at once.
            assert (await gateway.admin("overlay", "DELETE")).status_code == 200
            await host.until_listed("first__echo", "first__sleep", "second__sleep")
            assert await host.leave() == 0


@pytest.mark.heavy
async def test_damaged_overlay_stops_the_start_and_unusable_servers_are_excluded(
    tmp_path: Path,
) -> None:
    async with running_gateway(tmp_path, {"bank": {"url": "http://127.0.0.1:9/mcp"}}) as gateway:
        await gateway.admin("servers", "POST", {"name": "added", "config": {"url": "http://127.0.0.1:9/mcp"}})
    [kept] = (gateway.state_dir / "overlays").iterdir()
    document = json.loads(kept.read_text())
    document["changes"][0]["entry"] = {"type": "http", "url": "no address"}
    kept.write_text(json.dumps(document))
    async with serving(gateway.config, tmp_path) as again:
        assert (await states(again))["added"] == "faulty"
    kept.write_text("{")
    # Without it, what an administrator has disabled would be in use.
    command = [sys.executable, "-m", "gateway"]
    options = ["--config", str(gateway.config), "--state-dir", str(gateway.state_dir)]
    for words in (["serve", "--port", "0"], ["serve", "--port", "0", "--workers", "2"], ["stdio"]):
        refused = await anyio.run_process([*command, *words, *options], check=False, stdin=subprocess.DEVNULL)
        assert refused.returncode == 2, words
        last = refused.stderr.decode().strip().splitlines()[-1]
        assert f"{kept} cannot be read" in last
        assert "remove it to serve without the changes of administrators" in last


async def test_concurrent_changes_do_not_undo_each_other(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep", "hang", "exit")) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
    ):
        tools = ("up__echo", "up__sleep", "up__hang", "up__exit")
        await gateway.until_listed(*tools)
        async with anyio.create_task_group() as group:
            for name in tools:
                group.start_soon(gateway.admin, f"wrappers/{name}/disable", "POST", {})
        assert sorted(await changes(gateway)) == sorted(("tool_disabled", name) for name in tools)


@pytest.mark.heavy
async def test_each_worker_serves_changes_made_at_another(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_workers(tmp_path, {"first": up.config}) as gateway,
    ):
        await ready(gateway)
        async with each_worker(gateway) as workers:
            for index, one in enumerate(workers):
                body = {"name": f"added{index}", "config": up.config}
                assert (await one.admin("servers", "POST", body)).status_code == 201
            assert (await workers[1].admin("servers/first/disable", "POST", {})).status_code == 200
            for one in workers:
                assert set(await one.until_listed("added0__echo", "added1__echo")) == {"added0__echo", "added1__echo"}
                assert len(await changes(one)) == 3


def written(path: Path, rules: object, hooks: object = ()) -> None:
    """Write rules and hooks over what a configuration says of them."""
    document = json.loads(path.read_text())
    document["gateway"] |= {"policy": {"rules": rules}, "hooks": list(hooks)}  # type: ignore[call-overload] # a document
    path.write_text(json.dumps(document))


async def listed_to(gateway: RunningGateway, headers: dict[str, str]) -> set[str]:
    answer = await gateway.rpc("tools/list", headers=headers)
    return {tool["name"] for tool in answer["result"]["tools"] if "__" in tool["name"]}


@pytest.mark.heavy
async def test_rules_and_hooks_may_refer_to_items_added_by_administrators(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        async with running_gateway(tmp_path, {"mail": up.config}, gateway=KEYS) as gateway:
            made = await gateway.admin("keys", "POST", {"name": "owner-2", "groups": ["robots-2"]})
            assert made.status_code == 201
            key = {"authorization": f"Bearer {made.json()['key']}"}
            added = {"name": "mail2", "config": {**up.config, "tags": ["post"]}}
            assert (await gateway.admin("servers", "POST", added)).status_code == 201
            # While it runs, too.
            rules = [
                {"name": "no sleep", "principals": ["owner-2"], "deny": ["*__sleep"]},
                {"name": "not there", "groups": ["robots-2"], "servers": ["mail2"], "tags": ["post"], "deny": ["*"]},
            ]
            hook = {"name": "redact", "use": "redact", "conditions": {"principals": ["owner-2"]}}
            written(gateway.config, rules, [hook])
            with anyio.fail_after(25):
                while (await gateway.admin("config")).json()["reloads"] == 0:
                    assert (await gateway.admin("config")).json()["error"] is None
                    await brief_pause()
        async with serving(gateway.config, tmp_path) as again:
            with anyio.fail_after(25):
                while not {"mail__sleep", "mail2__echo"} <= await listed_to(again, OWNER):
                    await brief_pause()
            assert await listed_to(again, key) == {"mail__echo"}
            # A misspelt principal is still reported, and the file is not used.
            written(again.config, [{**rules[0], "principals": ["owner-3"]}])
            with anyio.fail_after(25):
                while (error := (await again.admin("config")).json()["error"]) is None:
                    await brief_pause()
            assert "owner-3 matches no caller; did you mean owner-2?" in error
        done = await anyio.run_process(
            [sys.executable, "-m", "gateway", "serve", "--config", str(again.config), "--port", "0",
             "--state-dir", str(again.state_dir)],
            check=False, stderr=-1,
        )  # fmt: skip
        assert done.returncode == 2
        assert b"owner-3 matches no caller; did you mean owner-2?" in done.stderr
        # Commands that read the file also know these keys.
        written(again.config, rules)
        listed = await anyio.run_process(
            [sys.executable, "-m", "gateway", "key", "list", "--config", str(again.config)],
            env={**os.environ, "TYPEGATE_STATE_DIR": str(again.state_dir)}, check=False,
        )  # fmt: skip
        assert (listed.returncode, b"owner" in listed.stdout) == (0, True)


@pytest.mark.heavy
async def test_key_named_in_rules_can_be_revoked_without_breaking_the_next_start(tmp_path: Path) -> None:
    rules = [{"name": "no sleep", "principals": ["owner-2", "guest"], "deny": ["*__sleep"]}]
    keys = [
        *KEYS["auth"]["apiKeys"],
        {"name": "guest", "key": "tg_" + "g" * 40},
        {"name": "guests", "key": "tg_" + "h" * 40},
    ]
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        async with running_gateway(tmp_path, {"mail": up.config}, gateway={"auth": {"apiKeys": keys}}) as gateway:
            made = (await gateway.admin("keys", "POST", {"name": "owner-2"})).json()["key"]
            written(gateway.config, rules)
            with anyio.fail_after(25):
                while (await gateway.admin("config")).json()["reloads"] == 0:
                    await brief_pause()
            for name in ("owner-2", "guest"):
                answer = await gateway.admin(f"keys/{name}", "DELETE")
                assert (answer.status_code, answer.json()["kept"]) == (200, True), answer.text
        async with serving(gateway.config, tmp_path) as again:
            for key in (made, "tg_" + "g" * 40):
                refused = await again.post(
                    {"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"authorization": f"Bearer {key}"}
                )
                assert refused.status_code == 401
            assert await listed_to(again, OWNER) is not None


@pytest.mark.heavy
async def test_two_gateways_on_one_state_directory_keep_both_changes(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        async with (
            running_gateway(tmp_path, {"one": up.config, "two": up.config}) as first,
            serving(first.config, tmp_path) as second,
        ):
            for gateway, name in ((first, "one"), (second, "two")):
                await gateway.until_listed("one__echo", "two__echo")
                assert (await gateway.admin(f"servers/{name}/disable", "POST", {})).status_code == 200
            # The gateway that has made a change also knows the changes of the other one.
            assert await changes(second) == [("server_disabled", "one"), ("server_disabled", "two")]
            assert set((await states(second)).values()) == {"disabled"}
        async with serving(first.config, tmp_path) as again:
            assert await states(again) == {"one": "disabled", "two": "disabled"}


async def test_change_that_cannot_be_stored_applies_and_is_reported_as_unsaved(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up:
        async with running_gateway(tmp_path, {"up": up.config}, gateway=KEYS) as gateway:
            gateway.config.chmod(0o400)
            (gateway.state_dir / "overlays").write_text("no folder")
            answer = await gateway.admin("servers/up/disable", "POST", {})
            assert answer.status_code == 500
            assert "applied, but will be lost when the gateway ends" in answer.text
            assert "make the directory writable" in answer.text
            assert await states(gateway) == {"up": "disabled"}
            # A change that could not be saved is saved with the next one.
            (gateway.state_dir / "overlays").unlink()
            assert (await gateway.admin("keys", "POST", {"name": "other"})).status_code == 201
        async with serving(gateway.config, tmp_path) as again:
            assert await states(again) == {"up": "disabled"}
            assert await changes(again) == [("server_disabled", "up"), ("key_added", "other")]


@pytest.mark.heavy
async def test_ended_session_and_used_link_stay_invalid_after_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        session = f"{gateway.origin}/admin/session"
        code = (await gateway.admin("session/links", "POST")).json()["code"]
        begun = await gateway.client.post(session, headers={"authorization": f"Bearer {code}"})
        assert begun.status_code == 200
        cookie = begun.headers["set-cookie"].partition(";")[0]
        signed_in = {"cookie": cookie, "x-csrf-token": begun.json()["csrf"], "origin": gateway.origin}
        gateway.client.cookies.clear()
        assert (await gateway.client.get(session, headers={"cookie": cookie})).status_code == 200
        assert (await gateway.client.delete(session, headers=signed_in)).status_code == 204
        assert (await gateway.client.get(session, headers={"cookie": cookie})).status_code == 401
    async with serving(gateway.config, tmp_path) as again, serving(gateway.config, tmp_path) as beside:
        for one in (again, beside):
            session = f"{one.origin}/admin/session"
            assert (await one.client.get(session, headers={"cookie": cookie})).status_code == 401
            assert (await one.client.post(session, headers={"authorization": f"Bearer {code}"})).status_code == 401
        # A link is good once for all processes of a state directory.
        code = (await again.admin("session/links", "POST")).json()["code"]
        begun = [
            (await one.client.post(f"{one.origin}/admin/session", headers={"authorization": f"Bearer {code}"}))
            for one in (beside, again)
        ]
        assert [one.status_code for one in begun] == [200, 401]


@pytest.mark.heavy
async def test_change_waits_for_another_process_and_reports_a_timeout(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"one": up.config, "two": up.config}) as gateway,
    ):
        await gateway.until_listed("one__echo", "two__echo")
        url, head = f"{gateway.origin}/admin/servers/one/disable", {"authorization": f"Bearer {TOKEN}"}
        with locked(gateway.state_dir / "overlays.lock"), pytest.raises(httpx2.ReadTimeout):
            await gateway.client.post(url, json={}, headers=head, timeout=0.5)
        assert (await gateway.admin("servers/two/disable", "POST", {})).status_code == 200
        with locked(gateway.state_dir / "overlays.lock"):
            again = f"{gateway.origin}/admin/servers/two/enable"
            refused = await gateway.client.post(again, json={}, headers=head, timeout=15)
        assert refused.status_code == 409
        assert "another process has been changing" in refused.text
        assert (await states(gateway))["two"] == "disabled"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock as another gateway would."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@pytest.mark.heavy
async def test_several_tools_are_disabled_and_enabled_at_once_or_none(tmp_path: Path) -> None:
    fs, _ = scripted_stdio_server(tmp_path, "fs", tools=[tool("a"), tool("b"), tool("c")])
    async with running_gateway(tmp_path, {"fs": fs}) as gateway:
        await gateway.until_listed("fs__a", "fs__b", "fs__c")
        wrong = await gateway.admin("wrappers", "POST", {"names": ["fs__a", "fs__missing"], "disabled": True})
        assert wrong.status_code == 404
        assert set(await gateway.tools()) == {"fs__a", "fs__b", "fs__c"}
        both = {"names": ["fs__a", "fs__b", "fs__a"]}
        for _ in range(2):
            assert (await gateway.admin("wrappers", "POST", {**both, "disabled": True})).status_code == 200
            assert set(await gateway.tools()) == {"fs__c"}
        assert len((await gateway.admin("overlay")).json()["changes"]) == 2
        assert (await gateway.admin("wrappers", "POST", {**both, "disabled": False})).status_code == 200
        assert set(await gateway.until_listed("fs__a", "fs__b")) == {"fs__a", "fs__b", "fs__c"}
        refused = await gateway.admin("wrappers", "POST", {"names": [], "disabled": True})
        assert refused.status_code == 400
