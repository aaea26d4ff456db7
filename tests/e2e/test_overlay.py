"""What administrators change lasts: over edits of the file and restarts, shown as a difference, taken back at will."""

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
from support.gateways import TOKEN, RunningGateway, glance_again, running_gateway, serving
from support.teams import each_worker, ready, running_team
from support.upstreams.running import builtin_tools, scripted_http_server

KEYS = {"auth": {"apiKeys": [{"name": "owner", "key": "tg_" + "o" * 40}]}}
OWNER = {"authorization": "Bearer tg_" + "o" * 40}


async def states(gateway: RunningGateway) -> dict[str, str]:
    return {row["name"]: row["state"] for row in (await gateway.admin("servers")).json()["servers"]}


async def changes(gateway: RunningGateway) -> list[tuple[str, str]]:
    rows = (await gateway.admin("overlay")).json()["changes"]
    return [(row["kind"], row["target"]) for row in rows]


async def names_at(host: Host) -> set[str]:
    # Each question has an id of its own: answers to earlier ones are kept.
    question = {"jsonrpc": "2.0", "id": f"names-{len(host.heard)}", "method": "tools/list"}
    answer = await host.answer(question)
    return {one["name"] for one in answer["result"]["tools"] if "__" in one["name"]}


@pytest.mark.heavy
async def test_servers_that_are_added_removed_and_disabled_stay_so_over_a_restart_with_a_read_only_file(
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
            # One is taken back, then all.
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


async def test_an_edit_of_the_file_takes_nothing_of_it_away(tmp_path: Path) -> None:
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
async def test_a_key_that_is_issued_lasts_and_one_of_a_read_only_file_is_revoked(tmp_path: Path) -> None:
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
async def test_a_gateway_over_stdio_heeds_what_was_disabled_while_it_runs_and_when_it_starts_again(
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
            with anyio.fail_after(10):
                while await names_at(host) != {"second__echo"}:
                    await glance_again()
            assert await host.leave() == 0
        async with running_host(tmp_path, *line) as host:
            await host.until_listed("second__echo")
            assert await names_at(host) == {"second__echo"}
            # Taken back on the page, it is there again at once.
            assert (await gateway.admin("overlay", "DELETE")).status_code == 200
            await host.until_listed("first__echo", "first__sleep", "second__sleep")
            assert await host.leave() == 0


@pytest.mark.heavy
async def test_a_damaged_overlay_stops_the_start_and_a_server_that_cannot_be_served_any_more_is_left_out(
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
        assert "remove it to serve without what administrators have changed" in last


async def test_changes_at_the_same_time_do_not_undo_each_other(tmp_path: Path) -> None:
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
async def test_each_worker_serves_what_was_changed_at_another(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_team(tmp_path, {"first": up.config}) as gateway,
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


async def test_rules_and_hooks_of_the_file_may_be_about_what_administrators_have_added(tmp_path: Path) -> None:
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
            with anyio.fail_after(10):
                while (await gateway.admin("config")).json()["reloads"] == 0:
                    assert (await gateway.admin("config")).json()["error"] is None
                    await glance_again()
        async with serving(gateway.config, tmp_path) as again:
            with anyio.fail_after(10):
                while not {"mail__sleep", "mail2__echo"} <= await listed_to(again, OWNER):
                    await glance_again()
            assert await listed_to(again, key) == {"mail__echo"}
            # Who is named by a slip is still told, and the file not used.
            written(again.config, [{**rules[0], "principals": ["owner-3"]}])
            with anyio.fail_after(10):
                while (error := (await again.admin("config")).json()["error"]) is None:
                    await glance_again()
            assert "owner-3 matches no caller; did you mean owner-2?" in error
        said = await anyio.run_process(
            [sys.executable, "-m", "gateway", "serve", "--config", str(again.config), "--port", "0",
             "--state-dir", str(again.state_dir)],
            check=False, stderr=-1,
        )  # fmt: skip
        assert said.returncode == 2
        assert b"owner-3 matches no caller; did you mean owner-2?" in said.stderr
        # Commands that read the file know of them, too.
        written(again.config, rules)
        listed = await anyio.run_process(
            [sys.executable, "-m", "gateway", "key", "list", "--config", str(again.config)],
            env={**os.environ, "TYPEGATE_STATE_DIR": str(again.state_dir)}, check=False,
        )  # fmt: skip
        assert (listed.returncode, b"owner" in listed.stdout) == (0, True)


async def test_a_key_that_rules_are_about_is_revoked_and_the_next_start_takes_the_rules(tmp_path: Path) -> None:
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
            with anyio.fail_after(10):
                while (await gateway.admin("config")).json()["reloads"] == 0:
                    await glance_again()
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


async def test_two_gateways_on_one_state_directory_keep_the_changes_of_both(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        async with (
            running_gateway(tmp_path, {"one": up.config, "two": up.config}) as first,
            serving(first.config, tmp_path) as second,
        ):
            for gateway, name in ((first, "one"), (second, "two")):
                await gateway.until_listed("one__echo", "two__echo")
                assert (await gateway.admin(f"servers/{name}/disable", "POST", {})).status_code == 200
            # The gateway that has changed something knows what the other one had changed.
            assert await changes(second) == [("server_disabled", "one"), ("server_disabled", "two")]
            assert set((await states(second)).values()) == {"disabled"}
        async with serving(first.config, tmp_path) as again:
            assert await states(again) == {"one": "disabled", "two": "disabled"}


async def test_a_change_that_cannot_be_kept_is_in_use_and_not_called_done(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up:
        async with running_gateway(tmp_path, {"up": up.config}, gateway=KEYS) as gateway:
            gateway.config.chmod(0o400)
            (gateway.state_dir / "overlays").write_text("no folder")
            answer = await gateway.admin("servers/up/disable", "POST", {})
            assert answer.status_code == 500
            assert "in use, and is lost when the gateway ends" in answer.text
            assert "make the directory writable" in answer.text
            assert await states(gateway) == {"up": "disabled"}
            # What could not be kept is kept with the next change.
            (gateway.state_dir / "overlays").unlink()
            assert (await gateway.admin("keys", "POST", {"name": "other"})).status_code == 201
        async with serving(gateway.config, tmp_path) as again:
            assert await states(again) == {"up": "disabled"}
            assert await changes(again) == [("server_disabled", "up"), ("key_added", "other")]


async def test_a_session_that_was_ended_and_a_link_that_was_used_stay_so_over_a_restart(tmp_path: Path) -> None:
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


async def test_a_change_waits_for_another_process_and_says_so_if_that_does_not_end(tmp_path: Path) -> None:
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
