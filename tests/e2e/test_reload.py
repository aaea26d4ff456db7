"""A changed configuration file is applied while calls run; an invalid one changes nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import hello
from support.gateways import RunningGateway, answer_of, brief_pause, running_gateway
from support.upstreams.running import Recording, scripted_http_server, scripted_stdio_server, tool
from support.visitors import ALWAYS, CHANGED, Visitor, in_both_eras

ECHO = tool("echo", n={"type": "integer"})


def up(tmp_path: Path, name: str = "up", **script: Any) -> tuple[dict[str, Any], Recording]:
    return scripted_stdio_server(tmp_path, name, **({"tools": [ECHO]} | script))


def rewrite(gateway: RunningGateway, change: Callable[[dict[str, Any]], None]) -> None:
    """Replace the file by another one, as editors do."""
    document = json.loads(gateway.config.read_text())
    change(document)
    fresh = gateway.config.with_suffix(".new")
    fresh.write_text(json.dumps(document))
    os.replace(fresh, gateway.config)


async def state(gateway: RunningGateway) -> dict[str, Any]:
    row: dict[str, Any] = (await gateway.admin("config")).json()
    return row


async def until(gateway: RunningGateway, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    with anyio.fail_after(25):
        while not holds(row := await state(gateway)):
            await brief_pause()
    return row


async def until_served(gateway: RunningGateway, *names: str) -> None:
    with anyio.fail_after(25):
        while set(await gateway.tools()) != set(names):
            await brief_pause()


@in_both_eras
async def test_changed_supplement_is_announced_once_without_relisting(era: str, tmp_path: Path) -> None:
    config, record = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        visitor = Visitor(gateway=gateway, era=era)
        async with visitor.changes() as changes:
            rewrite(gateway, lambda one: one["mcpServers"]["up"].update(supplement="More."))
            assert (await changes.next())["method"] == CHANGED
            assert (await visitor.listed())["up__echo"]["description"] == "Does echo.\n\nMore."
            # Nothing that is shown has changed: nothing is announced before the next real change is.
            rewrite(gateway, lambda one: one["mcpServers"]["up"].update(callTimeout=50))
            await until(gateway, lambda row: row["reloads"] == 2)
            rewrite(gateway, lambda one: one["mcpServers"]["up"].update(supplement="Less."))
            assert (await changes.next())["method"] == CHANGED
            assert (await visitor.listed())["up__echo"]["description"] == "Does echo.\n\nLess."
        assert len(record.requests("tools/list")) == 1
        assert len(record.starts()) == 1


@in_both_eras
async def test_change_is_announced_only_to_profiles_that_show_it(era: str, tmp_path: Path) -> None:
    a, record = up(tmp_path, "a")
    b, _ = up(tmp_path, "b")
    profiles = {"one": {"servers": ["a"]}, "two": {"servers": ["b"], "supplements": {"b__echo": "Old."}}}
    async with running_gateway(tmp_path, {"a": a, "b": b}, gateway={"profiles": profiles}) as gateway:
        await gateway.until_listed("a__echo", "b__echo")
        visitor = Visitor(gateway=gateway, era=era)
        async with visitor.changes("one") as one, visitor.changes("two") as two:
            rewrite(gateway, lambda file: file["gateway"]["profiles"]["two"].update(supplements={"b__echo": "New."}))
            assert (await two.next())["method"] == CHANGED
            assert (await visitor.listed("two"))["b__echo"]["description"] == "Does echo.\n\nNew."
            rewrite(gateway, lambda file: file["gateway"]["profiles"]["one"].update(tools=["nothing"]))
            assert (await one.next())["method"] == CHANGED
            assert set(await visitor.listed("one")) == ALWAYS
        assert len(record.requests("tools/list")) == 1


@in_both_eras
async def test_invalid_file_keeps_the_running_configuration_with_a_reason(era: str, tmp_path: Path) -> None:
    config, _ = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        visitor = Visitor(gateway=gateway, era=era)
        good = gateway.config.read_text()
        before = (await visitor.sent("tools/list")).content
        for bad, why in (
            ("{", "is not JSON"),
            ('{"mcpServers": {"up": {}}}', "command"),
            ('{"mcpServers": {}, "gateway": {"listn": {}}}', "unknown key"),
            ('{"mcpServers": [], "gateway": {}}', "an object"),
        ):
            gateway.config.write_text(bad)
            row = await until(gateway, lambda row, why=why: row["error"] is not None and why in row["error"])
            assert row["reloads"] == 0
            assert (await visitor.sent("tools/list")).content == before
            assert not (await visitor.called("up__echo", {"n": 1})).get("isError")
        gateway.config.unlink()
        gateway.config.write_text(good.replace('"args"', '"tags": ["x"], "args"'))
        await until(gateway, lambda row: row["error"] is None and row["reloads"] == 1)
        assert "Traceback" not in gateway.logged()


async def test_added_removed_and_reconnected_servers_do_not_affect_others(tmp_path: Path) -> None:
    a, record_a = up(tmp_path, "a")
    b, record_b = up(tmp_path, "b")
    async with running_gateway(tmp_path, {"a": a}) as gateway, scripted_http_server(tmp_path, "c", tools=[ECHO]) as c:
        await gateway.until_listed("a__echo")
        rewrite(gateway, lambda one: one["mcpServers"].update(b=b))
        await until_served(gateway, "a__echo", "b__echo")
        rewrite(gateway, lambda one: one["mcpServers"]["b"].update(env={"X": "1"}))
        with anyio.fail_after(25):
            while len(record_b.starts()) < 2:
                await brief_pause()
            while (await gateway.server("b"))["state"] != "ready":
                await brief_pause()
        assert (await gateway.server("b"))["epoch"] > 1
        rewrite(gateway, lambda one: one["mcpServers"].update(b={"url": c.url}))
        with anyio.fail_after(25):
            while (await gateway.server("b"))["type"] != "http" or (await gateway.server("b"))["state"] != "ready":
                await brief_pause()
        assert not (await gateway.call("b__echo", {"n": 1})).get("isError")
        rewrite(gateway, lambda one: one["mcpServers"].pop("b"))
        await until_served(gateway, "a__echo")
        assert (await gateway.call("b__echo", {"n": 1}))["isError"]
        assert len(record_a.starts()) == 1


@pytest.mark.heavy
async def test_running_call_finishes_when_its_server_is_changed_or_removed(tmp_path: Path) -> None:
    slow = {"tools": [tool("slow")], "behaviours": {"slow": {"kind": "sleep", "with": {"seconds": 1.5}}}}
    config, record = up(tmp_path, **slow)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__slow")
        results: list[dict[str, Any]] = []

        async def call() -> None:
            results.append(await gateway.call("up__slow"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await record.until(lambda one: one.calls("slow"))
            rewrite(gateway, lambda one: one["mcpServers"]["up"].update(env={"X": "1"}))
            await until(gateway, lambda row: row["reloads"] == 1)
            await record.until(lambda one: len(one.starts()) == 2)
            group.start_soon(call)
            await record.until(lambda one: len(one.calls("slow")) == 2)
            rewrite(gateway, lambda one: one["mcpServers"].pop("up"))
            await until(gateway, lambda row: row["reloads"] == 2)
            assert await gateway.tools() == {}
        assert [one.get("isError", False) for one in results] == [False, False]
        assert len(record.calls("slow")) == 2


@pytest.mark.heavy
async def test_five_hundred_calls_in_flight_survive_ten_reloads(tmp_path: Path) -> None:
    config, record = up(tmp_path, tools=[tool("nap")], behaviours={"nap": {"kind": "sleep", "with": {"seconds": 0.3}}})
    calm, _ = up(tmp_path, "calm")
    servers = {"up": {**config, "maxConcurrency": 1_000}, "calm": calm}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("up__nap", "calm__echo")
        visitors = [Visitor(gateway=gateway, era=era) for era in ("2026-07-28", "2025-11-25")]
        await visitors[1].session()
        failed: list[Any] = []
        done = 0

        async def call(number: int) -> None:
            nonlocal done
            visitor = visitors[number % len(visitors)]
            answer = answer_of(await visitor.sent("tools/call", {"name": "up__nap", "arguments": {}}))
            if "result" not in answer or answer["result"].get("isError"):
                failed.append(answer)
            done += 1

        changes: list[Callable[[dict[str, Any]], None]] = [
            lambda one: one["mcpServers"]["up"].update(supplement="One."),
            lambda one: one["mcpServers"]["up"].update(env={"X": "1"}),
            lambda one: one["mcpServers"].update(more=calm),
            lambda one: one["mcpServers"]["calm"].update(deny=["echo"]),
            lambda one: one["mcpServers"]["up"].update(env={"X": "2"}),
            lambda one: one["mcpServers"].pop("more"),
            lambda one: one["gateway"].update(profiles={"p": {"servers": ["up"]}}),
            lambda one: one["mcpServers"]["up"].update(callTimeout=40),
            lambda one: one["mcpServers"]["calm"].update(deny=[]),
            lambda one: one["mcpServers"]["up"].pop("env"),
        ]
        async with anyio.create_task_group() as group:
            for count, change in enumerate(changes, 1):
                for number in range(50):
                    group.start_soon(call, count * 1_000 + number)
                await record.until(lambda one, many=count * 10: len(one.calls("nap")) >= many, within_s=20)
                rewrite(gateway, change)
                await until(gateway, lambda row, count=count: row["reloads"] >= count)
        assert (done, failed) == (500, [])
        assert len(record.calls("nap")) == 500


async def test_keys_change_at_once_and_a_reload_never_opens_the_gateway(tmp_path: Path) -> None:
    config, _ = up(tmp_path)
    keys = {"auth": {"apiKeys": [{"name": "ann", "key": "key-of-ann"}]}}
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        rewrite(gateway, lambda one: one["gateway"].update(keys))
        await until(gateway, lambda row: row["reloads"] == 1)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await gateway.post(ping)).status_code == 401
        assert (await gateway.rpc("tools/list", headers={"authorization": "Bearer key-of-ann"}))["result"]["tools"]


async def test_changed_public_url_changes_the_served_hosts(tmp_path: Path) -> None:
    config, _ = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}, gateway={"publicUrl": "https://old.test"}) as gateway:

        async def served() -> dict[str, bool]:
            at = {name: await gateway.post(hello(), {"host": f"{name}.test"}) for name in ("old", "new")}
            return {name: answer.status_code == 200 for name, answer in at.items()}

        assert await served() == {"old": True, "new": False}
        rewrite(gateway, lambda document: document["gateway"].update(publicUrl="https://new.test"))
        with anyio.fail_after(25):
            while await served() != {"old": False, "new": True}:
                await brief_pause()


async def test_sighup_and_a_swapped_symlink_reload_too(tmp_path: Path) -> None:
    config, _ = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        gateway.process.send_signal(signal.SIGHUP)
        await until(gateway, lambda row: row["reloads"] == 1)
        # How a mounted ConfigMap changes: a link to a directory is swapped.
        one, two = tmp_path / "..one", tmp_path / "..two"
        document = json.loads(gateway.config.read_text())
        for folder, text in ((one, "One."), (two, "Two.")):
            folder.mkdir()
            document["mcpServers"]["up"]["supplement"] = text
            (folder / "file.json").write_text(json.dumps(document))
        data = tmp_path / "..data"
        data.symlink_to(one)
        gateway.config.unlink()
        gateway.config.symlink_to(data / "file.json")
        await until(gateway, lambda row: row["reloads"] == 2)
        fresh = tmp_path / "..fresh"
        fresh.symlink_to(two)
        os.replace(fresh, data)
        await until(gateway, lambda row: row["reloads"] == 3)
        assert (await gateway.tools())["up__echo"]["description"].endswith("Two.")


async def test_change_between_reading_and_watching_the_file_is_applied(tmp_path: Path) -> None:
    config, _ = up(tmp_path)
    later, _ = up(tmp_path, "later")
    # Hooks are imported after the file was read, and before the watch begins.
    (tmp_path / "meddling.py").write_text(
        "import json\n"
        "from pathlib import Path\n"
        "from gateway.hooks import Hook\n"
        "path = Path(__file__).with_name('typegate.json')\n"
        "document = json.loads(path.read_text())\n"
        f"document['mcpServers']['later'] = {later!r}\n"
        "path.write_text(json.dumps(document))\n"
        "class Idle(Hook):\n"
        "    async def before_call(self, call):\n"
        "        return None\n"
    )
    hook = {"name": "idle", "path": "./meddling.py:Idle"}
    async with running_gateway(tmp_path, {"up": config}, gateway={"hooks": [hook]}) as gateway:
        await until_served(gateway, "up__echo", "later__echo")


async def test_settings_that_need_a_restart_are_reported(tmp_path: Path) -> None:
    config, _ = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        rewrite(gateway, lambda one: one["gateway"].update(listen={"port": 1}))
        await until(gateway, lambda row: row["reloads"] == 1)
        assert "gateway.listen takes effect at the next start" in gateway.logged()


@in_both_eras
async def test_rapid_reloads_end_with_the_last_change_and_fail_no_call(era: str, tmp_path: Path) -> None:
    config, record = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        visitor = Visitor(gateway=gateway, era=era)
        await visitor.listed()
        good = json.loads(gateway.config.read_text())
        for count in range(300):
            good["mcpServers"]["up"]["supplement"] = f"Number {count}."
            # Every third is cut off in the middle, as a program leaves it that writes in place.
            text = json.dumps(good)
            gateway.config.write_text(text[: len(text) // 2] if count % 3 == 0 else text)
            if count % 10 == 0:
                assert not (await visitor.called("up__echo", {"n": count})).get("isError")
                assert set(await visitor.listed()) == ALWAYS | {"up__echo"}
        with anyio.fail_after(25):
            while (await visitor.listed())["up__echo"]["description"] != "Does echo.\n\nNumber 299.":
                await brief_pause()
        assert (await state(gateway))["error"] is None
        assert len(record.starts()) == 1
        assert len(record.requests("tools/list")) == 1
        assert "Traceback" not in gateway.logged()


async def test_new_invalid_entry_is_excluded_and_one_in_use_rejects_the_file(
    tmp_path: Path,
) -> None:
    config, _ = up(tmp_path)
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        rewrite(gateway, lambda file: file["mcpServers"].update(new={"url": "nowhere"}))
        row = await until(gateway, lambda row: row["reloads"] == 1)
        assert row["error"] is None
        assert (await gateway.server("new"))["state"] == "faulty"
        rewrite(gateway, lambda file: file["mcpServers"]["up"].update(denny=["echo"]))
        row = await until(gateway, lambda row: row["error"] is not None)
        assert "mcpServers.up.denny: unknown key that may be meant to hide something" in row["error"]
        assert "up__echo" in await gateway.tools()
        assert (await gateway.server("up"))["state"] == "ready"


SAID: dict[str, Any] = {
    "name": "reply",
    "description": "Says it again.",
    "annotations": {"readOnlyHint": True},
    "searchHint": "loud",
    "arguments": [{"name": "n", "type": "integer"}],
    "hidden": True,
}


@in_both_eras
async def test_every_change_of_a_listed_tool_is_announced(era: str, tmp_path: Path) -> None:
    bare = {"name": "echo", "description": "Does echo.", "inputSchema": {"type": "object"}}
    config, _ = up(tmp_path, tools=[bare, tool("other")])
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__echo")
        visitor = Visitor(gateway=gateway, era=era)
        async with visitor.changes() as changes:
            for key, value in SAID.items():
                listed = await visitor.listed()
                rewrite(
                    gateway, lambda one, overlay={key: value}: one["mcpServers"]["up"].update(tools={"echo": overlay})
                )
                assert (await changes.next())["method"] == CHANGED, key
                assert await visitor.listed() != listed, key
